//! What carries information from token to token in a layer: attention, and what some models have in its place, a file for each.

mod attention;
mod latent;

use super::Context;
use super::description::{LayerSpec, MixerSpec};
use super::norm::Norm;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::weights::Tensors;
use crate::models::{CachePart, KvCache, LayerCache, Projection};
use crate::tensor::Tensor;
use attention::Attention;
use latent::Latent;

/// The mixer of a layer with its weights.
#[derive(Clone)]
pub(crate) enum Mixer {
    Attention(Attention),
    Latent(Latent),
}

/// What a layer keeps of past tokens; `dtype` is that of activations.
pub(crate) fn cache(l: &LayerSpec, _dtype: DType) -> LayerCache {
    match &l.mixer {
        _ if !l.flow.has_mixer() => LayerCache::nothing(),
        MixerSpec::Attention(a) => LayerCache::keys_values(a.kv_heads, a.head_dim, a.head_dim),
        MixerSpec::Latent(l) => LayerCache::Own(vec![CachePart::Rows { heads: 1, size: l.rank + l.turned }]),
    }
}

impl Mixer {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &MixerSpec, width: usize) -> TensorResult<Mixer> {
        Ok(match spec {
            MixerSpec::Attention(a) => Mixer::Attention(Attention::load(w, i, a, width)?),
            MixerSpec::Latent(l) => Mixer::Latent(Latent::load(w, i, l, width)?),
        })
    }

    /// `[B,T,d]` to `[B,T,d]`; what later tokens need goes to layer `i` of the cache.
    pub fn forward(&self, i: usize, h: &Tensor, context: &Context, cache: &mut KvCache) -> TensorResult<Tensor> {
        match self {
            Mixer::Attention(a) => a.forward(i, h, context, cache),
            Mixer::Latent(l) => l.forward(i, h, context, cache),
        }
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> Vec<(&'static str, &Projection)> {
        match self {
            Mixer::Attention(a) => a.projections().collect(),
            Mixer::Latent(l) => l.projections(),
        }
    }

    /// As [`Mixer::projections`], to be changed.
    pub fn projections_mut(&mut self) -> Vec<(&'static str, &mut Projection)> {
        match self {
            Mixer::Attention(a) => a.projections_mut().collect(),
            Mixer::Latent(l) => l.projections_mut(),
        }
    }

    /// The norms.
    pub fn norms(&self) -> Vec<&Norm> {
        match self {
            Mixer::Attention(a) => a.norms().collect(),
            Mixer::Latent(l) => l.norms(),
        }
    }

    /// What is neither a linear layer nor a norm.
    pub fn others(&self) -> Vec<&Tensor> {
        match self {
            Mixer::Attention(a) => a.others().collect(),
            Mixer::Latent(l) => l.others(),
        }
    }
}
