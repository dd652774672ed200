//! The GPU forms of reductions over the last axis.

use super::ReduceOp as Reduction;
use crate::dtype::DType;
use crate::plan::{AdapterInfo, SCRATCH_COUNTERS, SCRATCH_WORDS, Step, Wgsl};
use crate::shader::row_group::{Combine, RowGroup};
use crate::shader::{col_major, decide, grid, indexable, words};

/// How rows are shared out: the threads of a row, and over how many workgroups a row is split because there are few of them.
fn shares(rows: usize, cols: usize, col_major: bool, vec: bool, share: usize, adapter: &AdapterInfo) -> (RowGroup, usize) {
    let team = if col_major {
        RowGroup::for_columns(rows, cols, adapter)
    } else {
        RowGroup::for_rows(rows, if vec { cols / 4 } else { cols }, adapter)
    };
    let full = adapter.tuning.reduce.full_groups;
    let wide = 256.min(adapter.workgroup_threads.max(1));
    let split = if col_major { team } else { RowGroup { workgroup: wide, size: wide, col_major } };
    let blocks = rows.div_ceil(split.rows() as usize).max(1);
    let room = (SCRATCH_WORDS - SCRATCH_COUNTERS) / (2 * rows.max(1));
    let parts = (full / blocks).min(split.rows() as usize * cols / share).min(cols / (4 * split.size as usize)).min(room);
    if parts < 2 || blocks > full / 8 { (team, 1) } else { (split, parts) }
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
    let (team, parts) =
        shares(rows, cols, col_major, vec, if extreme { tuning.arg_split_elements } else { tuning.split_elements }, adapter);
    let (ty, kind) = match load.dtype().compute() {
        DType::I32 => ("i32", 1),
        DType::U32 => ("u32", 2),
        _ => ("f32", 0),
    };
    let fold = |expr, builtin| Combine { ty, expr, builtin: Some(builtin) };
    let (mut source, mut consts) = match op {
        Reduction::Sum | Reduction::Mean | Reduction::Prod => {
            let (number, combine) = match op {
                Reduction::Sum => (0, fold("a + b", "subgroupAdd")),
                Reduction::Mean => (1, fold("a + b", "subgroupAdd")),
                _ => (2, fold("a * b", "subgroupMul")),
            };
            (format!("{}{}", include_str!("reduce.wgsl"), team.function("team_reduce", combine, adapter)), vec![("OP", number)])
        }
        _ => {
            // The key decides, and among equal keys the smaller index.
            let combine = Combine { ty: "vec2<u32>", expr: "better(a, b)", builtin: None };
            let min = matches!(op, Reduction::Min | Reduction::ArgMin);
            let text = format!("{}{}", include_str!("arg_reduce.wgsl"), team.function("team_best", combine, adapter));
            (text, vec![("MIN", min as u32), ("KIND", kind)])
        }
    };
    match op {
        Reduction::Max | Reduction::Min => {
            source += "fn finish(row: u32, best: vec2<u32>) { store_0(row, load_0(row * word(1u) + best.y)); }\n"
        }
        Reduction::ArgMax | Reduction::ArgMin => source += "fn finish(row: u32, best: vec2<u32>) { store_0(row, i32(best.y)); }\n",
        Reduction::ArgMaxOrNone => {
            source += "fn finish(row: u32, best: vec2<u32>) { store_0(row, select(i32(best.y), -1, best.x == NAN)); }\n"
        }
        _ => {}
    }
    consts.extend([("TEAM", team.size), ("VEC", vec as u32), ("ACROSS", col_major as u32)]);
    consts.push(("COUNTERS", SCRATCH_COUNTERS as u32));
    let grid = grid(rows.div_ceil(team.rows() as usize) * parts)?;
    let source = decide(source, &[("VEC", vec as u32), ("SPLIT", (parts > 1) as u32)]);
    Some(Wgsl {
        source,
        consts,
        workgroup: team.workgroup,
        grid,
        words: words(&[rows, cols, grid[0] as usize, parts])?,
        raw: vec![],
        transposed: vec![],
    })
}
