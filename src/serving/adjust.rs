//! What a row wants changed about its logits before a token is chosen: penalties for tokens that were there, and numbers that are added to some.

use super::request::{LogProbs, Sampling};
use std::collections::{HashMap, HashSet};

/// A row's wishes, with the tokens that they depend on.
pub(super) struct Adjust {
    presence: f64,
    frequency: f64,
    repetition: f64,
    bias: Vec<(u32, f32)>,
    /// Tokens of the prompt, where they count.
    prompt: HashSet<u32>,
    /// How often each token was written.
    written: HashMap<u32, u32>,
}

impl Adjust {
    /// What these settings want, behind this prompt.
    pub fn of(s: &Sampling, prompt: &[u32]) -> Option<Adjust> {
        let (presence, frequency, repetition) = (s.presence_penalty, s.frequency_penalty, s.repetition_penalty);
        let prompt = if repetition == 1.0 { HashSet::new() } else { prompt.iter().copied().collect() };
        let adjust = Adjust { presence, frequency, repetition, bias: s.bias.clone(), prompt, written: HashMap::new() };
        (adjust.looks_back() || !s.bias.is_empty()).then_some(adjust)
    }

    /// Whether the next choice depends on the tokens before it.
    pub fn looks_back(&self) -> bool {
        self.presence != 0.0 || self.frequency != 0.0 || self.repetition != 1.0
    }

    /// A token was written.
    pub fn wrote(&mut self, token: u32) {
        *self.written.entry(token).or_default() += 1;
    }

    /// Writes by what each logit is divided (multiplied where it is negative), and then what is added.
    pub fn write(&self, divisors: &mut [f32], addends: &mut [f32]) {
        for (&token, &times) in &self.written {
            if let Some(a) = addends.get_mut(token as usize) {
                *a -= (self.presence + self.frequency * f64::from(times)) as f32;
            }
        }
        for &token in self.prompt.iter().chain(self.written.keys()) {
            if let Some(d) = divisors.get_mut(token as usize) {
                *d = self.repetition as f32;
            }
        }
        for &(token, bias) in &self.bias {
            if let Some(a) = addends.get_mut(token as usize) {
                *a += bias;
            }
        }
    }
}

/// The logarithm of the probability that logits give to a token, and those of the `count` most likely ones.
pub(super) fn log_probs(logits: &[f32], token: u32, count: usize) -> LogProbs {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - best).exp()).sum();
    let of = |l: f32| (f64::from(l - best) - sum.ln()) as f32;
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (id, &l) in logits.iter().enumerate() {
        if top.len() < count || top.last().is_some_and(|&(_, least)| l > least) {
            let at = top.partition_point(|&(_, other)| other >= l);
            top.insert(at, (id as u32, l));
            top.truncate(count);
        }
    }
    let chosen = logits.get(token as usize).map_or(f32::NEG_INFINITY, |&l| of(l));
    LogProbs { chosen, top: top.into_iter().map(|(id, l)| (id, of(l))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_those_of_a_softmax() {
        let logits: Vec<f32> = (0..50).map(|i| ((i * 37 % 50) as f32 - 20.0) / 7.0).collect();
        let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        let want = |id: usize| f64::from(logits[id]) - sum.ln();
        let got = log_probs(&logits, 7, 5);
        assert!((f64::from(got.chosen) - want(7)).abs() < 1e-6);
        let mut order: Vec<usize> = (0..50).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        assert_eq!(got.top.iter().map(|t| t.0 as usize).collect::<Vec<_>>(), order[..5]);
        assert!(got.top.iter().all(|&(id, l)| (f64::from(l) - want(id as usize)).abs() < 1e-6));
        assert!(log_probs(&logits, 7, 0).top.is_empty());
    }

    #[test]
    fn penalties_count_what_was_written() {
        let s = Sampling {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            repetition_penalty: 2.0,
            bias: vec![(3, -1.0)],
            ..Default::default()
        };
        let mut adjust = Adjust::of(&s, &[1, 1]).unwrap();
        [2, 2, 3].into_iter().for_each(|t| adjust.wrote(t));
        let (mut divisors, mut addends) = ([1.0f32; 5], [0.0f32; 5]);
        adjust.write(&mut divisors, &mut addends);
        assert_eq!((divisors, addends), ([1.0, 2.0, 2.0, 2.0, 1.0], [0.0, 0.0, -1.0, -1.75, 0.0]));
        assert!(Adjust::of(&Sampling::default(), &[1]).is_none());
    }
}
