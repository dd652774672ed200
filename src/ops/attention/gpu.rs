//! The GPU form of attention.

use super::AttentionKernel;
use super::decode_split_kv::decode_split_kv;
use super::flash_coop::attention_coop;
use super::grad_gpu::attention_tiled;
use super::params::{AttentionParams, FILES, HeadSizes, MAX_HEAD, values};
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::{MAX, RowGroup, SUM};
use crate::shader::{Template, U32, grid, indexable, params};
use crate::tuning::MAX_WORKGROUP_THREADS;

params! {
    /// What attention of one query and one head per workgroup reads at run time.
    struct DecodeParams: AttentionParams {
        /// Workgroups.
        groups: u32,
    }
}

static DECODE: Template = Template::new("decode.wgsl", include_str!("decode.wgsl")).params(DecodeParams::FIELDS).files(FILES);

/// Queries `[B, H, T, D]` over keys `[B, Hkv, S, D]` and values `[B, Hkv, S, Dv]`, with an additive mask `[B, H, T, S]` if there is one.
/// The step's first parameter is the number of valid keys.
pub fn attention(of: &AttentionKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let z = HeadSizes::of(step, MAX_HEAD)?.of_pages(of, step);
    let groups = z.b.checked_mul(z.h)?.checked_mul(z.t)?;
    let [q, k, v] = [0, 1, 2].map(|n| step.loads[n].shape.count());
    if !indexable(&[q, k, v, step.stores[0].shape.count(), if of.mask { groups.checked_mul(z.s)? } else { 0 }]) {
        return None;
    }
    if of.dropout > 0.0 {
        return attention_tiled(of, step, adapter);
    }
    if z.t >= adapter.tuning.attention.flash_min_queries {
        return attention_coop(of, None, step, adapter.tuning.attention.subgroup_sync_groups, adapter)
            .or_else(|| attention_tiled(of, step, adapter));
    }
    let split = if adapter.subgroup >= 4 { decode_split_kv(of, &z, step, adapter) } else { None };
    if of.paged {
        return split.or_else(|| attention_tiled(of, step, adapter));
    }
    split.or_else(|| decode(of, &z, groups, step, adapter))
}

/// Threads of a workgroup of `decode` at least: quads of a value.
const MIN_THREADS: u32 = (MAX_HEAD / 4) as u32;
/// Values of a tile that a thread asks for before the scores, at most.
const MAX_PREFETCHED: u32 = 8;

/// Few queries, one of one head for each of so many workgroups.
fn decode(of: &AttentionKernel, z: &HeadSizes, groups: usize, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    // Few queries: more threads for each, since they share its keys; never less than a quad of a value each.
    let most = adapter.workgroup_threads.clamp(MIN_THREADS, MAX_WORKGROUP_THREADS);
    let tuning = &adapter.tuning.attention;
    let [few_keys, full, idle] = tuning.decode_threads;
    let workgroup = if z.s <= tuning.decode_few_keys {
        few_keys
    } else if groups >= tuning.decode_full_groups {
        full
    } else {
        idle
    }
    .min(most);
    let dp = (z.dv.div_ceil(4).next_power_of_two() as u32).max(1);
    let quad = RowGroup { workgroup, size: 4, col_major: false };
    let whole = RowGroup { workgroup, size: workgroup, col_major: false };
    // Quads of a key for each of its four threads; and the tile's values that a thread asks for before the scores, out of `dp`.
    let (dk, prefetched) = ((z.d.div_ceil(16)).next_power_of_two() as u32, dp.min(MAX_PREFETCHED));
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
    values.extend(of.softcap_values());
    values.push(("KEY_SUM", quad.function("key_sum", SUM, adapter).into()));
    values.push(("WORKGROUP_MAX", whole.function_once("workgroup_max", MAX, adapter).into()));
    let grid = grid(groups)?;
    let params = DecodeParams { base: AttentionParams::new(of, z, step, grid[0])?, groups: U32::size(groups)? };
    let source = DECODE.source(&values);
    Some(Wgsl { source, consts, workgroup, grid, params: params.values(), raw: vec![], transposed: vec![] })
}
