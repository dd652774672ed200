//! What a constraint allows of an answer's next token.

use super::request::Constraint;
use crate::error::{TensorError, TensorResult};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What an answer may consist of, and the tokens that may come next.
pub(super) struct Limited {
    constraint: Box<dyn Constraint>,
    pub allowed: Vec<u32>,
    /// Whether a token came since.
    pub stale: bool,
}

/// What is certain of an answer's next token.
pub(super) enum Next {
    Open,
    /// There is none.
    End,
}

impl Limited {
    pub fn new(constraint: Box<dyn Constraint>, vocab: usize) -> Limited {
        Limited { constraint, allowed: vec![0; vocab.div_ceil(32)], stale: true }
    }

    /// Finds the tokens that may come next.
    pub fn look(&mut self, ends: &[u32]) -> TensorResult<Next> {
        self.stale = false;
        self.allowed.fill(0);
        let may_end = guarded(|| self.constraint.allow(&mut self.allowed))?;
        if self.allowed.iter().all(|&word| word == 0) {
            let stuck = || TensorError::Value("the constraint allows no token and no end".into());
            return if may_end { Ok(Next::End) } else { Err(stuck()) };
        }
        for &end in ends {
            let Some(word) = self.allowed.get_mut(end as usize / 32) else { continue };
            let bit = 1 << (end % 32);
            *word = if may_end { *word | bit } else { *word & !bit };
        }
        match self.allowed.iter().any(|&word| word != 0) {
            true => Ok(Next::Open),
            false => Err(TensorError::Value("the grammar allows only the end of the text, but the answer must not end yet".into())),
        }
    }

    pub fn wrote(&mut self, token: u32) -> TensorResult<()> {
        self.stale = true;
        guarded(|| self.constraint.wrote(token))
    }
}

/// Runs a request's own code, whose panic is an error.
fn guarded<T>(run: impl FnOnce() -> TensorResult<T>) -> TensorResult<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(TensorError::Internal("the constraint panicked".into())))
}
