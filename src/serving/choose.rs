//! The next token of each row, by settings of its own.

use super::request::Sampling;
use crate::error::TensorResult;
use crate::models::sampler::noise;
use crate::ops::Rhs;
use crate::ops::cutoff::{Cutoff, SETTINGS};
use crate::ops::random::{Rng, bits_of_streams};
use crate::tensor::Tensor;

/// How much a step has to do for the rows that it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Choice {
    /// All rows take the most likely token.
    Best,
    /// Some draw.
    Draw,
    /// Some draw from a part of the vocabulary.
    Cut,
}

impl Choice {
    pub const ALL: [Choice; 3] = [Choice::Best, Choice::Draw, Choice::Cut];

    /// What a row needs.
    pub fn of(s: &Sampling) -> Choice {
        match (s.draws(), s.cuts()) {
            (false, _) => Choice::Best,
            (true, false) => Choice::Draw,
            (true, true) => Choice::Cut,
        }
    }

    /// Tokens `[B]`, i32, of logits `[B,V]`: draws' numbers and streams' keys are u32 `[B,1]`, settings `[B,5]` as [`settings`] gives them.
    pub fn tokens(self, logits: &Tensor, [draws, keys]: [&Tensor; 2], settings: &Tensor) -> TensorResult<Tensor> {
        if self == Choice::Best {
            return logits.choice(-1)?.flatten(0, -1);
        }
        let noise = noise(&bits_of_streams(draws, keys, logits.dims()[1])?)?;
        // Rows with temperature 0 take the best, without noise.
        let draws = settings.narrow(1, SETTINGS - 1, 1)?.gt(0.0)?;
        let mut scores = draws.where_(&logits.mul(&settings.narrow(1, 0, 1)?)?.sub(&noise)?, logits)?;
        if self == Choice::Cut {
            // NaN is not less, so that it stays to be found.
            let hidden = logits.lt(&logits.cutoff_rows(settings)?)?;
            scores = hidden.where_(Rhs::Lit(f64::NEG_INFINITY), Rhs::Tensor(&scores))?;
        }
        scores.choice(-1)?.flatten(0, -1)
    }
}

/// A row's settings as a step reads them.
pub(super) fn settings(s: &Sampling) -> [f32; SETTINGS] {
    if !s.draws() {
        return [1.0, 0.0, 1.0, -3e38, 0.0];
    }
    Cutoff { temperature: s.temperature, top_k: s.top_k, top_p: s.top_p, min_p: s.min_p }.settings()
}

/// The key of a row's stream of random numbers.
pub(super) fn stream(s: &Sampling) -> u32 {
    Rng::new(s.seed).key()
}
