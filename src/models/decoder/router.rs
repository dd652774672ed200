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
    input_factors: Option<Tensor>, // [d]
    factors: Option<Tensor>,       // [E]
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
            input_factors: router.input_norm.map(|_| w.vector(&name("ffn_gate_inp.scale"), width)).transpose()?,
            factors: if router.factors { Some(w.vector(&name("ffn_down_exps.scale"), count)?) } else { None },
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
        let x = x.cast(DType::F32)?;
        let x = match (&self.input_factors, s.input_norm) {
            (Some(factors), Some(eps)) => {
                let width = x.dims().last().copied().unwrap_or(1) as f64;
                x.rms_norm(Some(factors), eps)?.mul((1.0 / width.sqrt()) as f32)?
            }
            _ => x,
        };
        let logits = x.matmul(&self.weight.t()?)?;
        let logits = match &self.bias {
            Some(bias) => logits.add(bias)?,
            None => logits,
        };
        if let Some(eps) = s.sparse_mixer {
            return sparse_mixer(&logits, eps as f32);
        }
        // Of a softmax over all, what is taken by its sum is a softmax over what is taken.
        let whole_sum = s.divisor.is_some_and(|by| by.plus == 0.0 && by.least == 0.0);
        let direct = self.correction.is_none() && s.groups.is_none();
        let (mut weights, ids, divisor) = if direct && whole_sum && (s.scores, s.chosen) == (Scores::Softmax, Scores::AsTheyAre) {
            let (weights, ids) = logits.topk_softmax(self.used, -1)?;
            (weights, ids, None)
        } else {
            let scores = s.scores.of(&logits)?;
            let (weights, ids) = match (direct, s.chosen) {
                (true, Scores::Softmax) => scores.topk_softmax(self.used, -1)?,
                (true, chosen) => {
                    let (scores, ids) = scores.topk(self.used, -1, true)?;
                    (chosen.of(&scores)?, ids)
                }
                (false, chosen) => {
                    let (scores, ids) = self.by_choice(&scores)?;
                    (chosen.of(&scores)?, ids)
                }
            };
            (weights, ids, s.divisor)
        };
        if let Some(by) = divisor {
            let sum = weights.sum(&[-1], true)?;
            let sum = if by.plus > 0.0 { sum.add(by.plus as f32)? } else { sum };
            weights = weights.div(&if by.least > 0.0 { sum.clamp(Some(by.least), None)? } else { sum })?;
        }
        if let Some(factors) = &self.factors {
            weights = weights.mul(&factors.unsqueeze(-1)?.embedding(&ids)?.squeeze(-1)?)?;
        }
        Ok((if s.scale == 1.0 { weights } else { weights.mul(s.scale as f32)? }, ids))
    }

    /// The scores, and numbers, of the experts that the largest scores with their corrections choose, within groups where there are some.
    fn by_choice(&self, scores: &Tensor) -> TensorResult<(Tensor, Tensor)> {
        let choice = match &self.correction {
            Some(correction) => scores.detach().add(correction)?,
            None => scores.detach(),
        };
        let choice = match self.spec.groups {
            Some(groups) => within_groups(&choice, groups, self.count)?,
            None => choice,
        };
        let (_, ids) = choice.topk(self.used, -1, true)?;
        Ok((scores.gather(-1, &ids)?, ids))
    }

    /// The weights.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let vectors = [&self.bias, &self.correction, &self.input_factors, &self.factors];
        std::iter::once(&self.weight).chain(vectors.into_iter().flatten())
    }
}

/// Scores `[T,E]` of the groups that are taken; −∞ in the others.
fn within_groups(scores: &Tensor, groups: GroupSpec, count: usize) -> TensorResult<Tensor> {
    let size = count / groups.count;
    let split = scores.reshape(((), groups.count, size))?;
    let (best, _) = split.topk(groups.best.min(size), -1, true)?;
    let (_, taken) = best.sum(&[-1], false)?.topk(groups.used, -1, true)?; // [T, used]
    let all = Tensor::arange(0.0, groups.count as f64, 1.0, DType::I32, scores.device())?;
    let hits = taken.unsqueeze(-1)?.eq(&all)?.cast(DType::F32)?.sum(&[1], false)?; // [T, groups]
    split.masked_fill(&hits.lt(0.5)?.unsqueeze(-1)?, f64::NEG_INFINITY)?.reshape(((), count))
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

#[cfg(test)]
mod tests {
    use super::super::description::Divisor;
    use super::*;
    use crate::device::Device;
    use crate::ops::random::Rng;

    const EXPERTS: usize = 8;
    const WIDTH: usize = 5;
    const ROWS: usize = 6;

    /// A router's weights in f64.
    struct Exact {
        weight: Vec<f64>,
        bias: Option<Vec<f64>>,
        correction: Option<Vec<f64>>,
        input_factors: Option<Vec<f64>>,
        factors: Option<Vec<f64>>,
    }

    fn softmax(x: &[f64]) -> Vec<f64> {
        let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> = x.iter().map(|v| (v - most).exp()).collect();
        e.iter().map(|v| v / e.iter().sum::<f64>()).collect()
    }
    fn scored(by: Scores, x: &[f64]) -> Vec<f64> {
        match by {
            Scores::AsTheyAre => x.to_vec(),
            Scores::Softmax => softmax(x),
            Scores::Sigmoid => x.iter().map(|v| 1.0 / (1.0 + (-v).exp())).collect(),
        }
    }
    fn best(x: &[f64], count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..x.len()).collect();
        order.sort_by(|&a, &b| x[b].total_cmp(&x[a]));
        order.truncate(count);
        order
    }

    /// The experts of a row and their weights by the definitions, one after the other.
    fn exact(s: &RouterSpec, used: usize, w: &Exact, x: &[f64]) -> (Vec<usize>, Vec<f64>) {
        let mut x = x.to_vec();
        if let (Some(eps), Some(factors)) = (s.input_norm, &w.input_factors) {
            let root = (x.iter().map(|v| v * v).sum::<f64>() / WIDTH as f64 + eps).sqrt();
            x.iter_mut().zip(factors).for_each(|(v, by)| *v *= by / root / (WIDTH as f64).sqrt());
        }
        let logit = |e: usize| (0..WIDTH).map(|i| w.weight[e * WIDTH + i] * x[i]).sum::<f64>() + w.bias.as_ref().map_or(0.0, |b| b[e]);
        let logits: Vec<f64> = (0..EXPERTS).map(logit).collect();
        if let Some(eps) = s.sparse_mixer {
            let ids = best(&logits, 2);
            let weight = |n: usize| {
                let most = logits[ids[n]];
                let open = |e: usize| !ids[..n].contains(&e) && (most - logits[e]) / logits[e].abs().max(most) <= 2.0 * eps;
                let sum: f64 = (0..EXPERTS).filter(|&e| open(e)).map(|e| (logits[e] - most).exp()).sum();
                1.0 / sum
            };
            return (ids.clone(), vec![weight(0), weight(1)]);
        }
        let scores = scored(s.scores, &logits);
        let mut choice: Vec<f64> = (0..EXPERTS).map(|e| scores[e] + w.correction.as_ref().map_or(0.0, |c| c[e])).collect();
        if let Some(g) = s.groups {
            let size = EXPERTS / g.count;
            let sums: Vec<f64> = choice.chunks(size).map(|c| best(c, g.best).iter().map(|&i| c[i]).sum()).collect();
            let taken = best(&sums, g.used);
            choice.iter_mut().enumerate().filter(|(e, _)| !taken.contains(&(e / size))).for_each(|(_, c)| *c = f64::NEG_INFINITY);
        }
        let ids = best(&choice, used);
        let mut weights = scored(s.chosen, &ids.iter().map(|&e| scores[e]).collect::<Vec<_>>());
        if let Some(by) = s.divisor {
            let sum = (weights.iter().sum::<f64>() + by.plus).max(by.least);
            weights.iter_mut().for_each(|v| *v /= sum);
        }
        let factor = |e: usize| w.factors.as_ref().map_or(1.0, |f| f[e]);
        let weights = weights.iter().zip(&ids).map(|(v, &e)| v * s.scale * factor(e)).collect();
        (ids, weights)
    }

    /// Experts, weights and the gradient of a weighted sum of the weights against f64: the definition and its finite differences.
    fn check(name: &str, spec: RouterSpec, used: usize) {
        let cpu = Device::cpu();
        let mut rng = Rng::new(9);
        let mut numbers = |shape: &[usize]| rng.normal(shape, DType::F32, &cpu).unwrap();
        let (weight, x, c) = (numbers(&[EXPERTS, WIDTH]), numbers(&[ROWS, WIDTH]), numbers(&[ROWS, used]));
        let (bias, correction) = (spec.bias.then(|| numbers(&[EXPERTS])), spec.correction.then(|| numbers(&[EXPERTS])));
        let (input_factors, factors) = (spec.input_norm.map(|_| numbers(&[WIDTH])), spec.factors.then(|| numbers(&[EXPERTS])));
        let wide = |t: &Tensor| t.to_vec().unwrap().iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
        let [b, c0, i0, f0] = [&bias, &correction, &input_factors, &factors].map(|t| t.as_ref().map(wide));
        let of = Exact { weight: wide(&weight), bias: b, correction: c0, input_factors: i0, factors: f0 };
        let router = Router { spec, count: EXPERTS, used, weight, bias, correction, input_factors, factors };
        let tracked = x.requires_grad().unwrap();
        let (weights, ids) = router.choose(&tracked).unwrap();
        weights.mul(&c).unwrap().sum_all().unwrap().backward().unwrap();
        let (got, ids, slope) = (wide(&weights), ids.to_vec_of::<i32>().unwrap(), wide(&tracked.grad().unwrap()));
        let (x, c) = (wide(&x), wide(&c));
        for t in 0..ROWS {
            let row = x[t * WIDTH..][..WIDTH].to_vec();
            let (want_ids, want) = exact(&spec, used, &of, &row);
            let near = |a: f64, b: f64, by: f64| (a - b).abs() <= by * (1.0 + b.abs());
            assert!((0..used).all(|k| ids[t * used + k] as usize == want_ids[k]), "{name}, row {t}: {ids:?} {want_ids:?}");
            assert!((0..used).all(|k| near(got[t * used + k], want[k], 2e-6)), "{name}, row {t}: {got:?} {want:?}");
            let sum = |x: &[f64]| exact(&spec, used, &of, x).1.iter().zip(&c[t * used..]).map(|(w, c)| w * c).sum::<f64>();
            for i in 0..WIDTH {
                const STEP: f64 = 1e-6;
                let moved = |by: f64| {
                    let mut row = row.clone();
                    row[i] += by;
                    sum(&row)
                };
                let want = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                assert!(near(slope[t * WIDTH + i], want, 2e-5), "{name}, row {t}, input {i}: {} is not {want}", slope[t * WIDTH + i]);
            }
        }
    }

    #[test]
    fn gradients_of_the_weights_are_those_of_the_definitions() {
        let new = RouterSpec::new;
        check("Mixtral", new(Scores::Softmax).normalised(true), 2);
        check("Qwen 2", new(Scores::Softmax), 4);
        check("gpt-oss", RouterSpec { bias: true, chosen: Scores::Softmax, ..new(Scores::AsTheyAre) }, 3);
        let groups = Some(GroupSpec { count: 4, used: 2, best: 2 });
        let divisor = Some(Divisor { plus: 1e-20, least: 0.0 });
        check("DeepSeek 3", RouterSpec { correction: true, groups, divisor, scale: 2.5, ..new(Scores::Sigmoid) }, 3);
        check("a least divisor", RouterSpec { divisor: Some(Divisor { plus: 0.0, least: 0.3 }), ..new(Scores::Softmax) }, 2);
        check("Gemma 4", RouterSpec { input_norm: Some(1e-6), factors: true, ..new(Scores::Softmax).normalised(true) }, 3);
        check("Phi 3.5", RouterSpec { sparse_mixer: Some(0.01), ..new(Scores::AsTheyAre) }, 2);
        check("Phi 3.5 with more noise", RouterSpec { sparse_mixer: Some(0.4), ..new(Scores::AsTheyAre) }, 2);
    }
}
