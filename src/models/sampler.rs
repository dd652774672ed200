//! Sampling the next token from logits: on the device, or on the host for a repetition penalty and, on the CPU, for top-k, top-p and min-p.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::ops::Rhs;
use crate::ops::cutoff::Cutoff;
use crate::ops::random::Rng;
use crate::tensor::Tensor;

/// How the next token is chosen. Steps apply in this order: repetition penalty, temperature, top-k, top-p, min-p, draw.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// 0 always takes the most likely token; higher values flatten the distribution.
    pub temperature: f64,
    /// Keeps the `top_k` most likely tokens, including ties with the last one; 0 for all.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens with this total probability; 1 for all.
    pub top_p: f64,
    /// Keeps tokens at least `min_p` times as likely as the most likely one; 0 for all.
    pub min_p: f64,
    /// Divides the (positive) logits of earlier tokens (Keskar et al., 2019); 1 for none.
    pub repetition_penalty: f64,
    /// The random number generator.
    pub rng: Rng,
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, rng: Rng::new(0) }
    }
}

/// The token that the device returns for a row with a NaN.
pub(crate) const NAN_TOKEN: i32 = crate::ops::reduce::NONE;

/// Noise to be subtracted, −g = ln(−ln(1 − u)), of random bits.
pub(crate) fn noise(bits: &Tensor) -> TensorResult<Tensor> {
    // u in (0, 1), whose smallest values stand for the largest noise: 2⁻³³ is not 0, and the largest is not 1.
    let u = bits.cast(DType::F32)?.add(0.5)?.mul(NEARLY_ONE / 4_294_967_296.0)?;
    u.neg()?.log1p()?.neg()?.log()
}

/// The largest f32 below 1.
const NEARLY_ONE: f64 = 1.0 - 1.0 / 16_777_216.0;

impl Sampler {
    /// Fails on settings outside their ranges.
    ///
    /// # Errors
    /// [`TensorError::Config`], which names the setting.
    ///
    /// ```
    /// use tensorlogic::models::Sampler;
    /// assert!(Sampler { temperature: 0.8, top_p: 0.95, ..Sampler::default() }.check().is_ok());
    /// let error = Sampler { top_p: 1.5, ..Sampler::default() }.check().unwrap_err();
    /// assert_eq!(error.to_string(), "top-p is 1.5; expected more than 0, at most 1");
    /// ```
    pub fn check(&self) -> TensorResult<()> {
        let wrong = |what: &str, v: f64, want: &str| Err(TensorError::Config(format!("{what} is {v}; expected {want}")));
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

    /// Whether the token is chosen on this device, so that logits are not copied to the host.
    pub fn on_device(&self, device: &Device) -> bool {
        self.repetition_penalty == 1.0 && (self.temperature == 0.0 || self.draws_from_all() || !device.capabilities().host_memory)
    }

    fn draws_from_all(&self) -> bool {
        self.top_k == 0 && self.top_p == 1.0 && self.min_p == 0.0
    }

    fn cutoff(&self) -> Cutoff {
        Cutoff { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p, min_p: self.min_p }
    }

    /// The next token, `[1]` i32, from logits `[V]`, on the device; [`NAN_TOKEN`] if a logit is NaN.
    ///
    /// Temperature sampling is by the Gumbel-max trick: the best of logits/T + g with g = −ln(−ln(1 − u)) is a draw from the softmax.
    pub(crate) fn choose(&mut self, logits: &Tensor) -> TensorResult<Tensor> {
        let scores = if self.temperature == 0.0 {
            logits.clone()
        } else {
            let scores = logits.mul(1.0 / self.temperature)?.sub(&noise(&self.rng.bits(logits.dims(), logits.device())?)?)?;
            if self.draws_from_all() {
                scores
            } else {
                // NaN is not less, so that it stays to be found.
                logits.lt(&logits.cutoff(self.cutoff())?)?.where_(Rhs::Lit(f64::NEG_INFINITY), Rhs::Tensor(&scores))?
            }
        };
        scores.choice(-1)?.reshape(&[1])
    }

    /// The next token from logits on the host. `past` are the tokens so far, for the repetition penalty.
    ///
    /// # Errors
    /// [`TensorError::Numeric`] where a logit is NaN; [`TensorError::Value`] where there are none.
    ///
    /// ```
    /// use tensorlogic::models::Sampler;
    /// let logits = [0.1f32, 2.0, 1.9];
    /// assert_eq!(Sampler::default().choose_host(&mut logits.clone(), &[])?, 1);
    /// let mut varied = Sampler { repetition_penalty: 2.0, ..Sampler::default() };
    /// assert_eq!(varied.choose_host(&mut logits.clone(), &[1])?, 2); // token 1 was there: its logit counts as 1
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn choose_host(&mut self, logits: &mut [f32], past: &[u32]) -> TensorResult<u32> {
        if logits.is_empty() {
            return Err(TensorError::Value("no logits".into()));
        }
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
            return order.into_iter().min_by(by_logit).ok_or_else(|| TensorError::Value("no logits".into()));
        }
        if !self.draws_from_all() {
            let cut = self.cutoff().of(&mut logits.to_vec());
            order.retain(|&t| logits[t as usize] >= cut);
        }
        order.sort_unstable_by(by_logit);
        let best = logits[order[0] as usize] as f64;
        let p: Vec<f64> = order.iter().map(|&t| ((logits[t as usize] as f64 - best) / self.temperature).exp()).collect();
        let u = crate::scalar::philox(0, self.rng.draws, self.rng.seed as u32) as f64 / 4_294_967_296.0;
        self.rng.draws = self.rng.draws.wrapping_add(1);
        let mut left = u * p.iter().sum::<f64>();
        let pick = p.iter().position(|v| {
            left -= v;
            left < 0.0
        });
        Ok(order[pick.unwrap_or(p.len() - 1)])
    }
}

pub(crate) fn nan_error() -> TensorError {
    TensorError::Numeric(
        "the logits contain NaN: the weights are damaged, or f16 activations overflow; load the model with DType::F32".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::under_test::devices;
    use crate::ops::reduce::NONE;

    #[test]
    fn nothing_can_be_chosen_from_no_logits() {
        for temperature in [0.0, 1.0] {
            let mut sampler = Sampler { temperature, ..Sampler::default() };
            assert!(matches!(sampler.choose_host(&mut [], &[]), Err(TensorError::Value(_))), "{temperature}");
        }
    }

    /// Tokens that a sampler chooses from these logits on the device.
    fn tokens(sampler: &mut Sampler, logits: &[f32], count: usize, device: &Device) -> Vec<i32> {
        sampler.check().unwrap();
        assert!(sampler.on_device(device) || *device == Device::cpu());
        let logits = Tensor::from_vec(logits.to_vec(), &[logits.len()], device).unwrap();
        (0..count).map(|_| sampler.choose(&logits).unwrap().to_vec_of::<i32>().unwrap()[0]).collect()
    }

    /// Whether `count` draws are as often each token as these probabilities say: χ² within five of its standard deviations.
    #[track_caller]
    fn check_frequencies(name: &str, drawn: &[i32], p: &[f64]) {
        let mut seen = vec![0f64; p.len()];
        drawn.iter().for_each(|&t| seen[t as usize] += 1.0);
        let n = drawn.len() as f64;
        assert!(seen.iter().zip(p).all(|(s, p)| *p > 0.0 || *s == 0.0), "{name}: {seen:?} of {p:?}");
        let squares: f64 = seen.iter().zip(p).filter(|(_, p)| **p > 0.0).map(|(s, p)| (s - n * p).powi(2) / (n * p)).sum();
        let free = p.iter().filter(|p| **p > 0.0).count() as f64 - 1.0;
        assert!(squares <= free + 5.0 * (2.0 * free).sqrt(), "{name}: {squares} with {free} degrees of freedom, {seen:?} of {p:?}");
    }

    fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
        let e: Vec<f64> = logits.iter().map(|l| (*l as f64 / temperature).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.iter().map(|v| v / sum).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_best_and_knows_nan() {
        for device in devices() {
            let mut logits: Vec<f32> = (0..5003).map(|i| ((i * 37) % 1009) as f32).collect();
            let best = logits.iter().position(|l| *l == 1008.0).unwrap() as i32;
            assert_eq!(tokens(&mut Sampler::default(), &logits, 1, &device), [best], "{}", device.name());
            logits[4999] = f32::NAN;
            assert_eq!(tokens(&mut Sampler::default(), &logits, 1, &device), [NONE], "{}", device.name());
            let mut warm = Sampler { temperature: 0.7, ..Sampler::default() };
            assert_eq!(tokens(&mut warm, &logits, 1, &device), [NONE], "{}", device.name());
        }
    }

    #[test]
    fn temperature_draws_from_the_softmax() {
        let logits = [0.3, -1.0, 2.0, 1.1, -4.0, 0.0, 1.9];
        for device in devices() {
            for temperature in [0.5, 1.0, 1.7] {
                let mut s = Sampler { temperature, rng: Rng::new(11), ..Sampler::default() };
                let drawn = tokens(&mut s, &logits, 2000, &device);
                check_frequencies(&format!("{} at {temperature}", device.name()), &drawn, &softmax(&logits, temperature));
            }
        }
    }

    /// What top-k, top-p and min-p leave of `logits`, and its probabilities, by their definitions one after the other.
    fn left(s: &Sampler, logits: &[f32]) -> Vec<f64> {
        let mut p = softmax(logits, s.temperature);
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let last = |kept: usize, order: &[usize]| order.iter().position(|&t| logits[t] < logits[order[kept - 1]]).unwrap_or(order.len());
        if s.top_k > 0 {
            order.truncate(last(s.top_k.min(order.len()), &order));
        }
        let all: f64 = order.iter().map(|&t| p[t]).sum();
        let mut sum = 0.0;
        let enough = order.iter().position(|&t| {
            sum += p[t];
            sum >= s.top_p * all
        });
        if let Some(n) = enough.filter(|_| s.top_p < 1.0) {
            order.truncate(last(n + 1, &order));
        }
        let least = s.min_p * p[order[0]];
        order.retain(|&t| p[t] >= least);
        (0..p.len()).filter(|t| !order.contains(t)).for_each(|t| p[t] = 0.0);
        let sum: f64 = p.iter().sum();
        p.iter().map(|v| v / sum).collect()
    }

    #[test]
    fn draws_are_from_what_is_left() {
        let logits = [0.3, -1.0, 2.0, 1.1, -4.0, 0.0, 1.9, 0.3];
        for device in devices() {
            for (top_k, top_p, min_p) in [(3, 1.0, 0.0), (4, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.2), (5, 0.9, 0.1)] {
                let mut s = Sampler { temperature: 1.2, top_k, top_p, min_p, rng: Rng::new(3), ..Sampler::default() };
                let want = left(&s, &logits);
                let name = format!("{} {s:?}", device.name());
                check_frequencies(&name, &tokens(&mut s, &logits, 1500, &device), &want);
                let host: Vec<i32> = (0..1500).map(|_| s.choose_host(&mut logits.to_vec(), &[]).unwrap() as i32).collect();
                check_frequencies(&format!("{name} on the host"), &host, &want);
            }
            let mut s = Sampler { temperature: 1.0, top_k: 2, ..Sampler::default() };
            assert_eq!(tokens(&mut s, &[1.0, f32::NAN, 3.0, 2.0], 1, &device), [NONE], "{}", device.name());
        }
    }
}
