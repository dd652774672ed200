//! Llama (Touvron et al., 2023): RMS norm, rotary positions, grouped-query attention, gated SiLU feed-forward.

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::weights::Weights;
use crate::models::{KvCache, Layer, Linear, Model, ModelShape, Rope, batch_of, merge_heads, split_heads};
use crate::ops::attention::AttentionOptions;
use crate::ops::rope::RopePairs;
use crate::tensor::Tensor;

/// A Llama model: also SmolLM2, TinyLlama, Mistral without sliding windows.
pub struct Llama {
    shape: ModelShape,
    heads: usize,
    eps: f64,
    embedding: Tensor, // [V, d]
    blocks: Vec<Block>,
    norm: Tensor, // [d]
    head: Linear, // d → V
    rope: Rope,
    /// Whether rows of q and k are ordered so that rotated pairs are neighbours.
    adjacent: bool,
}

struct Block {
    attn_norm: Tensor, // [d]
    q: Linear,         // d → H·D
    k: Linear,         // d → Hkv·D
    v: Linear,         // d → Hkv·D
    o: Linear,         // H·D → d
    ffn_norm: Tensor,  // [d]
    gate: Linear,      // d → f
    up: Linear,        // d → f
    down: Linear,      // f → d
}

impl Llama {
    /// Reads settings and weights; activations and cache are of `dtype`.
    pub fn load(w: &Weights, dtype: DType) -> TensorResult<Llama> {
        let d = w.need("embedding_length", "hidden_size", 1 << 20)?;
        let layers = w.need("block_count", "num_hidden_layers", 4096)?;
        let heads = w.need("attention.head_count", "num_attention_heads", 1 << 14)?;
        let kv_heads = w.size("attention.head_count_kv", "num_key_value_heads", 1 << 14)?.unwrap_or(heads);
        let head_dim = w.size("attention.key_length", "head_dim", 1 << 12)?.unwrap_or(d / heads);
        let ff = w.need("feed_forward_length", "intermediate_size", 1 << 22)?;
        let context = w.need("context_length", "max_position_embeddings", 1 << 24)?;
        let eps = w.number("attention.layer_norm_rms_epsilon", "rms_norm_eps")?.unwrap_or(1e-5);
        if heads % kv_heads != 0 || head_dim % 2 != 0 || head_dim == 0 {
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
        let head = if w.has("output.weight") { w.linear("output", d, vocab)? } else { Linear::new(embedding.clone(), None) };
        let blocks = (0..layers)
            .map(|i| {
                let name = |n: &str| format!("blk.{i}.{n}");
                Ok(Block {
                    attn_norm: w.vector(&name("attn_norm.weight"), d)?,
                    q: w.linear(&name("attn_q"), d, heads * head_dim)?,
                    k: w.linear(&name("attn_k"), d, kv_heads * head_dim)?,
                    v: w.linear(&name("attn_v"), d, kv_heads * head_dim)?,
                    o: w.linear(&name("attn_output"), heads * head_dim, d)?,
                    ffn_norm: w.vector(&name("ffn_norm.weight"), d)?,
                    gate: w.linear(&name("ffn_gate"), d, ff)?,
                    up: w.linear(&name("ffn_up"), d, ff)?,
                    down: w.linear(&name("ffn_down"), ff, d)?,
                })
            })
            .collect::<TensorResult<Vec<_>>>()?;
        let norm = w.vector("output_norm.weight", d)?;
        // GGUF's converter reorders the rows of q and k so that pairs are neighbours.
        let pairs = if w.is_hub() { RopePairs::Halves } else { RopePairs::Adjacent };
        let rope = Rope::new(context.min(1 << 17), &frequencies(w, head_dim, context)?, pairs, w.device())?;
        let shape = ModelShape { architecture: "llama", layers, kv_heads, head_dim, vocab, context, dtype };
        Ok(Llama { shape, heads, eps, embedding, blocks, norm, head, rope, adjacent: !w.is_hub() })
    }
}

/// Radians per position of each pair, with the model's long-context scaling.
pub(crate) fn frequencies(w: &Weights, head_dim: usize, context: usize) -> TensorResult<Vec<f64>> {
    let hub = |k: &str| -> TensorResult<Option<f64>> {
        let own = w.number("-", &format!("rope_parameters.{k}"))?;
        if own.is_some() { Ok(own) } else { w.number("-", &format!("rope_scaling.{k}")) }
    };
    let base = match w.is_hub() {
        true => hub("rope_theta")?.or(w.number("-", "rope_theta")?),
        false => w.number("rope.freq_base", "-")?,
    };
    let base = base.unwrap_or(10_000.0);
    let mut freqs: Vec<f64> = (0..head_dim / 2).map(|i| base.powf(-2.0 * i as f64 / head_dim as f64)).collect();
    let kind = match w.is_hub() {
        true => w.text("-", "rope_parameters.rope_type")?.or(w.text("-", "rope_scaling.rope_type")?).or(w.text("-", "rope_scaling.type")?),
        false => w.text("rope.scaling.type", "-")?,
    };
    if !w.is_hub() && w.has("rope_freqs.weight") {
        // Llama 3's scaling, worked out by the converter: one divisor per pair.
        let factors = w.any("rope_freqs.weight")?.to_vec()?;
        if factors.len() != freqs.len() {
            return Err(TensorError::format("weights", format!("`rope_freqs.weight` has {} entries; want {}", factors.len(), freqs.len())));
        }
        freqs.iter_mut().zip(factors).for_each(|(f, by)| *f /= by as f64);
        return Ok(freqs);
    }
    match kind {
        None | Some("default" | "none") => {}
        Some("linear") => {
            let by = if w.is_hub() { hub("factor")? } else { w.number("rope.scaling.factor", "-")? }.unwrap_or(1.0);
            freqs.iter_mut().for_each(|f| *f /= by);
        }
        Some("llama3") => {
            let need = |k: &'static str| hub(k)?.ok_or_else(|| TensorError::format("config", format!("llama3 rope scaling without `{k}`")));
            let (factor, low, high) = (need("factor")?, need("low_freq_factor")?, need("high_freq_factor")?);
            let original = hub("original_max_position_embeddings")?.unwrap_or(context as f64);
            for f in &mut freqs {
                let wavelength = 2.0 * std::f64::consts::PI / *f;
                let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
                *f = (1.0 - smooth) * *f / factor + smooth * *f;
            }
        }
        Some(other) => return Err(TensorError::Unsupported(format!("rope scaling `{other}`; known are linear and llama3"))),
    }
    Ok(freqs)
}

impl Model for Llama {
    fn shape(&self) -> ModelShape {
        self.shape.clone()
    }

    fn hidden(&self, tokens: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (tokens, t) = batch_of(tokens)?;
        let rope = self.rope.at(cache.len(), t)?;
        let options = AttentionOptions { kv_len: cache.valid(t), ..Default::default() };
        let mut x = self.embedding.embedding(&tokens)?.cast(self.shape.dtype)?; // [B, T, d]
        for (i, b) in self.blocks.iter().enumerate() {
            let h = x.rms_norm(Some(&b.attn_norm), self.eps)?;
            let q = rope.rotate(&split_heads(&b.q.forward(&h)?, self.heads)?)?; // [B, H, T, D]
            let k = rope.rotate(&split_heads(&b.k.forward(&h)?, self.shape.kv_heads)?)?;
            let v = split_heads(&b.v.forward(&h)?, self.shape.kv_heads)?;
            let (k, v) = cache.append(i, &k, &v)?;
            let a = merge_heads(&q.attention(&k, &v, None, &options)?)?; // [B, T, H·D]
            x = x.add(&b.o.forward(&a)?)?;
            let h = x.rms_norm(Some(&b.ffn_norm), self.eps)?;
            x = x.add(&b.down.forward(&b.gate.forward(&h)?.silu()?.mul(&b.up.forward(&h)?)?)?)?;
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
            all.extend([&b.attn_norm, &b.ffn_norm]);
            all.extend([&b.q, &b.k, &b.v, &b.o, &b.gate, &b.up, &b.down].map(|l| &l.weight));
        }
        all
    }

    fn layers(&mut self) -> Vec<Layer<'_>> {
        let rows = self.adjacent.then_some(self.shape.head_dim);
        let mut all = Vec::new();
        for (i, b) in self.blocks.iter_mut().enumerate() {
            let mut add = |part: &str, tensor: &str, head_rows, linear| {
                let (module, tensor) = (format!("model.layers.{i}.{part}"), format!("blk.{i}.{tensor}"));
                all.push(Layer { head_rows, ..Layer::new(module, tensor, linear) });
            };
            add("self_attn.q_proj", "attn_q", rows, &mut b.q);
            add("self_attn.k_proj", "attn_k", rows, &mut b.k);
            add("self_attn.v_proj", "attn_v", None, &mut b.v);
            add("self_attn.o_proj", "attn_output", None, &mut b.o);
            add("mlp.gate_proj", "ffn_gate", None, &mut b.gate);
            add("mlp.up_proj", "ffn_up", None, &mut b.up);
            add("mlp.down_proj", "ffn_down", None, &mut b.down);
        }
        all
    }
}
