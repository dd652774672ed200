//! The GPU form of a weight in blocks as floats.

use crate::ops::matmul::gpu::{Items, Weights};
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::{Template, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time. Weights are read as in a product, whose kernels have them in these places.
    struct UnpackParams {
        /// Workgroups in x.
        groups_x: u32,
        /// Items of the weight.
        items: u32,
        /// Its elements.
        count: u32,
        /// Of a product.
        product_3: u32,
        /// Of a product.
        product_4: u32,
        /// The weight's first element: this and the next together.
        weight_start: u32,
        /// As above.
        weight_offset: u32,
        /// Of a product.
        product_7: u32,
    }
}

static UNPACK: Template = Template::new("unpack.wgsl", include_str!("unpack.wgsl")).params(UnpackParams::FIELDS);

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
    let [weight_start, weight_offset] = at.map(U32::from);
    let params = UnpackParams {
        groups_x: grid[0].into(),
        items: U32::size(items)?,
        count: U32::size(count)?,
        product_3: U32::ABSENT,
        product_4: U32::ABSENT,
        weight_start,
        weight_offset,
        product_7: 0.into(),
    };
    let (second, third) = (planes > 1, planes > 2);
    let values = [
        ("PARTS", parts.into()),
        ("PART", (quads / parts).into()),
        ("SECOND", second.into()),
        ("THIRD", third.into()),
        // A product's weights are load 1.
        ("ITEMS", weights.items.replace("raw_1", "raw_0").replace("wide_1", "wide_0").into()),
    ];
    let mut consts = vec![("QUADS", quads), ("STRIPS", strips), ("SPAN", span), ("PARTS", parts)];
    consts.extend([("SECOND", second as u32), ("THIRD", third as u32)]);
    Some(Wgsl { source: UNPACK.source(&values), consts, workgroup, grid, words: params.words(), raw: vec![0], transposed: vec![] })
}
