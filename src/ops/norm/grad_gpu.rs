//! The GPU form of the gradient of layer norm and RMS norm.

use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::{RowGroup, SUM};
use crate::shader::{Template, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct NormGradParams {
        /// Rows.
        rows: u32,
        /// Elements of a row.
        cols: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// Added to the variance.
        eps: f32,
    }
}

static NORM_GRAD: Template = Template::new("norm_grad.wgsl", include_str!("norm_grad.wgsl")).params(NormGradParams::FIELDS);

/// Quads of a row that one thread keeps in registers, as a power of two, or 0 where the row is too long.
fn resident(cols: usize, group: &RowGroup, adapter: &AdapterInfo) -> u32 {
    let quads = cols.div_ceil(4).div_ceil(group.size as usize).next_power_of_two();
    // Row and gradient are resident.
    if quads <= adapter.tuning.rows.grad_quads { quads as u32 } else { 0 }
}

/// Rows `[rows, cols]` and their results' gradients to the rows' gradients.
pub fn norm_grad(rms: bool, eps: f32, weight: bool, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let shape = &step.loads[0].shape;
    let (rows, cols) = (shape[0], shape[1]);
    if !indexable(&[shape.count()]) {
        return None;
    }
    let vec = cols % 4 == 0;
    let group = RowGroup::for_rows(rows, cols.div_ceil(4), adapter);
    let resident = resident(cols, &group, adapter);
    let values = [
        ("RESIDENT", resident.into()),
        ("VEC", vec.into()),
        ("WEIGHT", weight.into()),
        ("ROW_SUM", group.function("row_sum", SUM, adapter).into()),
    ];
    let grid = grid(rows.div_ceil(group.rows() as usize))?;
    let params = NormGradParams { rows: U32::size(rows)?, cols: U32::size(cols)?, groups_x: grid[0].into(), eps: eps.into() };
    Some(Wgsl {
        source: NORM_GRAD.source(&values),
        consts: vec![("ROW_THREADS", group.size), ("RESIDENT", resident), ("RMS", rms as u32), ("VEC", vec as u32)],
        workgroup: group.workgroup,
        grid,
        params: params.values(),
        raw: vec![],
        transposed: vec![],
    })
}
