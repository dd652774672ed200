//! Which experts a token takes, and with what weights. Computed in f32; the choice stays on the device.

use super::description::{ExpertsSpec, GroupSpec, RouterSpec, Scores};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::weights::Tensors;
use crate::tensor::Tensor;

/// A router with its weights.
#[derive(Clone)]
pub(crate) struct Router {
    spec: RouterSpec,
    count: usize,
    used: usize,
    weight: Tensor, // [E, d]
    bias: Option<Tensor>,
    correction: Option<Tensor>,
}

impl Scores {
    fn of(self, x: &Tensor) -> TensorResult<Tensor> {
        match self {
            Scores::AsTheyAre => Ok(x.clone()),
            Scores::Softmax => x.softmax(-1),
            Scores::Sigmoid => x.sigmoid(),
        }
    }
}

impl Router {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &ExpertsSpec, width: usize) -> TensorResult<Router> {
        let (count, router) = (spec.count, spec.router);
        let name = |part: &str| format!("blk.{i}.{part}");
        Ok(Router {
            spec: router,
            count,
            used: spec.used,
            weight: w.norm(&name("ffn_gate_inp.weight"), &[count, width], false)?,
            bias: if router.bias { Some(w.vector(&name("ffn_gate_inp.bias"), count)?) } else { None },
            correction: if router.correction { Some(w.flat_vector(&name("exp_probs_b.bias"), count)?) } else { None },
        })
    }

    /// How many experts there are, and how many a token takes.
    pub fn counts(&self) -> (usize, usize) {
        (self.count, self.used)
    }

    /// Whether the weights multiply the experts' inputs.
    pub fn to_input(&self) -> bool {
        self.spec.to_input
    }

    /// The weights, in f32, and the numbers of the experts that rows `[T,d]` take, both `[T,k]`.
    pub fn choose(&self, x: &Tensor) -> TensorResult<(Tensor, Tensor)> {
        let s = &self.spec;
        let logits = x.cast(DType::F32)?.matmul(&self.weight.t()?)?;
        let logits = match &self.bias {
            Some(bias) => logits.add(bias)?,
            None => logits,
        };
        if let Some(eps) = s.sparse_mixer {
            return sparse_mixer(&logits, eps as f32);
        }
        let scores = s.scores.of(&logits)?;
        let choice = match &self.correction {
            Some(correction) => scores.detach().add(correction)?,
            None => scores.detach(),
        };
        let choice = match s.groups {
            Some(groups) => within_groups(&choice, groups, self.count)?,
            None => choice,
        };
        let (_, ids) = choice.topk(self.used, -1, true)?;
        let mut weights = s.chosen.of(&scores.gather(-1, &ids)?)?;
        if let Some(by) = s.divisor {
            let sum = weights.sum(&[-1], true)?;
            let sum = if by.plus > 0.0 { sum.add(by.plus as f32)? } else { sum };
            weights = weights.div(&if by.least > 0.0 { sum.clamp(Some(by.least), None)? } else { sum })?;
        }
        Ok((if s.scale == 1.0 { weights } else { weights.mul(s.scale as f32)? }, ids))
    }

    /// The weights.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.weight).chain(&self.bias).chain(&self.correction)
    }
}

/// Scores `[T,E]` of the groups that are taken; −∞ in the others.
fn within_groups(scores: &Tensor, groups: GroupSpec, count: usize) -> TensorResult<Tensor> {
    let size = count / groups.count;
    let split = scores.reshape(&[-1, groups.count as isize, size as isize])?;
    let (best, _) = split.topk(groups.best.min(size), -1, true)?;
    let (_, taken) = best.sum(&[-1], false)?.topk(groups.used, -1, true)?; // [T, used]
    let all = Tensor::arange(0.0, groups.count as f64, 1.0, DType::I32, scores.device())?;
    let hits = taken.unsqueeze(-1)?.eq(&all)?.cast(DType::F32)?.sum(&[1], false)?; // [T, groups]
    split.masked_fill(&hits.lt(0.5)?.unsqueeze(-1)?, f64::NEG_INFINITY)?.reshape(&[-1, count as isize])
}

/// SparseMixer's two experts without its noise (Liu et al., 2023): each is the best of those not taken yet, weighted by the softmax over those of them
/// whose logits l fulfil (best − l) / max(|l|, best) ≤ 2ε.
fn sparse_mixer(logits: &Tensor, eps: f32) -> TensorResult<(Tensor, Tensor)> {
    let (_, ids) = logits.detach().topk(2, -1, true)?;
    let places = Tensor::arange(0.0, *logits.dims().last().unwrap_or(&0) as f64, 1.0, DType::I32, logits.device())?;
    let mut left = logits.clone();
    let mut weights = Vec::new();
    for n in 0..2 {
        let id = ids.narrow(1, n, 1)?; // [T, 1]
        let best = logits.gather(-1, &id)?.detach();
        let far = best.sub(logits)?.div(&logits.abs()?.maximum(&best)?)?.gt(2.0 * eps)?;
        let near = left.masked_fill(&far, f64::NEG_INFINITY)?;
        weights.push(near.softmax(-1)?.gather(-1, &id)?);
        left = left.masked_fill(&places.eq(&id)?, f64::NEG_INFINITY)?;
    }
    Ok((Tensor::cat(&weights, -1)?, ids))
}
