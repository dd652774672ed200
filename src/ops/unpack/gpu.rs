//! The GPU form of a weight in blocks as floats.

use crate::ops::matmul::weights::{Items, Weights};
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::{Template, TemplateValue, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct UnpackParams {
        /// Workgroups in x.
        groups_x: u32,
        /// Items.
        items: u32,
        /// Elements.
        count: u32,
        /// The first element, which is the sum of two.
        start: u32,
        /// The second of them.
        offset: u32,
    }
}

static UNPACK: Template = Template::new("unpack.wgsl", include_str!("unpack.wgsl")).params(UnpackParams::FIELDS);

/// Load 0, stored in blocks and row-major, to store 0.
pub fn unpack(step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let count = step.loads[0].shape.count();
    let weights = Weights::of(&step.loads[0], count);
    let [start, offset] = weights.raw?.map(U32::from);
    let Items { quads, quad_runs, span, parts, .. } = weights.shape;
    if !indexable(&[count]) {
        return None;
    }
    let items = count / (4 * quads as usize);
    let workgroup = adapter.tuning.unpack.workgroup_threads.min(adapter.workgroup_threads.max(1));
    let grid = grid(items.div_ceil(workgroup as usize))?;
    let params = UnpackParams { groups_x: grid[0].into(), items: U32::size(items)?, count: U32::size(count)?, start, offset };
    let consts = vec![("QUADS", quads), ("RUNS", quad_runs), ("SPAN", span), ("PARTS", parts)];
    let mut values = weights.values();
    values.extend(consts.iter().map(|&(name, n)| (name, TemplateValue::from(n))));
    values.push(("PART", (quads / parts).into()));
    Some(Wgsl { source: UNPACK.source(&values), consts, workgroup, grid, params: params.values(), raw: vec![0], transposed: vec![] })
}
