//! The GPU forms of attention's gradients, and of attention over many queries, which stages keys in the same way.

use super::AttentionKernel;
use super::flash_coop::attention_coop;
use super::gpu::{KEYS, MAX_HEAD};
use super::grad::Part;
use crate::plan::{AdapterInfo, Step, Wgsl, Word};
use crate::shader::row_group::{RowGroup, SUM};
use crate::shader::{decide, grid, indexable, quads, unroll, words};

/// Threads of a workgroup.
const WORKGROUP: u32 = 128;
/// The most rows that are staged together.
const TILE: usize = 32;

/// The gradient of the queries, or those of keys and values.
pub fn attention_grad(of: &AttentionKernel, part: Part, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    attention_coop(of, Some(part), step, adapter.tuning.attention.subgroup_sync_groups, adapter)
        .or_else(|| staged(of, Some(part), step, adapter))
}

/// Attention of many queries.
pub(super) fn attention_tiled(of: &AttentionKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    staged(of, None, step, adapter)
}

/// A kernel whose workgroups have a block of one head's queries (or of its keys) and stage the others a tile at a time.
fn staged(of: &AttentionKernel, part: Option<Part>, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    type Results = &'static [(&'static str, &'static str)];
    let (text, results): (&str, Results) = match part {
        None => (include_str!("flash_tiled.wgsl"), &[("put", "VEC_V")]),
        Some(Part::Queries) => (include_str!("flash_grad_q.wgsl"), &[("put", "VEC_D")]),
        Some(Part::Keys) => (include_str!("flash_grad_kv.wgsl"), &[("put_k", "VEC_D"), ("put_v", "VEC_V")]),
        // Sums over keys and sums over queries do not meet in one dispatch.
        Some(Part::All) => return None,
    };
    let by_key = part == Some(Part::Keys);
    let (q, k, v) = (&step.loads[0].shape, &step.loads[1].shape, &step.loads[2].shape);
    let [b, h, t, d] = *q.dims() else { return None };
    let (hkv, s, dv) = (k[1], k[2], v[3]);
    let scores = if of.mask { b.checked_mul(h)?.checked_mul(t)?.checked_mul(s)? } else { 0 };
    if d > MAX_HEAD || dv > MAX_HEAD || hkv == 0 || h % hkv != 0 || t == 0 || s == 0 {
        return None;
    }
    if !indexable(&[q.count(), k.count(), v.count(), b * h * t * dv, scores]) {
        return None;
    }
    // Quads of a row for each of its four threads.
    let (dk, dv4) = (d.div_ceil(16).max(1), dv.div_ceil(16).max(1));
    // Two rows for four threads halve the reads of staged ones, as long as registers are enough.
    let per = if by_key || dk + dv4 > 8 { 1 } else { 2 };
    let room = (adapter.workgroup_bytes as usize).clamp(16_384, 32_768) - 1024;
    let tile = [TILE, 16, 8, 4].into_iter().find(|n| n * (64 * (dk + dv4) + 8) <= room)?;
    let workgroup = WORKGROUP.min(adapter.workgroup_threads.max(4));
    let quad = RowGroup { workgroup, size: 4, col_major: false };
    let mut source = String::from(text);
    source += KEYS;
    let operands = [("fetch_q", "VEC_D"), ("fetch_k", "VEC_D"), ("fetch_v", "VEC_V"), ("fetch_g", "VEC_V")];
    for (load, (name, vec)) in operands.into_iter().enumerate().take(if part.is_some() { 4 } else { 3 }) {
        source += &quads("fetch", name, load, vec);
    }
    for (store, (name, vec)) in results.iter().enumerate() {
        source += &quads("put", name, store, vec);
    }
    source += &quad.function("quad_sum", SUM, adapter);
    if of.mask {
        source += "fn masked(i: u32) -> f32 { return load_3(i); }\n";
    }
    let (dk, dv4) = (dk as u32, dv4 as u32);
    let switches = [("MASKED", of.mask as u32), ("SUMS", of.sums as u32), ("VEC_D", (d % 4 == 0) as u32), ("VEC_V", (dv % 4 == 0) as u32)];
    let consts = vec![("DK", dk), ("DV", dv4), ("PER", per), ("TILE", tile as u32), ("CAUSAL", of.causal as u32)];
    let blocks = if by_key { s } else { t }.div_ceil((workgroup / 4 * per) as usize);
    let count = (if by_key { b.checked_mul(hkv)? } else { b.checked_mul(h)? }).checked_mul(blocks)?;
    let grid = grid(count)?;
    let valid = step.params.first().map_or(Word::U32(u32::try_from(s).ok()?), |&p| Word::ParamU32(p));
    let mut list = words(&[h, hkv, t, s, d, dv])?;
    list.extend([valid, Word::F32(of.scale as f32), Word::U32(of.window), Word::U32(grid[0])]);
    list.extend(words(&[blocks, count])?);
    let source = decide(unroll(source, &[("PER", per), ("DK", dk), ("DV", dv4)]), &switches);
    Some(Wgsl { source, consts, workgroup, grid, words: list, raw: vec![], transposed: vec![] })
}
