//! Attention with what the fused kernel does not have: chunks and the gradients of sinks; linear biases as a mask.

use super::description::{Alibi, AttentionSpec};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;

/// The mask `[1,H,1,keys]` of linear biases. A bias that all keys of a query share changes nothing, so that slope · position of the key stands for
/// slope · distance.
pub(crate) fn alibi(a: &Alibi, keys: usize, device: &Device) -> TensorResult<Tensor> {
    let rounded = |v: f32| if a.bf16 { half::bf16::from_f32(v).to_f32() } else { v };
    let bias = |slope: f32, key: usize| (f64::from(rounded(rounded(slope) * key as f32)) * a.factor) as f32;
    let table = a.slopes.iter().flat_map(|&slope| (0..keys).map(move |key| bias(slope, key))).collect();
    Tensor::from_vec(table, &[1, a.slopes.len(), 1, keys], device)
}

/// softmax over keys, and the sink, of c·tanh(q·kᵀ·scale/c) + mask, times v: q `[B,H,T,D]`, k and v `[B,Hkv,S,D]` of which the first `valid` count.
/// The scores are stored.
pub(crate) fn attention(
    spec: &AttentionSpec,
    sinks: Option<&Tensor>,
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    valid: Option<usize>,
) -> TensorResult<Tensor> {
    let &[b, h, t, d] = q.dims() else { return Err(TensorError::Internal(format!("queries {} are not [B,H,T,D]", q.shape()))) };
    let (device, s) = (q.device(), k.dims()[2]);
    let (groups, kv) = (h / spec.kv_heads.max(1), spec.kv_heads);
    // The queries of a key head are rows of one product: [B, Hkv, G·T, S].
    let scores = q.reshape(&[b, kv, groups * t, d])?.matmul(&k.transpose(2, 3)?)?.cast(DType::F32)?;
    let mut scores = scores.reshape(&[b, h, t, s])?.mul(spec.scale.unwrap_or(1.0 / (d as f64).sqrt()) as f32)?;
    if let Some(c) = spec.softcap {
        scores = scores.softcap(c)?;
    }
    if let Some(mask) = mask {
        scores = scores.add(mask)?;
    }
    // How far each key lies behind the query: [T, S].
    let at = Tensor::arange(0.0, t as f64, 1.0, DType::F32, device)?.unsqueeze(1)?;
    let keys = Tensor::arange(0.0, s as f64, 1.0, DType::F32, device)?;
    let first = (valid.unwrap_or(s) as f64 - t as f64) as f32;
    let behind = at.sub(&keys)?.add(first)?;
    let hidden = behind.lt(0.0)?;
    scores = scores.masked_fill(&hidden, f64::from(f32::MIN))?;
    if let Some(window) = spec.window {
        scores = scores.masked_fill(&behind.ge(window as f32)?, f64::from(f32::MIN))?;
    }
    if let Some(chunk) = spec.chunk {
        let of = |position: Tensor| position.add(0.5)?.div(chunk as f32)?.floor();
        let other = of(at.add(first)?)?.ne(&of(keys)?)?;
        scores = scores.masked_fill(&other, f64::from(f32::MIN))?;
    }
    let weights = match sinks {
        Some(sinks) => {
            let column = sinks.reshape(&[1, -1, 1, 1])?.broadcast_to(&[b, h, t, 1])?;
            Tensor::cat(&[scores, column.contiguous()?], -1)?.softmax(-1)?.narrow(-1, 0, s)?
        }
        None => scores.softmax(-1)?,
    };
    let weights = weights.cast(q.dtype())?.reshape(&[b, kv, groups * t, s])?;
    weights.matmul(v)?.reshape((b, h, t, ()))
}
