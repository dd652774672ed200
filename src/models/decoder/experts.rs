//! Experts of a layer: feed-forward parts of which each token takes a few, and shared ones that every token takes.

use super::dense::{Dense, SHARED, gated};
use super::description::{ExpertLayout, ExpertsSpec, FeedForm, FeedSpec, SharedSpec};
use super::router::Router;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::Projection;
use crate::models::weights::Tensors;
use crate::tensor::Tensor;
use std::sync::Arc;

/// Experts with their weights.
#[derive(Clone)]
pub(crate) struct Experts {
    spec: Arc<FeedSpec>,
    router: Router,
    gate: Option<Matrices>, // d → f
    up: Matrices,           // d → f
    down: Matrices,         // f → d
    shared: Option<Shared>,
}

/// A matrix of each expert, `[E,out,in]`, and a bias `[E,out]`.
#[derive(Clone)]
struct Matrices {
    weight: Tensor,
    bias: Option<Tensor>,
}

/// What every token takes.
#[derive(Clone)]
struct Shared {
    spec: SharedSpec,
    feed: Dense,
    gate: Option<Projection>, // d → 1
}

impl Matrices {
    /// Rows `[T,in]` or `[T,k,in]` by the experts `[T,k]`: `[T,k,out]`.
    fn forward(&self, x: &Tensor, ids: &Tensor) -> TensorResult<Tensor> {
        x.expert_linear(&self.weight, self.bias.as_ref(), ids)
    }

    /// The sum over the experts `[T,k]` of rows `[T,k,in]` by them times `factors` `[T,k]`: `[T,out]`.
    fn sum(&self, x: &Tensor, ids: &Tensor, factors: &Tensor) -> TensorResult<Tensor> {
        x.expert_sum(&self.weight, self.bias.as_ref(), ids, factors)
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

impl Experts {
    /// Reads the weights of layer `i`: experts of this form and size.
    pub fn load(w: &Tensors<'_>, i: usize, feed: &FeedSpec, spec: &ExpertsSpec, width: usize) -> TensorResult<Experts> {
        let router = Router::load(w, i, spec, width)?;
        let (gate, [up, down]) = matrices(w, i, feed, spec, width)?;
        let shared = spec.shared.map(|shared| -> TensorResult<Shared> {
            let of = FeedSpec { size: shared.size, experts: None, ..feed.clone() };
            let gate = match shared.gated {
                true => Some(w.linear_or_vector(&format!("blk.{i}.ffn_gate_inp_shexp"), width)?),
                false => None,
            };
            Ok(Shared { spec: shared, feed: Dense::load(w, i, SHARED, &of, width)?, gate })
        });
        Ok(Experts { spec: Arc::new(feed.clone()), router, gate, up, down, shared: shared.transpose()? })
    }

    /// `[B,T,d]` to `[B,T,d]`.
    pub fn forward(&self, h: &Tensor) -> TensorResult<Tensor> {
        self.forward_by(h, h)
    }

    /// As [`Experts::forward`], where the router reads `by`.
    pub fn forward_by(&self, h: &Tensor, by: &Tensor) -> TensorResult<Tensor> {
        let x = h.flatten(0, 1)?; // [T, d], of all texts
        let (weights, ids) = self.router.choose(&by.flatten(0, 1)?)?;
        let input = match self.router.to_input() {
            true => x.unsqueeze(1)?.mul(&weights.unsqueeze(-1)?)?.cast(x.dtype())?,
            false => x.clone(),
        };
        let up = self.up.forward(&input, &ids)?;
        let inner = match &self.gate {
            Some(gate) => gated(&self.spec, &gate.forward(&input, &ids)?, &up)?,
            None => self.spec.activation.of(&up)?,
        };
        let y = match self.router.to_input() {
            true => self.down.forward(&inner, &ids)?.sum(&[1], false)?,
            false => self.down.sum(&inner, &ids, &weights)?,
        };
        let y = y.cast(x.dtype())?;
        let y = match &self.shared {
            Some(shared) => shared.add_to(&y, &x)?,
            None => y,
        };
        y.reshape(h.shape())
    }

    /// The shared part.
    pub fn shared(&self) -> Option<&Dense> {
        self.shared.as_ref().map(|s| &s.feed)
    }

    /// As [`Experts::shared`], to be changed.
    pub fn shared_mut(&mut self) -> Option<&mut Dense> {
        self.shared.as_mut().map(|s| &mut s.feed)
    }

    /// The weights of experts and router.
    pub fn others(&self) -> Vec<&Tensor> {
        let experts = self.gate.iter().chain([&self.up, &self.down]).flat_map(Matrices::tensors);
        let gate = self.shared.iter().flat_map(|s| &s.gate).map(|g| &g.weight);
        experts.chain(self.router.tensors()).chain(gate).collect()
    }

    /// The bytes of the experts that a token does not take.
    pub fn unread_bytes(&self) -> u64 {
        let (count, used) = self.router.counts();
        let tensors = self.gate.iter().chain([&self.up, &self.down]).flat_map(Matrices::tensors);
        let bytes: usize = tensors.map(|t| t.dtype().bytes(t.numel()).unwrap_or(0)).sum();
        (bytes / count * (count - used)) as u64
    }
}

impl Shared {
    /// The routed part's result `[T,d]` with that of the shared one.
    fn add_to(&self, y: &Tensor, x: &Tensor) -> TensorResult<Tensor> {
        let shared = self.feed.forward(x)?;
        let shared = match &self.gate {
            Some(gate) => shared.mul(&gate.forward(x)?.sigmoid()?)?,
            None => shared,
        };
        let sum = y.add(&shared)?;
        if self.spec.mean { sum.mul(0.5) } else { Ok(sum) }
    }
}

/// Gates, ups and downs of layer `i`.
fn matrices(
    w: &Tensors<'_>,
    i: usize,
    feed: &FeedSpec,
    spec: &ExpertsSpec,
    width: usize,
) -> TensorResult<(Option<Matrices>, [Matrices; 2])> {
    let name = |part: &str| format!("blk.{i}.{part}");
    let (count, size) = (spec.count, feed.size);
    let [gate, up, down] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"].map(name);
    let joint = name("ffn_gate_up_exps.weight");
    let has_gate = feed.form != FeedForm::Plain;
    let biased = spec.bias.unwrap_or_else(|| w.has(&format!("{down}.bias")));
    let [e, f, d] = [count, size, width];
    let names = [format!("{gate}.weight"), format!("{up}.weight")];
    let names = [names[0].as_str(), names[1].as_str()];
    let transposed = |t: &Tensor| t.transpose(1, 2);
    let downs = || -> TensorResult<Tensor> {
        let own = format!("{down}.weight");
        let [t] = w.split(&own, &[e, f, d], [&own], |t| Ok([transposed(t)?]))?;
        Ok(t)
    };
    let layout = match w.is_hub() {
        true => spec.layout,
        false if w.has(&joint) => ExpertLayout::Joint,
        false => ExpertLayout::OneByOne,
    };
    let (gates, ups, downs) = match layout {
        ExpertLayout::OneByOne => {
            let gates = if has_gate { Some(w.experts(&gate, [e, f, d])?) } else { None };
            (gates, w.experts(&up, [e, f, d])?, w.experts(&down, [e, d, f])?)
        }
        ExpertLayout::Joint => {
            let [g, u] = w.split(&joint, &[e, 2 * f, d], names, |t| Ok([t.narrow(1, 0, f)?, t.narrow(1, f, f)?]))?;
            (Some(g), u, w.experts(&down, [e, d, f])?)
        }
        ExpertLayout::JointTransposed => {
            let part = |t: &Tensor, n: usize| transposed(&t.narrow(2, n * f, f)?);
            let [g, u] = w.split(&joint, &[e, d, 2 * f], names, |t| Ok([part(t, 0)?, part(t, 1)?]))?;
            (Some(g), u, downs()?)
        }
        ExpertLayout::InterleavedTransposed => {
            let part = |t: &Tensor, n: usize| transposed(&t.reshape(&[e, d, f, 2])?.select(3, n)?);
            let [g, u] = w.split(&joint, &[e, d, 2 * f], names, |t| Ok([part(t, 0)?, part(t, 1)?]))?;
            (Some(g), u, downs()?)
        }
    };
    let bias = |name: &str, len: usize| -> TensorResult<Option<Tensor>> {
        if biased { Ok(Some(w.tensor(&format!("{name}.bias"), &[e, len])?.cast(DType::F32)?)) } else { Ok(None) }
    };
    let (gate_bias, up_bias) = match layout {
        ExpertLayout::InterleavedTransposed if biased => {
            let names = [format!("{gate}.bias"), format!("{up}.bias")];
            let part = |t: &Tensor, n: usize| t.reshape(&[e, f, 2])?.select(2, n)?.cast(DType::F32);
            let both = w.split(&name("ffn_gate_up_exps.bias"), &[e, 2 * f], [&names[0], &names[1]], |t| Ok([part(t, 0)?, part(t, 1)?]));
            let [g, u] = both?;
            (Some(g), Some(u))
        }
        _ => (if has_gate { bias(&gate, f)? } else { None }, bias(&up, f)?),
    };
    let gate = gates.map(|weight| Matrices { weight, bias: gate_bias });
    Ok((gate, [Matrices { weight: ups, bias: up_bias }, Matrices { weight: downs, bias: bias(&down, d)? }]))
}
