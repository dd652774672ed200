//! The matrix product of f16 operands by the adapter's cooperative matrices.

use super::gemv::with_values;
use super::product::Product;
use super::weights::{WEIGHTS_QUADS, WIDE_HALVES};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Load, MatrixElements, SCRATCH_COUNTERS, SCRATCH_WORDS, Wgsl};
use crate::shader::{StartParams, Template, TemplateValue, U32, col_major, grid, params, start, subgroup_barrier};
use crate::shape::Shape;
use crate::tuning::GemmTile;
use std::ops::Range;
use std::sync::Arc;

/// A tile and its split.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TileConfig {
    tile: GemmTile,
    /// Workgroups that share K.
    splits: u32,
}

impl TileConfig {
    /// Rows and columns of a workgroup's tile.
    fn side(&self, edge: u32) -> [u32; 2] {
        [0, 1].map(|i| self.tile.warps[i] * self.tile.fragments[i] * edge)
    }

    /// Fragments of results that a subgroup stages at a time, as many as memory suffices for; `None` where the tile does not fit the adapter.
    fn staged_fragments(&self, transposed: [bool; 2], adapter: &AdapterInfo) -> Option<u32> {
        let GemmTile { warps, fragments, bk, prefetch, .. } = self.tile;
        let (edge, side) = (adapter.coop, self.side(adapter.coop));
        let subs = warps[0] * warps[1];
        let threads = subs * adapter.subgroup;
        let tile = |i: usize| if transposed[i] { bk * (side[i] + 8) } else { side[i] * (bk + 8) };
        let bytes = |staged_fragments: u32| 2 * (tile(0) + tile(1)) + 4 * subs * edge * (staged_fragments * edge + 4);
        let steps = if prefetch { 2 * edge } else { edge };
        let whole = side.iter().all(|s| (s * bk / 8).is_multiple_of(threads)) && bk.is_multiple_of(steps);
        let staged_fragments =
            (1..=fragments[1]).rev().filter(|a| fragments[1].is_multiple_of(*a)).find(|&a| bytes(a) <= adapter.workgroup_bytes)?;
        (whole && threads <= adapter.workgroup_threads).then_some(staged_fragments)
    }

    /// Microseconds that `batch` products of m by n by k take, by a model whose numbers are the adapter's tuning table: the workgroups of a
    /// compute unit take turns, each step over K takes as long as the tile says, and each workgroup leaves its results; partial sums are reduced in
    /// proportion to their number.
    fn time(&self, batch: usize, [m, n, k]: [usize; 3], transposed: [bool; 2], adapter: &AdapterInfo) -> f64 {
        let (tile, gemm) = (&self.tile, &adapter.tuning.gemm);
        let [high, wide] = self.side(adapter.coop).map(|s| s as usize);
        let groups = batch * m.div_ceil(high) * n.div_ceil(wide) * self.splits as usize;
        let steps = k.div_ceil(tile.bk as usize).div_ceil(self.splits as usize) as f64;
        let rounds = groups.div_ceil(adapter.tuning.compute_units.max(1) as usize) as f64;
        let cells = (high * wide) as f64;
        let splits = self.splits as f64;
        let each = cells * splits / (32 * tile.warps[0] * tile.warps[1]) as f64;
        let [fixed, per_split, per_result] = gemm.split_us;
        let reduction = if self.splits > 1 { fixed + per_split * splits + per_result * each } else { 0.0 };
        let busy = tile.busy_us[2 * transposed[0] as usize + transposed[1] as usize];
        steps * (rounds * busy).max(tile.alone_us) + rounds * cells * gemm.store_us + reduction
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
            let whole = TileConfig { tile, splits: 1 };
            let Some(staged_fragments) = whole.staged_fragments(transposed, adapter) else { continue };
            let [high, wide] = whole.side(adapter.coop).map(|s| s as usize);
            let tiles = batch * m.div_ceil(high) * n.div_ceil(wide);
            for splits in [1, 2, 3, 4, 6, 8] {
                let steps = k.div_ceil(tile.bk as usize);
                // Each part has something of k, and there is memory for all of them.
                let room = tiles <= SCRATCH_COUNTERS && tiles * splits * high * wide <= SCRATCH_WORDS - SCRATCH_COUNTERS;
                let share = steps.div_ceil(splits);
                if splits > 1 && (!room || share * (splits - 1) >= steps || share * (tile.bk as usize) < gemm.min_split_k) {
                    continue;
                }
                let split = TileConfig { splits: splits as u32, ..whole };
                let time = split.time(batch, [m, n, k], transposed, adapter);
                if best.is_none_or(|b| time < b.0) {
                    best = Some((time, split, staged_fragments));
                }
            }
        }
        best.map(|(_, config, staged_fragments)| (config, staged_fragments))
    }
}

params! {
    /// Where the lines of an operand lie, see `gemm_coop_operand.wgsl`.
    pub(crate) struct LineParams {
        /// The first element, which is the sum of two.
        start: u32,
        /// The second of them.
        offset: u32,
        /// Eights from one outer batch to the next.
        outer: u32,
        /// Inner batches of each.
        inner: u32,
        /// Eights from one inner batch to the next.
        stride: u32,
        /// Eights from one line to the next.
        line: u32,
    }
}

params! {
    /// What the kernel reads at run time.
    struct GemmCoopParams {
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
        /// Where b begins, if it is in blocks.
        blocks: StartParams,
        /// Tiles in m.
        tiles_m: u32,
        /// Where a's lines lie, if they are read by eights.
        a: LineParams,
        /// The same of b.
        b: LineParams,
        /// What a split has of k.
        split_k: u32,
        /// The last eight of a, where lines begin anywhere.
        a_last: u32,
        /// The last eight of b.
        b_last: u32,
        /// Workgroups, of which the grid may have more.
        groups: u32,
    }
}

/// One operand of a product by matrices.
pub(crate) const OPERAND: (&str, &str) = ("gemm_coop_operand.wgsl", include_str!("gemm_coop_operand.wgsl"));
/// What it includes.
pub(crate) const OPERAND_PLACE: (&str, &str) = ("gemm_coop_place.wgsl", include_str!("gemm_coop_place.wgsl"));
/// Memory in which results are staged for the epilogue.
pub(crate) const STAGING: (&str, &str) = ("gemm_coop_staging.wgsl", include_str!("gemm_coop_staging.wgsl"));

static GEMM_COOP: Template = Template::new("gemm_coop.wgsl", include_str!("gemm_coop.wgsl")).params(GemmCoopParams::FIELDS).files(&[
    ("gemm_coop_elements.wgsl", include_str!("gemm_coop_elements.wgsl")),
    ("gemm_coop_fetch.wgsl", include_str!("gemm_coop_fetch.wgsl")),
    ("gemm_coop_prefetch.wgsl", include_str!("gemm_coop_prefetch.wgsl")),
    ("gemm_coop_stage.wgsl", include_str!("gemm_coop_stage.wgsl")),
    ("gemm_coop_store.wgsl", include_str!("gemm_coop_store.wgsl")),
    STAGING,
    OPERAND,
    OPERAND_PLACE,
    WEIGHTS_QUADS,
    WIDE_HALVES,
]);

/// How both operands are read.
struct Operands {
    /// Whether b is in a block format.
    blocks: bool,
    /// Whether each is read as [K, rows], so that threads read neighbours.
    transposed: [bool; 2],
    /// Where the lines lie of those that are read by eights.
    lines: [Option<LineParams>; 2],
    /// The last eight of those whose lines begin anywhere.
    last: [Option<u32>; 2],
    /// How often 8 is doubled to make a piece of a's lines, where they are in pieces that lie apart.
    shift: Option<u32>,
}

impl Operands {
    /// `None` where one is not f16: products of wider numbers are not rounded behind the user's back.
    fn of(p: &Product) -> Option<Operands> {
        let &Product { batch, m, n, k, a, b, .. } = p;
        let blocks = b.sources.first().is_some_and(|s| s.dtype.is_block()) && p.weights.raw.is_some();
        if a.dtype() != DType::F16 || !(blocks || b.dtype() == DType::F16) {
            return None;
        }
        let transposed = [col_major(a), !blocks && col_major(b)];
        let plain = lines(a, batch, m, k, transposed[0]).is_some();
        let split_lines = if batch == 1 && !plain { split_lines(a, m, k, transposed[0]) } else { None };
        let transposed = [transposed[0] && (split_lines.is_some() || a.transposed().is_some()), transposed[1] && b.transposed().is_some()];
        let plain =
            [lines(a, batch, m, k, transposed[0]).or(split_lines.map(|f| f.0)), lines(b, batch, n, k, transposed[1]).filter(|_| !blocks)];
        let unaligned = [
            unaligned(a, batch, m, k, transposed[0]).filter(|_| plain[0].is_none()),
            unaligned(b, batch, n, k, transposed[1]).filter(|_| plain[1].is_none() && !blocks),
        ];
        let lines = [0, 1].map(|i| plain[i].or(unaligned[i].map(|l| l.0)));
        Some(Operands { blocks, transposed, lines, last: unaligned.map(|l| l.map(|l| l.1)), shift: split_lines.map(|f| f.1) })
    }

    /// What a workgroup does with them `bk` columns at a time.
    fn switches(&self, p: &Product, bk: u32) -> [(&'static str, TemplateValue); 11] {
        let &Operands { blocks, transposed, lines, last, shift } = self;
        // A quad of a line is whole, and its elements are neighbours in memory or at least in the load.
        let vec = |transposed: bool, rows: usize, load: &Load| {
            if transposed { rows.is_multiple_of(4) } else { p.k.is_multiple_of(4) && !col_major(load) }
        };
        [
            ("BLOCKS_B", blocks.into()),
            ("TRANSPOSED_A", transposed[0].into()),
            ("TRANSPOSED_B", transposed[1].into()),
            ("RAW_A", lines[0].is_some().into()),
            ("RAW_B", lines[1].is_some().into()),
            ("FOLDED_A", shift.is_some().into()),
            ("UNALIGNED_A", last[0].is_some().into()),
            ("UNALIGNED_B", last[1].is_some().into()),
            ("EVEN_K", p.k.is_multiple_of(bk as usize).into()),
            ("VEC_A", vec(transposed[0], p.m, p.a).into()),
            ("VEC_B", vec(transposed[1], p.n, p.b).into()),
        ]
    }
}

/// How a product is cut into workgroups.
struct GemmPlan {
    config: TileConfig,
    /// Fragments of results that a subgroup stages at a time.
    staged_fragments: u32,
    /// Rows and columns of a tile.
    side: [u32; 2],
    workgroup: u32,
    /// Tiles in m and in n.
    tiles: [usize; 2],
    groups: usize,
    /// What a split has of k.
    share: usize,
}

impl GemmPlan {
    fn of(p: &Product, transposed: [bool; 2], tiles: Range<usize>) -> Option<GemmPlan> {
        let (config, staged_fragments) = TileConfig::pick(tiles, p.batch, [p.m, p.n, p.k], transposed, p.adapter)?;
        let side = config.side(p.adapter.coop);
        let GemmTile { warps, bk, .. } = config.tile;
        let tiles = [p.m.div_ceil(side[0] as usize), p.n.div_ceil(side[1] as usize)];
        let groups = p.batch.checked_mul(tiles[1])?.checked_mul(tiles[0])?.checked_mul(config.splits as usize)?;
        let share = p.k.div_ceil(bk as usize).div_ceil(config.splits as usize) * bk as usize;
        Some(GemmPlan { config, staged_fragments, side, workgroup: warps[0] * warps[1] * p.adapter.subgroup, tiles, groups, share })
    }

    /// The sizes that loops are written out by.
    fn sizes(&self, adapter: &AdapterInfo) -> [(&'static str, u32); 11] {
        let (edge, staged_fragments) = (adapter.coop, self.staged_fragments);
        let GemmTile { fragments, bk, .. } = self.config.tile;
        [
            ("LOADS_A", self.side[0] * bk / 8 / self.workgroup),
            ("LOADS_B", self.side[1] * bk / 8 / self.workgroup),
            ("STEPS", bk / edge),
            ("STAGED_FRAGMENTS", staged_fragments),
            ("STAGINGS", fragments[1] / staged_fragments),
            ("TURNS", self.staged_eights(edge).div_ceil(adapter.subgroup)),
            ("SPLITS", self.config.splits),
            ("HALF", fragments[1] / 2),
            ("OTHERS", fragments[1].div_ceil(2)),
            ("FRAGMENTS_N", fragments[1]),
            ("FRAGMENTS_M", fragments[0]),
        ]
    }

    /// Eights of what is staged at a time.
    fn staged_eights(&self, edge: u32) -> u32 {
        edge * self.staged_fragments * edge / 8
    }

    /// What the kernel reads at run time, in a grid of so many workgroups in x.
    fn params(&self, p: &Product, operands: &Operands, groups_x: u32) -> Option<GemmCoopParams> {
        let [a, b] = operands.lines.map(|l| l.unwrap_or(LineParams::ABSENT));
        let [a_last, b_last] = operands.last.map(|l| U32::from(l.unwrap_or(0)));
        Some(GemmCoopParams {
            m: U32::size(p.m)?,
            n: U32::size(p.n)?,
            k: U32::size(p.k)?,
            tiles_n: U32::size(self.tiles[1])?,
            groups_x: groups_x.into(),
            blocks: p.weights.raw.filter(|_| operands.blocks).map_or(StartParams::ABSENT, StartParams::from),
            tiles_m: U32::size(self.tiles[0])?,
            a,
            b,
            split_k: U32::size(self.share)?,
            a_last,
            b_last,
            groups: U32::size(self.groups)?,
        })
    }

    /// How results leave.
    fn switches(&self, p: &Product, operands: &Operands) -> [(&'static str, TemplateValue); 7] {
        let (n, edge, subgroup, splits) = (p.n, p.adapter.coop, p.adapter.subgroup, self.config.splits);
        // Rows that are read as stored end with the last one again and again.
        let all_rows = operands.lines[0].is_some() && !operands.transposed[0] || p.m.is_multiple_of(self.side[0] as usize);
        // In each of the turns that they are staged in a thread has the same columns.
        let steady = self.staged_eights(edge).is_multiple_of(subgroup) && subgroup.is_multiple_of(self.staged_fragments * edge / 8);
        let full = all_rows && n.is_multiple_of(self.side[1] as usize) && steady && splits == 1;
        [
            ("SPLIT", (splits > 1).into()),
            ("PREFETCH", self.config.tile.prefetch.into()),
            ("EIGHT_OUT", n.is_multiple_of(8).into()),
            ("VEC_OUT", n.is_multiple_of(4).into()),
            ("FULL", full.into()),
            ("RAGGED", (splits == 1 && !n.is_multiple_of(4)).into()),
            ("ELEMENTS", self.elements(p).is_some().into()),
        ]
    }

    /// How lanes hold matrices, where results leave from their elements.
    fn elements(&self, p: &Product) -> Option<Arc<MatrixElements>> {
        let elements = p.adapter.matrix_elements().filter(|_| p.adapter.tuning.gemm.elements)?;
        (self.config.splits == 1 && p.n.is_multiple_of(4) && elements.stores(self.config.tile.fragments[1])).then_some(elements)
    }
}

/// Tiles of both operands, multiplied by matrices, in one of these tiles of the tuning table; `None` where the adapter has no matrices, or an operand
/// is not f16.
pub(super) fn matmul_coop(p: &Product, tiles: Range<usize>) -> Option<Wgsl> {
    let adapter = p.adapter;
    let (edge, subgroup) = (adapter.coop, adapter.subgroup);
    if edge == 0 || subgroup == 0 || p.k == 0 {
        return None;
    }
    let operands = Operands::of(p)?;
    let plan = GemmPlan::of(p, operands.transposed, tiles)?;
    let GemmTile { warps, bk, .. } = plan.config.tile;
    let grid = grid(plan.groups)?;
    let elements = plan.elements(p);
    let mut consts = vec![
        ("SUBGROUP", subgroup),
        ("WARPS_M", warps[0]),
        ("WARPS_N", warps[1]),
        ("EDGE", edge),
        ("UNIT", if adapter.coop_vectors { 4 } else { 1 }),
        ("BK", bk),
        ("COUNTERS", SCRATCH_COUNTERS as u32),
        ("SHIFT_A", operands.shift.unwrap_or(0)),
    ];
    consts.extend(plan.sizes(adapter));
    consts.extend(elements.iter().flat_map(|e| e.consts()));
    let mut values = p.weights.values();
    values.extend(with_values(&consts));
    values.extend(operands.switches(p, bk));
    values.extend(plan.switches(p, &operands));
    values.extend(elements.iter().flat_map(|e| e.values()));
    values.extend(subgroup_barrier(adapter.subgroup_sync));
    values.extend([
        // Software takes minutes to compile what is written out.
        ("UNROLL", (subgroup >= adapter.tuning.gemm.unroll_min_subgroup).into()),
        ("COOP_VECTORS", adapter.coop_vectors.into()),
    ]);
    let mut raw = if operands.blocks { p.weights.start().1 } else { vec![] };
    raw.extend([0, 1].into_iter().filter(|&i| operands.lines[i as usize].is_some()));
    let params = plan.params(p, &operands, grid[0])?.values();
    // Which loads are read transposed through the generated functions.
    let transposed = [0, 1].into_iter().filter(|&t| operands.transposed[t as usize] && operands.lines[t as usize].is_none()).collect();
    Some(Wgsl { source: GEMM_COOP.source(&values), consts, workgroup: plan.workgroup, grid, params, raw, transposed })
}

/// The strides of an operand that is stored as f16 and can be read eight elements at a time; a line is a row, or a column if `transposed`.
pub(crate) fn lines(load: &Load, batch: usize, rows: usize, k: usize, transposed: bool) -> Option<LineParams> {
    let source = load.plain().filter(|s| s.dtype == DType::F16 && (s.offset.is_none() || s.aligned))?;
    let [start, offset] = start(source)?.map(U32::from);
    let eights = |n: isize| usize::try_from(n).ok().filter(|n| n.is_multiple_of(8)).map(|n| n / 8);
    eights(if transposed { rows } else { k } as isize)?;
    // Heads and sequences are not always one dimension of memory.
    let inner = std::iter::once(1).chain(source.layout.shape.dims().iter().copied()).filter(|&d| d > 0 && batch.is_multiple_of(d));
    inner.into_iter().find_map(|inner| {
        let layout = source.layout.reshape(Shape::of(&[batch / inner, inner, rows, k]))?;
        let &[outer, stride, row, column] = layout.strides() else { return None };
        let (line, fast) = if transposed { (column, row) } else { (row, column) };
        let [outer, inner, stride, line] = [eights(outer)?, inner, eights(stride)?, eights(line)?].map(U32::size);
        let lines = LineParams { start, offset, outer: outer?, inner: inner?, stride: stride?, line: line? };
        (fast == 1 && layout.offset.is_multiple_of(8)).then_some(lines)
    })
}

/// Split layout of one batch, as merged heads have it: rows come in groups, and each row in chunks of `8 << shift` elements. Gives the strides and
/// `shift`.
fn split_lines(load: &Load, rows: usize, k: usize, transposed: bool) -> Option<(LineParams, u32)> {
    let source = load.plain().filter(|s| s.dtype == DType::F16 && (s.offset.is_none() || s.aligned))?;
    let [start, offset] = start(source)?.map(U32::from);
    let (lines, length) = if transposed { (k, rows) } else { (rows, k) };
    let dims = source.layout.shape.dims();
    let eights = |n: isize| usize::try_from(n).ok().filter(|n| n.is_multiple_of(8)).and_then(|n| u32::try_from(n / 8).ok());
    let pieces = || dims.iter().copied().filter(|&d| d.is_multiple_of(8) && d.is_power_of_two() && length.is_multiple_of(d));
    let groups = || dims.iter().copied().filter(|&d| d > 0 && lines.is_multiple_of(d));
    pieces().flat_map(|p| groups().map(move |g| (p, g))).find_map(|(p, g)| {
        let (of_lines, of_length) = ([lines / g, g], [length / p, p]);
        let shape = (if transposed { [of_length, of_lines] } else { [of_lines, of_length] }).concat();
        let layout = source.layout.reshape(Shape::of(&shape))?;
        let &[a, b, c, d] = layout.strides() else { return None };
        let [group, line, apart, fast] = if transposed { [c, d, a, b] } else { [a, b, c, d] };
        let [outer, line, stride] = [eights(group)?, eights(line)?, eights(apart)?].map(U32::from);
        let lines = LineParams { start, offset, outer, inner: U32::size(g)?, stride, line };
        (fast == 1 && layout.offset.is_multiple_of(8)).then_some((lines, (p / 8).ilog2()))
    })
}

/// The same, in elements, for lines that begin anywhere, and the last eight of the memory in which they lie.
fn unaligned(load: &Load, batch: usize, rows: usize, k: usize, transposed: bool) -> Option<(LineParams, u32)> {
    let source = load.plain().filter(|s| s.dtype == DType::F16 && s.offset.is_none())?;
    let [start, offset] = start(source)?.map(U32::from);
    let size = |n: isize| u32::try_from(n).ok();
    let inner = std::iter::once(1).chain(source.layout.shape.dims().iter().copied()).filter(|&d| d > 0 && batch.is_multiple_of(d));
    inner.into_iter().find_map(|inner| {
        let shape = [batch / inner, inner, rows, k];
        let layout = source.layout.reshape(Shape::of(&shape))?;
        let &[outer, stride, row, column] = layout.strides() else { return None };
        let (line, fast) = if transposed { (column, row) } else { (row, column) };
        let last = shape.iter().zip(layout.strides()).map(|(&n, &t)| (n - 1) as isize * t).sum::<isize>() + source.layout.offset as isize;
        let [outer, inner, stride, line] = [outer, inner as isize, stride, line].map(|n| size(n).map(U32::from));
        (fast == 1).then_some((LineParams { start, offset, outer: outer?, inner: inner?, stride: stride?, line: line? }, size(last / 8)?))
    })
}
