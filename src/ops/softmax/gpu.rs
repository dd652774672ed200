//! The GPU form of softmax and log-softmax.

use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::{MAX, SUM};
use crate::shader::vec16::{Beyond, RowTiling, Vec16Loader};
use crate::shader::{decide, grid, indexable, unroll, with_rows, words};

/// Load 0 `[rows, cols]` to its softmax over the last axis.
pub fn softmax(log: bool, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let packets = Vec16Loader::of(&step.loads[0], 0, "x", cols, 3, Beyond::Rest);
    let of = RowTiling::new(rows, cols, &packets, true, adapter);
    let mut source = with_rows(include_str!("softmax.wgsl"), of.sections(&["largest", "top_sum"]).as_slice());
    source += &packets.text;
    source += &of.team.function("team_sum", SUM, adapter);
    source += &of.team.function("team_max", MAX, adapter);
    let mut consts = of.consts();
    let kept = (of.held <= 4) as u32;
    consts.extend([("KEPT", kept), ("LOG", log as u32)]);
    let grid = grid(of.groups(rows))?;
    let mut words = words(&[rows, cols, grid[0] as usize])?;
    words.extend(packets.raw.into_iter().flatten());
    let source = decide(unroll(source, &of.counts()), &[of.switches().as_slice(), &[("KEPT", kept), ("LOG", log as u32)]].concat());
    let raw = if packets.raw.is_some() { vec![0] } else { vec![] };
    Some(Wgsl { source, consts, workgroup: of.team.workgroup, grid, words, raw, transposed: vec![] })
}
