//! The GPU forms of attention and its gradients by the adapter's cooperative matrices.

use super::AttentionKernel;
use super::gpu::KEYS;
use super::grad::Part;
use crate::dtype::DType;
use crate::ops::matmul::gemm_coop::{SCALARS, VECTORS, lines, operand, subgroup_barrier};
use crate::plan::{AdapterInfo, Step, SubgroupSync, Wgsl, Word};
use crate::shader::{decide, grid, indexable, unroll, with_parts, words};

/// The widest head whose rows fit into matrices.
const MAX_HEAD: usize = 128;
/// Memory of scores and of what becomes of them before it is multiplied.
const PART_VECTORS: &str = "var<workgroup> parts: array<vec4<f16>, PARTS * ROWS * PITCH_P / 4u>;
fn put_part(at: u32, v: vec4<f32>) { parts[at] = vec4<f16>(v); }
";
const PART_SCALARS: &str = "var<workgroup> parts: array<f16, PARTS * ROWS * PITCH_P>;
fn put_part(at: u32, v: vec4<f32>) {
  let h = vec4<f16>(v);
  parts[at] = h.x; parts[at + 1u] = h.y; parts[at + 2u] = h.z; parts[at + 3u] = h.w;
}
";
const STRIP_VECTORS: &str = "var<workgroup> strip: array<vec4<f32>, STRIPS * ROWS * PITCH_S / 4u>;
fn scores(at: u32) -> vec4<f32> { return strip[at / 4u]; }
fn put_score(at: u32, v: vec4<f32>) { strip[at / 4u] = v; }
";
const STRIP_SCALARS: &str = "var<workgroup> strip: array<f32, STRIPS * ROWS * PITCH_S>;
fn scores(at: u32) -> vec4<f32> { return vec4<f32>(strip[at], strip[at + 1u], strip[at + 2u], strip[at + 3u]); }
fn put_score(at: u32, v: vec4<f32>) { strip[at] = v.x; strip[at + 1u] = v.y; strip[at + 2u] = v.z; strip[at + 3u] = v.w; }
";

/// What a subgroup agrees on, said so that compilers see it and do not prepare for threads that part.
const AGREED: &str = "fn agreed(v: bool) -> bool { return subgroupAny(v); }\n";

/// How a workgroup's work is cut.
struct TileConfig {
    /// Subgroups.
    subs: u32,
    /// Those that share rows.
    line: u32,
    /// Rows, which are held in matrices.
    rows: u32,
    /// Columns of a tile.
    cols: u32,
    /// Of a row that is staged at once on its way into matrices.
    chunk: u32,
    /// Whether a subgroup has rows of its own and waits alone.
    alone: bool,
}

/// The tiles of attention, of `rows` of each of these heads. Where subgroups wait alone, small ones do best, if there are `many` for processors that
/// have several at a time; those of wide heads have no registers for that. Elsewhere much work between two barriers hides what they cost.
fn cut(deep: [u32; 2], heads: usize, rows: usize, many: usize, adapter: &AdapterInfo) -> Option<TileConfig> {
    let (edge, subgroup) = (adapter.coop, adapter.subgroup);
    let own = |line: u32| (subgroup / 2).min(16).max(edge / line);
    let fit = |alone: bool, line: u32, (subs, cols): (u32, u32)| {
        let own = own(line);
        let high = subs * own;
        let columns = cols * (deep[0] + deep[1] + 16);
        let fits = |chunk: &u32| deep[0].is_multiple_of(*chunk) && high * (chunk + 8) <= columns;
        let chunk = (1..=deep[0] / edge).map(|n| n * edge).rev().find(fits).unwrap_or(edge);
        let bytes = 2 * columns.max(high * (chunk + 8)) + (4 + 2) * high * (cols + 8) + 4 * (high + 1);
        let whole = subgroup >= own && cols.is_multiple_of(edge * line) && (cols / 4).is_multiple_of(subgroup / own);
        let room = bytes <= adapter.workgroup_bytes && subs * subgroup <= adapter.workgroup_threads;
        let enough = subs == 4 || heads * rows.div_ceil(high as usize) >= adapter.tuning.attention.large_groups;
        (whole && room && enough).then_some(TileConfig { subs, line, rows: high, cols, chunk, alone })
    };
    let blocks = heads * rows.div_ceil(4 * own(1) as usize);
    let alone = adapter.subgroup_sync != SubgroupSync::None && deep[0] + deep[1] <= 128 && blocks >= many;
    // Neighbours in a line share rows, as long as each has whole matrices of the values.
    let line = if (deep[1] / edge).is_multiple_of(2) { 2 } else { 1 };
    let shared = || [(8, 32), (4, 64), (4, 32), (4, 16)].into_iter().find_map(|tile| fit(false, line, tile));
    alone.then(|| fit(true, 1, (4, 16))).flatten().or_else(shared)
}

/// The same for a part of the gradients, whose scores and slopes take more memory.
fn cut_part(deep: [u32; 2], part: Part, adapter: &AdapterInfo) -> Option<TileConfig> {
    let (edge, cols, by_key) = (adapter.coop, 32u32, part == Part::Keys);
    // Wide heads have more results than a subgroup has registers for.
    let wide = deep[0] + deep[1] > 128;
    let halves = deep.iter().all(|n| (n / edge).is_multiple_of(2)) && cols.is_multiple_of(2 * edge);
    [(8, 2), (4, 1)].into_iter().filter(|&(_, line)| line == 1 || wide && halves).find_map(|(subs, line)| {
        let rows = 4 * if adapter.subgroup >= 16 { 16 } else { 8 };
        let threads = subs * adapter.subgroup;
        let tile = (cols * (deep[0] + deep[1] + 16)).max(rows * (deep[0].max(deep[1]) + 8));
        let known = if by_key { cols } else { rows };
        let bytes = 2 * tile + 4 * 2 * rows * (cols + 8) + 2 * (1 + by_key as u32) * rows * (cols + 8) + 16 * known;
        let whole = (rows * line).is_multiple_of(subs * edge) && (rows * cols / 4).is_multiple_of(threads) && cols <= threads;
        let room = bytes <= adapter.workgroup_bytes && threads <= adapter.workgroup_threads;
        let alone = line == 1 && adapter.subgroup_sync != SubgroupSync::None;
        (whole && room).then_some(TileConfig { subs, line, rows, cols, chunk: deep[0], alone })
    })
}

/// Attention (`part` is `None`) or a part of its gradients; `None` where there are no matrices, a mask, or operands that are not rows of f16
/// whose eights are whole. Subgroups wait alone where that makes as `many` workgroups of attention, in gradients wherever they have rows of their own.
pub(super) fn attention_coop(of: &AttentionKernel, part: Option<Part>, step: &Step, many: usize, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (edge, subgroup) = (adapter.coop, adapter.subgroup);
    if edge == 0 || of.mask || part == Some(Part::All) {
        return None;
    }
    let (q, k, v) = (&step.loads[0], &step.loads[1], &step.loads[2]);
    let [b, h, t, d] = *q.shape.dims() else { return None };
    let (hkv, s, dv) = (k.shape[1], k.shape[2], v.shape[3]);
    if d == 0 || dv == 0 || d > MAX_HEAD || dv > MAX_HEAD || hkv == 0 || h % hkv != 0 || t == 0 || s == 0 {
        return None;
    }
    if !indexable(&[q.shape.count(), k.shape.count(), v.shape.count(), b * h * t * dv]) {
        return None;
    }
    let (forward, by_key) = (part.is_none(), part == Some(Part::Keys));
    let sizes = [(b * h, t, d), (b * hkv, s, d), (b * hkv, s, dv), (b * h, t, dv)];
    let operands = if forward { 3 } else { 4 };
    let mut starts = Vec::new();
    for (load, (batch, rows, width)) in step.loads.iter().zip(sizes).take(operands) {
        starts.extend(lines(load, batch, rows, width, false).filter(|_| load.dtype() == DType::F16)?);
    }
    // Elements of a line of a tile: whole matrices.
    let deep = [d, dv].map(|n| (n as u32).next_multiple_of(edge));
    let TileConfig { subs, line, rows, cols, chunk, alone } = match part {
        None => cut(deep, b * h, t, many, adapter)?,
        Some(part) => cut_part(deep, part, adapter)?,
    };
    let workgroup = subs * subgroup;
    let (rm, kd, kv) = (rows / (subs / line) / edge, deep[0] / edge, deep[1] / edge);
    let cn = cols / edge / line;
    // Matrices of results across; as many of them leave at a time as a strip of scores holds.
    let ky = match part {
        None => kv / line,
        Some(Part::Keys) => (kd + kv) / line,
        Some(_) => kd / line,
    };
    let per = (1..=cn).rev().find(|&n| ky.is_multiple_of(n) && (forward || (kd / line).is_multiple_of(n)))?;
    let items = deep.map(|n| (cols * n / 8).div_ceil(workgroup));
    let sizes = [
        ("RM", rm),
        ("CN", cn),
        ("STEPS", cols / edge),
        ("KD", kd),
        ("KV", if forward { kv / line } else { kv }),
        ("YD", kd / line),
        ("YV", kv / line),
        ("KY", ky),
        ("KC", chunk / edge),
        ("CHUNKS", deep[0] / chunk),
        ("PER", per),
        ("GROUPS", ky / per),
        // Quads of a thread.
        ("QUADS", cols / 4 / (workgroup / rows)),
        ("TIMES", rows * cols / 4 / workgroup),
        ("ITEMS_R", (rows * chunk / 8).div_ceil(workgroup)),
        ("ITEMS_R2", (rows * deep[1] / 8).div_ceil(workgroup)),
        ("ITEMS_K", items[0]),
        ("ITEMS_V", items[1]),
    ];
    let counts =
        [[("RM * KD", rm * kd), ("RM * KV", rm * kv / line), ("RM * KY", rm * ky), ("RM * CN", rm * cn)].as_slice(), &sizes].concat();
    // Software takes minutes to compile what is written out.
    let counts = if subgroup >= adapter.tuning.gemm.unroll_min_subgroup { &counts[..] } else { &[] };
    let kernel = if forward { include_str!("flash_coop.wgsl") } else { include_str!("flash_coop_grad.wgsl") };
    let text = with_parts(kernel, include_str!("flash_coop_parts.txt"));
    let mut text = unroll(text.replace("coop_mat8x8", if edge == 16 { "coop_mat16x16" } else { "coop_mat8x8" }), counts);
    text += KEYS;
    text += subgroup_barrier(if alone { adapter.subgroup_sync } else { SubgroupSync::None });
    text += AGREED;
    text += if adapter.coop_vectors { VECTORS } else { SCALARS };
    text += if adapter.coop_vectors { PART_VECTORS } else { PART_SCALARS };
    text += if adapter.coop_vectors { STRIP_VECTORS } else { STRIP_SCALARS };
    let mut consts = vec![
        ("SUBGROUP", subgroup),
        ("EDGE", edge),
        ("UNIT", if adapter.coop_vectors { 4 } else { 1 }),
        ("SUBS", subs),
        ("SN", line),
        ("PARTS", 1 + by_key as u32),
        ("STRIPS", 2 - forward as u32),
        ("BY_KEY", by_key as u32),
        ("CAUSAL", of.causal as u32),
    ];
    consts.extend(sizes);
    // Wide heads leave no registers for the next columns.
    let ahead = (deep[0] + deep[1]) / line <= 192;
    let mut switches = vec![
        ("BY_KEY", by_key as u32),
        ("ALONE", alone as u32),
        ("SUMS", of.sums as u32),
        ("WINDOWED", (of.window > 0) as u32),
        ("AHEAD", ahead as u32),
        ("AT_ONCE", !ahead as u32),
    ];
    // Which load each operand is.
    let roles: [u32; 4] = if by_key { [1, 0, 2, 3] } else { [0, 1, 3, 2] };
    let names: [[&str; 11]; 4] = [
        ["r1", "DEEP_R1", "SIDE_R1", "ROWS_R1", "SIZE_R1", "FIRST_R1", "TURNED_R1", "HALVES_R1", "BLOCKS_R1", "WHOLE_R1", "VEC_R1"],
        ["c1", "DEEP_C1", "SIDE_C1", "ROWS_C1", "SIZE_C1", "FIRST_C1", "TURNED_C1", "HALVES_C1", "BLOCKS_C1", "WHOLE_C1", "VEC_C1"],
        ["r2", "DEEP_R2", "SIDE_R2", "ROWS_R2", "SIZE_R2", "FIRST_R2", "TURNED_R2", "HALVES_R2", "BLOCKS_R2", "WHOLE_R2", "VEC_R2"],
        ["c2", "DEEP_C2", "SIDE_C2", "ROWS_C2", "SIZE_C2", "FIRST_C2", "TURNED_C2", "HALVES_C2", "BLOCKS_C2", "WHOLE_C2", "VEC_C2"],
    ];
    for (n, ([name, wide, side, high, size, first, transposed, halves, blocks, whole, vec], load)) in
        names.into_iter().zip(roles).enumerate()
    {
        if load as usize >= operands {
            continue;
        }
        let of_values = (load >= 2) as usize;
        let tall = if n % 2 == 0 { rows } else { cols };
        consts.extend([
            (wide, if name == "r1" { chunk } else { deep[of_values] }),
            (side, tall),
            (high, 2),
            (size, 4 + of_values as u32),
            (first, 12 + 6 * load),
        ]);
        switches.extend([
            (transposed, 0),
            (halves, 1),
            (blocks, 0),
            (vec, 1),
            (whole, ([d, dv][of_values] as u32 == deep[of_values]) as u32),
        ]);
        text += &operand(name, load, true, false);
    }
    let blocks = if by_key { s } else { t }.div_ceil(rows as usize);
    let count = (if by_key { b * hkv } else { b * h }).checked_mul(blocks)?;
    let grid = grid(count)?;
    let valid = step.params.first().map_or(Word::U32(u32::try_from(s).ok()?), |&p| Word::ParamU32(p));
    let mut list = words(&[h, hkv, t, s, d, dv])?;
    list.extend([valid, Word::F32(of.scale as f32), Word::U32(of.window), Word::U32(grid[0])]);
    list.extend(words(&[blocks, count])?);
    list.extend(starts);
    let source = decide(text, &switches);
    consts.extend(switches.into_iter().filter(|s| s.0 != "BY_KEY"));
    Some(Wgsl { source, consts, workgroup, grid, words: list, raw: (0..operands as u8).collect(), transposed: vec![] })
}
