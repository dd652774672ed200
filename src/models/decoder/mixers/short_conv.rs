//! The gated short convolution of LFM2 (Liquid AI, 2025): (b, c, x) = Win·h, y = Wout·(c · conv(b · x)), with products of elements.

use super::Place;
use super::conv::CausalConv;
use crate::error::TensorResult;
use crate::models::decoder::description::ShortConvSpec;
use crate::models::weights::Tensors;
use crate::models::{KvCache, Projection};
use crate::tensor::Tensor;

/// A gated short convolution with its weights.
#[derive(Clone)]
pub(crate) struct ShortConv {
    input: Projection, // d → 3·d
    conv: CausalConv,
    output: Projection, // d → d
}

impl ShortConv {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &ShortConvSpec, width: usize) -> TensorResult<ShortConv> {
        let name = |part: &str| format!("blk.{i}.shortconv.{part}");
        Ok(ShortConv {
            input: w.linear(&name("in_proj"), width, 3 * width, Some(spec.bias))?,
            conv: CausalConv::load(w, &name("conv"), width, spec.taps, spec.bias)?,
            output: w.linear(&name("out_proj"), width, width, Some(spec.bias))?,
        })
    }

    /// `[B,T,d]` to `[B,T,d]`; the convolution's columns go to layer `i` of the cache.
    pub fn forward(&self, i: usize, h: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
        let width = h.dims().last().copied().unwrap_or(0);
        let [b, c, x] = self.input.parts(h, [width; 3])?;
        let y = self.conv.forward(&b.mul(&x)?, Place { layer: i, part: 0 }, cache)?;
        self.output.forward(&c.mul(&y)?)
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> Vec<(&'static str, &Projection)> {
        vec![("shortconv.in_proj", &self.input), ("shortconv.out_proj", &self.output)]
    }
    /// As [`ShortConv::projections`], to be changed.
    pub fn projections_mut(&mut self) -> Vec<(&'static str, &mut Projection)> {
        vec![("shortconv.in_proj", &mut self.input), ("shortconv.out_proj", &mut self.output)]
    }
    /// What is neither a linear layer nor a norm.
    pub fn others(&self) -> impl Iterator<Item = &Tensor> {
        self.conv.weights()
    }
}
