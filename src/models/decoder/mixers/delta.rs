//! The gated delta rule (Gated DeltaNet, Yang et al., 2025).
//!
//! (q, k, v) = act(conv(W·h)); q and k of length 1. Each head has a matrix S, to which each token writes what its value differs by from what its
//! key finds: S ← α·S, S ← S + k·(β·(v − Sᵀ·k))ᵀ, o = Sᵀ·q/√N with α = exp(−exp(A)·softplus(Wa·h + dt)) and β = σ(Wb·h). The layer's result is
//! Wo·(rms(o) · silu(Wz·h)). In some models β is twice that.

use super::Place;
use super::conv::CausalConv;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::decoder::description::{DeltaInputs, DeltaSpec};
use crate::models::decoder::norm::Norm;
use crate::models::weights::Tensors;
use crate::models::{CachePart, KvCache, LayerCache, Projection};
use crate::ops::linear_scan::LinearScan;
use crate::tensor::Tensor;
use std::sync::Arc;

impl DeltaSpec {
    /// Elements of all keys and of all values.
    pub fn widths(&self) -> [usize; 2] {
        [self.key_heads * self.key_dim, self.value_heads * self.value_dim]
    }
    /// What a layer keeps: the convolution's columns and the matrices.
    pub fn cache(&self, dtype: DType) -> LayerCache {
        let [keys, values] = self.widths();
        let matrices = CachePart::State { dims: vec![self.value_heads, self.key_dim, self.value_dim], dtype: DType::F32 };
        LayerCache::Own(vec![CausalConv::cache(2 * keys + values, self.taps, dtype), matrices])
    }
}

/// A gated delta rule with its weights.
#[derive(Clone)]
pub(crate) struct Delta {
    spec: Arc<DeltaSpec>,
    inputs: Projections,
    conv: CausalConv,
    /// −exp(A), `[H]`.
    rate: Tensor,
    /// `[H]`.
    dt: Tensor,
    norm: Norm,
    output: Projection,
}

/// The matrices of q, k, v, z, β and α.
#[derive(Clone)]
enum Projections {
    /// In this order.
    Separate([Projection; 6]),
    JointQkv {
        qkv: Projection,
        z: Projection,
        beta: Projection,
        alpha: Projection,
    },
    /// Their rows in this order.
    Joint {
        qkvz: Projection,
        ba: Projection,
    },
    /// For each key head, all its β and then all its α.
    JointScales {
        qkv: Projection,
        z: Projection,
        ba: Projection,
    },
}

/// The names of the matrices where none are joint; those of attention would be other tensors on the Hub.
const SEPARATE: [&str; 6] = ["ssm_q", "ssm_k", "ssm_v", "attn_gate", "ssm_beta", "ssm_alpha"];

impl Delta {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &DeltaSpec, width: usize) -> TensorResult<Delta> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let ([keys, values], heads) = (spec.widths(), spec.value_heads);
        let linear = |part: &str, rows: usize| w.linear(&name(part), width, rows, Some(false));
        let conv = match spec.inputs {
            DeltaInputs::Separate => CausalConv::load_parts(w, &CONVOLUTIONS.map(name), 2 * keys + values, spec.taps)?,
            _ => CausalConv::load(w, &name("ssm_conv1d"), 2 * keys + values, spec.taps, false)?,
        };
        let inputs = match spec.inputs {
            DeltaInputs::Joint => {
                let (g, each) = (spec.key_heads, heads / spec.key_heads);
                let parts = [spec.key_dim, spec.key_dim, each * spec.value_dim, each * spec.value_dim];
                Projections::Joint {
                    qkvz: w.linear_by(&name("ssm_in"), width, 2 * (keys + values), Some(false), |t| sorted(t, g, &parts))?,
                    ba: w.linear_by(&name("ssm_ba"), width, 2 * heads, Some(false), |t| sorted(t, g, &[each, each]))?,
                }
            }
            DeltaInputs::JointScales => Projections::JointScales {
                qkv: linear("attn_qkv", 2 * keys + values)?,
                z: linear("attn_gate", values)?,
                ba: linear("ssm_ba", 2 * heads)?,
            },
            DeltaInputs::JointQkv => Projections::JointQkv {
                qkv: linear("attn_qkv", 2 * keys + values)?,
                z: linear("attn_gate", values)?,
                beta: linear("ssm_beta", heads)?,
                alpha: linear("ssm_alpha", heads)?,
            },
            DeltaInputs::Separate => {
                let [q, k, v, z, beta, alpha] = SEPARATE;
                Projections::Separate([
                    linear(q, keys)?,
                    linear(k, keys)?,
                    linear(v, values)?,
                    linear(z, values)?,
                    linear(beta, heads)?,
                    linear(alpha, heads)?,
                ])
            }
        };
        Ok(Delta {
            inputs,
            conv,
            rate: w.decay_rates(&name("ssm_a"), &[heads])?,
            dt: w.vector(&name("ssm_dt.bias"), heads)?,
            norm: Norm::load(w, &name("ssm_norm"), spec.norm, spec.value_dim)?,
            output: w.linear(&name("ssm_out"), values, width, Some(false))?,
            spec: Arc::new(spec.clone()),
        })
    }

    /// What the matrices make of h: q, k and v together, z, β and α.
    fn project(&self, h: &Tensor) -> TensorResult<[Tensor; 4]> {
        let ([keys, values], heads) = (self.spec.widths(), self.spec.value_heads);
        match &self.inputs {
            Projections::Separate([q, k, v, z, beta, alpha]) => {
                let qkv = Tensor::cat(&[q.forward(h)?, k.forward(h)?, v.forward(h)?], -1)?;
                Ok([qkv, z.forward(h)?, beta.forward(h)?, alpha.forward(h)?])
            }
            Projections::JointQkv { qkv, z, beta, alpha } => Ok([qkv.forward(h)?, z.forward(h)?, beta.forward(h)?, alpha.forward(h)?]),
            Projections::JointScales { qkv, z, ba } => {
                let (&[b, t, _], groups) = (h.dims(), self.spec.key_heads) else {
                    return Err(TensorError::Internal("states of rank 3".into()));
                };
                let by_key = ba.forward(h)?.reshape(&[b, t, groups, 2 * heads / groups])?;
                let part = |n: usize| by_key.narrow(-1, n * heads / groups, heads / groups)?.contiguous()?.reshape(&[b, t, heads]);
                Ok([qkv.forward(h)?, z.forward(h)?, part(0)?, part(1)?])
            }
            Projections::Joint { qkvz, ba } => {
                let [qkv, z] = qkvz.parts(h, [2 * keys + values, values])?;
                let [beta, alpha] = ba.parts(h, [heads, heads])?;
                Ok([qkv, z, beta, alpha])
            }
        }
    }

    /// `[B,T,d]` to `[B,T,d]`; columns and matrices go to layer `i` of the cache.
    pub fn forward(&self, i: usize, h: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (s, &[b, t, _]) = (&*self.spec, h.dims()) else { return Ok(h.clone()) };
        let [keys, values] = s.widths();
        let [qkv, z, beta, alpha] = self.project(h)?;
        let qkv = s.activation.of(&self.conv.forward(&qkv, Place { layer: i, part: 0 }, cache)?)?.cast(DType::F32)?;
        let split = |x: &Tensor, heads: usize, size: usize| x.reshape(&[b, t, heads, size]);
        let heads_of = |start: usize| split(&qkv.narrow(-1, start, keys)?, s.key_heads, s.key_dim);
        let (q, k) = (query(&heads_of(0)?)?, key(&heads_of(keys)?)?);
        let again = |x: Tensor| if s.spread { Tensor::cat(&vec![x; s.value_heads / s.key_heads], 2) } else { Ok(x) };
        let (q, k) = (again(q)?, again(k)?);
        let v = split(&qkv.narrow(-1, 2 * keys, values)?, s.value_heads, s.value_dim)?;
        let decay = alpha.cast(DType::F32)?.add(&self.dt)?.softplus()?.mul(&self.rate)?.exp()?;
        let beta = beta.cast(DType::F32)?.sigmoid()?;
        let beta = if s.beta_scale == 1.0 { beta } else { beta.mul(s.beta_scale as f32)? };
        let start = match cache.part(i, 1)? {
            Some(state) => state,
            None => Tensor::zeros(&[b, s.value_heads, s.key_dim, s.value_dim], DType::F32, h.device())?,
        };
        let (o, state) = LinearScan { q: &q, k: &k, v: &v, decay: &decay, beta: Some(&beta), state: &start }.run()?;
        drop(start);
        let o = cache.set_state(i, 1, &state, o)?;
        let gate = split(&z, s.value_heads, s.value_dim)?.cast(DType::F32)?.silu()?;
        let o = self.norm.forward(&o)?.mul(&gate)?.cast(h.dtype())?;
        self.output.forward(&o.reshape(&[b, t, values])?)
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> Vec<(&'static str, &Projection)> {
        let mut all = match &self.inputs {
            Projections::Separate(all) => SEPARATE.into_iter().zip(all).collect(),
            Projections::JointQkv { qkv, z, beta, alpha } => {
                vec![("attn_qkv", qkv), ("attn_gate", z), ("ssm_beta", beta), ("ssm_alpha", alpha)]
            }
            Projections::Joint { qkvz, ba } => vec![("ssm_in", qkvz), ("ssm_ba", ba)],
            Projections::JointScales { qkv, z, ba } => vec![("attn_qkv", qkv), ("attn_gate", z), ("ssm_ba", ba)],
        };
        all.push(("ssm_out", &self.output));
        all
    }
    /// As [`Delta::projections`], to be changed.
    pub fn projections_mut(&mut self) -> Vec<(&'static str, &mut Projection)> {
        let mut all = match &mut self.inputs {
            Projections::Separate(all) => SEPARATE.into_iter().zip(all).collect(),
            Projections::JointQkv { qkv, z, beta, alpha } => {
                vec![("attn_qkv", qkv), ("attn_gate", z), ("ssm_beta", beta), ("ssm_alpha", alpha)]
            }
            Projections::Joint { qkvz, ba } => vec![("ssm_in", qkvz), ("ssm_ba", ba)],
            Projections::JointScales { qkv, z, ba } => vec![("attn_qkv", qkv), ("attn_gate", z), ("ssm_ba", ba)],
        };
        all.push(("ssm_out", &mut self.output));
        all
    }
    /// The norm.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        [&self.norm].into_iter()
    }
    /// What is neither a linear layer nor a norm.
    pub fn others(&self) -> impl Iterator<Item = &Tensor> {
        self.conv.weights().chain([&self.rate, &self.dt])
    }
}

/// GGUF's names of the convolutions of q, k and v.
pub(super) const CONVOLUTIONS: [&str; 3] = ["ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"];

/// Keys `[…,N]` of length 1: rms(x)/√N.
pub(super) fn key(x: &Tensor) -> TensorResult<Tensor> {
    let size = x.dims().last().copied().unwrap_or(1) as f64;
    x.rms_norm(None, 1e-6 / size)?.mul((1.0 / size.sqrt()) as f32)
}

/// Queries `[…,N]` of length 1/√N, with which what the state has for them need not be scaled.
pub(super) fn query(x: &Tensor) -> TensorResult<Tensor> {
    let size = x.dims().last().copied().unwrap_or(1) as f64;
    x.rms_norm(None, 1e-6 / size)?.mul((1.0 / size) as f32)
}

/// Rows that have, for each of `groups`, parts of these sizes, with the first parts of all groups first, then the second parts, and so on.
fn sorted(t: &Tensor, groups: usize, parts: &[usize]) -> TensorResult<Tensor> {
    let (each, inner) = (parts.iter().sum::<usize>(), t.dims().get(1).copied().unwrap_or(1));
    let by_group = t.reshape(&[groups, each, inner])?;
    let mut start = 0;
    let rows = parts.iter().map(|&len| {
        start += len;
        by_group.narrow(1, start - len, len)?.contiguous()?.reshape(((), inner))
    });
    Tensor::cat(&rows.collect::<TensorResult<Vec<_>>>()?, 0)
}
