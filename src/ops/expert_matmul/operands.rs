//! How the GPU forms of products with experts' weights read both operands.

use crate::ops::matmul::weights::{FILES, Items, Weights};
use crate::shader::TemplateValue;

/// What their templates include.
pub(super) const OPERANDS: [(&str, &str); 5] =
    [("expert_operands.wgsl", include_str!("expert_operands.wgsl")), FILES[0], FILES[1], FILES[2], FILES[3]];

/// The sizes of an item of weights.
pub(super) fn consts(weights: &Weights) -> [(&'static str, u32); 4] {
    let Items { quads, quad_runs, span, parts, .. } = weights.shape;
    [("QUADS", quads), ("RUNS", quad_runs), ("SPAN", span), ("PARTS", parts.max(1))]
}

/// What the included files ask for besides: rows of `k` columns, those of x in whole eights that are read as they are if they are `raw_x`, and the
/// function that sums over a row group.
pub(super) fn values(weights: &Weights, k: usize, raw_x: bool, sum: String) -> Vec<(&'static str, TemplateValue)> {
    let Items { quads, parts, .. } = weights.shape;
    let mut values = weights.values();
    values.extend([("PART", (quads / parts.max(1)).into()), ("VEC_X", (k % 4 == 0).into()), ("RAW_X", raw_x.into()), ("SUM", sum.into())]);
    values
}
