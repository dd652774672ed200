//! The GPU forms of attention and its gradients by the adapter's cooperative matrices.

use super::AttentionKernel;
use super::params::{FILES, FlashParams, HeadSizes, Part, values};
use crate::dtype::DType;
use crate::ops::matmul::gemm_coop::{LineParams, lines};
use crate::plan::{AdapterInfo, Step, SubgroupSync, Wgsl};
use crate::shader::{Template, grid, indexable, params, subgroup_barrier};
use std::borrow::Cow;

/// The widest head whose rows fit into matrices.
const COOP_MAX_HEAD: usize = 128;
/// The widest head for which the tuning table has the first of its tiles of elements.
const NARROW_HEAD: u32 = 64;
/// Subgroups and columns of tiles of attention, the largest first: which of them is taken depends on memory and on the tuning table.
const TILES: [(u32, u32); 4] = [(8, 32), (4, 64), (4, 32), (4, 16)];
/// Subgroups of a tile of the gradients, and those of them that share rows.
const GRAD_TILES: [(u32, u32); 2] = [(8, 2), (4, 1)];
/// Columns of such a tile.
const GRAD_COLUMNS: u32 = 32;
/// Rows of a subgroup at most: with more, its scores do not fit its registers.
const SUBGROUP_ROWS: u32 = 16;

/// How a workgroup's work is cut.
struct FlashTiles {
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
    own_rows: bool,
}

/// The tiles of attention, of `rows` of each of these heads. Where subgroups wait alone, small ones do best, if there are `min_blocks` of them for processors that
/// have several at a time; those of wide heads have no registers for that. Elsewhere much work between two barriers hides what they cost.
fn shared_tiles(deep: [u32; 2], heads: usize, rows: usize, min_blocks: usize, adapter: &AdapterInfo) -> Option<FlashTiles> {
    let (edge, subgroup) = (adapter.coop, adapter.subgroup);
    let own = |line: u32| (subgroup / 2).min(SUBGROUP_ROWS).max(edge / line);
    let fit = |own_rows: bool, line: u32, (subs, cols): (u32, u32)| {
        let own = own(line);
        let high = subs * own;
        let columns = cols * (deep[0] + deep[1] + 16);
        let fits = |chunk: &u32| deep[0].is_multiple_of(*chunk) && high * (chunk + 8) <= columns;
        let chunk = (1..=deep[0] / edge).map(|n| n * edge).rev().find(fits).unwrap_or(edge);
        let bytes = 2 * columns.max(high * (chunk + 8)) + (4 + 2) * high * (cols + 8) + 4 * (high + 1);
        let whole = subgroup >= own && cols.is_multiple_of(edge * line) && (cols / 4).is_multiple_of(subgroup / own);
        let room = bytes <= adapter.workgroup_bytes && subs * subgroup <= adapter.workgroup_threads;
        let enough = subs == 4 || heads * rows.div_ceil(high as usize) >= adapter.tuning.attention.large_groups;
        (whole && room && enough).then_some(FlashTiles { subs, line, rows: high, cols, chunk, own_rows })
    };
    let blocks = heads * rows.div_ceil(4 * own(1) as usize);
    let own_rows = adapter.subgroup_sync != SubgroupSync::None
        && deep[0] + deep[1] <= adapter.tuning.attention.own_rows_elements
        && blocks >= min_blocks;
    // Neighbours in a line share rows, as long as each has whole matrices of the values.
    let line = if (deep[1] / edge).is_multiple_of(2) { 2 } else { 1 };
    let shared = || TILES.into_iter().find_map(|tile| fit(false, line, tile));
    own_rows.then(|| fit(true, 1, (4, 16))).flatten().or_else(shared)
}

/// Powers of scores that are not seen are 0 for scales down to this one.
const MIN_SCALE: f64 = 1e-30;

/// Tiles of attention, or of a part of its gradients, whose scores stay in the elements of matrices, of a head of `most` rows; `None` where lanes cannot
/// name them, or what is staged has no room.
fn element_tiles(deep: [u32; 2], part: Option<Part>, most: usize, scale: f64, adapter: &AdapterInfo) -> Option<FlashTiles> {
    let held = adapter.matrix_elements()?;
    let (edge, table) = (adapter.coop, &adapter.tuning.attention);
    let tiles = match part {
        None => table.elements,
        Some(Part::Keys) => table.elements_keys,
        Some(_) => table.elements_queries,
    };
    let tile = tiles[usize::from(deep[0].max(deep[1]) > NARROW_HEAD)];
    let whole = held.stores(deep[1] / edge) && (part.is_none() || held.stores(deep[0] / edge));
    let stores = whole && (part.is_some() || scale >= MIN_SCALE);
    // Fewer matrices where a workgroup would have more rows than a head has.
    let fragments = (most as u32).div_ceil((tile.subgroups * edge).max(1)).clamp(1, tile.fragments.max(1));
    let (subs, cols) = (tile.subgroups, tile.columns);
    let smaller = [(subs, fragments, cols), (subs, fragments, cols / 2), (subs, 1, cols / 2), (subs.min(4), 1, edge)];
    smaller.into_iter().filter(|_| stores).find_map(|(subs, fragments, cols)| {
        let (rows, threads) = (subs * fragments * edge, subs * adapter.subgroup);
        let columns = cols * (deep[0] + deep[1] + 16);
        // Attention stages its rows where its columns come later, a part at a time; gradients need all of a row at once.
        let fits = |c: &u32| deep[0].is_multiple_of(*c) && rows * (c + 8) <= columns;
        let chunk = (1..=deep[0] / edge).map(|n| n * edge).rev().find(fits).unwrap_or(edge);
        let (chunk, staged) = if part.is_none() { (chunk, chunk) } else { (deep[0], deep[0].max(deep[1])) };
        // After the tile what stands for elements in WGSL, and what is known of queries.
        let known = if part == Some(Part::Keys) { 16 * cols } else { 0 };
        let bytes = 2 * columns.max(rows * (staged + 8)) + (4 + 2) * subs * edge * edge + known;
        let whole =
            rows > 0 && cols > 0 && cols.is_multiple_of(edge) && threads <= adapter.workgroup_threads && (known == 0 || cols <= threads);
        (whole && bytes <= adapter.workgroup_bytes).then_some(FlashTiles { subs, line: 1, rows, cols, chunk, own_rows: true })
    })
}

/// The same for a part of the gradients, whose scores and slopes take more memory.
fn part_tiles(deep: [u32; 2], part: Part, adapter: &AdapterInfo) -> Option<FlashTiles> {
    let (edge, cols, by_key) = (adapter.coop, GRAD_COLUMNS, part == Part::Keys);
    // Wide heads have more results than a subgroup has registers for.
    let wide = deep[0] + deep[1] > adapter.tuning.attention.own_rows_elements;
    let halves = deep.iter().all(|n| (n / edge).is_multiple_of(2)) && cols.is_multiple_of(2 * edge);
    GRAD_TILES.into_iter().filter(|&(_, line)| line == 1 || wide && halves).find_map(|(subs, line)| {
        let rows = 4 * if adapter.subgroup >= SUBGROUP_ROWS { SUBGROUP_ROWS } else { SUBGROUP_ROWS / 2 };
        let threads = subs * adapter.subgroup;
        let tile = (cols * (deep[0] + deep[1] + 16)).max(rows * (deep[0].max(deep[1]) + 8));
        let known = if by_key { cols } else { rows };
        let bytes = 2 * tile + 4 * 2 * rows * (cols + 8) + 2 * (1 + by_key as u32) * rows * (cols + 8) + 16 * known;
        let whole = (rows * line).is_multiple_of(subs * edge) && (rows * cols / 4).is_multiple_of(threads) && cols <= threads;
        let room = bytes <= adapter.workgroup_bytes && threads <= adapter.workgroup_threads;
        let own_rows = line == 1 && adapter.subgroup_sync != SubgroupSync::None;
        (whole && room).then_some(FlashTiles { subs, line, rows, cols, chunk: deep[0], own_rows })
    })
}

params! {
    /// What both kernels read at run time: behind the sizes, where the lines of each operand lie.
    struct FlashCoopParams: FlashParams {
        /// Queries.
        q: LineParams,
        /// Keys.
        k: LineParams,
        /// Values.
        v: LineParams,
        /// The results' gradient, of which attention itself has none.
        g: LineParams,
    }
}

static FLASH_COOP: Template =
    Template::new("flash_coop.wgsl", include_str!("flash_coop.wgsl")).params(FlashCoopParams::FIELDS).files(FILES);
static FLASH_ELEMENTS: Template =
    Template::new("flash_elements.wgsl", include_str!("flash_elements.wgsl")).params(FlashCoopParams::FIELDS).files(FILES);
static FLASH_ELEMENTS_GRAD: Template =
    Template::new("flash_elements_grad.wgsl", include_str!("flash_elements_grad.wgsl")).params(FlashCoopParams::FIELDS).files(FILES);
static FLASH_COOP_GRAD: Template =
    Template::new("flash_coop_grad.wgsl", include_str!("flash_coop_grad.wgsl")).params(FlashCoopParams::FIELDS).files(FILES);

/// A kernel of attention or of a part of its gradients, with what was decided about it.
struct CoopKernel<'a> {
    of: &'a AttentionKernel,
    part: Option<Part>,
    adapter: &'a AdapterInfo,
    z: HeadSizes,
    /// Elements of a line of a tile of keys and of values: whole matrices.
    deep: [u32; 2],
    tiles: FlashTiles,
    /// Whether scores stay in the elements of matrices.
    elements: bool,
    /// Matrices of results across.
    ky: u32,
    /// As many of them are staged at a time as the memory of the scores holds.
    store_fragments: u32,
}

impl<'a> CoopKernel<'a> {
    /// `None` where no tiles fit.
    fn new(
        of: &'a AttentionKernel,
        part: Option<Part>,
        z: HeadSizes,
        min_blocks: usize,
        adapter: &'a AdapterInfo,
    ) -> Option<CoopKernel<'a>> {
        let edge = adapter.coop;
        let deep = [z.d, z.dv].map(|n| (n as u32).next_multiple_of(edge));
        let most = if part == Some(Part::Keys) { z.s } else { z.t };
        let held = element_tiles(deep, part, most, of.scale, adapter);
        let elements = held.is_some();
        let tiles = match part {
            None => held.or_else(|| shared_tiles(deep, z.b * z.h, z.t, min_blocks, adapter))?,
            Some(part) => held.or_else(|| part_tiles(deep, part, adapter))?,
        };
        let (kd, kv, line) = (deep[0] / edge, deep[1] / edge, tiles.line);
        let ky = match part {
            None => kv / line,
            Some(Part::Keys) => (kd + kv) / line,
            Some(_) => kd / line,
        };
        let cn = tiles.cols / edge / line;
        let store_fragments = if elements {
            Some(1)
        } else {
            (1..=cn).rev().find(|&n| ky.is_multiple_of(n) && (part.is_none() || (kd / line).is_multiple_of(n)))
        }?;
        Some(CoopKernel { of, part, adapter, z, deep, tiles, elements, ky, store_fragments })
    }

    fn forward(&self) -> bool {
        self.part.is_none()
    }
    /// Whether rows are keys.
    fn by_key(&self) -> bool {
        self.part == Some(Part::Keys)
    }
    fn workgroup(&self) -> u32 {
        self.tiles.subs * self.adapter.subgroup
    }
    /// Whether the next columns are fetched while others are used: wide heads leave no registers for that.
    fn prefetch(&self) -> bool {
        (self.deep[0] + self.deep[1]) / self.tiles.line <= self.adapter.tuning.attention.prefetch_elements
    }

    /// Counts of matrices and of a thread's items.
    fn sizes(&self) -> [(&'static str, u32); 18] {
        let FlashTiles { subs, line, rows, cols, chunk, .. } = self.tiles;
        let (edge, deep, workgroup) = (self.adapter.coop, self.deep, self.workgroup());
        let (kd, kv) = (deep[0] / edge, deep[1] / edge);
        let items = deep.map(|n| (cols * n / 8).div_ceil(workgroup));
        [
            ("RM", rows / (subs / line) / edge),
            ("CN", cols / edge / line),
            ("STEPS", cols / edge),
            ("KD", kd),
            ("KV", if self.forward() { kv / line } else { kv }),
            ("YD", kd / line),
            ("YV", kv / line),
            ("KY", self.ky),
            ("KC", chunk / edge),
            ("CHUNKS", deep[0] / chunk),
            ("STORE_FRAGMENTS", self.store_fragments),
            ("STORES", self.ky / self.store_fragments),
            // Quads of a thread.
            ("QUADS", cols / 4 / (workgroup / rows).max(1)),
            ("TIMES", rows * cols / 4 / workgroup),
            ("LOADS_R", (rows * chunk / 8).div_ceil(workgroup)),
            ("LOADS_R2", (rows * deep[1] / 8).div_ceil(workgroup)),
            ("LOADS_K", items[0]),
            ("LOADS_V", items[1]),
        ]
    }

    /// Constants of the kernel's code.
    fn consts(&self) -> Vec<(&'static str, u32)> {
        let by_key = self.by_key() as u32;
        let mut consts = vec![
            ("SUBGROUP", self.adapter.subgroup),
            ("EDGE", self.adapter.coop),
            ("UNIT", if self.adapter.coop_vectors { 4 } else { 1 }),
            ("SUBGROUPS", self.tiles.subs),
            ("WARPS_N", self.tiles.line),
            ("PARTS", 1 + by_key),
            ("SCORE_TILES", 2 - self.forward() as u32),
            ("BY_KEY", by_key),
            ("CAUSAL", self.of.causal as u32),
        ];
        consts.extend(self.sizes());
        if let Some(held) = self.adapter.matrix_elements().filter(|_| self.elements) {
            consts.extend(held.consts());
        }
        consts
    }

    /// The kernel's code.
    fn source(&self, consts: &[(&'static str, u32)]) -> Cow<'static, str> {
        let mut values = values(consts);
        // Software takes minutes to compile what is written out.
        let unroll = self.adapter.subgroup >= self.adapter.tuning.gemm.unroll_min_subgroup;
        let [even_d, even_v] = [self.z.d as u32 == self.deep[0], self.z.dv as u32 == self.deep[1]];
        values.extend([
            ("OWN_ROWS", self.tiles.own_rows.into()),
            ("SUMS", self.of.sums.into()),
            ("WINDOWED", (self.of.window > 0).into()),
            ("PREFETCH", self.prefetch().into()),
            ("EVEN_D", even_d.into()),
            ("EVEN_V", even_v.into()),
            ("UNROLL", unroll.into()),
            ("COOP_VECTORS", self.adapter.coop_vectors.into()),
        ]);
        values.extend(self.of.softcap_values());
        if let Some(held) = self.adapter.matrix_elements().filter(|_| self.elements) {
            values.extend(held.values());
        }
        values.extend(subgroup_barrier(if self.tiles.own_rows { self.adapter.subgroup_sync } else { SubgroupSync::None }));
        let template = match (self.elements, self.forward()) {
            (true, true) => &FLASH_ELEMENTS,
            (true, false) => &FLASH_ELEMENTS_GRAD,
            (false, true) => &FLASH_COOP,
            (false, false) => &FLASH_COOP_GRAD,
        };
        template.source(&values)
    }
}

/// Attention (`part` is `None`) or a part of its gradients; `None` where there are no matrices, a mask, dropout, or operands that are not rows of f16
/// whose eights are whole. Subgroups wait alone where that makes `min_blocks` workgroups of attention, in gradients wherever they have rows of their own.
pub(super) fn attention_coop(
    of: &AttentionKernel,
    part: Option<Part>,
    step: &Step,
    min_blocks: usize,
    adapter: &AdapterInfo,
) -> Option<Wgsl> {
    if adapter.coop == 0 || of.mask || of.paged || of.dropout > 0.0 || part == Some(Part::All) {
        return None;
    }
    let z = HeadSizes::of(step, COOP_MAX_HEAD).filter(|z| [z.d, z.dv, z.t, z.s].iter().all(|&n| n > 0))?;
    let HeadSizes { b, h, hkv, t, s, d, dv } = z;
    let [q, k, v] = [0, 1, 2].map(|n| step.loads[n].shape.count());
    if !indexable(&[q, k, v, b * h * t * dv]) {
        return None;
    }
    let rows_of = [(b * h, t, d), (b * hkv, s, d), (b * hkv, s, dv), (b * h, t, dv)];
    let operands = if part.is_none() { 3 } else { 4 };
    let mut places = [LineParams::ABSENT; 4];
    for ((place, load), (batch, rows, width)) in places.iter_mut().zip(&step.loads).zip(rows_of).take(operands) {
        *place = lines(load, batch, rows, width, false).filter(|_| load.dtype() == DType::F16)?;
    }
    let kernel = CoopKernel::new(of, part, z, min_blocks, adapter)?;
    let by_key = kernel.by_key();
    let blocks = if by_key { s } else { t }.div_ceil(kernel.tiles.rows as usize);
    let count = (if by_key { b * hkv } else { b * h }).checked_mul(blocks)?;
    let grid = grid(count)?;
    let [q, k, v, g] = places;
    let params = FlashCoopParams { base: FlashParams::new(of, &z, step, grid[0], [blocks, count])?, q, k, v, g };
    let consts = kernel.consts();
    Some(Wgsl {
        source: kernel.source(&consts),
        consts,
        workgroup: kernel.workgroup(),
        grid,
        params: params.values(),
        raw: (0..operands as u8).collect(),
        transposed: vec![],
    })
}
