//! The GPU form of layer norm and RMS norm.

use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::SUM;
use crate::shader::vec16::{Beyond, RowTiling, Vec16Form};
use crate::shader::{StartParams, Template, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct NormParams {
        /// Rows.
        rows: u32,
        /// Elements of a row.
        cols: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// Added to the variance.
        eps: f32,
        /// The operand's first element, where its buffer is read.
        x: StartParams,
    }
}

static NORM: Template = Template::new("norm.wgsl", include_str!("norm.wgsl"))
    .params(NormParams::FIELDS)
    .files(&[("norm_operand.wgsl", include_str!("norm_operand.wgsl"))]);

/// Load 0 `[rows, cols]` normalised over the last axis, times the weight and plus the bias where the step has them.
pub fn norm(rms: bool, eps: f32, weight: bool, bias: bool, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let form = Vec16Form::of(&step.loads[0], cols, Beyond::Rest);
    let tiling = RowTiling::new(rows, cols, &form, true, adapter);
    let mut values = [tiling.values().as_slice(), form.values().as_slice()].concat();
    values.extend([("WEIGHT", weight.into()), ("BIAS", bias.into()), ("BIAS_LOAD", (1 + weight as u32).into())]);
    values.push(("ROW_SUM", tiling.group.function("row_sum", SUM, adapter).into()));
    let mut consts = tiling.consts();
    consts.push(("RMS", rms as u32));
    let grid = grid(tiling.groups(rows))?;
    let (rows, cols) = (U32::size(rows)?, U32::size(cols)?);
    let params = NormParams { rows, cols, groups_x: grid[0].into(), eps: eps.into(), x: form.start() };
    Some(Wgsl {
        source: NORM.source(&values),
        consts,
        workgroup: tiling.group.workgroup,
        grid,
        params: params.values(),
        raw: if form.raw.is_some() { vec![0] } else { vec![] },
        transposed: vec![],
    })
}
