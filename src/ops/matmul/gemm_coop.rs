//! The matrix product of f16 operands by the adapter's cooperative matrices.

use super::gpu::Weights;
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Load, SCRATCH_COUNTERS, SCRATCH_WORDS, SubgroupSync, Wgsl, Word};
use crate::shader::{col_major, decide, grid, start, unroll, with_parts, words};
use crate::shape::Shape;
use crate::tuning::GemmTile;
use std::ops::Range;

/// Memory of the tiles where a matrix may be loaded through a pointer to vectors. Compilers see that halves become halves again.
pub(crate) const VECTORS: &str = "var<workgroup> tile: array<vec4<f16>, TILE / 4u>;
fn put(at: u32, e: vec4<u32>) { tile[at] = halves(e.xy); tile[at + 1u] = halves(e.zw); }
";
/// The same where it goes through a pointer to halves.
pub(crate) const SCALARS: &str = "var<workgroup> tile: array<f16, TILE>;
fn put(at: u32, e: vec4<u32>) {
  let a = halves(e.xy); let b = halves(e.zw);
  tile[at] = a.x; tile[at + 1u] = a.y; tile[at + 2u] = a.z; tile[at + 3u] = a.w;
  tile[at + 4u] = b.x; tile[at + 5u] = b.y; tile[at + 6u] = b.z; tile[at + 7u] = b.w;
}
";

/// Memory of the strips through which results leave, in the same two forms.
const SUM_VECTORS: &str = "var<workgroup> strip: array<vec4<f32>, SM * SN * STRIP / 4u>;
fn sum(at: u32) -> f32 { return strip[at / 4u][at % 4u]; }
fn sums(at: u32) -> vec4<f32> { return strip[at / 4u]; }
";
const SUM_SCALARS: &str = "var<workgroup> strip: array<f32, SM * SN * STRIP>;
fn sum(at: u32) -> f32 { return strip[at]; }
fn sums(at: u32) -> vec4<f32> { return vec4<f32>(strip[at], strip[at + 1u], strip[at + 2u], strip[at + 3u]); }
";

/// What those wait by who share a part of workgroup memory: the subgroup, where it can wait alone.
pub(crate) fn subgroup_barrier(sync: SubgroupSync) -> &'static str {
    match sync {
        SubgroupSync::None => "fn subgroup_barrier() { workgroupBarrier(); }\n",
        SubgroupSync::Barrier => "fn subgroup_barrier() { subgroupBarrier(); }\n",
        SubgroupSync::Lockstep => "fn subgroup_barrier() { }\n",
    }
}

/// A tile and its split.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TileConfig {
    tile: GemmTile,
    /// Workgroups that share K.
    parts: u32,
}

impl TileConfig {
    /// Rows and columns of a workgroup's tile.
    fn side(&self, edge: u32) -> [u32; 2] {
        [0, 1].map(|i| self.tile.warps[i] * self.tile.fragments[i] * edge)
    }

    /// Fragments that a subgroup's results leave by at a time, as many as memory suffices for; `None` where the tile does not fit the adapter.
    fn strips(&self, transposed: [bool; 2], adapter: &AdapterInfo) -> Option<u32> {
        let GemmTile { warps, fragments, bk, prefetch, .. } = self.tile;
        let (edge, side) = (adapter.coop, self.side(adapter.coop));
        let subs = warps[0] * warps[1];
        let threads = subs * adapter.subgroup;
        let tile = |i: usize| if transposed[i] { bk * (side[i] + 8) } else { side[i] * (bk + 8) };
        let bytes = |strips: u32| 2 * (tile(0) + tile(1)) + 4 * subs * edge * (strips * edge + 4);
        let steps = if prefetch { 2 * edge } else { edge };
        let whole = side.iter().all(|s| (s * bk / 8).is_multiple_of(threads)) && bk.is_multiple_of(steps);
        let strips = (1..=fragments[1]).rev().filter(|a| fragments[1].is_multiple_of(*a)).find(|&a| bytes(a) <= adapter.workgroup_bytes)?;
        (whole && threads <= adapter.workgroup_threads).then_some(strips)
    }

    /// Microseconds that `batch` products of m by n by k take, by a model whose numbers are the adapter's tuning table: the workgroups of a
    /// compute unit take turns, each step over K takes as long as the tile says, and each workgroup leaves its results; parts are joined in
    /// proportion to their number.
    fn time(&self, batch: usize, [m, n, k]: [usize; 3], transposed: [bool; 2], adapter: &AdapterInfo) -> f64 {
        let (tile, gemm) = (&self.tile, &adapter.tuning.gemm);
        let [high, wide] = self.side(adapter.coop).map(|s| s as usize);
        let groups = batch * m.div_ceil(high) * n.div_ceil(wide) * self.parts as usize;
        let steps = k.div_ceil(tile.bk as usize).div_ceil(self.parts as usize) as f64;
        let rounds = groups.div_ceil(adapter.tuning.compute_units.max(1) as usize) as f64;
        let cells = (high * wide) as f64;
        let parts = self.parts as f64;
        let each = cells * parts / (32 * tile.warps[0] * tile.warps[1]) as f64;
        let [fixed, per_part, per_result] = gemm.split_us;
        let joined = if self.parts > 1 { fixed + per_part * parts + per_result * each } else { 0.0 };
        let busy = tile.busy_us[2 * transposed[0] as usize + transposed[1] as usize];
        steps * (rounds * busy).max(tile.alone_us) + rounds * cells * gemm.store_us + joined
    }

    /// The tile of the table, or of a part of it, that takes the least time for so many rows and columns of results.
    fn pick(
        of: Range<usize>,
        batch: usize,
        [m, n, k]: [usize; 3],
        transposed: [bool; 2],
        adapter: &AdapterInfo,
    ) -> Option<(TileConfig, u32)> {
        let gemm = &adapter.tuning.gemm;
        let mut best: Option<(f64, TileConfig, u32)> = None;
        for &tile in gemm.tiles.iter().take(of.end).skip(of.start) {
            let whole = TileConfig { tile, parts: 1 };
            let Some(strips) = whole.strips(transposed, adapter) else { continue };
            let [high, wide] = whole.side(adapter.coop).map(|s| s as usize);
            let tiles = batch * m.div_ceil(high) * n.div_ceil(wide);
            for parts in [1, 2, 3, 4, 6, 8] {
                let steps = k.div_ceil(tile.bk as usize);
                // Each part has something of k, and there is memory for all of them.
                let room = tiles <= SCRATCH_COUNTERS && tiles * parts * high * wide <= SCRATCH_WORDS - SCRATCH_COUNTERS;
                let share = steps.div_ceil(parts);
                if parts > 1 && (!room || share * (parts - 1) >= steps || share * (tile.bk as usize) < gemm.min_split_k) {
                    continue;
                }
                let split = TileConfig { parts: parts as u32, ..whole };
                let time = split.time(batch, [m, n, k], transposed, adapter);
                if best.is_none_or(|b| time < b.0) {
                    best = Some((time, split, strips));
                }
            }
        }
        best.map(|(_, config, strips)| (config, strips))
    }
}

/// Tiles of both operands, multiplied by matrices, in one of these cuts; `None` where the adapter has none, or an operand is not f16:
/// products of wider numbers are not rounded behind the user's back.
#[allow(clippy::too_many_arguments)]
pub fn matmul_coop(
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    a: &Load,
    b: &Load,
    weights: &Weights,
    cuts: Range<usize>,
    adapter: &AdapterInfo,
) -> Option<Wgsl> {
    let (edge, subgroup) = (adapter.coop, adapter.subgroup);
    let blocks = b.sources.first().is_some_and(|s| s.dtype.is_block()) && weights.raw.is_some();
    let halves = a.dtype() == DType::F16 && (blocks || b.dtype() == DType::F16);
    if edge == 0 || subgroup == 0 || !halves || k == 0 {
        return None;
    }
    // Operands that are read as [K, rows], so that threads read neighbours.
    let transposed = [col_major(a), !blocks && col_major(b)];
    let plain = lines(a, batch, m, k, transposed[0]).is_some();
    let folded = if batch == 1 && !plain { folded(a, m, k, transposed[0]) } else { None };
    let transposed = [transposed[0] && (folded.is_some() || a.transposed().is_some()), transposed[1] && b.transposed().is_some()];
    let plain = [lines(a, batch, m, k, transposed[0]).or(folded.map(|f| f.0)), lines(b, batch, n, k, transposed[1]).filter(|_| !blocks)];
    // Lines that begin anywhere.
    let anywhere = [
        loose(a, batch, m, k, transposed[0]).filter(|_| plain[0].is_none()),
        loose(b, batch, n, k, transposed[1]).filter(|_| plain[1].is_none() && !blocks),
    ];
    let lines = [0, 1].map(|i| plain[i].or(anywhere[i].map(|l| l.0)));
    let (cut, strips) = TileConfig::pick(cuts, batch, [m, n, k], transposed, adapter)?;
    let TileConfig { tile: GemmTile { warps: subs, fragments: each, bk: deep, prefetch: ahead, .. }, parts } = cut;
    let side = cut.side(edge);
    let workgroup = subs[0] * subs[1] * subgroup;
    let (over, down) = (n.div_ceil(side[1] as usize), m.div_ceil(side[0] as usize));
    let groups = batch.checked_mul(over)?.checked_mul(down)?.checked_mul(parts as usize)?;
    let grid = grid(groups)?;
    let items = side.map(|s| s * deep / 8 / workgroup);
    let share = k.div_ceil(deep as usize).div_ceil(parts as usize) * deep as usize;
    let text = with_parts(include_str!("gemm_coop.wgsl"), include_str!("gemm_coop_parts.txt"));
    let text = text.replace("coop_mat8x8", if edge == 16 { "coop_mat16x16" } else { "coop_mat8x8" });
    // Of a strip.
    let eights = edge * strips * edge / 8;
    let sizes = [
        ("ITEMS_A", items[0]),
        ("ITEMS_B", items[1]),
        ("STEPS", deep / edge),
        ("ACROSS", strips),
        ("STRIPS", each[1] / strips),
        ("TURNS", eights.div_ceil(subgroup)),
        ("PARTS", parts),
        ("HALF", each[1] / 2),
        ("OTHERS", each[1].div_ceil(2)),
        ("FN", each[1]),
        ("FM", each[0]),
    ];
    let counts = [&[("FM * FN", each[0] * each[1])], &sizes[..]].concat();
    // Software takes minutes to compile what is written out.
    let counts = if subgroup >= adapter.tuning.gemm.unroll_min_subgroup { &counts[..] } else { &[] };
    // Nor may it do so itself.
    let text =
        if subgroup >= adapter.tuning.gemm.unroll_min_subgroup { text } else { text.replace("q < TURNS", "q < TURNS + (word(1u) >> 31u)") };
    let mut text = unroll(text, counts);
    for part in if adapter.coop_vectors { [VECTORS, SUM_VECTORS] } else { [SCALARS, SUM_SCALARS] } {
        text += part;
    }
    text += subgroup_barrier(adapter.subgroup_sync);
    text += &operand("a", 0, lines[0].is_some(), true);
    text += &operand("b", 1, lines[1].is_some(), true);
    if blocks {
        text += &weights.quads;
    }
    // A quad of a line is whole, and its elements are neighbours in memory or at least in the load.
    let whole =
        |transposed: bool, rows: usize, load: &Load| if transposed { rows.is_multiple_of(4) } else { k.is_multiple_of(4) && !col_major(load) } as u32;
    let deeps = k.is_multiple_of(deep as usize) as u32;
    // Rows that are read as stored end with the last one again and again.
    let all_rows = lines[0].is_some() && !transposed[0] || m.is_multiple_of(side[0] as usize);
    // In each of a strip's turns a thread has the same columns.
    let steady = eights.is_multiple_of(subgroup) && subgroup.is_multiple_of(strips * edge / 8);
    let full = all_rows && n.is_multiple_of(side[1] as usize) && steady && parts == 1;
    if !full {
        text = text.replace("var same: array<Columns_0, STRIPS>;", "");
    }
    let switches = [
        ("VEC_A", whole(transposed[0], m, a)),
        ("VEC_B", whole(transposed[1], n, b)),
        ("SPLIT", (parts > 1) as u32),
        ("AHEAD", ahead as u32),
        ("EIGHT_OUT", n.is_multiple_of(8) as u32),
        ("VEC_OUT", n.is_multiple_of(4) as u32),
        ("FULL", full as u32),
        ("RAGGED", (parts == 1 && !n.is_multiple_of(4)) as u32),
        ("BLOCKS_A", 0),
        ("BLOCKS_B", blocks as u32),
        ("TURNED_A", transposed[0] as u32),
        ("TURNED_B", transposed[1] as u32),
        ("HALVES_A", lines[0].is_some() as u32),
        ("HALVES_B", lines[1].is_some() as u32),
        ("FOLDED_A", folded.is_some() as u32),
        ("FOLDED_B", 0),
        ("LOOSE_A", anywhere[0].is_some() as u32),
        ("LOOSE_B", anywhere[1].is_some() as u32),
        ("LATE_A", 1),
        ("LATE_B", 1),
        ("WHOLE_A", deeps),
        ("WHOLE_B", deeps),
    ];
    let mut consts = vec![
        ("SUBGROUP", subgroup),
        ("SM", subs[0]),
        ("SN", subs[1]),
        ("EDGE", edge),
        ("UNIT", if adapter.coop_vectors { 4 } else { 1 }),
        ("DEEP", deep),
        ("COUNTERS", SCRATCH_COUNTERS as u32),
        ("SIDE_A", side[0]),
        ("SIDE_B", side[1]),
        ("DEEP_A", deep),
        ("DEEP_B", deep),
        ("ROWS_A", 0),
        ("ROWS_B", 1),
        ("SIZE_A", 2),
        ("SIZE_B", 2),
        ("FIRST_A", 8),
        ("FIRST_B", 14),
        ("SHIFT_A", folded.map_or(0, |f| f.1)),
        ("SHIFT_B", 0),
        ("LAST_A", 21),
        ("LAST_B", 22),
    ];
    consts.extend(sizes);
    consts.extend(switches);
    let (of_blocks, mut raw) = if blocks { weights.start() } else { ([Word::U32(0); 2], vec![]) };
    let mut list = words(&[m, n, k, over, grid[0] as usize])?;
    list.extend(of_blocks);
    list.push(Word::U32(down as u32));
    for (load, lines) in [0, 1].into_iter().zip(lines) {
        list.extend(lines.unwrap_or([Word::U32(0); 6]));
        if lines.is_some() {
            raw.push(load);
        }
    }
    list.extend(words(&[share])?);
    list.extend(anywhere.map(|l| Word::U32(l.map_or(0, |l| l.1))));
    list.extend(words(&[groups])?);
    let transposed = [0, 1].into_iter().filter(|&t| transposed[t as usize] && lines[t as usize].is_none()).collect();
    Some(Wgsl { source: decide(text, &switches), consts, workgroup, grid, words: list, raw, transposed })
}

/// The text of load `load` as the operand `name`, stored as `halves` or not; what `any` lines may need is left out otherwise.
pub(crate) fn operand(name: &str, load: u32, halves: bool, any: bool) -> String {
    let mut text = include_str!("gemm_coop_operand.wgsl").to_string();
    if let Some(start) = text.find("fn quad_x").filter(|_| halves) {
        // The generated loads are not needed then.
        let end = text[start..].find("\n}\n").map_or(text.len(), |e| start + e + 3);
        text.replace_range(start..end, "");
    }
    if !halves {
        let far = text.find("// What lies behind").zip(text.find("// The eight, of what"));
        far.into_iter().for_each(|(start, end)| text.replace_range(start..end, ""));
    }
    if !any {
        text.truncate(text.find("// What lies behind").unwrap_or(text.len()));
        text = decide(text, &[("FOLDED_X", 0), ("LOOSE_X", 0), ("LATE_X", 0)]).into_owned();
    }
    let text = ["load", "load4", "raw"].iter().fold(text, |t, n| t.replace(&format!("{n}_x"), &format!("{n}_{load}")));
    text.replace("_x", &format!("_{name}")).replace("_X", &format!("_{}", name.to_uppercase()))
}

/// Where the lines of an operand lie that is stored as f16 and can be read by eights: the start's two parts in elements; then in
/// eights, from one outer batch to the next, the inner batches of each, from one of those to the next, from one line to the next.
pub(crate) fn lines(load: &Load, batch: usize, rows: usize, k: usize, transposed: bool) -> Option<[Word; 6]> {
    let source = load.plain().filter(|s| s.dtype == DType::F16 && (s.offset.is_none() || s.aligned))?;
    let [fixed, run_time] = start(source)?;
    let eights = |n: isize| usize::try_from(n).ok().filter(|n| n.is_multiple_of(8)).map(|n| n / 8);
    eights(if transposed { rows } else { k } as isize)?;
    // Heads and sequences are not always one dimension of memory.
    let inner = std::iter::once(1).chain(source.layout.shape.dims().iter().copied()).filter(|&d| d > 0 && batch.is_multiple_of(d));
    inner.into_iter().find_map(|inner| {
        let layout = source.layout.reshape(Shape::of(&[batch / inner, inner, rows, k]))?;
        let &[outer, between, row, column] = layout.strides() else { return None };
        let (line, fast) = if transposed { (column, row) } else { (row, column) };
        let [outer, inner, between, line] =
            [eights(outer)?, inner, eights(between)?, eights(line)?].map(|n| u32::try_from(n).ok().map(Word::U32));
        let words = [fixed, run_time, outer?, inner?, between?, line?];
        (fast == 1 && layout.offset.is_multiple_of(8)).then_some(words)
    })
}

/// The same for one batch whose lines are in groups that lie apart, and so are the pieces of a line: the start's two parts; then from one
/// group to the next, the lines of each, from piece to piece, from one line to the next; and how often 8 is doubled to make a piece.
fn folded(load: &Load, rows: usize, k: usize, transposed: bool) -> Option<([Word; 6], u32)> {
    let source = load.plain().filter(|s| s.dtype == DType::F16 && (s.offset.is_none() || s.aligned))?;
    let [fixed, run_time] = start(source)?;
    let (lines, length) = if transposed { (k, rows) } else { (rows, k) };
    let dims = source.layout.shape.dims();
    let eights = |n: isize| usize::try_from(n).ok().filter(|n| n.is_multiple_of(8)).and_then(|n| u32::try_from(n / 8).ok());
    let pieces = || dims.iter().copied().filter(|&d| d >= 8 && d.is_power_of_two() && length.is_multiple_of(d));
    let groups = || dims.iter().copied().filter(|&d| d > 0 && lines.is_multiple_of(d));
    pieces().flat_map(|p| groups().map(move |g| (p, g))).find_map(|(p, g)| {
        let (of_lines, of_length) = ([lines / g, g], [length / p, p]);
        let shape = (if transposed { [of_length, of_lines] } else { [of_lines, of_length] }).concat();
        let layout = source.layout.reshape(Shape::of(&shape))?;
        let &[a, b, c, d] = layout.strides() else { return None };
        let [group, line, apart, fast] = if transposed { [c, d, a, b] } else { [a, b, c, d] };
        let [group, line, apart] = [eights(group)?, eights(line)?, eights(apart)?].map(Word::U32);
        let words = [fixed, run_time, group, Word::U32(u32::try_from(g).ok()?), apart, line];
        (fast == 1 && layout.offset.is_multiple_of(8)).then_some((words, (p / 8).ilog2()))
    })
}

/// The same, in elements, for lines that begin anywhere, and the last eight of the memory in which they lie.
fn loose(load: &Load, batch: usize, rows: usize, k: usize, transposed: bool) -> Option<([Word; 6], u32)> {
    let source = load.plain().filter(|s| s.dtype == DType::F16 && s.offset.is_none())?;
    let [fixed, run_time] = start(source)?;
    let size = |n: isize| u32::try_from(n).ok();
    let inner = std::iter::once(1).chain(source.layout.shape.dims().iter().copied()).filter(|&d| d > 0 && batch.is_multiple_of(d));
    inner.into_iter().find_map(|inner| {
        let shape = [batch / inner, inner, rows, k];
        let layout = source.layout.reshape(Shape::of(&shape))?;
        let &[outer, between, row, column] = layout.strides() else { return None };
        let (line, fast) = if transposed { (column, row) } else { (row, column) };
        let last = shape.iter().zip(layout.strides()).map(|(&n, &t)| (n - 1) as isize * t).sum::<isize>() + source.layout.offset as isize;
        let [outer, inner, between, line] = [outer, inner as isize, between, line].map(|n| size(n).map(Word::U32));
        (fast == 1).then_some(([fixed, run_time, outer?, inner?, between?, line?], size(last / 8)?))
    })
}
