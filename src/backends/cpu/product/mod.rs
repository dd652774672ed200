//! Matrix products of f32 sums with AVX-512: operands are packed in the tiles' order, once for all threads, whatever they are stored as.
//!
//! A sum runs over k in steps of its own order, so a result's bits do not depend on threads, blocks or neighbours.

mod near;
mod pack;
mod tile;

use super::gemm::Sizes;
use super::operand::{target, values};
use super::path::{Path, current};
use super::span::{to_bf16, to_f16};
use super::{share, transpose};
use crate::plan::{Task, Value};
use pack::{MAX_PANELS, Panels, Side};
use tile::{Columns, Later, MAX_K_STEPS, MAX_TILE_ROWS, ROW_PADDING, Stored, Tile, floats, pairs};

/// Bytes of rows that are packed together: with a panel they stay in the L2 cache.
const PACKED_ROWS_BYTES: usize = 384 << 10;
/// Bytes of panels that are packed together: they stay in the L3 cache.
const PACKED_PANELS_BYTES: usize = 12 << 20;
/// Bytes of rows that each of a few threads may as well pack for itself; and for so many columns a thread, of any.
const OWN_PACK_BYTES: usize = 512 << 10;
const OWN_PACK_COLUMNS: usize = 256;
/// Columns whose results are handed to the store together.
const STORE_COLUMNS: usize = 512;
/// Parts of k whose rows are all kept until the next block of rows.
const KEPT_K_PARTS: usize = 8;
/// Fewer rows or columns than that are not worth packing.
const PACK_MIN_SIDE: usize = 6;

/// Whether [`product`] can run here, for operands of these sizes.
pub fn can(s: &Sizes) -> bool {
    current() == Path::Avx512 && s.m.min(s.n) >= PACK_MIN_SIDE && s.k > 0
}

/// Loads 0 and 1 multiplied, this thread's share: into `out`, row-major and as large as the result, or else into store 0. Where both
/// operands are bf16 in memory and the processor has the instruction, pairs of bf16 are multiplied and added as they are.
///
/// # Safety
/// [`can`] returned true, and nothing else uses `out` meanwhile.
pub unsafe fn product(task: &dyn Task, s: &Sizes, out: Option<*mut f32>) {
    let (a, b) = (Side::of(task, 0), Side::of(task, 1));
    let pairs = a.has_pairs() && b.has_pairs() && is_x86_feature_detected!("avx512bf16");
    // Packing panels costs more than packing rows, and a result that has to be transposed costs more too.
    let ((a_rows, a_panels), (b_rows, b_panels)) = (a.costs(), b.costs());
    let upright = s.m * s.k * a_rows + s.n * s.k * b_panels;
    let transposed = s.n * s.k * b_rows + s.m * s.k * a_panels + 4 * s.m * s.n;
    let (rows, columns, transposed) = if upright <= transposed { (a, b, false) } else { (b, a, true) };
    let direct = out.map(|at| Direct { at: at.cast(), stored: Stored::F32, row: s.n }).or_else(|| Direct::rounded(task, s));
    let product = Product { task, s, direct, pairs, rows, columns, transposed };
    // SAFETY: the caller's promise.
    unsafe {
        if !product.near() {
            product.run();
        }
    }
}

/// Where tiles write results themselves: the result's first element, and the distance of its rows.
#[derive(Clone, Copy)]
struct Direct {
    at: *mut u8,
    stored: Stored,
    row: usize,
}

impl Direct {
    /// The target where results are only rounded to it.
    fn rounded(task: &dyn Task, s: &Sizes) -> Option<Direct> {
        let f16 = target::<half::f16>(task, 0, 0, 0).map(|t| (t.as_mut_ptr().cast(), Stored::F16));
        let (at, stored) = f16.or_else(|| target::<half::bf16>(task, 0, 0, 0).map(|t| (t.as_mut_ptr().cast(), Stored::Bf16)))?;
        Some(Direct { at, stored, row: s.n })
    }

    /// The same from another element on.
    fn from(self, element: usize) -> Direct {
        Direct { at: self.at.wrapping_add(element * self.stored.bytes()), ..self }
    }
}

struct Product<'a> {
    task: &'a dyn Task,
    s: &'a Sizes,
    direct: Option<Direct>,
    /// Whether the numbers are pairs of bf16.
    pairs: bool,
    /// Packed as rows, and as panels of columns.
    rows: Side<'a>,
    columns: Side<'a>,
    /// Whether the columns are the result's rows.
    transposed: bool,
}

/// A thread's own memory.
struct Own {
    rows: *mut f32,
    /// What stands in `rows`: batch, first row, and the part of k where there are more than are kept.
    holds: Option<(usize, usize, usize)>,
    /// Results on their way to the store, and tiles on their way to their transpose.
    results: *mut f32,
    tiles: *mut f32,
}

/// A block of rows times some panels.
#[derive(Clone, Copy)]
struct PanelBlock {
    batch: usize,
    /// The first row and how many there are, and the same of panels.
    rows: [usize; 2],
    panels: [usize; 2],
    /// Columns of a panel.
    width: usize,
    /// Steps of k, and those of a part of k.
    steps: usize,
    depth: usize,
}

impl Product<'_> {
    /// Steps of k.
    fn steps(&self) -> usize {
        if self.pairs { self.s.k.div_ceil(2) } else { self.s.k }
    }

    /// Where the tiles of this product write by themselves: not where the rows of a block would share a few cache sets.
    fn direct(&self, parts: usize) -> Option<Direct> {
        let apart = |d: &Direct| !(d.row * d.stored.bytes()).is_multiple_of(4096);
        self.direct.filter(|d| apart(d) && (d.stored == Stored::F32 || parts == 1 && !self.transposed))
    }

    /// # Safety
    /// See [`product`].
    unsafe fn run(&self) {
        let (task, s, steps) = (self.task, self.s, self.steps());
        let width = if self.columns.rows <= 16 { 16 } else { 32 };
        let panels = self.columns.rows.div_ceil(width);
        let chunk = (PACKED_PANELS_BYTES / (4 * steps * width)).clamp(1, panels);
        let height = (PACKED_ROWS_BYTES / (4 * steps.min(MAX_K_STEPS)) / MAX_TILE_ROWS).max(1) * MAX_TILE_ROWS;
        // Whole products for each thread; or columns for each, packed for itself, where rows cost little; or common panels for all.
        let (thread, threads) = (task.thread(), task.threads());
        let apart = s.batch >= threads && s.batch > 1;
        let few = 4 * self.rows.rows * steps <= OWN_PACK_BYTES || self.columns.rows >= OWN_PACK_COLUMNS * threads;
        let free = self.rows.rows_in_place(self.pairs, 0, 0).is_some() || few && threads <= 4;
        let even = panels.div_ceil(threads) * threads - panels <= panels / 16;
        let own_columns = !apart && free && even;
        let alone = apart || own_columns;
        let columns = if own_columns { share(panels, 1, thread, threads) } else { 0..panels };
        let (thread, threads) = if alone { (0, 1) } else { (thread, threads) };
        // Blocks of about one size, whole blocks for each thread.
        let (blocks, most) = (self.rows.rows.div_ceil(height).next_multiple_of(threads), self.rows.rows.div_ceil(MAX_TILE_ROWS / 2));
        let blocks = blocks.min(most);
        let height = self.rows.rows.div_ceil(blocks);
        let run = (STORE_COLUMNS / width / if self.transposed { 4 } else { 1 }).min(panels);
        let packed = if alone {
            values::<f32>(task, chunk * steps * width).as_mut_ptr()
        } else {
            task.shared(4 * chunk * steps * width).cast::<f32>()
        };
        let area = height * run * width;
        // k in equal parts; packed formats have blocks of at most 256.
        let depth = steps.div_ceil(steps.div_ceil(MAX_K_STEPS)).next_multiple_of(256).min(MAX_K_STEPS);
        let parts = steps.div_ceil(depth);
        let mut own = Own {
            rows: values::<f32>(task, height * (depth + ROW_PADDING) * if parts <= KEPT_K_PARTS { parts } else { 1 }).as_mut_ptr(),
            holds: None,
            results: values::<f32>(task, if self.direct(parts).is_some() { 0 } else { area }).as_mut_ptr(),
            tiles: values::<f32>(task, if self.transposed { area } else { 0 }).as_mut_ptr(),
        };
        let buffer = values::<f32>(task, self.columns.buffer()).as_mut_ptr();
        let batches = if apart { share(s.batch, 1, task.thread(), task.threads()) } else { 0..s.batch };
        let last = (batches.end, columns.end);
        for batch in batches {
            for c0 in columns.clone().step_by(chunk) {
                let c = chunk.min(columns.end - c0);
                // Where panels are common, small groups make even shares.
                let together = if alone { MAX_PANELS } else { MAX_PANELS / 4 };
                for p in share(c, together, thread, threads).step_by(together) {
                    let first = (c0 + p) * width;
                    let count = (together.min(c - p) * width).min(self.columns.rows - first);
                    // SAFETY: there is room for `chunk` panels; each is packed by one thread.
                    unsafe {
                        let to = packed.add(p * steps * width);
                        self.columns.pack_panels(Panels { pairs: self.pairs, width, steps }, batch, [first, count], to, buffer);
                    }
                }
                if !alone {
                    task.barrier();
                }
                let items = share(blocks * c, 1, thread, threads);
                let mut item = items.start;
                while item < items.end {
                    let (block, p0) = (item / c, item % c);
                    let count = run.min(c - p0).min(items.end - item);
                    let begin = |block: usize| self.rows.rows * block / blocks;
                    let rows = [begin(block), begin(block + 1) - begin(block)];
                    // SAFETY: the panels are packed.
                    unsafe {
                        let panels = packed.add(p0 * steps * width).cast_const();
                        self.multiply(PanelBlock { batch, rows, panels: [c0 + p0, count], width, steps, depth }, panels, &mut own);
                    }
                    item += count;
                }
                // The next panels take the place of these.
                if !alone && (batch + 1, c0 + c) != last {
                    task.barrier();
                }
            }
        }
    }

    /// Computes a block of rows times its panels.
    ///
    /// # Safety
    /// Like [`product`]; the panels are packed.
    unsafe fn multiply(&self, block: PanelBlock, packed: *const f32, own: &mut Own) {
        let PanelBlock { batch, rows: [first, height], panels: [panel, panels], width, steps, depth } = block;
        let s = self.s;
        let columns = (panels * width).min(self.columns.rows - panel * width);
        // Where the result's rows and columns begin, how many there are, and where they are put.
        let ([m0, n0], [m, n]) =
            if self.transposed { ([panel * width, first], [columns, height]) } else { ([first, panel * width], [height, columns]) };
        let begin = (batch * s.m + m0) * s.n + n0;
        let parts = steps.div_ceil(depth);
        let direct = self.direct(parts);
        let to = direct.map_or(Direct { at: own.results.cast(), stored: Stored::F32, row: n }, |d| d.from(begin));
        // What the next block is packed from comes from memory meanwhile, a little with each tile.
        let groups = height.div_ceil(MAX_TILE_ROWS);
        let (later, bytes) = self.rows.rows_in_order(batch, first + height).unwrap_or((packed.cast(), 0));
        let each = (bytes * height).div_ceil(steps * groups * panels);
        // SAFETY: rows, panels and results have room for the block, and the result's block belongs to this thread.
        unsafe {
            for part in 0..parts {
                let from = part * depth;
                let some = depth.min(steps - from);
                let (rows, row) = match self.rows.rows_in_place(self.pairs, batch, first) {
                    Some((rows, row)) => (rows.add(from), row),
                    None => {
                        let (row, keep) = (depth + ROW_PADDING, parts <= KEPT_K_PARTS);
                        let (rows, key) =
                            if keep { (own.rows.add(part * height * row), (batch, first, 0)) } else { (own.rows, (batch, first, part)) };
                        if own.holds != Some(key) {
                            self.rows.pack_rows(self.pairs, batch, [first, height], [from, some], rows, row);
                            if !keep || part + 1 == parts {
                                own.holds = Some(key);
                            }
                        }
                        (rows.cast_const(), row)
                    }
                };
                for p in 0..panels {
                    let columns = Columns::of(width, width.min(columns - p * width));
                    for g in 0..groups {
                        let (r, end_row) = (height * g / groups, height * (g + 1) / groups);
                        let to = if self.transposed {
                            Direct { at: own.tiles.add((p * height + r) * width).cast(), stored: Stored::F32, row: width }
                        } else {
                            to.from(r * to.row + p * width)
                        };
                        let rows = rows.add(r * row);
                        // The last rows of the block bring the next panel.
                        let ahead = if g + 1 == groups && p + 1 < panels { steps * width } else { 0 };
                        let panel = packed.add((p * steps + from) * width);
                        let done = (from * panels + p * some) * groups + g * some;
                        let later = Later { at: later.wrapping_add(done * each), bytes: each };
                        let (c, c_row, c_stored) = (to.at, to.row, to.stored);
                        let t =
                            Tile { later, steps: some, rows, row, panel, ahead, operand: None, c, c_row, c_stored, columns, add: part > 0 };
                        if self.pairs { pairs::tile(end_row - r, t) } else { floats::tile(end_row - r, t) }
                    }
                }
            }
            if self.transposed {
                for p in 0..panels {
                    let (from, count) = (own.tiles.add(p * height * width), width.min(columns - p * width));
                    let to = to.from(p * width * to.row);
                    transpose(4, from.cast(), width as isize, to.at, to.row as isize, height, count);
                }
            }
            if direct.is_none() {
                self.store(begin, std::slice::from_raw_parts_mut(own.results, m * n), n);
            }
        }
    }

    /// Hands rows of `n` results over, the first of them at `begin`.
    fn store(&self, begin: usize, results: &mut [f32], n: usize) {
        let width = self.s.n;
        let Some(to) = self.direct else {
            if n == width {
                return self.task.store(0, begin, f32::slice_mut(results));
            }
            return results.chunks_exact_mut(n).enumerate().for_each(|(i, row)| self.task.store(0, begin + i * width, f32::slice_mut(row)));
        };
        for (i, row) in results.chunks_exact(n).enumerate() {
            let at = to.from(begin + i * width).at;
            // SAFETY: the row lies within the result, and its columns are this thread's.
            unsafe {
                match to.stored {
                    Stored::F32 => std::ptr::copy_nonoverlapping(row.as_ptr(), at.cast(), n),
                    Stored::F16 => to_f16(row, std::slice::from_raw_parts_mut(at.cast(), n)),
                    Stored::Bf16 => to_bf16(row, std::slice::from_raw_parts_mut(at.cast(), n)),
                }
            }
        }
    }
}
