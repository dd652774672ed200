//! Which form of the index-add kernel runs.

use super::Combine;
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::{decide, grid, indexable, words};

/// A piece of one row of the table per workgroup.
pub fn index_add(how: Combine, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (table, count) = (&step.loads[0].shape, step.loads[1].shape.count());
    let (rows, inner) = (table[0], table[1]);
    let vec = inner % 4 == 0;
    let workgroup = 256.min(adapter.workgroup_threads.max(1));
    if !indexable(&[table.count(), count.checked_mul(inner)?]) {
        return None;
    }
    let pieces = (if vec { inner / 4 } else { inner }).div_ceil(workgroup as usize).max(1);
    let grid = grid(rows.checked_mul(pieces)?)?;
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
        words: words(&[rows, inner, count, grid[0] as usize, pieces])?,
        raw: vec![],
        transposed: vec![],
    })
}
