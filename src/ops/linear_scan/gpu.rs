//! The form of the scan's kernel for a GPU.

use super::{LinearScanKernel, ScanSizes};
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::{Template, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct LinearScanParams {
        /// Tokens of a sequence.
        tokens: u32,
        /// Heads of values.
        heads: u32,
        /// Heads of keys.
        key_heads: u32,
        /// Rows of the state.
        rows: u32,
        /// Columns of the state.
        columns: u32,
        /// Heads of all sequences.
        count: u32,
        /// Pieces of a head's columns.
        pieces: u32,
        /// Workgroups in x.
        groups_x: u32,
    }
}

static LINEAR_SCAN: Template = Template::new("linear_scan.wgsl", include_str!("linear_scan.wgsl")).params(LinearScanParams::FIELDS);

/// Threads that share a column. With the rows of a thread they bound the rows of a state; no other kernel takes larger ones.
const SLICES: usize = 8;
/// Columns of a workgroup, so that it has 128 threads, which every adapter allows.
const COLUMNS: usize = 16;
/// The most rows of a column that a thread has, in registers.
const MAX_ROWS: usize = 64;

/// A workgroup has some columns of the state of one head, in registers, and goes through all tokens.
pub fn linear_scan(kernel: LinearScanKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let z = ScanSizes::of(step);
    let workgroup = SLICES * COLUMNS;
    let rows = z.rows.div_ceil(SLICES).next_power_of_two();
    let (count, pieces) = (z.batch * z.heads, z.columns.div_ceil(COLUMNS));
    let sizes = [step.loads[1].shape.count(), step.loads[2].shape.count(), step.loads[3].shape.count(), step.loads[4].shape.count()];
    if rows > MAX_ROWS || workgroup > adapter.workgroup_threads as usize || !indexable(&sizes) {
        return None;
    }
    let grid = grid(count.checked_mul(pieces)?)?;
    let params = LinearScanParams {
        tokens: U32::size(z.tokens)?,
        heads: U32::size(z.heads)?,
        key_heads: U32::size(z.key_heads)?,
        rows: U32::size(z.rows)?,
        columns: U32::size(z.columns)?,
        count: U32::size(count)?,
        pieces: U32::size(pieces)?,
        groups_x: grid[0].into(),
    };
    Some(Wgsl {
        source: LINEAR_SCAN.source(&[("DELTA", kernel.delta.into()), ("BY_ROW", kernel.by_row.into())]),
        consts: vec![("SLICES", SLICES as u32), ("COLUMNS", COLUMNS as u32), ("ROWS", rows as u32)],
        workgroup: workgroup as u32,
        grid,
        params: params.values(),
        raw: vec![],
        transposed: vec![],
    })
}
