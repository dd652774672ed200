//! One row times weights by subgroups that have several rows each, whose inner loops have a form in Metal's language.

use super::gemv::{Gemv, with_values};
use super::weights::{WEIGHTS_QUADS, WIDE_HALVES};
use crate::dtype::DType;
use crate::plan::Wgsl;
use crate::shader::{Template, TemplateValue, U32, grid, params};

params! {
    /// What the kernel reads at run time.
    struct GemvSimdParams {
        /// Rows of b.
        n: u32,
        /// Columns of both.
        k: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// The first element of b, which is the sum of two.
        b_start: u32,
        /// The second of them.
        b_offset: u32,
    }
}

static GEMV_SIMD: Template = Template::new("gemv_simd.wgsl", include_str!("gemv_simd.wgsl")).params(GemvSimdParams::FIELDS).files(&[
    ("gemv_simd.metal", include_str!("gemv_simd.metal")),
    WEIGHTS_QUADS,
    WIDE_HALVES,
]);

/// Threads of a workgroup: two subgroups.
const WORKGROUP: u32 = 64;

/// The formats whose inner loop is in `gemv_simd.metal`: the name of its switch there, and the place of its rows in the tuning table.
fn switch_of(format: DType) -> Option<(&'static str, usize)> {
    match format {
        DType::F16 => Some(("METAL_HALVES", 0)),
        DType::Q4_0 => Some(("METAL_Q4_0", 1)),
        DType::Q8_0 => Some(("METAL_Q8_0", 1)),
        DType::Q4_K => Some(("METAL_Q4_K", 2)),
        DType::Q6_K => Some(("METAL_Q6_K", 2)),
        _ => None,
    }
}

/// One product of one row with weights that are read directly; `None` where the adapter has no bodies in Metal's language, or the format none.
pub(super) fn gemv_simd(g: &Gemv, format: DType) -> Option<Wgsl> {
    let &Gemv { a, products: &[(n, weights)], gated: false, vec4_store: false, norm: None, adapter } = g else { return None };
    let &[1, 1, k] = a.shape.dims() else { return None };
    let (switch, kind) = switch_of(format)?;
    let rows = adapter.tuning.metal.gemv_rows[kind];
    let [b_start, b_offset] = weights.raw?.map(U32::from);
    if !adapter.metal_bodies || adapter.subgroup != 32 || rows == 0 {
        return None;
    }
    let grid = grid(n.div_ceil((WORKGROUP / 32 * rows) as usize))?;
    let consts = vec![("ROWS", rows)];
    let mut values = weights.values();
    values.extend(with_values(&consts));
    values.extend(["METAL_HALVES", "METAL_Q4_0", "METAL_Q8_0", "METAL_Q4_K"].map(|s| (s, TemplateValue::from(s == switch))));
    values.push(("VEC_OUT", (rows == 4 && n.is_multiple_of(4)).into()));
    let params = GemvSimdParams { n: U32::size(n)?, k: U32::size(k)?, groups_x: grid[0].into(), b_start, b_offset };
    let (_, raw) = weights.start();
    Some(Wgsl { source: GEMV_SIMD.source(&values), consts, workgroup: WORKGROUP, grid, words: params.words(), raw, transposed: vec![] })
}
