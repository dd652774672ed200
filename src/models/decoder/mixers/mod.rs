//! What carries information from token to token in a layer: attention, and what some models have in its place, a file for each.

pub(crate) mod attention;
mod beside;
mod conv;
mod delta;
mod delta_by_row;
mod latent;
mod selective;
mod short_conv;
mod ssd;

use super::Context;
use super::description::{KeysFrom, LayerSpec, MixerSpec};
use super::norm::Norm;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::weights::Tensors;
use crate::models::{CachePart, KvCache, LayerCache, Projection};
use crate::tensor::Tensor;
use attention::Attention;
use beside::Beside;
use delta::Delta;
use delta_by_row::DeltaByRow;
use latent::Latent;
use selective::Selective;
use short_conv::ShortConv;
use ssd::Ssd;

/// The mixer of a layer with its weights.
#[derive(Clone)]
pub(crate) enum Mixer {
    Attention(Attention),
    ShortConv(ShortConv),
    Delta(Delta),
    DeltaByRow(Box<DeltaByRow>),
    Ssd(Ssd),
    Selective(Selective),
    Beside(Box<Beside>),
    Latent(Latent),
}

/// Where a mixer's states are in the cache: in a layer, from a part on.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub layer: usize,
    pub part: usize,
}

/// What a layer of a model of this width keeps of past tokens; `dtype` is that of activations.
pub(crate) fn cache(l: &LayerSpec, width: usize, dtype: DType) -> LayerCache {
    match &l.mixer {
        _ if !l.flow.has_mixer() => LayerCache::nothing(),
        MixerSpec::Attention(a) => match a.keys {
            KeysFrom::Layer(other) => LayerCache::OfLayer(other),
            _ => LayerCache::keys_values(a.kv_heads, a.head_dim, a.head_dim),
        },
        MixerSpec::ShortConv(s) => LayerCache::Own(vec![conv::CausalConv::cache(width, s.taps, dtype)]),
        MixerSpec::Delta(s) => s.cache(dtype),
        MixerSpec::DeltaByRow(s) => s.cache(dtype),
        MixerSpec::Ssd(s) => LayerCache::Own(s.cache(dtype)),
        MixerSpec::Selective(s) => s.cache(dtype),
        MixerSpec::Beside(s) => s.cache(dtype),
        MixerSpec::Latent(l) => LayerCache::Own(vec![CachePart::Rows { heads: 1, size: l.rank + l.rope_dim }]),
    }
}

impl Mixer {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &MixerSpec, width: usize) -> TensorResult<Mixer> {
        Ok(match spec {
            MixerSpec::Attention(a) => Mixer::Attention(Attention::load(w, i, a, width)?),
            MixerSpec::ShortConv(s) => Mixer::ShortConv(ShortConv::load(w, i, s, width)?),
            MixerSpec::Delta(s) => Mixer::Delta(Delta::load(w, i, s, width)?),
            MixerSpec::DeltaByRow(s) => Mixer::DeltaByRow(Box::new(DeltaByRow::load(w, i, s, width)?)),
            MixerSpec::Ssd(s) => Mixer::Ssd(Ssd::load(w, i, s, width)?),
            MixerSpec::Selective(s) => Mixer::Selective(Selective::load(w, i, s, width)?),
            MixerSpec::Beside(s) => Mixer::Beside(Box::new(Beside::load(w, i, s, width)?)),
            MixerSpec::Latent(l) => Mixer::Latent(Latent::load(w, i, l, width)?),
        })
    }

    /// `[B,T,d]` to `[B,T,d]`; what later tokens need goes to layer `i` of the cache.
    pub fn forward(&self, i: usize, h: &Tensor, context: &Context, cache: &mut KvCache) -> TensorResult<Tensor> {
        let attends = matches!(self, Mixer::Attention(_) | Mixer::Latent(_));
        if context.mask.is_some() && !attends {
            let message = "a mask of tokens that do not count; layers with a state read every token: give texts of one length";
            return Err(TensorError::Unsupported(message.into()));
        }
        match self {
            Mixer::Attention(a) => a.forward(i, h, context, cache),
            Mixer::ShortConv(s) => s.forward(i, h, cache),
            Mixer::Delta(s) => s.forward(i, h, cache),
            Mixer::DeltaByRow(s) => s.forward(i, h, cache),
            Mixer::Ssd(s) => s.forward(Place { layer: i, part: 0 }, h, cache),
            Mixer::Selective(s) => s.forward(i, h, cache),
            Mixer::Beside(s) => s.forward(i, h, context, cache),
            Mixer::Latent(l) => l.forward(i, h, context, cache),
        }
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> Vec<(&'static str, &Projection)> {
        match self {
            Mixer::Attention(a) => a.projections().collect(),
            Mixer::ShortConv(s) => s.projections(),
            Mixer::Delta(s) => s.projections(),
            Mixer::DeltaByRow(s) => s.projections(),
            Mixer::Ssd(s) => s.projections(),
            Mixer::Selective(s) => s.projections(),
            Mixer::Beside(s) => s.attention.projections().chain(s.ssd.projections()).collect(),
            Mixer::Latent(l) => l.projections(),
        }
    }

    /// As [`Mixer::projections`], to be changed.
    pub fn projections_mut(&mut self) -> Vec<(&'static str, &mut Projection)> {
        match self {
            Mixer::Attention(a) => a.projections_mut().collect(),
            Mixer::ShortConv(s) => s.projections_mut(),
            Mixer::Delta(s) => s.projections_mut(),
            Mixer::DeltaByRow(s) => s.projections_mut(),
            Mixer::Ssd(s) => s.projections_mut(),
            Mixer::Selective(s) => s.projections_mut(),
            Mixer::Beside(s) => {
                let Beside { attention, ssd, .. } = &mut **s;
                attention.projections_mut().chain(ssd.projections_mut()).collect()
            }
            Mixer::Latent(l) => l.projections_mut(),
        }
    }

    /// The norms.
    pub fn norms(&self) -> Vec<&Norm> {
        match self {
            Mixer::Attention(a) => a.norms().collect(),
            Mixer::ShortConv(_) | Mixer::Ssd(_) => Vec::new(),
            Mixer::Delta(s) => s.norms().collect(),
            Mixer::DeltaByRow(s) => s.norms().collect(),
            Mixer::Selective(s) => s.norms().collect(),
            Mixer::Beside(s) => s.attention.norms().collect(),
            Mixer::Latent(l) => l.norms(),
        }
    }

    /// What is neither a linear layer nor a norm.
    pub fn others(&self) -> Vec<&Tensor> {
        match self {
            Mixer::Attention(a) => a.others().collect(),
            Mixer::ShortConv(s) => s.others().collect(),
            Mixer::Delta(s) => s.others().collect(),
            Mixer::DeltaByRow(s) => s.others().collect(),
            Mixer::Ssd(s) => s.others().collect(),
            Mixer::Selective(s) => s.others().collect(),
            Mixer::Beside(s) => s.attention.others().chain(s.ssd.others()).collect(),
            Mixer::Latent(l) => l.others(),
        }
    }
}
