//! Mamba's selective state space (Gu & Dao, 2023).
//!
//! (x, z) = Win·h; x ← act(conv(x)); (δ, B, C) = Wx·x, in Jamba each normalised; Δ = softplus(Wδ·δ + b). Each channel has a vector S of state:
//! S ← exp(Δ·A)·S + B·Δ·x, y = C·S + D·x. The layer's result is Wout·(y · silu(z)).

use super::Place;
use super::conv::CausalConv;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::decoder::description::{NormSpec, SelectiveSpec};
use crate::models::decoder::norm::Norm;
use crate::models::weights::Tensors;
use crate::models::{CachePart, KvCache, LayerCache, Projection};
use crate::ops::linear_scan::LinearScan;
use crate::tensor::Tensor;
use std::sync::Arc;

impl SelectiveSpec {
    /// What a layer keeps: the convolution's columns and the states.
    pub fn cache(&self, dtype: DType) -> LayerCache {
        let states = CachePart::State { dims: vec![self.inner, self.state, 1], dtype: DType::F32 };
        LayerCache::Own(vec![CausalConv::cache(self.inner, self.taps, dtype), states])
    }
}

/// A selective state space with its weights.
#[derive(Clone)]
pub(crate) struct Selective {
    spec: Arc<SelectiveSpec>,
    input: Projection, // d → 2·D
    conv: CausalConv,
    x: Projection,            // D → r + 2·N
    step: Projection,         // r → D
    norms: Option<[Norm; 3]>, // of δ, B, C
    rate: Tensor,             // A = −exp(A_log), [D, N]
    skip: Tensor,             // [D]
    output: Projection,       // D → d
}

impl Selective {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &SelectiveSpec, width: usize) -> TensorResult<Selective> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let norm = |part: &str, n: NormSpec, size: usize| Norm::load(w, &name(part), n, size);
        let norms = spec.norm.map(|n| -> TensorResult<[Norm; 3]> {
            Ok([norm("ssm_dt_norm", n, spec.rank)?, norm("ssm_b_norm", n, spec.state)?, norm("ssm_c_norm", n, spec.state)?])
        });
        Ok(Selective {
            input: w.linear(&name("ssm_in"), width, 2 * spec.inner, Some(spec.bias))?,
            conv: CausalConv::load(w, &name("ssm_conv1d"), spec.inner, spec.taps, spec.conv_bias)?,
            x: w.linear(&name("ssm_x"), spec.inner, spec.rank + 2 * spec.state, Some(false))?,
            step: w.linear(&name("ssm_dt"), spec.rank, spec.inner, Some(true))?,
            norms: norms.transpose()?,
            rate: w.decay_rates(&name("ssm_a"), &[spec.inner, spec.state])?,
            skip: w.vector(&name("ssm_d"), spec.inner)?,
            output: w.linear(&name("ssm_out"), spec.inner, width, Some(spec.bias))?,
            spec: Arc::new(spec.clone()),
        })
    }

    /// `[B,T,d]` to `[B,T,d]`; columns and states go to layer `i` of the cache.
    pub fn forward(&self, i: usize, h: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (s, &[b, t, _]) = (&*self.spec, h.dims()) else { return Ok(h.clone()) };
        let [x, z] = self.input.parts(h, [s.inner, s.inner])?;
        let x = s.activation.of(&self.conv.forward(&x, Place { layer: i, part: 0 }, cache)?)?;
        let [step, k, q] = self.x.parts(&x, [s.rank, s.state, s.state])?;
        let [step, k, q] = match &self.norms {
            Some([of_step, of_k, of_q]) => [of_step.forward(&step)?, of_k.forward(&k)?, of_q.forward(&q)?],
            None => [step, k, q],
        };
        let step = self.step.forward(&step)?.cast(DType::F32)?.softplus()?; // [B, T, D]
        let x = x.cast(DType::F32)?;
        let start = match cache.part(i, 1)? {
            Some(state) => state,
            None => Tensor::zeros(&[b, s.inner, s.state, 1], DType::F32, h.device())?,
        };
        let shared = |x: &Tensor| x.cast(DType::F32)?.reshape(&[b, t, 1, s.state]);
        let decay = step.unsqueeze(-1)?.mul(&self.rate)?.exp()?; // [B, T, D, N]
        let (k, q, v) = (shared(&k)?, shared(&q)?, x.mul(&step)?.unsqueeze(-1)?);
        let (y, state) = LinearScan { q: &q, k: &k, v: &v, decay: &decay, beta: None, state: &start }.run()?;
        drop(start);
        let y = cache.set_state(i, 1, &state, y)?.squeeze(-1)?.add(&x.mul(&self.skip)?)?;
        self.output.forward(&y.mul(&z.cast(DType::F32)?.silu()?)?.cast(h.dtype())?)
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> Vec<(&'static str, &Projection)> {
        vec![("ssm_in", &self.input), ("ssm_x", &self.x), ("ssm_dt", &self.step), ("ssm_out", &self.output)]
    }
    /// As [`Selective::projections`], to be changed.
    pub fn projections_mut(&mut self) -> Vec<(&'static str, &mut Projection)> {
        vec![("ssm_in", &mut self.input), ("ssm_x", &mut self.x), ("ssm_dt", &mut self.step), ("ssm_out", &mut self.output)]
    }
    /// The norms.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.norms.iter().flatten()
    }
    /// What is neither a linear layer nor a norm.
    pub fn others(&self) -> impl Iterator<Item = &Tensor> {
        self.conv.weights().chain([&self.rate, &self.skip])
    }
}
