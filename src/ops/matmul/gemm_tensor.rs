//! The matrix product of f16 operands by Metal 4's tensor operations.

use super::gemm_coop::{LineParams, lines};
use super::product::Product;
use crate::plan::{Load, Wgsl};
use crate::shader::{Template, U32, col_major, grid, params};

params! {
    /// What the kernel reads at run time.
    struct GemmTensorParams {
        /// Rows of a.
        m: u32,
        /// Rows of b.
        n: u32,
        /// Columns of both.
        k: u32,
        /// Tiles in n.
        tiles_n: u32,
        /// Tiles in m.
        tiles_m: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// Workgroups, of which the grid may have more.
        groups: u32,
        /// Where a's lines lie.
        a: LineParams,
        /// The same of b.
        b: LineParams,
    }
}

static GEMM_TENSOR: Template = Template::new("gemm_tensor.wgsl", include_str!("gemm_tensor.wgsl")).params(GemmTensorParams::FIELDS);

/// Rows and columns of a tile, and threads of a workgroup: those of `tensor_tile.wgsl`.
const TILE: usize = 64;
const WORKGROUP: u32 = 128;

/// Whether a tensor's extents and strides, which are signed, hold what an operand has.
fn fits(load: &Load) -> bool {
    let most = i32::MAX as usize;
    load.shape.dims().iter().all(|d| *d <= most)
        && load.plain().is_some_and(|s| s.layout.strides().iter().all(|t| t.unsigned_abs() <= most))
}

/// The product in tiles of 64 by 64; `None` where the adapter lacks tensor operations, or an operand is not stored as f16 in lines of whole eights.
pub(super) fn matmul_tensor(p: &Product) -> Option<Wgsl> {
    let &Product { batch, m, n, k, a, b, adapter, .. } = p;
    if !adapter.tensor_ops || !adapter.tuning.metal.tensor_ops || k == 0 || !fits(a) || !fits(b) {
        return None;
    }
    let transposed = [col_major(a), col_major(b)];
    let (a, b) = (lines(a, batch, m, k, transposed[0])?, lines(b, batch, n, k, transposed[1])?);
    let tiles = [m, n].map(|side| side.div_ceil(TILE));
    let groups = batch.checked_mul(tiles[0])?.checked_mul(tiles[1])?;
    let grid = grid(groups)?;
    let params = GemmTensorParams {
        m: U32::size(m)?,
        n: U32::size(n)?,
        k: U32::size(k)?,
        tiles_n: U32::size(tiles[1])?,
        tiles_m: U32::size(tiles[0])?,
        groups_x: grid[0].into(),
        groups: U32::size(groups)?,
        a,
        b,
    };
    let values = [("TRANSPOSED_A", transposed[0].into()), ("TRANSPOSED_B", transposed[1].into()), ("VEC_OUT", n.is_multiple_of(4).into())];
    let source = GEMM_TENSOR.source(&values);
    Some(Wgsl { source, consts: vec![], workgroup: WORKGROUP, grid, params: params.values(), raw: vec![0, 1], transposed: vec![] })
}
