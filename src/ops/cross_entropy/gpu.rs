//! The GPU form of cross entropy and of its gradient.

use super::CrossEntropyKernel;
use crate::plan::{AdapterInfo, Step, Wgsl, Word};
use crate::shader::row_group::{MAX, RowGroup, SUM};
use crate::shader::vec16::{Beyond, RowTiling, Vec16Loader};
use crate::shader::{decide, grid, indexable, unroll, with_rows, words};

/// Logits `[rows, cols]` and targets to losses, or, with `backward`, to the gradient of the logits.
pub fn cross_entropy(kernel: &CrossEntropyKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (ignore, backward) = (kernel.ignore, kernel.backward);
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let packets = Vec16Loader::of(&step.loads[0], 0, "x", cols, 4, Beyond::Rest);
    let mut of = RowTiling::new(rows, cols, &packets, false, adapter);
    let mut source = if backward {
        // Nothing of a row is held.
        (of.team, of.per, of.held) = (RowGroup::for_rows(rows, cols.div_ceil(4), adapter), 1, 0);
        with_rows(include_str!("cross_entropy.wgsl"), &["fetch", "put"])
    } else {
        with_rows(include_str!("cross_entropy.wgsl"), &["sum4", "packets", "largest", "top_sum"]) + &packets.text
    };
    if !backward {
        source += &of.team.function("team_sum", SUM, adapter);
        source += &of.team.function("team_max", MAX, adapter);
    }
    // Targets are i32 or u32 here; one that neither can hold does not come.
    let ignored = i32::try_from(ignore).map(|v| v as u32).or(u32::try_from(ignore)).ok();
    let mut consts = of.consts();
    consts.extend([("BACKWARD", backward as u32), ("IGNORES", ignored.is_some() as u32), ("HOT", kernel.hot as u32)]);
    let grid = grid(of.groups(rows))?;
    let mut words = words(&[rows, cols, grid[0] as usize])?;
    words.push(Word::U32(ignored.unwrap_or(0)));
    let raw = if packets.raw.is_some() && !backward { vec![0] } else { vec![] };
    words.extend(packets.raw.into_iter().flatten());
    let source = decide(unroll(source, &of.counts()), &[of.switches().as_slice(), &[("BACKWARD", backward as u32)]].concat());
    Some(Wgsl { source, consts, workgroup: of.team.workgroup, grid, words, raw, transposed: vec![] })
}
