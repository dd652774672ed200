//! Mamba-2's state space layer (Dao & Gu, 2024).
//!
//! (z, x, B, C, Δ) = Win·h; (x, B, C) ← act(conv(x, B, C)); Δ ← softplus(Δ + bias). Each head has a matrix S: S ← exp(Δ·A)·S + B·(Δ·x)ᵀ,
//! y = Sᵀ·C + D·x, where heads of one group share B and C. The layer's result is Wout·rms(y · silu(z)), or without the norm.

use super::Place;
use super::conv::CausalConv;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::decoder::description::SsdSpec;
use crate::models::weights::Tensors;
use crate::models::{CachePart, KvCache, Projection};
use crate::ops::linear_scan::LinearScan;
use crate::tensor::Tensor;
use std::sync::Arc;

impl SsdSpec {
    /// Elements of x.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }
    /// Sizes of z, x, B, C and Δ.
    pub fn parts(&self) -> [usize; 5] {
        let shared = self.groups * self.state;
        [self.inner(), self.inner(), shared, shared, self.heads]
    }
    fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }
    /// What a layer keeps: the convolution's columns and the matrices.
    pub fn cache(&self, dtype: DType) -> Vec<CachePart> {
        let matrices = CachePart::State { dims: vec![self.heads, self.state, self.head_dim], dtype: DType::F32 };
        vec![CausalConv::cache(self.channels(), self.taps, dtype), matrices]
    }
}

/// A state space layer with its weights.
#[derive(Clone)]
pub(crate) struct Ssd {
    spec: Arc<SsdSpec>,
    input: Projection,
    /// The factors of its rows.
    scales: Option<Tensor>,
    conv: CausalConv,
    /// A = −exp(A_log), `[H]`.
    rate: Tensor,
    /// The bias of Δ, `[H]`.
    dt: Tensor,
    /// D, `[H,1]`.
    skip: Tensor,
    norm: Option<Tensor>, // [H·P]
    output: Projection,
}

impl Ssd {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &SsdSpec, width: usize) -> TensorResult<Ssd> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let parts = spec.parts();
        let scales = spec.scales.map(|by| {
            let rows = by.iter().zip(parts).flat_map(|(by, n)| std::iter::repeat_n(*by as f32, n)).collect::<Vec<f32>>();
            Tensor::from_vec(rows, &[parts.iter().sum()], w.device())
        });
        Ok(Ssd {
            input: w.linear(&name("ssm_in"), width, parts.iter().sum(), Some(spec.input_bias))?,
            scales: scales.transpose()?,
            conv: CausalConv::load(w, &name("ssm_conv1d"), spec.channels(), spec.taps, spec.conv_bias)?,
            rate: w.decay_rates(&name("ssm_a"), &[spec.heads])?,
            dt: w.vector(&name("ssm_dt.bias"), spec.heads)?,
            skip: w.elements(&name("ssm_d"), spec.heads)?.unsqueeze(1)?,
            norm: spec.norm.map(|_| w.elements(&name("ssm_norm.weight"), spec.inner())).transpose()?,
            output: w.linear(&name("ssm_out"), spec.inner(), width, Some(spec.output_bias))?,
            spec: Arc::new(spec.clone()),
        })
    }

    /// `[B,T,d]` to `[B,T,d]`; columns and matrices go to the cache, from `place` on.
    pub fn forward(&self, place: Place, h: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (s, &[b, t, _]) = (&*self.spec, h.dims()) else { return Ok(h.clone()) };
        let [inner, _, shared, ..] = s.parts();
        let all = match s.input_scale {
            Some(by) => self.input.forward(&h.mul(by as f32)?)?,
            None => self.input.forward(h)?,
        };
        let all = match &self.scales {
            Some(by) => all.mul(by)?.cast(h.dtype())?,
            None => all,
        };
        let (z, xbc) = (all.narrow(-1, 0, inner)?, all.narrow(-1, inner, s.channels())?);
        let step = all.narrow(-1, inner + s.channels(), s.heads)?.cast(DType::F32)?.add(&self.dt)?.softplus()?;
        let step = match s.step_limits {
            (least, most) if least > 0.0 || most.is_finite() => step.clamp(Some(least), Some(most).filter(|m| m.is_finite()))?,
            _ => step,
        };
        let xbc = s.activation.of(&self.conv.forward(&xbc, place, cache)?)?.cast(DType::F32)?;
        let split = |start: usize, heads: usize, size: usize| xbc.narrow(-1, start, heads * size)?.reshape(&[b, t, heads, size]);
        let (x, k, q) = (split(0, s.heads, s.head_dim)?, split(inner, s.groups, s.state)?, split(inner + shared, s.groups, s.state)?);
        let start = match cache.part(place.layer, place.part + 1)? {
            Some(state) => state,
            None => Tensor::zeros(&[b, s.heads, s.state, s.head_dim], DType::F32, h.device())?,
        };
        let (v, decay) = (x.mul(&step.unsqueeze(-1)?)?, step.mul(&self.rate)?.exp()?);
        let (y, state) = LinearScan { q: &q, k: &k, v: &v, decay: &decay, beta: None, state: &start }.run()?;
        drop(start);
        let y = cache.set_state(place.layer, place.part + 1, &state, y)?.add(&x.mul(&self.skip)?)?;
        let y = self.gated(&y.reshape(&[b, t, inner])?, &z.cast(DType::F32)?.silu()?)?;
        self.output.forward(&y.cast(h.dtype())?)
    }

    /// y times the gate, normalised.
    fn gated(&self, y: &Tensor, gate: &Tensor) -> TensorResult<Tensor> {
        let (Some(norm), Some(weight), &[b, t, inner]) = (self.spec.norm, &self.norm, y.dims()) else { return y.mul(gate) };
        let y = if norm.gate_after { y.clone() } else { y.mul(gate)? };
        let parts = y.reshape(&[b, t, norm.groups, inner / norm.groups])?.rms_norm(None, norm.eps)?;
        let y = parts.reshape(&[b, t, inner])?.mul(weight)?;
        if norm.gate_after { y.mul(gate) } else { Ok(y) }
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> Vec<(&'static str, &Projection)> {
        vec![("ssm_in", &self.input), ("ssm_out", &self.output)]
    }
    /// As [`Ssd::projections`], to be changed.
    pub fn projections_mut(&mut self) -> Vec<(&'static str, &mut Projection)> {
        vec![("ssm_in", &mut self.input), ("ssm_out", &mut self.output)]
    }
    /// What is not a linear layer.
    pub fn others(&self) -> impl Iterator<Item = &Tensor> {
        self.conv.weights().chain([&self.rate, &self.dt, &self.skip]).chain(&self.norm).chain(&self.scales)
    }
}
