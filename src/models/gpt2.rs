//! GPT-2 (Radford et al., 2019): learned positions, layer norm, joint QKV, tanh-GELU feed-forward.

use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::block::{self, Block};
use crate::models::settings::{NONE, Settings};
use crate::models::weights::{Tensors, Weights};
use crate::models::{KvCache, Layer, Model, ModelShape, Pass, Projection, merge_heads, split_heads};
use crate::ops::attention::AttentionOptions;
use crate::tensor::Tensor;
use std::sync::Arc;

/// A GPT-2 model.
pub struct Gpt2 {
    shape: ModelShape,
    c: Arc<Gpt2Config>,
    tokens: Tensor,    // [V, d]
    positions: Tensor, // [context, d]
    blocks: Vec<Gpt2Block>,
    norm: Norm,
    head: Projection, // d → V
}

/// What the settings say.
pub(crate) struct Gpt2Config {
    pub d: usize,
    pub layers: usize,
    pub heads: usize,
    pub context: usize,
    pub ff: usize,
    pub eps: f64,
    pub activation: ActivationFn,
    /// Whether attention scores are divided by √D.
    pub scale_by_size: bool,
    /// Whether attention scores are divided by the layer's number, from 1.
    pub scale_by_layer: bool,
}

impl Gpt2Config {
    pub(crate) fn read(s: &Settings<'_>) -> TensorResult<Gpt2Config> {
        let d = s.need("embedding_length", "n_embd", 1 << 20)?;
        let heads = s.need("attention.head_count", "n_head", 1 << 14)?;
        let context = s.need("context_length", "n_positions", 1 << 24)?;
        if d % heads != 0 {
            return Err(s.wrong(format!("{heads} heads do not divide {d} ({})", s.sizes())));
        }
        s.only_number("attention.head_count_kv", NONE, heads as f64, "only as many heads of keys as of queries are implemented")?;
        s.only_flag("attention.causal", NONE, true, "only causal attention is implemented")?;
        s.only_number(NONE, "n_ctx", context as f64, "`n_positions` has to be the same")?;
        Ok(Gpt2Config {
            d,
            layers: s.need("block_count", "n_layer", 4096)?,
            heads,
            context,
            ff: s.size("feed_forward_length", "n_inner", 1 << 22)?.unwrap_or(4 * d),
            eps: s.positive("attention.layer_norm_epsilon", "layer_norm_epsilon")?.unwrap_or(1e-5),
            activation: ActivationFn::read(s, "activation_function", ActivationFn::GeluTanh)?,
            scale_by_size: s.flag(NONE, "scale_attn_weights")?.unwrap_or(true),
            scale_by_layer: s.flag(NONE, "scale_attn_by_inverse_layer_idx")?.unwrap_or(false),
        })
    }

    /// What scores of layer `i` are multiplied with.
    fn scale(&self, i: usize) -> f64 {
        let by_size = if self.scale_by_size { ((self.d / self.heads) as f64).sqrt() } else { 1.0 };
        let by_layer = if self.scale_by_layer { (i + 1) as f64 } else { 1.0 };
        1.0 / by_size / by_layer
    }
}

#[derive(Clone)]
struct Norm {
    weight: Tensor,
    bias: Tensor,
}

#[derive(Clone)]
struct Gpt2Block {
    ln_1: Norm,
    qkv: Projection, // d → 3·d
    proj: Projection,
    ln_2: Norm,
    fc: Projection, // d → 4·d
    out: Projection,
}

impl Gpt2 {
    /// Reads settings and weights; activations and cache are of `dtype`.
    ///
    /// # Errors
    /// When a setting or a tensor is missing, is not known, or does not fit the others.
    pub fn load(w: &Weights, dtype: DType) -> TensorResult<Gpt2> {
        let s = &Settings::new(w)?;
        let w = &Tensors::new(w, s);
        let c = Gpt2Config::read(s)?;
        let (d, layers, context, ff) = (c.d, c.layers, c.context, c.ff);
        let norm = |name: String| -> TensorResult<Norm> {
            Ok(Norm { weight: w.vector(&format!("{name}.weight"), d)?, bias: w.vector(&format!("{name}.bias"), d)? })
        };
        // On the Hub, GPT-2's matrices are [in, out].
        let linear = |name: String, i: usize, o: usize| -> TensorResult<Projection> {
            let own = if w.is_hub() {
                let weight = w.tensor(&format!("{name}.weight"), &[i, o])?.t()?.contiguous()?;
                weight.eval()?;
                Projection::new(weight, Some(w.vector(&format!("{name}.bias"), o)?))
            } else {
                w.linear(&name, i, o, None)?
            };
            // Files keep biases in f32; what they are added to is of `dtype`.
            let bias = own.bias.map(|b| b.cast(dtype)).transpose()?;
            bias.iter().try_for_each(|b| b.eval().map(drop))?;
            Ok(Projection::new(own.weight, bias))
        };
        let tokens = w.embedding(d)?;
        let blocks = (0..layers)
            .map(|i| {
                let name = |n: &str| format!("blk.{i}.{n}");
                Ok(Gpt2Block {
                    ln_1: norm(name("attn_norm"))?,
                    qkv: linear(name("attn_qkv"), d, 3 * d)?,
                    proj: linear(name("attn_output"), d, d)?,
                    ln_2: norm(name("ffn_norm"))?,
                    fc: linear(name("ffn_up"), d, ff)?,
                    out: linear(name("ffn_down"), ff, d)?,
                })
            })
            .collect::<TensorResult<Vec<_>>>()?;
        let head = w.head(&tokens, true)?;
        let vocab = tokens.dims()[0];
        let shape = ModelShape { architecture: "gpt2", layers, kv_heads: c.heads, head_dim: d / c.heads, width: d, vocab, context, dtype };
        let positions = w.tensor("position_embd.weight", &[context, d])?;
        let norm = norm("output_norm".into())?;
        s.finish()?;
        // Masks that old files carry.
        w.finish(&[".attn.bias", ".attn.masked_bias"])?;
        Ok(Gpt2 { shape, c: Arc::new(c), tokens, positions, blocks, norm, head })
    }
}

impl Norm {
    fn forward(&self, x: &Tensor, eps: f64) -> TensorResult<Tensor> {
        x.layer_norm(Some(&self.weight), Some(&self.bias), eps)
    }
}

/// What blocks of one pass read besides their inputs.
#[derive(Clone)]
struct Gpt2Context {
    c: Arc<Gpt2Config>,
    mask: Option<Tensor>,
    kv_len: Option<usize>,
}

impl Block for Gpt2Block {
    type Context = Gpt2Context;

    fn run(&self, i: usize, x: &Tensor, context: &Gpt2Context, cache: &mut KvCache) -> TensorResult<Tensor> {
        let Gpt2Context { c, mask, kv_len } = context;
        let h = self.ln_1.forward(x, c.eps)?;
        let [q, k, v] = self.qkv.thirds(&h)?; // [B, T, d] each
        let heads = |x: &Tensor| split_heads(x, c.heads); // [B, H, T, D]
        let (k, v) = cache.append(i, &heads(&k)?, &heads(&v)?)?;
        let options = AttentionOptions { kv_len: *kv_len, scale: Some(c.scale(i)), ..Default::default() };
        let a = merge_heads(&heads(&q)?.attention(&k, &v, mask.as_ref(), &options)?)?;
        let x = x.add(&self.proj.forward(&a)?)?;
        let h = c.activation.of(&self.fc.forward(&self.ln_2.forward(&x, c.eps)?)?)?;
        x.add(&self.out.forward(&h)?)
    }

    fn projections(&self) -> Vec<&Projection> {
        vec![&self.qkv, &self.proj, &self.fc, &self.out]
    }
}

impl Model for Gpt2 {
    fn shape(&self) -> ModelShape {
        self.shape.clone()
    }

    fn forward(&self, pass: &mut Pass<'_>, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (x, t) = pass.embed(self.shape.dtype, |tokens| self.tokens.embedding(tokens))?;
        let positions = match pass.positions {
            Some(positions) => self.positions.embedding(positions)?,
            None => self.positions.narrow(0, cache.len(), t)?,
        };
        let x = x.add(&positions.cast(self.shape.dtype)?)?; // [B, T, d]
        let context = Gpt2Context { c: self.c.clone(), mask: pass.mask.cloned(), kv_len: cache.valid(t) };
        let x = block::run(&self.blocks, x, &context, pass, cache)?;
        cache.advance(t);
        Ok(x)
    }

    fn norm(&self, residual: &Tensor) -> TensorResult<Tensor> {
        self.norm.forward(residual, self.c.eps)
    }

    fn head(&self, normed: &Tensor) -> TensorResult<Tensor> {
        self.head.forward(normed)?.cast(DType::F32)
    }

    fn repeats(&self) -> bool {
        true
    }

    fn weights(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.norm.weight, &self.norm.bias, &self.head.weight];
        for b in &self.blocks {
            all.extend(b.projections().into_iter().flat_map(|l| std::iter::once(&l.weight).chain(&l.bias)));
            all.extend([&b.ln_1.weight, &b.ln_1.bias, &b.ln_2.weight, &b.ln_2.bias]);
        }
        all
    }

    fn layers(&mut self) -> Vec<Layer<'_>> {
        let mut all = Vec::new();
        for (i, b) in self.blocks.iter_mut().enumerate() {
            let mut add = |part: &str, tensor: &str, linear| {
                all.push(Layer::new(format!("transformer.h.{i}.{part}"), format!("blk.{i}.{tensor}"), linear));
            };
            add("attn.c_attn", "attn_qkv", &mut b.qkv);
            add("attn.c_proj", "attn_output", &mut b.proj);
            add("mlp.c_fc", "ffn_up", &mut b.fc);
            add("mlp.c_proj", "ffn_down", &mut b.out);
        }
        all
    }
}
