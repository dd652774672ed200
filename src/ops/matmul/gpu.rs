//! The GPU forms of the matrix product: which of them a step gets, tiles, and products with a right side whose rows are neighbours in memory.

use super::gemm_coop::matmul_coop;
use super::gemm_tensor::matmul_tensor;
use super::gemv::{Gemv, gemv};
use super::gemv_int8::gemv_int8;
use super::gemv_simd::gemv_simd;
use super::product::Product;
use super::weights::{WEIGHTS_QUADS, WIDE_HALVES, Weights};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, FusedGemv, Step, Wgsl};
use crate::shader::{Template, TemplateValue, U32, col_major, grid, indexable, params, start};
use crate::tuning::{GEMV_ROW_LIMIT, MIN_WORKGROUP_BYTES};

/// Load 0 `[batch, M, K]` times load 1 `[batch, N, K]`.
pub fn matmul(step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let p = Product::of(step, adapter)?;
    if !indexable(&[p.a.shape.count(), p.b.shape.count(), step.stores[0].shape.count()]) {
        return None;
    }
    let by_matrices = || matmul_coop(&p, 0..usize::MAX);
    if p.m <= adapter.tuning.gemv.max_rows.min(GEMV_ROW_LIMIT) {
        let halves = p.batch == 1 && p.m > adapter.tuning.gemv.max_rows_f16 && p.b.plain().is_some_and(|s| s.dtype == DType::F16);
        if let Some(done) = halves.then(by_matrices).flatten() {
            return Some(done);
        }
        if p.weights.raw.is_none() && col_major(p.b) {
            gemv_transposed(&p).or_else(|| gemv_col_major(&p))
        } else {
            let one = Gemv { a: p.a, products: &[(p.n, &p.weights)], gated: false, vec4_store: false, norm: None, adapter };
            p.b.plain().and_then(|s| gemv_simd(&one, s.dtype)).or_else(|| few_rows(&one))
        }
    } else {
        matmul_tensor(&p).or_else(by_matrices).or_else(|| gemm_tiled(&p))
    }
}

/// Products of few rows: in integers where that is faster, else in floats.
fn few_rows(g: &Gemv) -> Option<Wgsl> {
    gemv_int8(g).or_else(|| gemv(g))
}

/// The same by matrices, in tile `tile` of the table.
#[cfg(all(test, feature = "gpu"))]
pub(crate) fn matmul_with_tile(tile: usize, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    matmul_coop(&Product::of(step, adapter)?, tile..tile + 1)
}

/// Products of load 0 `[1, M, K]` with the loads after it, into the stores in the same order, see `gemv`.
pub fn fused_gemv(step: &Step, fused: &FusedGemv, adapter: &AdapterInfo) -> Option<Wgsl> {
    let k = step.loads[0].shape[2];
    let weights: Vec<(usize, Weights)> = step.loads[1..=fused.products].iter().map(|b| (b.shape[1], Weights::of(b, k))).collect();
    let products: Vec<(usize, &Weights)> = weights.iter().map(|(n, w)| (*n, w)).collect();
    let FusedGemv { gated, vec4_store, norm, .. } = *fused;
    let all = Gemv { a: &step.loads[0], products: &products, gated, vec4_store, norm, adapter };
    gemv_simd(&all, fused.kind).or_else(|| few_rows(&all))
}

/// What products must have in common to be done at once: the dtype of right sides that are read directly.
pub fn matmul_kind(step: &Step) -> Option<DType> {
    let (a, b) = (&step.loads[0], &step.loads[1]);
    let few =
        a.shape[0] == 1 && a.shape[1] <= GEMV_ROW_LIMIT && indexable(&[a.shape.count(), b.shape.count(), step.stores[0].shape.count()]);
    if !few {
        return None;
    }
    Weights::of(b, a.shape[2]).raw?;
    b.plain().map(|s| s.dtype)
}

params! {
    /// What a product of few rows with a right side by columns reads at run time.
    struct GemvColMajorParams {
        /// Rows of a.
        m: u32,
        /// Rows of b.
        n: u32,
        /// Columns of both.
        k: u32,
        /// Tiles of a batch.
        tiles: u32,
        /// Workgroups in x.
        groups_x: u32,
    }
}

static GEMV_COL_MAJOR: Template =
    Template::new("gemv_col_major.wgsl", include_str!("gemv_col_major.wgsl")).params(GemvColMajorParams::FIELDS);

/// Rows of b of a workgroup of `gemv_col_major`: neighbours in memory, which its threads read side by side.
const COLS: u32 = 32;
/// Activations of all rows that such a workgroup stages, and those of a row at least.
const STAGED: [usize; 2] = [2048, 64];
/// Threads of such a workgroup where memory has no room for the sums of more.
const FEWER_THREADS: u32 = 128;

/// Up to eight rows of a, where b's rows are neighbours in memory.
fn gemv_col_major(p: &Product) -> Option<Wgsl> {
    let &Product { batch, m, n, k, adapter, .. } = p;
    let workgroup = adapter.tuning.gemv.column_threads.min(adapter.workgroup_threads.max(1));
    let cols = COLS.min(workgroup);
    let mt = m.next_power_of_two();
    let [most, least] = STAGED;
    let chunk = k.next_power_of_two().clamp(least, most / mt);
    let tiles = n.div_ceil(cols as usize);
    let grid = grid(batch.checked_mul(tiles)?)?;
    // Sums of all slices of all rows must fit next to the activations.
    let bytes = 4 * (mt as u32 * workgroup + most as u32);
    let workgroup = if bytes > adapter.workgroup_bytes { FEWER_THREADS.min(workgroup) } else { workgroup };
    let params =
        GemvColMajorParams { m: U32::size(m)?, n: U32::size(n)?, k: U32::size(k)?, tiles: U32::size(tiles)?, groups_x: grid[0].into() };
    Some(Wgsl {
        source: GEMV_COL_MAJOR.source(&[]),
        consts: vec![("COLS", cols), ("MT", mt as u32), ("CHUNK", chunk as u32)],
        workgroup,
        grid,
        params: params.values(),
        raw: vec![],
        transposed: vec![],
    })
}

params! {
    /// What a product of few rows with a right side stored [K, N] reads at run time.
    struct GemvTransposedParams {
        /// Rows of a.
        m: u32,
        /// Columns of b.
        n: u32,
        /// Columns of a.
        k: u32,
        /// Tiles of a batch.
        tiles: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// The first element of b, which is the sum of two.
        b_start: u32,
        /// The second of them.
        b_offset: u32,
        /// Elements from row to row of b.
        b_stride_k: u32,
        /// Elements from batch to batch of b.
        b_stride_batch: u32,
    }
}

static GEMV_TRANSPOSED: Template =
    Template::new("gemv_transposed.wgsl", include_str!("gemv_transposed.wgsl")).params(GemvTransposedParams::FIELDS).files(&[WIDE_HALVES]);

/// Vectors of 16 bytes of a row of b that a workgroup of `gemv_transposed` has: at least whole sectors of 32 bytes, and at most.
const VECTORS: [usize; 2] = [2, 32];
/// Threads of such a workgroup at least.
const MIN_THREADS: u32 = 64;

/// Up to eight rows of a, where b is stored [batch, K, N] and can be read 16 bytes at a time.
fn gemv_transposed(p: &Product) -> Option<Wgsl> {
    let &Product { batch, m, n, k, adapter, .. } = p;
    let source = p.b.plain()?;
    let per = match source.dtype {
        DType::F32 => 4,
        DType::F16 | DType::BF16 => 8,
        _ => return None,
    };
    let (sizes, strides) = (source.layout.shape.dims(), source.layout.strides());
    let (over_batch, over_k) = match (sizes, strides) {
        (&[sn, sk], &[1, t]) if batch == 1 && sn == n && sk == k => (0, t),
        (&[sb, sn, sk], &[z, 1, t]) if sb == batch && sn == n && sk == k => (z, t),
        _ => return None,
    };
    let whole = |x: isize| x >= 0 && x as usize % per == 0;
    if !whole(over_batch)
        || !whole(over_k)
        || n % per != 0
        || source.layout.offset % per != 0
        || (source.offset.is_some() && !source.aligned)
    {
        return None;
    }
    // Few columns a workgroup, so that there are many workgroups.
    let tuning = &adapter.tuning.gemv;
    let cols = (n / per / tuning.column_groups.max(1)).next_power_of_two().clamp(VECTORS[0], VECTORS[1]) as u32;
    let mt = m.next_power_of_two();
    let threads = ((k / 4).next_power_of_two() as u32).saturating_mul(cols);
    let workgroup = threads.min(tuning.column_threads).max(MIN_THREADS).min(adapter.workgroup_threads.max(1));
    let prefetch = if m > 2 { 2 } else { 4 };
    let unit = workgroup / cols * prefetch;
    let bytes = adapter.workgroup_bytes.min(tuning.workgroup_bytes[1]).max(MIN_WORKGROUP_BYTES);
    let room = bytes.saturating_sub(16 * workgroup) / (4 * mt as u32);
    let chunk = unit * (k.div_ceil(unit as usize).next_power_of_two() as u32).min(1 << (room / unit).max(1).ilog2());
    if chunk > room {
        return None;
    }
    let tiles = n.div_ceil(per * cols as usize);
    let grid = grid(batch.checked_mul(tiles)?)?;
    let [b_start, b_offset] = start(source)?.map(U32::from);
    let params = GemvTransposedParams {
        m: U32::size(m)?,
        n: U32::size(n)?,
        k: U32::size(k)?,
        tiles: U32::size(tiles)?,
        groups_x: grid[0].into(),
        b_start,
        b_offset,
        b_stride_k: U32::size(over_k as usize)?,
        b_stride_batch: U32::size(over_batch as usize)?,
    };
    let quads = per as u32 / 4;
    let values = [
        ("PREFETCH", prefetch.into()),
        ("NQ", quads.into()),
        ("MT", (mt as u32).into()),
        ("HALVES", (per == 8).into()),
        ("BF16", (source.dtype == DType::BF16).into()),
    ];
    Some(Wgsl {
        source: GEMV_TRANSPOSED.source(&values),
        consts: vec![("COLS", cols), ("NQ", quads), ("MT", mt as u32), ("PREFETCH", prefetch), ("CHUNK", chunk)],
        workgroup,
        grid,
        params: params.values(),
        raw: vec![1],
        transposed: vec![],
    })
}

params! {
    /// What a product by tiles reads at run time.
    struct GemmTiledParams {
        /// Rows of a.
        m: u32,
        /// Rows of b.
        n: u32,
        /// Columns of both.
        k: u32,
        /// Tiles in n.
        tiles_n: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// The first element of b, which is the sum of two.
        b_start: u32,
        /// The second of them.
        b_offset: u32,
        /// Tiles in m.
        tiles_m: u32,
        /// Workgroups, of which the grid may have more.
        groups: u32,
    }
}

static GEMM_TILED: Template = Template::new("gemm_tiled.wgsl", include_str!("gemm_tiled.wgsl")).params(GemmTiledParams::FIELDS).files(&[
    ("gemm_tiled_store.wgsl", include_str!("gemm_tiled_store.wgsl")),
    WEIGHTS_QUADS,
    WIDE_HALVES,
]);

/// Many rows of a: tiles of both operands in workgroup memory.
fn gemm_tiled(p: &Product) -> Option<Wgsl> {
    let &Product { batch, m, n, k, a, b, ref weights, adapter } = p;
    let threads = adapter.workgroup_threads;
    let bytes = adapter.workgroup_bytes as usize;
    // (TX, TY, RM, RN, SPLITS): the largest tile that still gives the GPU enough of them; at last small ones, whose threads share K.
    let shapes = [(16, 16, 8, 8, 1), (16, 16, 4, 4, 1), (8, 8, 4, 4, 1), (8, 8, 4, 4, 2), (8, 8, 4, 4, 4)];
    type Tile = (u32, u32, u32, u32, u32);
    let fits =
        |&(tx, ty, rm, rn, split): &Tile| tx * ty * split <= threads && (tx * rn + ty * rm) as usize * 9 * 16 * split as usize <= bytes;
    let count = |&(tx, ty, rm, rn, _): &Tile| batch * m.div_ceil((ty * rm) as usize) * n.div_ceil((tx * rn) as usize);
    let possible = || shapes.iter().filter(|s| fits(s));
    let shape = possible().find(|s| count(s) >= adapter.tuning.gemm.tiled_groups).or_else(|| possible().next_back())?;
    let (tx, ty, rm, rn, split) = *shape;
    let (tiles_n, tiles_m) = (n.div_ceil((tx * rn) as usize), m.div_ceil((ty * rm) as usize));
    let groups = batch.checked_mul(tiles_n)?.checked_mul(tiles_m)?;
    let grid = grid(groups)?;
    let (start, raw) = weights.start();
    let [b_start, b_offset] = start.map(U32::from);
    let params = GemmTiledParams {
        m: U32::size(m)?,
        n: U32::size(n)?,
        k: U32::size(k)?,
        tiles_n: U32::size(tiles_n)?,
        groups_x: grid[0].into(),
        b_start,
        b_offset,
        tiles_m: U32::size(tiles_m)?,
        groups: U32::size(groups)?,
    };
    let consts = vec![
        ("TX", tx),
        ("TY", ty),
        ("RM", rm),
        ("RN", rn),
        ("SPLITS", split),
        ("VEC_A", (k % 4 == 0 && !col_major(a)) as u32),
        ("VEC_OUT", (n % 4 == 0) as u32),
        ("COL_MAJOR_A", col_major(a) as u32),
        ("COL_MAJOR_B", (weights.raw.is_none() && col_major(b)) as u32),
    ];
    let mut values = weights.values();
    values.extend(consts.iter().map(|&(name, n)| (name, TemplateValue::from(n))));
    values.extend([("QUADS_A", (rm * 8 / tx).into()), ("QUADS_B", (rn * 8 / ty).into())]);
    Some(Wgsl {
        source: GEMM_TILED.source(&values),
        consts,
        workgroup: tx * ty * split,
        grid,
        params: params.values(),
        raw,
        transposed: vec![],
    })
}
