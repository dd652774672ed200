//! The GPU form of products of many pairs with experts' weights by the adapter's cooperative matrices.

use super::ExpertMatMulKernel;
use super::operands::{OPERANDS, consts, values};
use crate::dtype::DType;
use crate::ops::matmul::gemm_coop::{LineParams, STAGING, lines};
use crate::ops::matmul::gemv::with_values;
use crate::ops::matmul::weights::{Items, Weights};
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::{StartParams, Template, U32, grid, params, subgroup_barrier};
use crate::tuning::ExpertTuning;

params! {
    /// What the kernel reads at run time.
    struct ExpertCoopParams {
        /// Rows of x and an expert each.
        pairs: u32,
        /// Pairs of a row of x.
        per: u32,
        /// Experts.
        experts: u32,
        /// Rows of an expert's weights.
        n: u32,
        /// Columns of both.
        k: u32,
        /// Workgroups of an expert.
        tiles: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// Where the weights begin.
        w: StartParams,
        /// Where the rows of x lie, if they are read by eights.
        x: LineParams,
    }
}

static EXPERT_MATMUL_COOP: Template =
    Template::new("expert_matmul_coop.wgsl", include_str!("expert_matmul_coop.wgsl")).params(ExpertCoopParams::FIELDS).files(&[
        ("expert_coop_fetch.wgsl", include_str!("expert_coop_fetch.wgsl")),
        ("expert_coop_stage.wgsl", include_str!("expert_coop_stage.wgsl")),
        ("expert_coop_store.wgsl", include_str!("expert_coop_store.wgsl")),
        STAGING,
        OPERANDS[0],
        OPERANDS[1],
        OPERANDS[2],
        OPERANDS[3],
        OPERANDS[4],
    ]);

/// How a workgroup's work is cut.
struct ExpertTile<'a> {
    tuning: &'a ExpertTuning,
    /// Pairs that are multiplied at a time.
    height: u32,
    /// Rows of weights.
    width: u32,
    /// Columns of a step.
    step: u32,
    /// Items of a row of weights in a step.
    items: u32,
    workgroup: u32,
}

impl ExpertTile<'_> {
    /// The first of these sizes that fits the adapter, with `pairs` pairs for each expert.
    fn pick(pairs: usize, weights: Items, adapter: &AdapterInfo) -> Option<ExpertTile<'_>> {
        let tuning = &adapter.tuning.experts;
        let (edge, subgroups, workgroup) = (adapter.coop, tuning.subgroups, tuning.subgroups * adapter.subgroup);
        let step = tuning.min_step.next_multiple_of(4 * weights.span * weights.quad_runs);
        let items = step / (4 * weights.quads);
        let heights = tuning.tile_pairs.iter().filter(|h| pairs >= h[1] as usize).map(|h| h[0]);
        let tiles = heights.flat_map(|height| tuning.tile_rows.map(|width| ExpertTile { tuning, height, width, step, items, workgroup }));
        tiles.into_iter().find(|t| {
            let whole = t.height % edge == 0 && t.width % (subgroups * edge) == 0 && step % edge == 0;
            let shared = (t.height * step / 8) % workgroup == 0 && (t.width * items) % workgroup == 0;
            // Both tiles, a matrix of each subgroup, the list and its length, and what the staging's file counts in.
            let bytes = 2 * (t.height + t.width) * (step + 8) + 4 * subgroups * edge * (edge + 4) + 4 * (t.list() + 2);
            whole && shared && bytes <= adapter.workgroup_bytes && workgroup <= adapter.workgroup_threads
        })
    }

    /// Pairs that are looked through at a time.
    fn segment(&self) -> u32 {
        4 * self.tuning.vec4_reads * self.workgroup
    }

    /// Pairs for which the list has room.
    fn list(&self) -> u32 {
        self.tuning.full_list + self.segment()
    }

    /// The sizes that loops are written out by.
    fn sizes(&self, edge: u32) -> [(&'static str, u32); 16] {
        [
            ("BM", self.height),
            ("BN", self.width),
            ("BK", self.step),
            ("ITEMS", self.items),
            ("LOADS_A", self.height * self.step / 8 / self.workgroup),
            ("LOADS_B", self.width * self.items / self.workgroup),
            ("WARPS_M", 1),
            ("WARPS_N", self.tuning.subgroups),
            ("FRAGMENTS_M", self.height / edge),
            ("FRAGMENTS_N", self.width / self.tuning.subgroups / edge),
            ("STAGED_FRAGMENTS", 1),
            ("STEPS", self.step / edge),
            ("VEC4_READS", self.tuning.vec4_reads),
            ("SEGMENT", self.segment()),
            ("LIST", self.list()),
            ("EDGE", edge),
        ]
    }
}

/// Load 0 `[rows, K]` times load 1 `[E, N, K]` by load 2 `[pairs]`; `None` where the adapter has no matrices, or rows or weights are not f16:
/// products of wider numbers are not rounded behind the user's back.
pub(super) fn expert_matmul_coop(of: &ExpertMatMulKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (x, w, pairs) = (&step.loads[0], &step.loads[1], step.loads[2].shape.count());
    let (experts, n, k) = (w.shape[0], w.shape[1], w.shape[2]);
    let weights = Weights::of(w, k);
    let blocks = w.plain().is_some_and(|s| s.dtype.is_block()) && weights.raw.is_some();
    let halves = x.dtype() == DType::F16 && (blocks || w.dtype() == DType::F16);
    if adapter.coop == 0 || adapter.subgroup == 0 || !halves {
        return None;
    }
    let tile = ExpertTile::pick(pairs / experts, weights.shape, adapter)?;
    let tiles = n.div_ceil(tile.width as usize);
    let grid = grid(experts.checked_mul(tiles)?)?;
    let rows = lines(x, 1, x.shape[0], k, false);
    let (_, mut raw) = weights.start();
    raw.extend(rows.map(|_| 0));
    let params = ExpertCoopParams {
        pairs: U32::size(pairs)?,
        per: U32::size(pairs / x.shape[0])?,
        experts: U32::size(experts)?,
        n: U32::size(n)?,
        k: U32::size(k)?,
        tiles: U32::size(tiles)?,
        groups_x: grid[0].into(),
        w: weights.raw.map_or(StartParams::ABSENT, StartParams::from),
        x: rows.unwrap_or(LineParams::ABSENT),
    };
    let mut consts = consts(&weights).to_vec();
    consts.extend(tile.sizes(adapter.coop));
    consts.extend([("SUBGROUP", adapter.subgroup), ("UNIT", if adapter.coop_vectors { 4 } else { 1 })]);
    let mut values = values(&weights, k, rows.is_some(), String::new());
    values.extend(with_values(&consts));
    values.extend(subgroup_barrier(adapter.subgroup_sync));
    values.extend([
        ("BIASED", of.bias.into()),
        ("EVEN_K", k.is_multiple_of(tile.step as usize).into()),
        ("VEC_IDS", pairs.is_multiple_of(4).into()),
        ("EIGHT_OUT", n.is_multiple_of(8).into()),
        ("VEC_OUT", n.is_multiple_of(4).into()),
        // Software takes minutes to compile what is written out; elsewhere `zero` is none of the shader's.
        ("zero", 0u32.into()),
        ("UNROLL", (adapter.subgroup >= adapter.tuning.gemm.unroll_min_subgroup).into()),
        ("COOP_VECTORS", adapter.coop_vectors.into()),
    ]);
    let (source, params) = (EXPERT_MATMUL_COOP.source(&values), params.values());
    Some(Wgsl { source, consts, workgroup: tile.workgroup, grid, params, raw, transposed: vec![] })
}
