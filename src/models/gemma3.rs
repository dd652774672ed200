//! Gemma 3 (Gemma team, 2025): norms before and after each part, normed queries and keys, sliding windows in five layers of six.

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

/// Positions that tables of rotations hold at most; a model with a longer context is used up to this one.
const MAX_POSITIONS: usize = 1 << 15;

/// A Gemma 3 text model.
pub struct Gemma3 {
    shape: ModelShape,
    c: Arc<Gemma3Config>,
    embedding: Tensor, // [V, d]
    blocks: Vec<Gemma3Block>,
    norm: Tensor,     // [d]
    head: Projection, // d → V
    global: Rope,
    local: Rope,
}

#[derive(Clone)]
struct Gemma3Block {
    attn_norm: Tensor,
    q: Projection,
    q_norm: Tensor, // [D]
    k: Projection,
    k_norm: Tensor, // [D]
    v: Projection,
    o: Projection,
    attn_post_norm: Tensor,
    ffn_norm: Tensor,
    gate: Projection,
    up: Projection,
    down: Projection,
    ffn_post_norm: Tensor,
}

/// What the settings say.
struct Gemma3Config {
    d: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ff: usize,
    context: usize,
    eps: f64,
    activation: ActivationFn,
    /// Whether q, k, v and o have biases; where GGUF leaves it open, they are taken where they are.
    bias: Option<bool>,
    /// What attention scores are multiplied with.
    scale: f64,
    /// For each layer, how many keys up to its own position a query sees; `None` for all.
    windows: Vec<Option<usize>>,
    /// Radians per position of each rotated pair, in layers that see all keys and in those with windows.
    global: Vec<f64>,
    local: Vec<f64>,
    /// c in c·tanh(logits/c).
    softcap: Option<f64>,
}

impl Gemma3Config {
    fn read(s: &Settings<'_>, hub: bool) -> TensorResult<Gemma3Config> {
        if s.has_object("text_config") {
            return Err(s.refuse(NONE, "text_config", "models of text and images are not implemented"));
        }
        let d = s.need("embedding_length", "hidden_size", 1 << 20)?;
        let layers = s.need("block_count", "num_hidden_layers", 4096)?;
        let heads = s.need("attention.head_count", "num_attention_heads", 1 << 14)?;
        let kv_heads = s.need("attention.head_count_kv", "num_key_value_heads", 1 << 14)?;
        let head_dim = s.size("attention.key_length", "head_dim", 1 << 12)?.unwrap_or(256);
        let context = s.need("context_length", "max_position_embeddings", 1 << 24)?;
        if heads % kv_heads != 0 || head_dim % 2 != 0 {
            return Err(s.wrong(format!("{heads} heads, {kv_heads} of keys, of size {head_dim} do not fit together ({})", s.sizes())));
        }
        let same = format!("only values of the size of keys are implemented ({})", s.sizes());
        s.only_number("attention.value_length", NONE, head_dim as f64, &same)?;
        s.only_flag("attention.causal", "use_bidirectional_attention", !hub, "only causal attention is implemented")?;
        let (global, local) = ropes(s, hub, head_dim, context)?;
        let softcap = match s.number("final_logit_softcapping", "final_logit_softcapping")? {
            Some(v) if v < 0.0 || v == 0.0 && hub => {
                return Err(s.refuse("final_logit_softcapping", "final_logit_softcapping", "it has to be above 0"));
            }
            v => v.filter(|v| *v > 0.0),
        };
        // GGUF has no key for it: of all sizes, only 27B (of 62 layers) takes the width over the number of heads instead of the heads' size.
        let query = match hub {
            true => s.positive(NONE, "query_pre_attn_scalar")?.unwrap_or(256.0),
            false if layers == 62 => d as f64 / heads as f64,
            false => head_dim as f64,
        };
        Ok(Gemma3Config {
            d,
            layers,
            heads,
            kv_heads,
            head_dim,
            ff: s.need("feed_forward_length", "intermediate_size", 1 << 22)?,
            context,
            eps: s.positive("attention.layer_norm_rms_epsilon", "rms_norm_eps")?.unwrap_or(1e-6),
            activation: ActivationFn::read(s, "hidden_activation", ActivationFn::GeluTanh)?,
            bias: hub.then_some(s.flag(NONE, "attention_bias")?.unwrap_or(false)),
            scale: 1.0 / query.sqrt(),
            windows: windows(s, hub, layers)?,
            global,
            local,
            softcap,
        })
    }
}

/// The layers' windows: five layers with one, then one that sees all, where the settings do not say otherwise.
fn windows(s: &Settings<'_>, hub: bool, layers: usize) -> TensorResult<Vec<Option<usize>>> {
    let pattern = s.size("attention.sliding_window_pattern", "sliding_window_pattern", 4096)?.unwrap_or(6);
    let types = if hub { s.texts("layer_types")? } else { None };
    let whole: Vec<bool> = match types {
        Some(types) => {
            if types.len() != layers || types.iter().any(|t| !["full_attention", "sliding_attention"].contains(t)) {
                let want = format!("want {layers} times full_attention or sliding_attention ({})", s.sizes());
                return Err(s.refuse(NONE, "layer_types", &want));
            }
            // transformers writes it beside the list, which decides.
            s.number(NONE, "_sliding_window_pattern")?;
            types.iter().map(|t| *t == "full_attention").collect()
        }
        None => {
            s.only_number(NONE, "_sliding_window_pattern", 6.0, "`sliding_window_pattern` sets it")?;
            (1..=layers).map(|i| i % pattern == 0).collect()
        }
    };
    if hub && whole.iter().all(|w| *w) {
        // A window that no layer has may be null.
        if s.has_object("sliding_window") {
            s.size(NONE, "sliding_window", 1 << 24)?;
        }
        return Ok(vec![None; layers]);
    }
    let window = match hub {
        true => s.size(NONE, "sliding_window", 1 << 24)?.unwrap_or(4096),
        false => s.need("attention.sliding_window", NONE, 1 << 24)?,
    };
    Ok(whole.into_iter().map(|whole| if whole { None } else { Some(window) }).collect())
}

/// Radians per position of each pair in layers that see all keys, and in those with windows.
fn ropes(s: &Settings<'_>, hub: bool, head_dim: usize, context: usize) -> TensorResult<(Vec<f64>, Vec<f64>)> {
    const GLOBAL: f64 = 1_000_000.0;
    const LOCAL: f64 = 10_000.0;
    if !hub {
        let base = s.positive("rope.freq_base", NONE)?.unwrap_or(GLOBAL);
        let local = s.positive("rope.freq_base_swa", NONE)?.unwrap_or(LOCAL);
        return Ok((rope_settings::from_gguf(s, base, head_dim)?, rope_settings::unscaled(local, head_dim)));
    }
    let part = |object: &str, beside: &str, default: f64| {
        let (inside, beside) = (s.positive(NONE, &format!("{object}.rope_theta"))?, s.positive(NONE, beside)?);
        rope_settings::from_config(s, object, inside.or(beside).unwrap_or(default), head_dim, context)
    };
    // The older spelling scales the layers that see all keys.
    let global = rope_settings::object(s, "rope_parameters.full_attention")?;
    Ok((part(global, "rope_theta", GLOBAL)?, part("rope_parameters.sliding_attention", "rope_local_base_freq", LOCAL)?))
}

impl Gemma3 {
    /// Reads settings and weights; activations and cache are of `dtype`. f16 overflows in the residual stream: use f32 or bf16.
    ///
    /// # Errors
    /// When a setting or a tensor is missing, is not known, or does not fit the others.
    pub fn load(w: &Weights, dtype: DType) -> TensorResult<Gemma3> {
        let s = &Settings::new(w)?;
        let w = &Tensors::new(w, s);
        let c = Gemma3Config::read(s, w.is_hub())?;
        let (d, ff, head_dim, q, kv) = (c.d, c.ff, c.head_dim, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let embedding = w.embedding(d)?;
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
        let blocks = (0..c.layers)
            .map(|i| {
                let name = |n: &str| format!("blk.{i}.{n}");
                Ok(Gemma3Block {
                    attn_norm: norm(&name("attn_norm.weight"), d)?,
                    q: w.linear(&name("attn_q"), d, q, c.bias)?,
                    q_norm: norm(&name("attn_q_norm.weight"), head_dim)?,
                    k: w.linear(&name("attn_k"), d, kv, c.bias)?,
                    k_norm: norm(&name("attn_k_norm.weight"), head_dim)?,
                    v: w.linear(&name("attn_v"), d, kv, c.bias)?,
                    o: w.linear(&name("attn_output"), q, d, c.bias)?,
                    attn_post_norm: norm(&name("post_attention_norm.weight"), d)?,
                    ffn_norm: norm(&name("ffn_norm.weight"), d)?,
                    gate: w.linear(&name("ffn_gate"), d, ff, Some(false))?,
                    up: w.linear(&name("ffn_up"), d, ff, Some(false))?,
                    down: w.linear(&name("ffn_down"), ff, d, Some(false))?,
                    ffn_post_norm: norm(&name("post_ffw_norm.weight"), d)?,
                })
            })
            .collect::<TensorResult<Vec<_>>>()?;
        let head = w.head(&embedding, true)?;
        let norm = norm("output_norm.weight", d)?;
        s.finish()?;
        w.finish(&[".rotary_emb.inv_freq"])?;
        let context = c.context.min(MAX_POSITIONS);
        let rope = |freqs: &[f64]| Rope::new(context, freqs, RopePairs::Halves, w.device());
        let (global, local) = (rope(&c.global)?, rope(&c.local)?);
        let (layers, kv_heads, vocab) = (c.layers, c.kv_heads, embedding.dims()[0]);
        let shape = ModelShape { architecture: "gemma3", layers, kv_heads, head_dim, width: d, vocab, context, dtype };
        Ok(Gemma3 { shape, c: Arc::new(c), embedding, blocks, norm, head, global, local })
    }
}

/// What blocks of one pass read besides their inputs.
#[derive(Clone)]
struct Gemma3Context {
    c: Arc<Gemma3Config>,
    global: Rope,
    local: Rope,
    mask: Option<Tensor>,
    kv_len: Option<usize>,
}

impl Block for Gemma3Block {
    type Context = Gemma3Context;

    fn run(&self, i: usize, x: &Tensor, context: &Gemma3Context, cache: &mut KvCache) -> TensorResult<Tensor> {
        let Gemma3Context { c, global, local, mask, kv_len } = context;
        let window = c.windows[i];
        let rope = if window.is_none() { global } else { local };
        let h = x.rms_norm(Some(&self.attn_norm), c.eps)?;
        let q = split_heads(&self.q.forward(&h)?, c.heads)?.rms_norm(Some(&self.q_norm), c.eps)?; // [B, H, T, D]
        let k = split_heads(&self.k.forward(&h)?, c.kv_heads)?.rms_norm(Some(&self.k_norm), c.eps)?;
        let v = split_heads(&self.v.forward(&h)?, c.kv_heads)?;
        let (k, v) = cache.append(i, &rope.rotate(&k)?, &v)?;
        let options = AttentionOptions { scale: Some(c.scale), kv_len: *kv_len, window, ..Default::default() };
        let a = merge_heads(&rope.rotate(&q)?.attention(&k, &v, mask.as_ref(), &options)?)?;
        let x = x.add(&self.o.forward(&a)?.rms_norm(Some(&self.attn_post_norm), c.eps)?)?;
        let h = x.rms_norm(Some(&self.ffn_norm), c.eps)?;
        let gate = c.activation.of(&self.gate.forward(&h)?)?;
        let f = self.down.forward(&gate.mul(&self.up.forward(&h)?)?)?;
        x.add(&f.rms_norm(Some(&self.ffn_post_norm), c.eps)?)
    }

    fn projections(&self) -> Vec<&Projection> {
        vec![&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down]
    }
}

impl Model for Gemma3 {
    fn shape(&self) -> ModelShape {
        self.shape.clone()
    }

    fn forward(&self, pass: &mut Pass<'_>, cache: &mut KvCache) -> TensorResult<Tensor> {
        let scale = (self.embedding.dims()[1] as f64).sqrt() as f32;
        let (x, t) = pass.embed(self.shape.dtype, |tokens| self.embedding.embedding(tokens)?.mul(scale))?; // [B, T, d]
        let context = Gemma3Context {
            c: self.c.clone(),
            global: self.global.at(pass, cache.len(), t)?,
            local: self.local.at(pass, cache.len(), t)?,
            mask: pass.mask.cloned(),
            kv_len: cache.valid(t),
        };
        let x = block::run(&self.blocks, x, &context, pass, cache)?;
        cache.advance(t);
        Ok(x)
    }

    fn norm(&self, residual: &Tensor) -> TensorResult<Tensor> {
        residual.rms_norm(Some(&self.norm), self.c.eps)
    }

    fn head(&self, normed: &Tensor) -> TensorResult<Tensor> {
        let logits = self.head.forward(normed)?.cast(DType::F32)?;
        match self.c.softcap {
            Some(c) => logits.mul(1.0 / c)?.tanh()?.mul(c),
            None => Ok(logits),
        }
    }

    fn repeats(&self) -> bool {
        true
    }

    fn weights(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.norm, &self.head.weight];
        for b in &self.blocks {
            all.extend([&b.attn_norm, &b.attn_post_norm, &b.ffn_norm, &b.ffn_post_norm, &b.q_norm, &b.k_norm]);
            all.extend(b.projections().into_iter().flat_map(|l| std::iter::once(&l.weight).chain(&l.bias)));
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
