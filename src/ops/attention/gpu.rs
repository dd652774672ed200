//! The GPU form of attention.

use super::AttentionKernel;
use super::decode_split_kv::decode_split_kv;
use super::flash_coop::attention_coop;
use super::grad_gpu::attention_tiled;
use crate::ops::matmul::gemm_coop::{OPERAND, OPERAND_PLACE};
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::{MAX, RowGroup, SUM};
use crate::shader::{Template, U32, Value, grid, indexable, params};

/// The widest head.
pub(super) const MAX_HEAD: usize = 256;

/// WGSL that the kernels include.
pub(super) static FILES: &[(&str, &str)] = &[
    ("decode_split_kv_join.wgsl", include_str!("decode_split_kv_join.wgsl")),
    ("flash_begin.wgsl", include_str!("flash_begin.wgsl")),
    ("flash_coop_add.wgsl", include_str!("flash_coop_add.wgsl")),
    ("flash_coop_fetch.wgsl", include_str!("flash_coop_fetch.wgsl")),
    ("flash_coop_hold.wgsl", include_str!("flash_coop_hold.wgsl")),
    ("flash_coop_memory.wgsl", include_str!("flash_coop_memory.wgsl")),
    ("flash_coop_operand.wgsl", include_str!("flash_coop_operand.wgsl")),
    ("flash_coop_scores.wgsl", include_str!("flash_coop_scores.wgsl")),
    ("flash_coop_stage.wgsl", include_str!("flash_coop_stage.wgsl")),
    ("flash_coop_store.wgsl", include_str!("flash_coop_store.wgsl")),
    ("flash_coop_top.wgsl", include_str!("flash_coop_top.wgsl")),
    ("flash_queries.wgsl", include_str!("flash_queries.wgsl")),
    ("flash_stage.wgsl", include_str!("flash_stage.wgsl")),
    ("flash_tiles.wgsl", include_str!("flash_tiles.wgsl")),
    OPERAND,
    OPERAND_PLACE,
    ("join_sets.wgsl", include_str!("join_sets.wgsl")),
    ("keys.wgsl", include_str!("keys.wgsl")),
    ("rows_fetch_inside.wgsl", include_str!("rows_fetch_inside.wgsl")),
    ("subgroup_butterfly.wgsl", include_str!("subgroup_butterfly.wgsl")),
];

params! {
    /// What all kernels of attention by one workgroup a block read at run time.
    pub(super) struct AttentionParams {
        /// Heads of queries.
        heads: u32,
        /// Heads of keys and values.
        heads_kv: u32,
        /// Queries of a head.
        queries: u32,
        /// Keys of a head.
        keys: u32,
        /// Elements of a query or key.
        size: u32,
        /// Elements of a value.
        size_v: u32,
        /// Keys that are there, the first of `keys`.
        valid: u32,
        /// Factor of the scores.
        scale: f32,
        /// Keys that a query sees at most, or 0.
        window: u32,
        /// Workgroups in x.
        groups_x: u32,
    }
}

impl AttentionParams {
    /// For a grid of `groups_x` workgroups in x.
    pub fn new(of: &AttentionKernel, z: &HeadSizes, step: &Step, groups_x: u32) -> Option<AttentionParams> {
        Some(AttentionParams {
            heads: U32::size(z.h)?,
            heads_kv: U32::size(z.hkv)?,
            queries: U32::size(z.t)?,
            keys: U32::size(z.s)?,
            size: U32::size(z.d)?,
            size_v: U32::size(z.dv)?,
            valid: z.valid(step)?,
            scale: (of.scale as f32).into(),
            window: of.window.into(),
            groups_x: groups_x.into(),
        })
    }
}

params! {
    /// What attention of one query and one head per workgroup reads at run time.
    struct DecodeParams: AttentionParams {
        /// Workgroups.
        groups: u32,
    }
}

static DECODE: Template = Template::new("decode.wgsl", include_str!("decode.wgsl")).params(DecodeParams::FIELDS).files(FILES);

/// The sizes of attention: queries `[b, h, t, d]`, keys `[b, hkv, s, d]`, values `[b, hkv, s, dv]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadSizes {
    pub b: usize,
    pub h: usize,
    pub hkv: usize,
    pub t: usize,
    pub s: usize,
    pub d: usize,
    pub dv: usize,
}

impl HeadSizes {
    /// Those of a step; `None` where a head is wider than `max_head` or heads of keys are not shared evenly.
    pub fn of(step: &Step, max_head: usize) -> Option<HeadSizes> {
        let [b, h, t, d] = *step.loads[0].shape.dims() else { return None };
        let (k, v) = (&step.loads[1].shape, &step.loads[2].shape);
        let (hkv, s, dv) = (k[1], k[2], v[3]);
        let fits = d <= max_head && dv <= max_head && hkv != 0 && h % hkv == 0;
        fits.then_some(HeadSizes { b, h, hkv, t, s, d, dv })
    }
    /// The number of valid keys: the step's first parameter, or all.
    pub fn valid(&self, step: &Step) -> Option<U32> {
        step.params.first().map_or(U32::size(self.s), |&p| Some(U32::param(p)))
    }
}

/// Constants of a kernel as values of its template.
pub(super) fn values(consts: &[(&'static str, u32)]) -> Vec<(&'static str, Value)> {
    consts.iter().map(|&(name, n)| (name, n.into())).collect()
}

/// Queries `[B, H, T, D]` over keys `[B, Hkv, S, D]` and values `[B, Hkv, S, Dv]`, with an additive mask `[B, H, T, S]` if there is one.
/// The step's first parameter is the number of valid keys.
pub fn attention(of: &AttentionKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let z = HeadSizes::of(step, MAX_HEAD)?;
    let groups = z.b.checked_mul(z.h)?.checked_mul(z.t)?;
    let [q, k, v] = [0, 1, 2].map(|n| step.loads[n].shape.count());
    if !indexable(&[q, k, v, step.stores[0].shape.count(), if of.mask { groups.checked_mul(z.s)? } else { 0 }]) {
        return None;
    }
    if z.t >= adapter.tuning.attention.flash_min_queries {
        return attention_coop(of, None, step, adapter.tuning.attention.subgroup_sync_groups, adapter)
            .or_else(|| attention_tiled(of, step, adapter));
    }
    let split = if adapter.subgroup >= 4 { decode_split_kv(of, &z, step, adapter) } else { None };
    split.or_else(|| decode(of, &z, groups, step, adapter))
}

/// Few queries, one of one head for each of so many workgroups.
fn decode(of: &AttentionKernel, z: &HeadSizes, groups: usize, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    // Few queries: more threads for each, since they share its keys; never less than a quad of a value each.
    let most = adapter.workgroup_threads.clamp(64, 1024);
    let workgroup = if z.s <= 128 {
        128
    } else if groups >= 512 {
        256
    } else {
        512
    }
    .min(most);
    let dp = (z.dv.div_ceil(4).next_power_of_two() as u32).max(1);
    let quad = RowGroup { workgroup, size: 4, col_major: false };
    let whole = RowGroup { workgroup, size: workgroup, col_major: false };
    // Quads of a key for each of its four threads; and the tile's values that a thread asks for before the scores, out of `dp`.
    let (dk, prefetched) = ((z.d.div_ceil(16)).next_power_of_two() as u32, dp.min(8));
    let consts = vec![
        ("DP", dp),
        ("DK", dk),
        ("PREFETCH", prefetched),
        ("CAUSAL", of.causal as u32),
        ("VEC_D", (z.d % 4 == 0) as u32),
        ("VEC_V", (z.dv % 4 == 0) as u32),
        ("SUMS", of.sums as u32),
    ];
    let mut values = values(&consts);
    values.extend([("PASSES", 4u32.into()), ("MASKED", of.mask.into())]);
    values.push(("KEY_SUM", quad.function("key_sum", SUM, adapter).into()));
    values.push(("WORKGROUP_MAX", whole.function_once("workgroup_max", MAX, adapter).into()));
    let grid = grid(groups)?;
    let params = DecodeParams { base: AttentionParams::new(of, z, step, grid[0])?, groups: U32::size(groups)? };
    let source = DECODE.source(&values);
    Some(Wgsl { source, consts, workgroup, grid, words: params.words(), raw: vec![], transposed: vec![] })
}
