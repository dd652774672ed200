//! The GPU form of layer norm and RMS norm.

use crate::plan::{AdapterInfo, Step, Wgsl, Word};
use crate::shader::row_group::SUM;
use crate::shader::vec16::{Beyond, RowTiling, Vec16Loader};
use crate::shader::{decide, grid, indexable, unroll, with_rows, words};

/// Load 0 `[rows, cols]` normalised over the last axis, times the weight and plus the bias where the step has them.
pub fn norm(rms: bool, eps: f32, weight: bool, bias: bool, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let packets = Vec16Loader::of(&step.loads[0], 0, "x", cols, 4, Beyond::Rest);
    let of = RowTiling::new(rows, cols, &packets, true, adapter);
    let mut source = with_rows(include_str!("norm.wgsl"), of.sections(&[]).as_slice());
    source += &packets.text;
    source += &of.team.function("team_sum", SUM, adapter);
    let quad = |name: &str, load: usize, there: bool, none: &str| {
        let one = |n: u32| format!("load_{load}(min(c + {n}u, cols - 1u))");
        let value = match (there, cols % 4) {
            (false, _) => format!("vec4<f32>({none})"),
            (true, 0) => format!("load4_{load}(min(c, cols - 4u))"),
            _ => format!("vec4<f32>({}, {}, {}, {})", one(0), one(1), one(2), one(3)),
        };
        format!("fn {name}(c: u32, cols: u32) -> vec4<f32> {{ return {value}; }}\n")
    };
    source += &quad("gain4", 1, weight, "1.0");
    source += &quad("shift4", 1 + weight as usize, bias, "0.0");
    let mut consts = of.consts();
    consts.push(("RMS", rms as u32));
    let grid = grid(of.groups(rows))?;
    let mut words = words(&[rows, cols, grid[0] as usize])?;
    words.push(Word::F32(eps));
    words.extend(packets.raw.into_iter().flatten());
    let source = decide(unroll(source, &of.counts()), of.switches().as_slice());
    let raw = if packets.raw.is_some() { vec![0] } else { vec![] };
    Some(Wgsl { source, consts, workgroup: of.team.workgroup, grid, words, raw, transposed: vec![] })
}
