//! Llama (Touvron et al., 2023): RMS norm, rotary positions, grouped-query attention, gated SiLU feed-forward.

use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::block::{self, Block};
use crate::models::settings::{NONE, Settings};
use crate::models::weights::{Tensors, Weights};
use crate::models::{KvCache, Layer, Model, ModelShape, Pass, Projection, Rope, merge_heads, rope_settings, split_heads};
use crate::ops::attention::AttentionOptions;
use crate::ops::rope::RopePairs;
use crate::tensor::Tensor;
use std::sync::Arc;

/// A Llama model: also SmolLM2, TinyLlama, Mistral without sliding windows.
pub struct Llama {
    shape: ModelShape,
    c: Arc<LlamaConfig>,
    embedding: Tensor, // [V, d]
    blocks: Vec<LlamaBlock>,
    norm: Tensor,     // [d]
    head: Projection, // d → V
    rope: Rope,
    /// Whether rows of q and k are ordered so that rotated pairs are neighbours.
    adjacent: bool,
}

#[derive(Clone)]
struct LlamaBlock {
    attn_norm: Tensor, // [d]
    q: Projection,     // d → H·D
    k: Projection,     // d → Hkv·D
    v: Projection,     // d → Hkv·D
    o: Projection,     // H·D → d
    ffn_norm: Tensor,  // [d]
    gate: Projection,  // d → f
    up: Projection,    // d → f
    down: Projection,  // f → d
}

/// What the settings say.
pub(crate) struct LlamaConfig {
    pub d: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ff: usize,
    pub context: usize,
    pub eps: f64,
    pub activation: ActivationFn,
    /// Whether q, k, v and o have biases; where GGUF leaves it open, they are taken where they are.
    pub attention_bias: Option<bool>,
    /// Whether gate, up and down have biases.
    pub mlp_bias: Option<bool>,
    /// What attention scores are multiplied with, where it is not 1/√D.
    pub scale: Option<f64>,
    /// θ of the rotary positions.
    pub rope_base: f64,
    /// Radians per position of each rotated pair.
    pub rope: Vec<f64>,
}

impl LlamaConfig {
    pub(crate) fn read(s: &Settings<'_>, hub: bool) -> TensorResult<LlamaConfig> {
        let d = s.need("embedding_length", "hidden_size", 1 << 20)?;
        let heads = s.need("attention.head_count", "num_attention_heads", 1 << 14)?;
        let kv_heads = s.size("attention.head_count_kv", "num_key_value_heads", 1 << 14)?.unwrap_or(heads);
        let head_dim = s.size("attention.key_length", "head_dim", 1 << 12)?.unwrap_or(d / heads);
        let context = s.need("context_length", "max_position_embeddings", 1 << 24)?;
        if heads % kv_heads != 0 || head_dim % 2 != 0 || head_dim == 0 {
            return Err(s.wrong(format!("{heads} heads, {kv_heads} of keys, of size {head_dim} do not fit together ({})", s.sizes())));
        }
        let same = format!("only values of the size of keys are implemented ({})", s.sizes());
        s.only_number("attention.value_length", NONE, head_dim as f64, &same)?;
        s.only_flag("attention.causal", NONE, true, "only causal attention is implemented")?;
        for key in ["expert_count", "expert_used_count"] {
            s.only_number(key, NONE, 0.0, "experts are not implemented")?;
        }
        s.only_flag(NONE, "rope_interleaved", false, "only pairs of the two halves of a head are implemented")?;
        s.only_number(NONE, "partial_rotary_factor", 1.0, "only heads that rotate as a whole are implemented")?;
        let (rope_base, rope) = rope(s, hub, head_dim, context)?;
        Ok(LlamaConfig {
            d,
            layers: s.need("block_count", "num_hidden_layers", 4096)?,
            heads,
            kv_heads,
            head_dim,
            ff: s.need("feed_forward_length", "intermediate_size", 1 << 22)?,
            context,
            eps: s.positive("attention.layer_norm_rms_epsilon", "rms_norm_eps")?.unwrap_or(if hub { 1e-6 } else { 1e-5 }),
            activation: ActivationFn::read(s, "hidden_act", ActivationFn::Silu)?,
            attention_bias: hub.then_some(s.flag(NONE, "attention_bias")?.unwrap_or(false)),
            mlp_bias: hub.then_some(s.flag(NONE, "mlp_bias")?.unwrap_or(false)),
            scale: s.positive("attention.scale", NONE)?,
            rope_base,
            rope,
        })
    }
}

/// θ, and the radians per position of each pair.
fn rope(s: &Settings<'_>, hub: bool, head_dim: usize, context: usize) -> TensorResult<(f64, Vec<f64>)> {
    const DEFAULT: f64 = 10_000.0;
    if !hub {
        let base = s.positive("rope.freq_base", NONE)?.unwrap_or(DEFAULT);
        return Ok((base, rope_settings::from_gguf(s, base, head_dim)?));
    }
    let object = rope_settings::object(s, "rope_parameters")?;
    let (inside, beside) = (s.positive(NONE, &format!("{object}.rope_theta"))?, s.positive(NONE, "rope_theta")?);
    let base = inside.or(beside).unwrap_or(DEFAULT);
    Ok((base, rope_settings::from_config(s, object, base, head_dim, context)?))
}

impl Llama {
    /// Reads settings and weights; activations and cache are of `dtype`.
    ///
    /// # Errors
    /// When a setting or a tensor is missing, is not known, or does not fit the others.
    pub fn load(w: &Weights, dtype: DType) -> TensorResult<Llama> {
        let s = &Settings::new(w)?;
        let w = &Tensors::new(w, s);
        let mut c = LlamaConfig::read(s, w.is_hub())?;
        let (d, ff, q, kv) = (c.d, c.ff, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let embedding = w.embedding(d)?;
        let head = w.head(&embedding, false)?;
        let blocks = (0..c.layers)
            .map(|i| {
                let name = |n: &str| format!("blk.{i}.{n}");
                Ok(LlamaBlock {
                    attn_norm: w.vector(&name("attn_norm.weight"), d)?,
                    q: w.linear(&name("attn_q"), d, q, c.attention_bias)?,
                    k: w.linear(&name("attn_k"), d, kv, c.attention_bias)?,
                    v: w.linear(&name("attn_v"), d, kv, c.attention_bias)?,
                    o: w.linear(&name("attn_output"), q, d, c.attention_bias)?,
                    ffn_norm: w.vector(&name("ffn_norm.weight"), d)?,
                    gate: w.linear(&name("ffn_gate"), d, ff, c.mlp_bias)?,
                    up: w.linear(&name("ffn_up"), d, ff, c.mlp_bias)?,
                    down: w.linear(&name("ffn_down"), ff, d, c.mlp_bias)?,
                })
            })
            .collect::<TensorResult<Vec<_>>>()?;
        let norm = w.vector("output_norm.weight", d)?;
        if !w.is_hub() && w.has("rope_freqs.weight") {
            // Llama 3's scaling, worked out by the converter: one divisor per pair.
            let factors = w.vector("rope_freqs.weight", c.rope.len())?.to_vec()?;
            c.rope.iter_mut().zip(factors).for_each(|(f, by)| *f /= by as f64);
        }
        s.finish()?;
        // Tables of rotations that old files carry.
        w.finish(&[".rotary_emb.inv_freq", ".attn_rot_embd.weight"])?;
        // GGUF's converter reorders the rows of q and k so that pairs are neighbours.
        let pairs = if w.is_hub() { RopePairs::Halves } else { RopePairs::Adjacent };
        let context = c.context.min(rope_settings::MAX_POSITIONS);
        let rope = Rope::new(context, &c.rope, pairs, w.device())?;
        let (layers, kv_heads, head_dim, vocab) = (c.layers, c.kv_heads, c.head_dim, embedding.dims()[0]);
        let shape = ModelShape { architecture: "llama", layers, kv_heads, head_dim, width: d, vocab, context, dtype };
        Ok(Llama { shape, c: Arc::new(c), embedding, blocks, norm, head, rope, adjacent: !w.is_hub() })
    }
}

/// What blocks of one pass read besides their inputs.
#[derive(Clone)]
struct LlamaContext {
    c: Arc<LlamaConfig>,
    rope: Rope,
    mask: Option<Tensor>,
    options: AttentionOptions,
}

impl Block for LlamaBlock {
    type Context = LlamaContext;

    fn run(&self, i: usize, x: &Tensor, context: &LlamaContext, cache: &mut KvCache) -> TensorResult<Tensor> {
        let LlamaContext { c, rope, mask, options } = context;
        let h = x.rms_norm(Some(&self.attn_norm), c.eps)?;
        let q = rope.rotate(&split_heads(&self.q.forward(&h)?, c.heads)?)?; // [B, H, T, D]
        let k = rope.rotate(&split_heads(&self.k.forward(&h)?, c.kv_heads)?)?;
        let v = split_heads(&self.v.forward(&h)?, c.kv_heads)?;
        let (k, v) = cache.append(i, &k, &v)?;
        let a = merge_heads(&q.attention(&k, &v, mask.as_ref(), options)?)?; // [B, T, H·D]
        let x = x.add(&self.o.forward(&a)?)?;
        let h = x.rms_norm(Some(&self.ffn_norm), c.eps)?;
        let gate = c.activation.of(&self.gate.forward(&h)?)?;
        x.add(&self.down.forward(&gate.mul(&self.up.forward(&h)?)?)?)
    }

    fn projections(&self) -> Vec<&Projection> {
        vec![&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down]
    }
}

impl Model for Llama {
    fn shape(&self) -> ModelShape {
        self.shape.clone()
    }

    fn forward(&self, pass: &mut Pass<'_>, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (x, t) = pass.embed(self.shape.dtype, |tokens| self.embedding.embedding(tokens))?; // [B, T, d]
        let context = LlamaContext {
            c: self.c.clone(),
            rope: self.rope.at(pass, cache.len(), t)?,
            mask: pass.mask.cloned(),
            options: AttentionOptions { kv_len: cache.valid(t), scale: self.c.scale, ..Default::default() },
        };
        let x = block::run(&self.blocks, x, &context, pass, cache)?;
        cache.advance(t);
        Ok(x)
    }

    fn norm(&self, residual: &Tensor) -> TensorResult<Tensor> {
        residual.rms_norm(Some(&self.norm), self.c.eps)
    }

    fn head(&self, normed: &Tensor) -> TensorResult<Tensor> {
        self.head.forward(normed)?.cast(DType::F32)
    }

    fn repeats(&self) -> bool {
        true
    }

    fn weights(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.norm, &self.head.weight];
        for b in &self.blocks {
            all.extend([&b.attn_norm, &b.ffn_norm]);
            all.extend(b.projections().into_iter().flat_map(|l| std::iter::once(&l.weight).chain(&l.bias)));
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
