//! Which form of the index-add kernel runs.

use super::{decide, grid, indexable, words};
use crate::plan::{AdapterInfo, Step, Wgsl};

/// A piece of one row of the table per workgroup.
pub fn index_add(step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (table, count) = (&step.loads[0].shape, step.loads[1].shape.count());
    let (rows, inner) = (table[0], table[1]);
    let vec = inner % 4 == 0;
    let workgroup = 256.min(adapter.workgroup_threads.max(1));
    if !indexable(&[table.count(), count.checked_mul(inner)?]) {
        return None;
    }
    let pieces = (if vec { inner / 4 } else { inner }).div_ceil(workgroup as usize).max(1);
    let grid = grid(rows.checked_mul(pieces)?)?;
    Some(Wgsl {
        source: decide(include_str!("../index_add.wgsl").into(), &[("VEC", vec as u32)]),
        consts: vec![("VEC", vec as u32)],
        workgroup,
        grid,
        words: words(&[rows, inner, count, grid[0] as usize, pieces])?,
        raw: vec![],
        turned: vec![],
    })
}
