//! Gemma 3 (Gemma team, 2025): norms before and after each part, normed queries and keys, sliding windows in five layers of six.

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::weights::Weights;
use crate::models::{KvCache, Layer, Linear, Model, ModelShape, Rope, batch_of, merge_heads, split_heads};
use crate::ops::attention::AttentionOptions;
use crate::ops::rope::RopePairs;
use crate::tensor::Tensor;

/// A Gemma 3 text model.
pub struct Gemma3 {
    shape: ModelShape,
    heads: usize,
    eps: f64,
    scale: f64,
    window: usize,
    /// Every layer of this number sees the whole context, the others a window.
    pattern: usize,
    embedding: Tensor, // [V, d]
    blocks: Vec<Block>,
    norm: Tensor, // [d]
    head: Linear, // d → V
    global: Rope,
    local: Rope,
}

struct Block {
    attn_norm: Tensor,
    q: Linear,
    q_norm: Tensor, // [D]
    k: Linear,
    k_norm: Tensor, // [D]
    v: Linear,
    o: Linear,
    attn_post_norm: Tensor,
    ffn_norm: Tensor,
    gate: Linear,
    up: Linear,
    down: Linear,
    ffn_post_norm: Tensor,
}

impl Gemma3 {
    /// Reads settings and weights; activations and cache are of `dtype`. f16 overflows in the residual stream: use f32 or bf16.
    pub fn load(w: &Weights, dtype: DType) -> TensorResult<Gemma3> {
        let d = w.need("embedding_length", "hidden_size", 1 << 20)?;
        let layers = w.need("block_count", "num_hidden_layers", 4096)?;
        let heads = w.need("attention.head_count", "num_attention_heads", 1 << 14)?;
        let kv_heads = w.need("attention.head_count_kv", "num_key_value_heads", 1 << 14)?;
        let head_dim = w.size("attention.key_length", "head_dim", 1 << 12)?.unwrap_or(256);
        let ff = w.need("feed_forward_length", "intermediate_size", 1 << 22)?;
        let context = w.need("context_length", "max_position_embeddings", 1 << 24)?;
        let eps = w.number("attention.layer_norm_rms_epsilon", "rms_norm_eps")?.unwrap_or(1e-6);
        let window = w.size("attention.sliding_window", "sliding_window", 1 << 24)?.unwrap_or(context);
        let pattern = w.size("-", "sliding_window_pattern", 4096)?.unwrap_or(6);
        if heads % kv_heads != 0 || head_dim % 2 != 0 {
            return Err(TensorError::format(
                "config",
                format!("{heads} heads, {kv_heads} of keys, of size {head_dim} do not fit together"),
            ));
        }
        let embedding = w.any("token_embd.weight")?;
        if embedding.rank() != 2 || embedding.dims()[1] != d {
            return Err(TensorError::format(
                "weights",
                format!("the token embedding has shape {}; want [vocabulary,{d}]", embedding.shape()),
            ));
        }
        let vocab = embedding.dims()[0];
        // The norm multiplies by 1 + weight; GGUF's converter has added the 1 already.
        let norm = |name: &str, len: usize| -> TensorResult<Tensor> {
            let t = w.vector(name, len)?;
            if !w.is_hub() {
                return Ok(t);
            }
            let t = t.add(1.0)?;
            t.eval()?;
            Ok(t)
        };
        let blocks = (0..layers)
            .map(|i| {
                let name = |n: &str| format!("blk.{i}.{n}");
                Ok(Block {
                    attn_norm: norm(&name("attn_norm.weight"), d)?,
                    q: w.linear(&name("attn_q"), d, heads * head_dim)?,
                    q_norm: norm(&name("attn_q_norm.weight"), head_dim)?,
                    k: w.linear(&name("attn_k"), d, kv_heads * head_dim)?,
                    k_norm: norm(&name("attn_k_norm.weight"), head_dim)?,
                    v: w.linear(&name("attn_v"), d, kv_heads * head_dim)?,
                    o: w.linear(&name("attn_output"), heads * head_dim, d)?,
                    attn_post_norm: norm(&name("post_attention_norm.weight"), d)?,
                    ffn_norm: norm(&name("ffn_norm.weight"), d)?,
                    gate: w.linear(&name("ffn_gate"), d, ff)?,
                    up: w.linear(&name("ffn_up"), d, ff)?,
                    down: w.linear(&name("ffn_down"), ff, d)?,
                    ffn_post_norm: norm(&name("post_ffw_norm.weight"), d)?,
                })
            })
            .collect::<TensorResult<Vec<_>>>()?;
        let head = if w.has("output.weight") { w.linear("output", d, vocab)? } else { Linear::new(embedding.clone(), None) };
        let rope = |base: f64| {
            let freqs: Vec<f64> = (0..head_dim / 2).map(|i| base.powf(-2.0 * i as f64 / head_dim as f64)).collect();
            Rope::new(context.min(1 << 15), &freqs, RopePairs::Halves, w.device())
        };
        let base = match w.is_hub() {
            true => w.number("-", "rope_parameters.full_attention.rope_theta")?.or(w.number("-", "rope_theta")?),
            false => w.number("rope.freq_base", "-")?,
        };
        let query = w.number("-", "query_pre_attn_scalar")?.unwrap_or(head_dim as f64);
        Ok(Gemma3 {
            shape: ModelShape { architecture: "gemma3", layers, kv_heads, head_dim, vocab, context, dtype },
            heads,
            eps,
            scale: 1.0 / query.sqrt(),
            window,
            pattern,
            embedding,
            blocks,
            norm: norm("output_norm.weight", d)?,
            head,
            global: rope(base.unwrap_or(1_000_000.0))?,
            local: rope(10_000.0)?,
        })
    }
}

impl Model for Gemma3 {
    fn shape(&self) -> ModelShape {
        self.shape.clone()
    }

    fn hidden(&self, tokens: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (tokens, t) = batch_of(tokens)?;
        let (global, local) = (self.global.at(cache.len(), t)?, self.local.at(cache.len(), t)?);
        let scale = (self.embedding.dims()[1] as f64).sqrt() as f32;
        let mut x = self.embedding.embedding(&tokens)?.mul(scale)?.cast(self.shape.dtype)?; // [B, T, d]
        for (i, b) in self.blocks.iter().enumerate() {
            let whole = (i + 1) % self.pattern == 0;
            let rope = if whole { &global } else { &local };
            let h = x.rms_norm(Some(&b.attn_norm), self.eps)?;
            let q = split_heads(&b.q.forward(&h)?, self.heads)?.rms_norm(Some(&b.q_norm), self.eps)?; // [B, H, T, D]
            let k = split_heads(&b.k.forward(&h)?, self.shape.kv_heads)?.rms_norm(Some(&b.k_norm), self.eps)?;
            let v = split_heads(&b.v.forward(&h)?, self.shape.kv_heads)?;
            let (k, v) = cache.append(i, &rope.rotate(&k)?, &v)?;
            let window = if whole { None } else { Some(self.window) };
            let options = AttentionOptions { scale: Some(self.scale), causal: true, kv_len: cache.valid(t), window };
            let a = merge_heads(&rope.rotate(&q)?.attention(&k, &v, None, &options)?)?;
            x = x.add(&b.o.forward(&a)?.rms_norm(Some(&b.attn_post_norm), self.eps)?)?;
            let h = x.rms_norm(Some(&b.ffn_norm), self.eps)?;
            let f = b.down.forward(&b.gate.forward(&h)?.gelu_tanh()?.mul(&b.up.forward(&h)?)?)?;
            x = x.add(&f.rms_norm(Some(&b.ffn_post_norm), self.eps)?)?;
        }
        cache.advance(t);
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor) -> TensorResult<Tensor> {
        self.head.forward(&hidden.rms_norm(Some(&self.norm), self.eps)?)?.cast(DType::F32)
    }

    fn repeats(&self) -> bool {
        true
    }

    fn weights(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.norm, &self.head.weight];
        for b in &self.blocks {
            all.extend([&b.attn_norm, &b.attn_post_norm, &b.ffn_norm, &b.ffn_post_norm, &b.q_norm, &b.k_norm]);
            all.extend([&b.q, &b.k, &b.v, &b.o, &b.gate, &b.up, &b.down].map(|l| &l.weight));
        }
        all
    }

    fn layers(&mut self) -> Vec<Layer<'_>> {
        let mut all = Vec::new();
        for (i, b) in self.blocks.iter_mut().enumerate() {
            let mut add = |part: &str, tensor: &str, linear| {
                all.push(Layer::new(format!("model.layers.{i}.{part}"), format!("blk.{i}.{tensor}"), linear));
            };
            add("self_attn.q_proj", "attn_q", &mut b.q);
            add("self_attn.k_proj", "attn_k", &mut b.k);
            add("self_attn.v_proj", "attn_v", &mut b.v);
            add("self_attn.o_proj", "attn_output", &mut b.o);
            add("mlp.gate_proj", "ffn_gate", &mut b.gate);
            add("mlp.up_proj", "ffn_up", &mut b.up);
            add("mlp.down_proj", "ffn_down", &mut b.down);
        }
        all
    }
}
