//! Choosing the next token from logits: greedy and temperature on the device, the other samplers on the host.

use crate::error::{TensorError, TensorResult};
use crate::ops::random::Rng;
use crate::tensor::Tensor;

/// How the next token is chosen. Steps apply in this order: repetition penalty, temperature, top-k, top-p, min-p, draw.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// 0 takes the best token; higher values flatten the distribution.
    pub temperature: f64,
    /// Only the `top_k` best tokens; 0 for all.
    pub top_k: usize,
    /// Only the fewest best tokens that together have this probability; 1 for all.
    pub top_p: f64,
    /// Only tokens at least `min_p` times as probable as the best; 0 for all.
    pub min_p: f64,
    /// Divides the (positive) logits of tokens that occurred before (Keskar et al., 2019); 1 for none.
    pub repetition_penalty: f64,
    /// The stream of random numbers.
    pub rng: Rng,
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, rng: Rng::new(0) }
    }
}

/// What the device gives for a row that holds a NaN instead of a token.
pub(crate) const NAN_TOKEN: i32 = -1;

impl Sampler {
    /// Fails on settings outside their ranges.
    pub fn check(&self) -> TensorResult<()> {
        let wrong = |what: &str, v: f64, want: &str| Err(TensorError::Invalid(format!("{what} is {v}; want {want}")));
        match self {
            s if !(s.temperature >= 0.0 && s.temperature.is_finite()) => wrong("temperature", s.temperature, "0 or more"),
            s if !(s.top_p > 0.0 && s.top_p <= 1.0) => wrong("top-p", s.top_p, "more than 0, at most 1"),
            s if !(s.min_p >= 0.0 && s.min_p <= 1.0) => wrong("min-p", s.min_p, "0 to 1"),
            s if !(s.repetition_penalty > 0.0 && s.repetition_penalty.is_finite()) => {
                wrong("repetition penalty", s.repetition_penalty, "more than 0")
            }
            _ => Ok(()),
        }
    }

    /// Whether the token is chosen on the device, so that logits never leave it.
    pub fn on_device(&self) -> bool {
        self.repetition_penalty == 1.0 && (self.temperature == 0.0 || (self.top_k == 0 && self.top_p == 1.0 && self.min_p == 0.0))
    }

    /// The next token, `[1]` i32, from logits `[V]`, on the device; [`NAN_TOKEN`] where a logit is NaN.
    ///
    /// Temperature sampling is by the Gumbel-max trick: the best of logits/T + g with g = −ln(−ln u) is a draw from the softmax.
    pub(crate) fn choose(&mut self, logits: &Tensor) -> TensorResult<Tensor> {
        let best = logits.max_all()?;
        let scores = if self.temperature == 0.0 {
            logits.clone()
        } else {
            // u in (0, 1): half a step above the uniform's grid.
            let u = self.rng.uniform(logits.dims(), logits.dtype(), logits.device())?.add(0.5 / 16_777_216.0)?;
            logits.mul(1.0 / self.temperature)?.sub(&u.log()?.neg()?.log()?)?
        };
        best.isnan()?.where_(NAN_TOKEN, &scores.argmax(-1)?)?.reshape(&[1])
    }

    /// The next token from logits on the host. `past` are the tokens so far, for the repetition penalty.
    pub fn choose_host(&mut self, logits: &mut [f32], past: &[u32]) -> TensorResult<u32> {
        if logits.iter().any(|l| l.is_nan()) {
            return Err(nan_error());
        }
        if self.repetition_penalty != 1.0 {
            let mut seen = std::collections::HashSet::new();
            for &t in past {
                if let Some(l) = logits.get_mut(t as usize).filter(|_| seen.insert(t)) {
                    *l = if *l > 0.0 { *l / self.repetition_penalty as f32 } else { *l * self.repetition_penalty as f32 };
                }
            }
        }
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let by_logit = |&a: &u32, &b: &u32| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
        if self.temperature == 0.0 {
            return order.into_iter().min_by(by_logit).ok_or_else(|| TensorError::Invalid("no logits".into()));
        }
        if self.top_k > 0 && self.top_k < order.len() {
            order.select_nth_unstable_by(self.top_k - 1, by_logit);
            order.truncate(self.top_k);
        }
        order.sort_unstable_by(by_logit);
        let best = logits[order[0] as usize] as f64;
        let mut p: Vec<f64> = order.iter().map(|&t| ((logits[t as usize] as f64 - best) / self.temperature).exp()).collect();
        let total: f64 = p.iter().sum();
        let mut kept = p.len();
        if self.top_p < 1.0 {
            let mut sum = 0.0;
            kept = p
                .iter()
                .position(|v| {
                    sum += v / total;
                    sum >= self.top_p
                })
                .map_or(p.len(), |n| n + 1);
        }
        kept = kept.min(p.iter().position(|&v| v < self.min_p * p[0]).unwrap_or(p.len())).max(1);
        p.truncate(kept);
        let u = crate::scalar::philox(0, self.rng.draws, self.rng.seed as u32) as f64 / 4_294_967_296.0;
        self.rng.draws = self.rng.draws.wrapping_add(1);
        let mut left = u * p.iter().sum::<f64>();
        let pick = p.iter().position(|v| {
            left -= v;
            left < 0.0
        });
        Ok(order[pick.unwrap_or(kept - 1)])
    }
}

pub(crate) fn nan_error() -> TensorError {
    TensorError::Invalid("the model gave NaN logits; its weights are damaged, or its activations overflow: try --dtype f32".into())
}
