//! GPT-2 (Radford et al., 2019): learned positions, layer norm, joint QKV, tanh-GELU feed-forward.

use crate::backends::FusedGemvLimits;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::weights::Weights;
use crate::models::{KvCache, Layer, Linear, Model, ModelShape, batch_of, merge_heads, split_heads};
use crate::ops::attention::AttentionOptions;
use crate::tensor::Tensor;

/// A GPT-2 model.
pub struct Gpt2 {
    shape: ModelShape,
    heads: usize,
    eps: f64,
    scale_by_layer: bool,
    tokens: Tensor,    // [V, d]
    positions: Tensor, // [context, d]
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear, // d → V
}

struct Norm {
    weight: Tensor,
    bias: Tensor,
}

struct Block {
    ln_1: Norm,
    qkv: Linear, // d → 3·d
    proj: Linear,
    ln_2: Norm,
    fc: Linear, // d → 4·d
    out: Linear,
}

impl Gpt2 {
    /// Reads settings and weights; activations and cache are of `dtype`.
    pub fn load(w: &Weights, dtype: DType) -> TensorResult<Gpt2> {
        let d = w.need("embedding_length", "n_embd", 1 << 20)?;
        let layers = w.need("block_count", "n_layer", 4096)?;
        let heads = w.need("attention.head_count", "n_head", 1 << 14)?;
        let context = w.need("context_length", "n_positions", 1 << 24)?;
        let ff = w.size("feed_forward_length", "n_inner", 1 << 22)?.unwrap_or(4 * d);
        let eps = w.number("attention.layer_norm_epsilon", "layer_norm_epsilon")?.unwrap_or(1e-5);
        if d % heads != 0 {
            return Err(TensorError::format("config", format!("{heads} heads do not divide {d}")));
        }
        let norm = |name: String| -> TensorResult<Norm> {
            Ok(Norm { weight: w.vector(&format!("{name}.weight"), d)?, bias: w.vector(&format!("{name}.bias"), d)? })
        };
        // On the Hub, GPT-2's matrices are [in, out].
        let linear = |name: String, i: usize, o: usize| -> TensorResult<Linear> {
            let own = if w.is_hub() {
                let weight = w.tensor(&format!("{name}.weight"), &[i, o])?.t()?.contiguous()?;
                weight.eval()?;
                Linear::new(weight, Some(w.vector(&format!("{name}.bias"), o)?))
            } else {
                w.linear(&name, i, o)?
            };
            // Files keep biases in f32; what they are added to is of `dtype`.
            let bias = own.bias.map(|b| b.cast(dtype)).transpose()?;
            bias.iter().try_for_each(|b| b.eval().map(drop))?;
            Ok(Linear::new(own.weight, bias))
        };
        let tokens = w.any("token_embd.weight")?;
        if tokens.rank() != 2 || tokens.dims()[1] != d {
            return Err(TensorError::format("weights", format!("the token embedding has shape {}; want [vocabulary,{d}]", tokens.shape())));
        }
        let vocab = tokens.dims()[0];
        let blocks = (0..layers)
            .map(|i| {
                let name = |n: &str| format!("blk.{i}.{n}");
                Ok(Block {
                    ln_1: norm(name("attn_norm"))?,
                    qkv: linear(name("attn_qkv"), d, 3 * d)?,
                    proj: linear(name("attn_output"), d, d)?,
                    ln_2: norm(name("ffn_norm"))?,
                    fc: linear(name("ffn_up"), d, ff)?,
                    out: linear(name("ffn_down"), ff, d)?,
                })
            })
            .collect::<TensorResult<Vec<_>>>()?;
        let head = if w.has("output.weight") { w.linear("output", d, vocab)? } else { Linear::new(tokens.clone(), None) };
        let shape = ModelShape { architecture: "gpt2", layers, kv_heads: heads, head_dim: d / heads, vocab, context, dtype };
        let positions = w.tensor("position_embd.weight", &[context, d])?;
        Ok(Gpt2 {
            shape,
            heads,
            eps,
            scale_by_layer: w.flag("scale_attn_by_inverse_layer_idx"),
            tokens,
            positions,
            blocks,
            norm: norm("output_norm".into())?,
            head,
        })
    }
}

impl Norm {
    fn forward(&self, x: &Tensor, eps: f64) -> TensorResult<Tensor> {
        x.layer_norm(Some(&self.weight), Some(&self.bias), eps)
    }
}

impl Model for Gpt2 {
    fn shape(&self) -> ModelShape {
        self.shape.clone()
    }

    fn hidden(&self, tokens: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (tokens, t) = batch_of(tokens)?;
        let d = self.shape.kv_heads * self.shape.head_dim;
        let positions = self.positions.narrow(0, cache.len(), t)?.cast(self.shape.dtype)?;
        let mut x = self.tokens.embedding(&tokens)?.cast(self.shape.dtype)?.add(&positions)?; // [B, T, d]
        for (i, b) in self.blocks.iter().enumerate() {
            let h = b.ln_1.forward(&x, self.eps)?;
            // A GPU does the three parts of a few rows in one dispatch, and writes keys and values where they stay.
            let most = |joins: FusedGemvLimits| joins.most(self.shape.dtype, b.qkv.weight.dtype());
            let apart = b.qkv.adapter.is_none() && tokens.device().backend().fused_gemv_limits().is_some_and(|j| tokens.numel() <= most(j));
            let qkv = if apart { None } else { Some(b.qkv.forward(&h)?) }; // [B, T, 3·d]
            let part = |n: usize| {
                let own = match &qkv {
                    Some(qkv) => qkv.narrow(-1, n * d, d)?,
                    None => b.qkv.rows(n * d, d)?.forward(&h)?,
                };
                split_heads(&own, self.heads) // [B, H, T, D]
            };
            let (k, v) = cache.append(i, &part(1)?, &part(2)?)?;
            let by_layer = if self.scale_by_layer { (i + 1) as f64 } else { 1.0 };
            let scale = Some(1.0 / (self.shape.head_dim as f64).sqrt() / by_layer);
            let options = AttentionOptions { kv_len: cache.valid(t), scale, ..Default::default() };
            let a = merge_heads(&part(0)?.attention(&k, &v, None, &options)?)?;
            x = x.add(&b.proj.forward(&a)?)?;
            let h = b.fc.forward(&b.ln_2.forward(&x, self.eps)?)?.gelu_tanh()?;
            x = x.add(&b.out.forward(&h)?)?;
        }
        cache.advance(t);
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor) -> TensorResult<Tensor> {
        self.head.forward(&self.norm.forward(hidden, self.eps)?)?.cast(DType::F32)
    }

    fn repeats(&self) -> bool {
        true
    }

    fn weights(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.norm.weight, &self.norm.bias, &self.head.weight];
        for b in &self.blocks {
            all.extend([&b.qkv, &b.proj, &b.fc, &b.out].iter().flat_map(|l| std::iter::once(&l.weight).chain(&l.bias)));
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
