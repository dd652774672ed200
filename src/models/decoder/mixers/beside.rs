//! Attention and a state space layer beside each other (Falcon-H1, TII, 2025): the sum of what both make of the same input.

use super::Place;
use super::attention::Attention;
use super::ssd::Ssd;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::decoder::Context;
use crate::models::decoder::description::BesideSpec;
use crate::models::weights::Tensors;
use crate::models::{CachePart, KvCache, LayerCache};
use crate::tensor::Tensor;

impl BesideSpec {
    /// What a layer keeps: keys, values, columns, matrices.
    pub fn cache(&self, dtype: DType) -> LayerCache {
        let rows = CachePart::Rows { heads: self.attention.kv_heads, size: self.attention.head_dim };
        LayerCache::Own([vec![rows.clone(), rows], self.ssd.cache(dtype)].concat())
    }
}

/// Both with their weights.
#[derive(Clone)]
pub(crate) struct Beside {
    pub attention: Attention,
    pub ssd: Ssd,
    attention_scales: [f64; 2],
    ssd_scale: f64,
}

/// x·by, or x itself.
fn scaled(x: &Tensor, by: f64) -> TensorResult<Tensor> {
    if by == 1.0 { Ok(x.clone()) } else { x.mul(by as f32) }
}

impl Beside {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &BesideSpec, width: usize) -> TensorResult<Beside> {
        Ok(Beside {
            attention: Attention::load(w, i, &spec.attention, width)?,
            ssd: Ssd::load(w, i, &spec.ssd, width)?,
            attention_scales: spec.attention_scales,
            ssd_scale: spec.ssd_scale,
        })
    }

    /// `[B,T,d]` to `[B,T,d]`; what later tokens need goes to layer `i` of the cache.
    pub fn forward(&self, i: usize, h: &Tensor, context: &Context, cache: &mut KvCache) -> TensorResult<Tensor> {
        let [before, behind] = self.attention_scales;
        let states = scaled(&self.ssd.forward(Place { layer: i, part: 2 }, h, cache)?, self.ssd_scale)?;
        let attention = self.attention.forward(i, &scaled(h, before)?, context, cache)?;
        states.add(&scaled(&attention, behind)?)
    }
}
