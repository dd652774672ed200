//! Which form of the index-add kernel runs.

use super::Combine;
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::{decide, grid, indexable, words};

/// Workgroups that keep a GPU busy: with fewer rows than that each has a workgroup of its own.
const MIN_WORKGROUPS: usize = 512;

/// A piece of one row of the table per workgroup, or as many whole rows as it has threads for: each workgroup looks through all indices, so
/// fewer of them read less.
pub fn index_add(how: Combine, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (table, count) = (&step.loads[0].shape, step.loads[1].shape.count());
    let (rows, inner) = (table[0], table[1]);
    let vec = inner % 4 == 0;
    let workgroup = 256.min(adapter.workgroup_threads.max(1));
    if !indexable(&[table.count(), count.checked_mul(inner)?]) {
        return None;
    }
    let threads = (if vec { inner / 4 } else { inner }).max(1);
    let pieces = threads.div_ceil(workgroup as usize);
    let group_rows = (workgroup as usize / threads).min(rows / MIN_WORKGROUPS).max(1);
    let grid = grid(rows.div_ceil(group_rows).checked_mul(pieces)?)?;
    let mut source = String::from(include_str!("index_add.wgsl"));
    match step.loads[0].dtype().compute() {
        DType::F32 => {}
        DType::U32 => source = source.replace("alias Sum = f32;", "alias Sum = u32;"),
        _ => source = source.replace("alias Sum = f32;", "alias Sum = i32;"),
    }
    Some(Wgsl {
        source: decide(source, &[("VEC", vec as u32)]),
        consts: vec![("VEC", vec as u32), ("HOW", how as u32)],
        workgroup,
        grid,
        words: words(&[rows, inner, count, grid[0] as usize, pieces, group_rows])?,
        raw: vec![],
        transposed: vec![],
    })
}
