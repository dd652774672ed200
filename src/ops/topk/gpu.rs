//! The GPU form of the largest few elements of rows: a row group of threads passes over its row, or what it keeps of it, once for each of them.

use super::TopKKernel;
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::{Combine, RowGroup, SUM};
use crate::shader::{Template, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct TopKParams {
        /// Rows.
        rows: u32,
        /// Elements of a row.
        n: u32,
        /// How many of them.
        k: u32,
        /// Workgroups in x.
        groups_x: u32,
    }
}

static TOPK: Template = Template::new("topk.wgsl", include_str!("topk.wgsl")).params(TopKParams::FIELDS);

/// Threads of a row at least and at most: each has one of the places that are found.
const ROW_THREADS: [u32; 2] = [8, 32];

/// The larger key, and of equal ones the lower place.
const BETTER: Combine = Combine { ty: "vec2<u32>", expr: "better(a, b)", builtin: None };

/// Load 0 `[rows, n]` to places, and elements or their softmax where there is a second store.
pub(super) fn topk(of: &TopKKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let &[rows, n] = step.loads[0].shape.dims() else { return None };
    if !indexable(&[rows.checked_mul(n)?]) {
        return None;
    }
    let most = 1 << adapter.workgroup_threads.max(1).ilog2();
    let size = (n.next_power_of_two() as u32).clamp(ROW_THREADS[0], ROW_THREADS[1]).min(most);
    // A thread of the row has each place that is found.
    if of.k > size as usize {
        return None;
    }
    let held = Some(n.div_ceil(size as usize)).filter(|&h| h <= adapter.tuning.rows.topk_elements).unwrap_or(0) as u32;
    let row_group = RowGroup { workgroup: adapter.tuning.rows.topk_threads.min(most).max(size), size, col_major: false };
    let grid = grid(rows.div_ceil(row_group.rows() as usize))?;
    let params = TopKParams { rows: U32::size(rows)?, n: U32::size(n)?, k: U32::size(of.k)?, groups_x: grid[0].into() };
    let elements = step.stores.len() > 1;
    let values = [
        ("SMALLEST", (!of.largest).into()),
        ("HELD", held.into()),
        ("ELEMENTS", elements.into()),
        ("SOFTMAX", of.softmax.into()),
        ("SUM", row_group.function("row_sum", SUM, adapter).into()),
        ("BEST", row_group.function("row_best", BETTER, adapter).into()),
    ];
    Some(Wgsl {
        source: TOPK.source(&values),
        consts: vec![("ROW_THREADS", size), ("SMALLEST", u32::from(!of.largest)), ("HELD", held)],
        workgroup: row_group.workgroup,
        grid,
        params: params.values(),
        raw: vec![],
        transposed: vec![],
    })
}
