//! A matrix product as the GPU kernels see it.

use super::weights::Weights;
use crate::plan::{AdapterInfo, Load, Step};

/// A product: `a [batch, M, K]` times `b [batch, N, K]`.
pub(super) struct Product<'a> {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: &'a Load,
    pub b: &'a Load,
    pub weights: Weights,
    pub adapter: &'a AdapterInfo,
}

impl<'a> Product<'a> {
    /// That of a step.
    pub fn of(step: &'a Step, adapter: &'a AdapterInfo) -> Option<Product<'a>> {
        let (a, b) = (&step.loads[0], &step.loads[1]);
        let [batch, m, k] = *a.shape.dims() else { return None };
        Some(Product { batch, m, n: b.shape[1], k, a, b, weights: Weights::of(b, k), adapter })
    }
}
