//! How quantized weights lie in memory.

use crate::quant::Bits;

/// Weights `[n, k]` in rows of `row_bytes`, and which of the scales an element has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AffineWeights {
    pub bits: Bits,
    pub n: usize,
    pub k: usize,
    pub row_bytes: usize,
    /// Neighbours in a row that share a scale, and scales from a row to the next: element (r, c) has scale `r · row_groups + c / group`.
    pub group: usize,
    pub row_groups: usize,
}
