//! The GPU form of the gradient of layer norm and RMS norm.

use crate::plan::{AdapterInfo, Step, Wgsl, Word};
use crate::shader::row_group::{RowGroup, SUM};
use crate::shader::{decide, grid, indexable, unroll, with_rows, words};

/// Quads of a row that one thread keeps in registers, as a power of two, or 0 where the row is too long.
fn held(cols: usize, team: &RowGroup) -> u32 {
    let quads = cols.div_ceil(4).div_ceil(team.size as usize).next_power_of_two();
    // Row and gradient are held.
    if quads <= 4 { quads as u32 } else { 0 }
}

/// Rows `[rows, cols]` and their results' gradients to the rows' gradients.
pub fn norm_grad(rms: bool, eps: f32, weight: bool, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let vec = cols % 4 == 0;
    let team = RowGroup::for_rows(rows, cols.div_ceil(4), adapter);
    let held = held(cols, &team);
    let mut source = with_rows(include_str!("norm_grad.wgsl"), &["fetch", "sum4", "put", "centre"]);
    source += &team.function("team_sum", SUM, adapter);
    let load =
        |form: &str| if weight { format!("load{form}_2(c)") } else { if form.is_empty() { "1.0".into() } else { "vec4<f32>(1.0)".into() } };
    source += &if vec {
        format!("fn gain4(c: u32) -> vec4<f32> {{ return {}; }}\n", load("4"))
    } else {
        format!("fn gain(c: u32) -> f32 {{ return {}; }}\n", load(""))
    };
    let consts = vec![("TEAM", team.size), ("HELD", held), ("RMS", rms as u32), ("VEC", vec as u32)];
    let grid = grid(rows.div_ceil(team.rows() as usize))?;
    let mut words = words(&[rows, cols, grid[0] as usize])?;
    words.push(Word::F32(eps));
    let source = decide(unroll(source, &[("HELD", held)]), &[("VEC", vec as u32)]);
    Some(Wgsl { source, consts, workgroup: team.workgroup, grid, words, raw: vec![], transposed: vec![] })
}
