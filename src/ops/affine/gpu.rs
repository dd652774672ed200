//! The GPU forms of products with affinely quantized weights: one row group of threads for each row of weights, or tiles.

use super::weights::AffineWeights;
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::quant::Bits;
use crate::shader::row_group::{RowGroup, SUM};
use crate::shader::{Template, TemplateValue, U32, grid, indexable, params};
use crate::tuning::GEMV_ROW_LIMIT;

params! {
    /// What both forms read at run time.
    struct AffineMatMulParams {
        /// Rows of x.
        m: u32,
        /// Rows of the weights.
        n: u32,
        /// Columns of both.
        k: u32,
        /// Bytes of a row of weights.
        row_bytes: u32,
        /// Neighbours in a row that share a scale.
        group: u32,
        /// Scales from a row to the next.
        row_groups: u32,
        /// Workgroups in x, or tiles along the weights.
        groups_x: u32,
    }
}

/// How eight weights are read, for both forms.
const READ: (&str, &str) = ("affine_weights.wgsl", include_str!("affine_weights.wgsl"));

static GEMV: Template =
    Template::new("affine_gemv.wgsl", include_str!("affine_gemv.wgsl")).params(AffineMatMulParams::FIELDS).files(&[READ]);
static GEMM: Template =
    Template::new("affine_gemm.wgsl", include_str!("affine_gemm.wgsl")).params(AffineMatMulParams::FIELDS).files(&[READ]);

/// Rows and columns of a tile, as `affine_gemm.wgsl` has it.
const TILE: usize = 64;
/// Threads of a tile, each with sixteen results, there too.
const TILE_THREADS: u32 = 256;
/// Threads of a row of weights at least and at most.
const ROW_THREADS: [u32; 2] = [8, 32];

/// x `[m, k]` times the transpose of weights `[n, k]`.
pub(super) fn matmul(w: &AffineWeights, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let &AffineWeights { bits, n, k, row_bytes, group, row_groups } = w;
    let m = step.loads[0].shape[0];
    if !indexable(&[m.checked_mul(k)?, n.checked_mul(row_bytes.max(k))?, m.checked_mul(n)?]) {
        return None;
    }
    let few = m <= adapter.tuning.gemv.max_rows_affine || adapter.workgroup_threads < TILE_THREADS;
    let values: [(&'static str, TemplateValue); 5] = [
        ("FOUR_BITS", (bits == Bits::Four).into()),
        ("VEC_X", (k % 4 == 0).into()),
        ("VEC_W", (row_bytes % 4 == 0).into()),
        ("WHOLE_QUADS", (group % 4 == 0 || group >= k).into()),
        ("VEC_STORE", (n % 4 == 0).into()),
    ];
    let params = |groups_x: usize| {
        let sizes = [m, n, k, row_bytes, group.min(k), row_groups, groups_x].map(U32::size);
        let [Some(m), Some(n), Some(k), Some(row_bytes), Some(group), Some(row_groups), Some(groups_x)] = sizes else { return None };
        Some(AffineMatMulParams { m, n, k, row_bytes, group, row_groups, groups_x }.values())
    };
    let wgsl = |source, consts, workgroup, grid: [u32; 3], params| {
        Some(Wgsl { source, consts, workgroup, grid, params, raw: vec![], transposed: vec![] })
    };
    if !few {
        let tiles = n.div_ceil(TILE);
        return wgsl(GEMM.source(&values), vec![], TILE_THREADS, grid(tiles.checked_mul(m.div_ceil(TILE))?)?, params(tiles)?);
    }
    // A thread has eight neighbours at a time.
    let size = (k.div_ceil(8).next_power_of_two() as u32).clamp(ROW_THREADS[0], ROW_THREADS[1]);
    let workgroup = adapter.tuning.gemv.workgroup_threads[0].min(1 << adapter.workgroup_threads.max(1).ilog2()).max(size);
    let row_group = RowGroup { workgroup, size, col_major: false };
    let slabs = m.div_ceil(GEMV_ROW_LIMIT);
    let groups = n.div_ceil(row_group.rows() as usize);
    let rows = m.min(GEMV_ROW_LIMIT) as u32;
    let mut all = values.to_vec();
    all.extend([("ROWS", rows.into()), ("ROW_SUM", row_group.function("row_sum", SUM, adapter).into())]);
    let consts = vec![("ROW_THREADS", size), ("ROWS", rows)];
    wgsl(GEMV.source(&all), consts, workgroup, grid(groups.checked_mul(slabs)?)?, params(groups)?)
}
