//! The delta rule with a decay of each row of the state (Kimi Delta Attention, Moonshot AI, 2025).
//!
//! (q, k, v) = act(conv(W·h)); q and k of length 1. Each head has a matrix S: S ← diag(α)·S, S ← S + k·(β·(v − Sᵀ·k))ᵀ, o = Sᵀ·q/√N with
//! α = exp(−exp(A)·softplus(Fb·Fa·h + dt)), one for each element of a key, and β = σ(Wb·h). The layer's result is Wo·(rms(o) · σ(Gb·Ga·h)).

use super::Place;
use super::conv::CausalConv;
use super::delta::{CONVOLUTIONS, key, query};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::decoder::description::DeltaByRowSpec;
use crate::models::decoder::norm::Norm;
use crate::models::weights::Tensors;
use crate::models::{CachePart, KvCache, LayerCache, Projection};
use crate::ops::linear_scan::LinearScan;
use crate::tensor::Tensor;

impl DeltaByRowSpec {
    /// Elements of all heads.
    fn width(&self) -> usize {
        self.heads * self.head_dim
    }
    /// What a layer keeps: the convolution's columns and the matrices.
    pub fn cache(&self, dtype: DType) -> LayerCache {
        let matrices = CachePart::State { dims: vec![self.heads, self.head_dim, self.head_dim], dtype: DType::F32 };
        LayerCache::Own(vec![CausalConv::cache(3 * self.width(), self.taps, dtype), matrices])
    }
}

/// A delta rule with decays of rows, with its weights.
#[derive(Clone)]
pub(crate) struct DeltaByRow {
    spec: DeltaByRowSpec,
    /// Of q, k and v.
    inputs: [Projection; 3],
    conv: CausalConv,
    beta: Projection,
    decay: [Projection; 2],
    gate: [Projection; 2],
    rate: Tensor, // −exp(A), [H, 1]
    dt: Tensor,   // [H·N]
    norm: Norm,
    output: Projection,
}

impl DeltaByRow {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &DeltaByRowSpec, width: usize) -> TensorResult<DeltaByRow> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let (heads, rank, all) = (spec.heads, spec.head_dim, spec.width());
        let linear = |part: &str, inputs: usize, outputs: usize| w.linear(&name(part), inputs, outputs, Some(false));
        let by_rank = |a: &str, b: &str| Ok([linear(a, width, rank)?, linear(b, rank, all)?]);
        let rate = w.decay_rates(&name("ssm_a"), &[1, 1, heads, 1])?;
        Ok(DeltaByRow {
            inputs: [linear("attn_q", width, all)?, linear("attn_k", width, all)?, linear("attn_v", width, all)?],
            conv: CausalConv::load_parts(w, &CONVOLUTIONS.map(name), 3 * all, spec.taps)?,
            beta: linear("ssm_beta", width, heads)?,
            decay: by_rank("ssm_f_a", "ssm_f_b")?,
            gate: by_rank("ssm_g_a", "ssm_g_b")?,
            rate: rate.reshape(&[heads, 1])?,
            dt: w.vector(&name("ssm_dt.bias"), all)?,
            norm: Norm::load(w, &name("ssm_norm"), spec.norm, spec.head_dim)?,
            output: linear("attn_output", all, width)?,
            spec: spec.clone(),
        })
    }

    /// `[B,T,d]` to `[B,T,d]`; columns and matrices go to layer `i` of the cache.
    pub fn forward(&self, i: usize, h: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (s, &[b, t, _]) = (&self.spec, h.dims()) else { return Ok(h.clone()) };
        let all = s.width();
        let by_heads = |x: &Tensor| x.reshape(&[b, t, s.heads, s.head_dim]);
        let [q, k, v] = &self.inputs;
        let qkv = Tensor::cat(&[q.forward(h)?, k.forward(h)?, v.forward(h)?], -1)?;
        let qkv = s.activation.of(&self.conv.forward(&qkv, Place { layer: i, part: 0 }, cache)?)?.cast(DType::F32)?;
        let part = |n: usize| by_heads(&qkv.narrow(-1, n * all, all)?);
        let (q, k, v) = (query(&part(0)?)?, key(&part(1)?)?, part(2)?);
        let by_rank = |[a, b]: &[Projection; 2]| b.forward(&a.forward(h)?)?.cast(DType::F32);
        let step = by_heads(&by_rank(&self.decay)?.add(&self.dt)?)?.softplus()?;
        let decay = step.mul(&self.rate)?.exp()?; // [B, T, H, N]
        let beta = self.beta.forward(h)?.cast(DType::F32)?.sigmoid()?;
        let start = match cache.part(i, 1)? {
            Some(state) => state,
            None => Tensor::zeros(&[b, s.heads, s.head_dim, s.head_dim], DType::F32, h.device())?,
        };
        let (o, state) = LinearScan { q: &q, k: &k, v: &v, decay: &decay, beta: Some(&beta), state: &start }.run()?;
        drop(start);
        let o = self.norm.forward(&cache.set_state(i, 1, &state, o)?)?;
        let o = o.mul(&by_heads(&by_rank(&self.gate)?)?.sigmoid()?)?.cast(h.dtype())?;
        self.output.forward(&o.reshape(&[b, t, all])?)
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> Vec<(&'static str, &Projection)> {
        let ([q, k, v], [fa, fb], [ga, gb]) = (&self.inputs, &self.decay, &self.gate);
        let ranks = [("ssm_f_a", fa), ("ssm_f_b", fb), ("ssm_g_a", ga), ("ssm_g_b", gb)];
        let all = [("attn_q", q), ("attn_k", k), ("attn_v", v), ("ssm_beta", &self.beta), ("attn_output", &self.output)];
        all.into_iter().chain(ranks).collect()
    }
    /// As [`DeltaByRow::projections`], to be changed.
    pub fn projections_mut(&mut self) -> Vec<(&'static str, &mut Projection)> {
        let ([q, k, v], [fa, fb], [ga, gb]) = (&mut self.inputs, &mut self.decay, &mut self.gate);
        let ranks = [("ssm_f_a", fa), ("ssm_f_b", fb), ("ssm_g_a", ga), ("ssm_g_b", gb)];
        let all = [("attn_q", q), ("attn_k", k), ("attn_v", v), ("ssm_beta", &mut self.beta), ("attn_output", &mut self.output)];
        all.into_iter().chain(ranks).collect()
    }
    /// The norms.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        [&self.norm].into_iter()
    }
    /// What is neither a linear layer nor a norm.
    pub fn others(&self) -> impl Iterator<Item = &Tensor> {
        self.conv.weights().chain([&self.rate, &self.dt])
    }
}
