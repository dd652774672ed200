//! The GPU form of softmax and log-softmax.

use super::team::{MAX, SUM, Team};
use super::{decide, grid, indexable, unroll, with_rows, words};
use crate::plan::{AdapterInfo, Step, Wgsl};

/// Quads of a row that one thread keeps in registers, as a power of two, or 0 where the row is too long.
pub(super) fn held(cols: usize, team: &Team) -> u32 {
    let quads = cols.div_ceil(4).div_ceil(team.size as usize).next_power_of_two();
    if quads <= 8 { quads as u32 } else { 0 }
}

/// Load 0 `[rows, cols]` to its softmax over the last axis.
pub fn softmax(log: bool, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let team = Team::for_rows(rows, cols.div_ceil(4), adapter);
    let mut source = with_rows(include_str!("../softmax.wgsl"), &["fetch", "put", "largest"]);
    source += &team.function("team_sum", SUM, adapter);
    source += &team.function("team_max", MAX, adapter);
    let consts = vec![("TEAM", team.size), ("HELD", held(cols, &team)), ("LOG", log as u32), ("VEC", (cols % 4 == 0) as u32)];
    let grid = grid(rows.div_ceil(team.rows() as usize))?;
    let source = decide(unroll(source, &[("HELD", held(cols, &team))]), &[("VEC", (cols % 4 == 0) as u32), ("LOG", log as u32)]);
    Some(Wgsl {
        source,
        consts,
        workgroup: team.workgroup,
        grid,
        words: words(&[rows, cols, grid[0] as usize])?,
        raw: vec![],
        turned: vec![],
    })
}
