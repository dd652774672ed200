//! Bounds the work of a render, and its errors.

use std::cell::Cell;

/// What went wrong, in words.
pub(crate) type Res<T> = Result<T, String>;

/// Counts down the steps and the bytes that a render may still use.
pub(crate) struct Meter {
    steps: Cell<usize>,
    bytes: Cell<usize>,
}

impl Meter {
    pub(crate) fn new(steps: usize, bytes: usize) -> Self {
        Meter { steps: Cell::new(steps), bytes: Cell::new(bytes) }
    }
    /// Uses `n` steps.
    pub(crate) fn step(&self, n: usize) -> Res<()> {
        self.steps.set(self.steps.get().checked_sub(n).ok_or("it takes too many steps")?);
        Ok(())
    }
    /// Uses `n` bytes of new text or lists. What is freed does not come back.
    pub(crate) fn bytes(&self, n: usize) -> Res<()> {
        self.bytes.set(self.bytes.get().checked_sub(n).ok_or("it builds too much text")?);
        Ok(())
    }
    /// Appends to a text.
    pub(crate) fn push(&self, out: &mut String, text: &str) -> Res<()> {
        self.bytes(text.len())?;
        out.push_str(text);
        Ok(())
    }
}
