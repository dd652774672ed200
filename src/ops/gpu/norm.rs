//! The GPU form of layer norm and RMS norm.

use super::softmax::held;
use super::team::{SUM, Team};
use super::{decide, grid, indexable, unroll, with_rows, words};
use crate::plan::{AdapterInfo, Step, Wgsl, Word};

/// Load 0 `[rows, cols]` normalised over the last axis, times the weight and plus the bias where the step has them.
pub fn norm(rms: bool, eps: f32, weight: bool, bias: bool, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let vec = cols % 4 == 0;
    let team = Team::for_rows(rows, cols.div_ceil(4), adapter);
    let mut source = with_rows(include_str!("../norm.wgsl"), &["fetch", "centre"]);
    source += &team.function("team_sum", SUM, adapter);
    let line = |name: &str, load: &str, ty: &str| {
        let gain = if weight { format!(" * {load}1(c)") } else { String::new() };
        let shift = if bias { format!(" + {load}{}(c)", 1 + weight as u32) } else { String::new() };
        format!("fn {name}(c: u32, x: {ty}) -> {ty} {{ return x{gain}{shift}; }}\n")
    };
    source += &if vec { line("affine4", "load4_", "vec4<f32>") } else { line("affine", "load_", "f32") };
    let consts = vec![("TEAM", team.size), ("HELD", held(cols, &team)), ("RMS", rms as u32), ("VEC", vec as u32)];
    let grid = grid(rows.div_ceil(team.rows() as usize))?;
    let mut words = words(&[rows, cols, grid[0] as usize])?;
    words.push(Word::F32(eps));
    let source = decide(unroll(source, &[("HELD", held(cols, &team))]), &[("VEC", vec as u32)]);
    Some(Wgsl { source, consts, workgroup: team.workgroup, grid, words, raw: vec![], turned: vec![] })
}
