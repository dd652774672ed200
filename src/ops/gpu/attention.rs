//! The GPU form of attention.

use super::attention_coop::attention_coop;
use super::attention_grad::attention_tiled;
use super::team::{MAX, SUM, Team};
use super::{decide, grid, indexable, unroll, words};
use crate::ops::attention::AttentionKernel;
use crate::plan::{AdapterInfo, Step, Wgsl, Word};

/// The widest head.
pub(super) const MAX_HEAD: usize = 256;
/// Which keys a query sees, for kernels that have many queries.
pub(super) const KEYS: &str = include_str!("../attention_keys.wgsl");
/// Queries from which on a workgroup has several of them.
const MANY: usize = 32;

/// Queries `[B, H, T, D]` over keys `[B, Hkv, S, D]` and values `[B, Hkv, S, Dv]`, with an additive mask `[B, H, T, S]` if there is one.
/// The step's first parameter is the number of valid keys.
pub fn attention(of: &AttentionKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (causal, scale, window, mask) = (of.causal, of.scale as f32, of.window, of.mask);
    let (q, k, v) = (&step.loads[0].shape, &step.loads[1].shape, &step.loads[2].shape);
    let [b, h, t, d] = *q.dims() else { return None };
    let (hkv, s, dv) = (k[1], k[2], v[3]);
    let groups = b.checked_mul(h)?.checked_mul(t)?;
    if d > MAX_HEAD || dv > MAX_HEAD || hkv == 0 || h % hkv != 0 {
        return None;
    }
    if !indexable(&[q.count(), k.count(), v.count(), step.stores[0].shape.count(), if mask { groups.checked_mul(s)? } else { 0 }]) {
        return None;
    }
    if t >= MANY {
        return attention_coop(of, None, step, adapter).or_else(|| attention_tiled(of, step, adapter));
    }
    let valid = step.params.first().map_or(Word::U32(u32::try_from(s).ok()?), |&p| Word::ParamU32(p));
    // Few queries: more threads for each, since they share its keys; never less than a quad of a value each.
    let most = adapter.workgroup_threads.clamp(64, 1024);
    let workgroup = if s <= 128 {
        128
    } else if groups >= 512 {
        256
    } else {
        512
    }
    .min(most);
    let dp = (dv.div_ceil(4).next_power_of_two() as u32).max(1);
    let quad = Team { workgroup, size: 4, across: false };
    let team = Team { workgroup, size: workgroup, across: false };
    let mut source = String::from(include_str!("../attention.wgsl"));
    source += &quad.function("key_sum", SUM, adapter);
    source += &team.function_once("team_max", MAX, adapter);
    source += if mask { "fn masked(i: u32) -> f32 { return load_3(i); }\n" } else { "fn masked(i: u32) -> f32 { return 0.0; }\n" };
    // Quads of a key for each of its four threads; and the tile's values that a thread asks for before the scores, out of `dp`.
    let (dk, early) = ((d.div_ceil(16)).next_power_of_two() as u32, dp.min(8));
    let consts = vec![
        ("DP", dp),
        ("DK", dk),
        ("EARLY", early),
        ("CAUSAL", causal as u32),
        ("VEC_D", (d % 4 == 0) as u32),
        ("VEC_V", (dv % 4 == 0) as u32),
        ("SUMS", of.sums as u32),
    ];
    let grid = grid(groups)?;
    let mut list = words(&[h, hkv, t, s, d, dv])?;
    list.extend([valid, Word::F32(scale), Word::U32(window), Word::U32(grid[0]), Word::U32(u32::try_from(groups).ok()?)]);
    let source = decide(unroll(source, &[("EARLY", early), ("PASSES", 4), ("DK", dk)]), &consts[4..]);
    Some(Wgsl { source, consts, workgroup, grid, words: list, raw: vec![], turned: vec![] })
}
