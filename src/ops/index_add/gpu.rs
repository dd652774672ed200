//! Which form of the index-add kernel runs.

use super::Combine;
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::{Template, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct IndexAddParams {
        /// Rows of the table.
        rows: u32,
        /// Elements of a row.
        inner: u32,
        /// Indices.
        count: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// Pieces of a row.
        pieces: u32,
        /// Rows of a workgroup.
        group_rows: u32,
    }
}

static INDEX_ADD: Template = Template::new("index_add.wgsl", include_str!("index_add.wgsl")).params(IndexAddParams::FIELDS);

/// A piece of one row of the table per workgroup, or as many whole rows as it has threads for: each workgroup looks through all indices, so
/// fewer of them read less.
pub fn index_add(how: Combine, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (table, count) = (&step.loads[0].shape, step.loads[1].shape.count());
    let (rows, inner) = (table[0], table[1]);
    let vec = inner % 4 == 0;
    let workgroup = adapter.tuning.rows.workgroup_threads[1].min(adapter.workgroup_threads.max(1));
    if !indexable(&[table.count(), count.checked_mul(inner)?]) {
        return None;
    }
    let threads = (if vec { inner / 4 } else { inner }).max(1);
    let pieces = threads.div_ceil(workgroup as usize);
    let group_rows = (workgroup as usize / threads).min(rows / adapter.tuning.reduce.index_add_groups.max(1)).max(1);
    let grid = grid(rows.div_ceil(group_rows).checked_mul(pieces)?)?;
    let sum = match step.loads[0].dtype().compute() {
        DType::F32 => "f32",
        DType::U32 => "u32",
        _ => "i32",
    };
    let params = IndexAddParams {
        rows: U32::size(rows)?,
        inner: U32::size(inner)?,
        count: U32::size(count)?,
        groups_x: grid[0].into(),
        pieces: U32::size(pieces)?,
        group_rows: U32::size(group_rows)?,
    };
    Some(Wgsl {
        source: INDEX_ADD.source(&[("VEC", vec.into()), ("SUM", sum.into()), ("FLOAT", (sum == "f32").into())]),
        consts: vec![("VEC", vec as u32), ("HOW", how as u32)],
        workgroup,
        grid,
        params: params.values(),
        raw: vec![],
        transposed: vec![],
    })
}
