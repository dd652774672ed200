//! The GPU form of gather.

use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::{Template, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct GatherParams {
        /// Rows of the table.
        rows: u32,
        /// Elements of a row.
        inner: u32,
        /// Indices.
        count: u32,
        /// Workgroups in x.
        groups_x: u32,
    }
}

static GATHER: Template = Template::new("gather.wgsl", include_str!("gather.wgsl")).params(GatherParams::FIELDS);

/// Rows of load 0 `[n, inner]` by load 1 `[count]`.
pub fn gather(step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (table, count) = (&step.loads[0].shape, step.loads[1].shape.count());
    let (rows, inner) = (table[0], table[1]);
    let vec = inner % 4 == 0;
    let workgroup = adapter.tuning.rows.workgroup_threads[1].min(adapter.workgroup_threads.max(1));
    let threads = count.checked_mul(if vec { inner / 4 } else { inner })?;
    if rows == 0 || !indexable(&[table.count(), count * inner]) {
        return None;
    }
    let grid = grid(threads.div_ceil(workgroup as usize))?;
    let params = GatherParams { rows: U32::size(rows)?, inner: U32::size(inner)?, count: U32::size(count)?, groups_x: grid[0].into() };
    Some(Wgsl {
        source: GATHER.source(&[("VEC", vec.into())]),
        consts: vec![("VEC", vec as u32)],
        workgroup,
        grid,
        params: params.values(),
        raw: vec![],
        transposed: vec![],
    })
}
