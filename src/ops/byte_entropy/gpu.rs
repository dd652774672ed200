//! The GPU form of the entropy of bytes.

use super::ByteEntropyKernel;
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::{F32, Template, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct ByteEntropyParams {
        /// Rows of bytes.
        rows: u32,
        /// Bytes of a row.
        cols: u32,
        /// Bytes of a window before its position.
        below: u32,
        /// Bytes of a window from its position on.
        above: u32,
        /// Positions of a thread.
        chunk: u32,
        /// Threads of a row.
        chunks: u32,
        /// Entries of the table.
        steps: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// What makes an entropy of a number in fixed point.
        scale: f32,
    }
}

static BYTE_ENTROPY: Template = Template::new("byte_entropy.wgsl", include_str!("byte_entropy.wgsl")).params(ByteEntropyParams::FIELDS);

/// Bytes that differ, and so the counts of a histogram.
const BYTES: usize = 256;

/// Bytes and a table to entropies.
pub fn byte_entropy(kernel: &ByteEntropyKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (rows, cols, steps) = (step.loads[0].shape[0], step.loads[0].shape[1], step.loads[1].shape.count());
    let [below, above] = kernel.halves();
    if !indexable(&[rows.checked_mul(cols)?]) {
        return None;
    }
    // A thread fills its window first, so that more threads do more work.
    let tuning = &adapter.tuning.byte_entropy;
    let most = tuning.unit_threads.max(1).saturating_mul(adapter.tuning.compute_units.max(1) as usize);
    let chunk = (rows * cols / most).clamp(kernel.window / 4, 4 * kernel.window).max(tuning.min_positions).min(cols).next_multiple_of(4);
    let chunks = cols.div_ceil(chunk.max(1));
    let count_bits = if steps <= BYTES { 8 } else { 16 };
    let table = if steps <= tuning.table_entries { steps.next_power_of_two() } else { 0 };
    let room = (adapter.workgroup_bytes as usize).checked_sub(4 * table)? / (BYTES * count_bits / 8);
    let workgroup = 1 << room.min(tuning.workgroup_threads).min(adapter.workgroup_threads as usize).checked_ilog2()?;
    let grid = grid((rows * chunks).div_ceil(workgroup))?;
    let vec = (rows == 1 || cols % 4 == 0) && below % 4 == 0 && above % 4 == 0;
    let params = ByteEntropyParams {
        rows: U32::size(rows)?,
        cols: U32::size(cols)?,
        below: U32::size(below)?,
        above: U32::size(above)?,
        chunk: U32::size(chunk)?,
        chunks: U32::size(chunks)?,
        steps: U32::size(steps)?,
        groups_x: grid[0].into(),
        scale: F32::from(kernel.scale),
    };
    Some(Wgsl {
        source: BYTE_ENTROPY.source(&[("VEC", vec.into()), ("TABLE", (table as u32).into())]),
        consts: vec![("COUNT_BITS", count_bits as u32)],
        workgroup: workgroup as u32,
        grid,
        params: params.values(),
        raw: vec![],
        transposed: vec![],
    })
}
