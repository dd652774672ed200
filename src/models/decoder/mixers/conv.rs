//! The causal convolution in front of many mixers: y[t] = Σⱼ w[j]·x[t − L + 1 + j] + b for each channel by itself, whose last L − 1 columns the
//! cache keeps.

use super::Place;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::weights::Tensors;
use crate::models::{CachePart, KvCache};
use crate::tensor::Tensor;

/// A convolution with its weights.
#[derive(Clone)]
pub(crate) struct CausalConv {
    weight: Tensor, // [L, C], f32
    bias: Option<Tensor>,
}

impl CausalConv {
    /// Reads the weights of `channels` channels, of `taps` tokens each.
    pub fn load(w: &Tensors<'_>, name: &str, channels: usize, taps: usize, bias: bool) -> TensorResult<CausalConv> {
        let bias = if bias { Some(w.vector(&format!("{name}.bias"), channels)?) } else { None };
        Ok(CausalConv { weight: w.taps(&format!("{name}.weight"), channels, taps)?, bias })
    }

    /// As [`CausalConv::load`], without biases, of several tensors whose channels stand one after the other.
    pub fn load_parts(w: &Tensors<'_>, names: &[String], channels: usize, taps: usize) -> TensorResult<CausalConv> {
        let names: Vec<String> = names.iter().map(|name| format!("{name}.weight")).collect();
        Ok(CausalConv { weight: w.taps_of_parts(&names, channels, taps)?, bias: None })
    }

    /// What the cache keeps of the last tokens.
    pub fn cache(channels: usize, taps: usize, dtype: DType) -> CachePart {
        CachePart::State { dims: vec![taps - 1, channels], dtype }
    }

    /// `[B,T,C]` to `[B,T,C]`; the columns are at `place` of the cache.
    pub fn forward(&self, x: &Tensor, place: Place, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (&[b, t, c], &[taps, _]) = (x.dims(), self.weight.dims()) else { return Ok(x.clone()) };
        let before = match cache.part(place.layer, place.part)? {
            Some(columns) => columns,
            None => Tensor::zeros(&[b, taps - 1, c], x.dtype(), x.device())?,
        };
        let all = Tensor::cat(&[before, x.clone()], 1)?; // [B, L − 1 + T, C]
        let mut y: Option<Tensor> = None;
        for j in 0..taps {
            let part = all.narrow(1, j, t)?.mul(&self.weight.narrow(0, j, 1)?)?;
            y = Some(match y {
                Some(y) => y.add(&part)?,
                None => part,
            });
        }
        let y = y.unwrap_or_else(|| x.clone());
        let y = match &self.bias {
            Some(bias) => y.add(bias)?,
            None => y,
        };
        cache.set_state(place.layer, place.part, &all.narrow(1, t, taps - 1)?, y.cast(x.dtype())?)
    }

    /// The weights.
    pub fn weights(&self) -> impl Iterator<Item = &Tensor> {
        [&self.weight].into_iter().chain(&self.bias)
    }
}
