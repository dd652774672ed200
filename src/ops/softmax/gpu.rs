//! The GPU form of softmax and log-softmax.

use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::{MAX, SUM};
use crate::shader::vec16::{Beyond, RowTiling, Vec16Form};
use crate::shader::{StartParams, Template, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct SoftmaxParams {
        /// Rows.
        rows: u32,
        /// Elements of a row.
        cols: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// The operand's first element, where its buffer is read.
        x: StartParams,
    }
}

static SOFTMAX: Template = Template::new("softmax.wgsl", include_str!("softmax.wgsl")).params(SoftmaxParams::FIELDS);

/// Load 0 `[rows, cols]` to its softmax over the last axis.
pub fn softmax(log: bool, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let form = Vec16Form::of(&step.loads[0], cols, Beyond::Rest);
    let tiling = RowTiling::new(rows, cols, &form, true, adapter);
    let resident_exp = tiling.resident <= adapter.tuning.rows.exp_vectors;
    let mut values = [tiling.values().as_slice(), form.values().as_slice()].concat();
    values.extend([("RESIDENT_EXP", resident_exp.into()), ("LOG", log.into())]);
    values.push(("ROW_SUM", tiling.group.function("row_sum", SUM, adapter).into()));
    values.push(("ROW_MAX", tiling.group.function("row_max", MAX, adapter).into()));
    let mut consts = tiling.consts();
    consts.extend([("RESIDENT_EXP", resident_exp as u32), ("LOG", log as u32)]);
    let grid = grid(tiling.groups(rows))?;
    let params = SoftmaxParams { rows: U32::size(rows)?, cols: U32::size(cols)?, groups_x: grid[0].into(), x: form.start() };
    Some(Wgsl {
        source: SOFTMAX.source(&values),
        consts,
        workgroup: tiling.group.workgroup,
        grid,
        params: params.values(),
        raw: if form.raw.is_some() { vec![0] } else { vec![] },
        transposed: vec![],
    })
}
