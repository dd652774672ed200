//! The GPU forms of reductions over the last axis.

use super::ReduceOp as Reduction;
use crate::dtype::DType;
use crate::plan::{AdapterInfo, SCRATCH_COUNTERS, SCRATCH_WORDS, Step, Wgsl};
use crate::shader::row_group::{Combine, RowGroup};
use crate::shader::{Template, U32, col_major, grid, indexable, params};

params! {
    /// What both kernels read at run time.
    struct ReduceParams {
        /// Rows.
        rows: u32,
        /// Elements of a row.
        cols: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// Workgroups of a row.
        parts: u32,
    }
}

static REDUCE: Template = Template::new("reduce.wgsl", include_str!("reduce.wgsl")).params(ReduceParams::FIELDS);
static ARG_REDUCE: Template = Template::new("arg_reduce.wgsl", include_str!("arg_reduce.wgsl")).params(ReduceParams::FIELDS);

/// How rows are shared out: the threads of a row, and over how many workgroups a row is split because there are few of them.
fn shares(rows: usize, cols: usize, col_major: bool, vec: bool, share: usize, adapter: &AdapterInfo) -> (RowGroup, usize) {
    let group = if col_major {
        RowGroup::for_columns(rows, cols, adapter)
    } else {
        RowGroup::for_rows(rows, if vec { cols / 4 } else { cols }, adapter)
    };
    let full = adapter.tuning.reduce.full_groups;
    let wide = adapter.tuning.rows.workgroup_threads[1].min(adapter.workgroup_threads.max(1));
    let split = if col_major { group } else { RowGroup { workgroup: wide, size: wide, col_major } };
    let blocks = rows.div_ceil(split.rows() as usize).max(1);
    let room = (SCRATCH_WORDS - SCRATCH_COUNTERS) / (2 * rows.max(1));
    let parts = (full / blocks).min(split.rows() as usize * cols / share.max(1)).min(cols / (4 * split.size as usize)).min(room);
    if parts < 2 || blocks > full / 8 { (group, 1) } else { (split, parts) }
}

/// Load 0 `[rows, cols]` reduced to `[rows]`.
pub fn reduce(op: Reduction, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let load = &step.loads[0];
    let (rows, cols) = (load.shape[0], load.shape[1]);
    if !indexable(&[load.shape.count()]) {
        return None;
    }
    let col_major = col_major(load);
    let extreme = !matches!(op, Reduction::Sum | Reduction::Mean | Reduction::Prod);
    let tuning = &adapter.tuning.reduce;
    // The one row of a comparison may end in a part of a quad.
    let vec = (cols % 4 == 0 || (extreme && rows == 1)) && !col_major;
    let (group, parts) =
        shares(rows, cols, col_major, vec, if extreme { tuning.arg_split_elements } else { tuning.split_elements }, adapter);
    let (ty, kind) = match load.dtype().compute() {
        DType::I32 => ("i32", 1),
        DType::U32 => ("u32", 2),
        _ => ("f32", 0),
    };
    let fold = |expr, builtin| Combine { ty, expr, builtin: Some(builtin) };
    let mut values = vec![("VEC", vec.into()), ("SPLIT", (parts > 1).into())];
    let (template, mut consts) = match op {
        Reduction::Sum | Reduction::Mean | Reduction::Prod => {
            let (number, combine) = match op {
                Reduction::Sum => (0, fold("a + b", "subgroupAdd")),
                Reduction::Mean => (1, fold("a + b", "subgroupAdd")),
                _ => (2, fold("a * b", "subgroupMul")),
            };
            values.push(("ROW_REDUCE", group.function("row_reduce", combine, adapter).into()));
            (&REDUCE, vec![("OP", number)])
        }
        _ => {
            // The key decides, and among equal keys the smaller index.
            let combine = Combine { ty: "vec2<u32>", expr: "better(a, b)", builtin: None };
            let min = matches!(op, Reduction::Min | Reduction::ArgMin);
            values.push(("ROW_BEST", group.function("row_best", combine, adapter).into()));
            values.push(("INDEX", (!matches!(op, Reduction::Max | Reduction::Min)).into()));
            values.push(("OR_NONE", (op == Reduction::ArgMaxOrNone).into()));
            (&ARG_REDUCE, vec![("MIN", min as u32), ("KIND", kind)])
        }
    };
    consts.extend([("ROW_THREADS", group.size), ("VEC", vec as u32), ("COL_MAJOR", col_major as u32)]);
    consts.push(("COUNTERS", SCRATCH_COUNTERS as u32));
    let grid = grid(rows.div_ceil(group.rows() as usize) * parts)?;
    let params = ReduceParams { rows: U32::size(rows)?, cols: U32::size(cols)?, groups_x: grid[0].into(), parts: U32::size(parts)? };
    Some(Wgsl {
        source: template.source(&values),
        consts,
        workgroup: group.workgroup,
        grid,
        params: params.values(),
        raw: vec![],
        transposed: vec![],
    })
}
