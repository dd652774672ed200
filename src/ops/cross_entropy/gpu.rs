//! The GPU form of cross entropy and of its gradient.

use super::CrossEntropyKernel;
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::{MAX, RowGroup, SUM};
use crate::shader::vec16::{Beyond, RowTiling, Vec16Form};
use crate::shader::{StartParams, Template, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct CrossEntropyParams {
        /// Rows of logits.
        rows: u32,
        /// Classes.
        cols: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// The target that counts nothing.
        ignored: u32,
        /// The logits' first element, where their buffer is read.
        x: StartParams,
    }
}

static CROSS_ENTROPY: Template = Template::new("cross_entropy.wgsl", include_str!("cross_entropy.wgsl")).params(CrossEntropyParams::FIELDS);

/// Logits `[rows, cols]` and targets to losses, or, with `backward`, to the gradient of the logits.
pub fn cross_entropy(kernel: &CrossEntropyKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (ignore, backward) = (kernel.ignore, kernel.backward);
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let form = Vec16Form::of(&step.loads[0], cols, Beyond::Rest);
    let mut tiling = RowTiling::new(rows, cols, &form, false, adapter);
    if backward {
        // Nothing of a row is resident.
        (tiling.group, tiling.group_rows, tiling.resident) = (RowGroup::for_rows(rows, cols.div_ceil(4), adapter), 1, 0);
    }
    let mut values = [tiling.values().as_slice(), form.values().as_slice()].concat();
    values.push(("BACKWARD", backward.into()));
    if !backward {
        values.push(("ROW_SUM", tiling.group.function("row_sum", SUM, adapter).into()));
        values.push(("ROW_MAX", tiling.group.function("row_max", MAX, adapter).into()));
    }
    // Targets are i32 or u32 here; one that neither can hold does not come.
    let ignored = i32::try_from(ignore).map(|v| v as u32).or(u32::try_from(ignore)).ok();
    let mut consts = tiling.consts();
    consts.extend([("BACKWARD", backward as u32), ("IGNORES", ignored.is_some() as u32), ("HOT", kernel.hot as u32)]);
    let grid = grid(tiling.groups(rows))?;
    let (rows, cols, ignored) = (U32::size(rows)?, U32::size(cols)?, ignored.unwrap_or(0).into());
    let params = CrossEntropyParams { rows, cols, groups_x: grid[0].into(), ignored, x: form.start() };
    Some(Wgsl {
        source: CROSS_ENTROPY.source(&values),
        consts,
        workgroup: tiling.group.workgroup,
        grid,
        params: params.values(),
        raw: if form.raw.is_some() && !backward { vec![0] } else { vec![] },
        transposed: vec![],
    })
}
