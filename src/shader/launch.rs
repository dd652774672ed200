//! Grids and parameters of a dispatch, and what a kernel asks about its operands' memory.

use super::template::TemplateValue;
use crate::plan::{KernelParam, Load, Source, SubgroupSync};

/// The most workgroups in one dimension of a grid.
pub const MAX_GROUPS: u32 = 65_535;

/// A grid of at least `count` workgroups: a kernel finds its number as `wid.y * x + wid.x` and leaves those from `count` on alone.
pub fn grid(count: usize) -> Option<[u32; 3]> {
    let count = u32::try_from(count.max(1)).ok()?;
    let y = count.div_ceil(MAX_GROUPS);
    let x = count.div_ceil(y);
    (y <= MAX_GROUPS).then_some([x, y, 1])
}

/// Sizes as parameters, or `None` where one does not fit.
pub fn sizes(sizes: &[usize]) -> Option<Vec<KernelParam>> {
    sizes.iter().map(|&n| u32::try_from(n).ok().map(KernelParam::U32)).collect()
}

/// The two parameters whose sum is a source's first element.
pub fn start(source: &Source) -> Option<[KernelParam; 2]> {
    let fixed = KernelParam::U32(u32::try_from(source.layout.offset).ok()?);
    Some([fixed, source.offset.map_or(KernelParam::U32(0), KernelParam::ParamU32)])
}

/// What `subgroup_barrier.wgsl` asks about.
pub fn subgroup_barrier(sync: SubgroupSync) -> [(&'static str, TemplateValue); 2] {
    [("SUBGROUP_BARRIER", (sync == SubgroupSync::Barrier).into()), ("SUBGROUP_LOCKSTEP", (sync == SubgroupSync::Lockstep).into())]
}

/// Whether a row's neighbours lie closer in memory along the rows than along the last axis, judged by the operand's largest source.
pub fn col_major(load: &Load) -> bool {
    let Some(source) = load
        .sources
        .iter()
        .max_by_key(|s| s.layout.shape.iter().zip(s.layout.strides()).filter(|(_, t)| **t != 0).map(|(d, _)| *d).product::<usize>())
    else {
        return false;
    };
    let strides = source.layout.strides();
    let Some((last, outer)) = strides.split_last() else { return false };
    *last != 1 && *last != 0 && outer.contains(&1)
}

/// Element counts that a kernel's 32-bit indices can reach.
pub fn indexable(counts: &[usize]) -> bool {
    counts.iter().all(|&n| n <= i32::MAX as usize * 2)
}
