//! The GPU form of cross entropy and of its gradient.

use super::team::{MAX, SUM, Team};
use super::{decide, grid, indexable, words};
use crate::ops::cross_entropy::CrossEntropyKernel;
use crate::plan::{AdapterInfo, Step, Wgsl, Word};

/// Logits `[rows, cols]` and targets to losses, or, with `backward`, to the gradient of the logits.
pub fn cross_entropy(kernel: &CrossEntropyKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (ignore, backward) = (kernel.ignore, kernel.backward);
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let vec = cols % 4 == 0;
    let team = Team::for_rows(rows, cols.div_ceil(4), adapter);
    let mut source = String::from(include_str!("../cross_entropy.wgsl"));
    if !backward {
        source += &team.function("team_sum", SUM, adapter);
        source += &team.function("team_max", MAX, adapter);
    }
    // Targets are i32 or u32 here; one that neither can hold does not come.
    let ignored = i32::try_from(ignore).map(|v| v as u32).or(u32::try_from(ignore)).ok();
    let consts = vec![
        ("TEAM", team.size),
        ("BACKWARD", backward as u32),
        ("IGNORES", ignored.is_some() as u32),
        ("HOT", kernel.hot as u32),
        ("VEC", vec as u32),
    ];
    let grid = grid(rows.div_ceil(team.rows() as usize))?;
    let mut words = words(&[rows, cols, grid[0] as usize])?;
    words.push(Word::U32(ignored.unwrap_or(0)));
    let source = decide(source, &[("BACKWARD", backward as u32), ("VEC", vec as u32)]);
    Some(Wgsl { source, consts, workgroup: team.workgroup, grid, words, raw: vec![], turned: vec![] })
}
