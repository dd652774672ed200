//! The GPU form of gather.

use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::{decide, grid, indexable, words};

/// Rows of load 0 `[n, inner]` by load 1 `[count]`.
pub fn gather(step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (table, count) = (&step.loads[0].shape, step.loads[1].shape.count());
    let (rows, inner) = (table[0], table[1]);
    let vec = inner % 4 == 0;
    let workgroup = 256.min(adapter.workgroup_threads.max(1));
    let threads = count.checked_mul(if vec { inner / 4 } else { inner })?;
    if rows == 0 || !indexable(&[table.count(), count * inner]) {
        return None;
    }
    let grid = grid(threads.div_ceil(workgroup as usize))?;
    Some(Wgsl {
        source: decide(include_str!("gather.wgsl").into(), &[("VEC", vec as u32)]),
        consts: vec![("VEC", vec as u32)],
        workgroup,
        grid,
        words: words(&[rows, inner, count, grid[0] as usize])?,
        raw: vec![],
        transposed: vec![],
    })
}
