//! The GPU form of a weight in blocks as floats.

use crate::ops::matmul::gpu::{Items, Weights};
use crate::plan::{AdapterInfo, Step, Wgsl, Word};
use crate::shader::{decide, grid, indexable, unroll, words};

/// Load 0, stored in blocks and row-major, to store 0.
pub fn unpack(step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let count = step.loads[0].shape.count();
    let weights = Weights::of(&step.loads[0], count);
    let at = weights.raw?;
    let Items { planes, quads, strips, span, parts, .. } = weights.shape;
    if !indexable(&[count]) {
        return None;
    }
    let items = count / (4 * quads as usize);
    let workgroup = 64.min(adapter.workgroup_threads.max(1));
    let grid = grid(items.div_ceil(workgroup as usize))?;
    let mut list = words(&[grid[0] as usize, items, count, 0, 0])?;
    list.extend(at);
    list.push(Word::U32(0));
    let switches = [("SECOND", (planes > 1) as u32), ("THIRD", (planes > 2) as u32)];
    let text = unroll(include_str!("unpack.wgsl").into(), &[("PARTS", parts), ("PART", quads / parts)]);
    let items = weights.items.replace("raw_1", "raw_0").replace("wide_1", "wide_0");
    let mut consts = vec![("QUADS", quads), ("STRIPS", strips), ("SPAN", span), ("PARTS", parts)];
    consts.extend(switches);
    Some(Wgsl { source: decide(text + &items, &switches), consts, workgroup, grid, words: list, raw: vec![0], transposed: vec![] })
}
