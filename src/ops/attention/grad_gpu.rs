//! The GPU forms of attention's gradients, and of attention over many queries, which stages keys in the same way.

use super::AttentionKernel;
use super::flash_coop::attention_coop;
use super::paged::PAGE;
use super::params::{FILES, FlashParams, HeadSizes, MAX_HEAD, Part, TiledParams, values};
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::{RowGroup, SUM};
use crate::shader::{Template, grid, indexable};
use crate::tuning::MIN_WORKGROUP_BYTES;

/// Rows that may be staged together, the most first.
const TILES: [usize; 4] = [32, 16, 8, 4];
/// Bytes of workgroup memory for what a kernel has besides staged rows.
const OTHER_BYTES: usize = 1024;

static FLASH_TILED: Template = Template::new("flash_tiled.wgsl", include_str!("flash_tiled.wgsl")).params(TiledParams::FIELDS).files(FILES);
static FLASH_GRAD_Q: Template =
    Template::new("flash_grad_q.wgsl", include_str!("flash_grad_q.wgsl")).params(TiledParams::FIELDS).files(FILES);
static FLASH_GRAD_KV: Template =
    Template::new("flash_grad_kv.wgsl", include_str!("flash_grad_kv.wgsl")).params(TiledParams::FIELDS).files(FILES);

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
    let template = match part {
        None => &FLASH_TILED,
        Some(Part::Queries) => &FLASH_GRAD_Q,
        Some(Part::Keys) => &FLASH_GRAD_KV,
        // Sums over keys and sums over queries do not meet in one dispatch.
        Some(Part::All) => return None,
    };
    let by_key = part == Some(Part::Keys);
    let z = HeadSizes::of(step, MAX_HEAD).map(|z| z.of_pages(of, step)).filter(|z| z.t > 0 && z.s > 0)?;
    let scores = if of.mask { z.b.checked_mul(z.h)?.checked_mul(z.t)?.checked_mul(z.s)? } else { 0 };
    let [q, k, v] = [0, 1, 2].map(|n| step.loads[n].shape.count());
    if !indexable(&[q, k, v, z.b * z.h * z.t * z.dv, scores]) {
        return None;
    }
    // Quads of a row for each of its four threads.
    let (dk, dv4) = (z.d.div_ceil(16).max(1), z.dv.div_ceil(16).max(1));
    let tuning = &adapter.tuning.attention;
    // Two rows for four threads halve the reads of staged ones, as long as registers are enough.
    let thread_rows = if by_key || dk + dv4 > tuning.tiled_quads as usize { 1 } else { 2 };
    let room = adapter.workgroup_bytes.min(tuning.tiled_bytes).max(MIN_WORKGROUP_BYTES) as usize - OTHER_BYTES;
    let workgroup = tuning.tiled_threads.min(adapter.workgroup_threads.max(4));
    let rows = (workgroup / 4 * thread_rows) as usize;
    // Four bits for four weights of a tile, in words.
    let kept = if of.dropout > 0.0 { rows } else { 0 };
    if kept % 4 != 0 {
        return None;
    }
    let tile = TILES.into_iter().find(|n| n * (64 * (dk + dv4) + 8 + kept) <= room)?;
    let quad = RowGroup { workgroup, size: 4, col_major: false };
    let (dk, dv4) = (dk as u32, dv4 as u32);
    let consts = vec![("DK", dk), ("DV", dv4), ("THREAD_ROWS", thread_rows), ("TILE", tile as u32), ("CAUSAL", of.causal as u32)];
    let mut values = values(&consts);
    values.extend([("MASKED", of.mask.into()), ("SUMS", of.sums.into()), ("DROPOUT", (of.dropout > 0.0).into())]);
    values.extend(of.softcap_values());
    values.extend([("PAGED", of.paged.into()), ("PAGE", (PAGE as u32).into())]);
    values.extend([("VEC_D", (z.d % 4 == 0).into()), ("VEC_V", (z.dv % 4 == 0).into())]);
    values.push(("QUAD_SUM", quad.function("quad_sum", SUM, adapter).into()));
    let blocks = if by_key { z.s } else { z.t }.div_ceil(rows);
    let count = z.b.checked_mul(if by_key { z.hkv } else { z.h })?.checked_mul(blocks)?;
    let grid = grid(count)?;
    let params = TiledParams::new(FlashParams::new(of, &z, step, grid[0], [blocks, count])?, of, step)?;
    Some(Wgsl { source: template.source(&values), consts, workgroup, grid, params: params.values(), raw: vec![], transposed: vec![] })
}
