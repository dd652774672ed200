//! The GPU form of the least logit that may be drawn.

use super::Cutoff;
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::{Combine, RowGroup};
use crate::shader::{F32, MAX_GROUPS, Template, U32, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct CutoffParams {
        /// Logits.
        count: u32,
        /// How many of the largest are left, or 0 for all.
        top_k: u32,
        /// The share of the weight that is left.
        top_p: f32,
        /// 1/temperature.
        inverse_temperature: f32,
        /// temperature · ln(min-p): the least logit less the largest one.
        min_p_shift: f32,
    }
}

static CUTOFF: Template = Template::new("cutoff.wgsl", include_str!("cutoff.wgsl")).params(CutoffParams::FIELDS);

/// Logits `[V]` to `[1]`.
pub fn cutoff(of: &Cutoff, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let count = step.loads[0].shape.count();
    if !indexable(&[count]) {
        return None;
    }
    // No number is minus infinity.
    let number = |v: f64| F32::from((v as f32).max(-3e38));
    let params = CutoffParams {
        count: U32::size(count)?,
        top_k: U32::size(if of.top_k < count { of.top_k } else { 0 })?,
        top_p: number(of.top_p),
        inverse_temperature: number(1.0 / of.temperature),
        min_p_shift: number(of.temperature * of.min_p.ln()),
    };
    Some(kernel(adapter, false, 1, params))
}

/// Logits `[B, V]` and settings `[B, 5]` to `[B, 1]`.
pub(super) fn cutoff_rows(step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let &[rows, count] = step.loads[0].shape.dims() else { return None };
    let grid = u32::try_from(rows).ok().filter(|&n| n <= MAX_GROUPS)?;
    if !indexable(&[rows.checked_mul(count)?]) {
        return None;
    }
    let params = CutoffParams {
        count: U32::size(count)?,
        top_k: U32::ABSENT,
        top_p: F32::ABSENT,
        inverse_temperature: F32::ABSENT,
        min_p_shift: F32::ABSENT,
    };
    Some(kernel(adapter, true, grid, params))
}

/// Bits of a key that a pass over the logits looks at, and threads of a workgroup at most: where memory has this room, and elsewhere.
const LARGE: (u32, u32) = (11, 1024);
const LARGE_BYTES: u32 = 32 << 10;
const SMALL: (u32, u32) = (8, 256);

/// The kernel, of one row by the parameters or of as many rows by their own settings.
fn kernel(adapter: &AdapterInfo, by_row: bool, rows: u32, params: CutoffParams) -> Wgsl {
    // Two words a bin and two a thread.
    let (bits, most) = if adapter.workgroup_bytes >= LARGE_BYTES { LARGE } else { SMALL };
    let workgroup = 1 << adapter.workgroup_threads.clamp(1, most).ilog2();
    let group = RowGroup { workgroup, size: workgroup, col_major: false };
    let largest = Combine { ty: "u32", expr: "max(a, b)", builtin: Some("subgroupMax") };
    let values = [("ROWS", by_row.into()), ("WORKGROUP_MAX", group.function("workgroup_max", largest, adapter).into())];
    Wgsl {
        source: CUTOFF.source(&values),
        consts: vec![("BITS", bits)],
        workgroup,
        grid: [rows, 1, 1],
        params: params.values(),
        raw: vec![],
        transposed: vec![],
    }
}
