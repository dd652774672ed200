//! Matrix products of f32 sums with AVX-512: operands are packed in the tiles' order, once for all threads, whatever they are stored as.
//!
//! A sum runs over k in steps of its own order, so a result's bits do not depend on threads, blocks or neighbours.

mod pack;
mod tile;

use super::gemm::Sizes;
use super::operand::values;
use super::path::{Path, current};
use super::{share, transpose};
use crate::plan::{Task, Value};
use pack::{Side, TOGETHER, TURNED};
use tile::{Columns, DEPTH, GAP, TALL, Tile, floats, pairs};

/// Bytes of rows that are packed together: with a panel they stay in the L2 cache.
const ROWS: usize = 384 << 10;
/// Bytes of panels that are packed together: they stay in the L3 cache.
const PANELS: usize = 12 << 20;
/// Columns whose results are handed to the store together.
const RUN: usize = 512;
/// Parts of k whose rows are all kept until the next block of rows.
const KEPT: usize = 8;
/// Fewer rows or columns than that are not worth packing.
const LEAST: usize = 6;

/// Whether [`product`] can run here, for operands of these sizes.
pub fn can(s: &Sizes) -> bool {
    current() == Path::Avx512 && s.m.min(s.n) >= LEAST && s.k > 0
}

/// Loads 0 and 1 multiplied, this thread's share: into `out`, row-major and as large as the result, or else into store 0. Where both
/// operands are bf16 in memory and the processor has the instruction, pairs of bf16 are multiplied and added as they are.
///
/// # Safety
/// [`can`] said yes; `out` is nobody else's.
pub unsafe fn product(task: &dyn Task, s: &Sizes, out: Option<*mut f32>) {
    let (a, b) = (Side::of(task, 0), Side::of(task, 1));
    let pairs = a.has_pairs() && b.has_pairs() && is_x86_feature_detected!("avx512bf16");
    // The side whose rows become panels is packed at a higher price, and so is a result that has to be transposed.
    let ((a_rows, a_panels), (b_rows, b_panels)) = (a.costs(), b.costs());
    let upright = s.m * s.k * a_rows + s.n * s.k * b_panels;
    let turned = s.n * s.k * b_rows + s.m * s.k * a_panels + 4 * s.m * s.n;
    let (rows, columns, turned) = if upright <= turned { (a, b, false) } else { (b, a, true) };
    // SAFETY: the caller's promise.
    unsafe { Product { task, s, out, pairs, rows, columns, turned }.run() }
}

struct Product<'a> {
    task: &'a dyn Task,
    s: &'a Sizes,
    out: Option<*mut f32>,
    /// Whether the numbers are pairs of bf16.
    pairs: bool,
    /// Packed as rows, and as panels of columns.
    rows: Side<'a>,
    columns: Side<'a>,
    /// Whether the columns are the result's rows.
    turned: bool,
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

impl Product<'_> {
    /// # Safety
    /// As [`product`].
    unsafe fn run(&self) {
        let (task, s) = (self.task, self.s);
        let steps = if self.pairs { s.k.div_ceil(2) } else { s.k };
        let width = if self.columns.rows <= 16 { 16 } else { 32 };
        let panels = self.columns.rows.div_ceil(width);
        let chunk = (PANELS / (4 * steps * width)).clamp(1, panels);
        let height = (ROWS / (4 * steps.min(DEPTH)) / TALL).max(1) * TALL;
        // Whole products for each thread, or each product for all threads.
        let apart = s.batch >= task.threads() && s.batch > 1;
        let (thread, threads) = if apart { (0, 1) } else { (task.thread(), task.threads()) };
        // Blocks of about one size, whole blocks for each thread.
        let (blocks, most) = (self.rows.rows.div_ceil(height).next_multiple_of(threads), self.rows.rows.div_ceil(TALL / 2));
        let blocks = blocks.min(most);
        let height = self.rows.rows.div_ceil(blocks);
        let run = (RUN / width / if self.turned { 4 } else { 1 }).min(panels);
        let packed = if apart {
            values::<f32>(task, chunk * steps * width).as_mut_ptr()
        } else {
            task.shared(4 * chunk * steps * width).cast::<f32>()
        };
        let area = height * run * width;
        // k in equal parts; packed formats have blocks of at most 256.
        let depth = steps.div_ceil(steps.div_ceil(DEPTH)).next_multiple_of(256).min(DEPTH);
        let parts = steps.div_ceil(depth);
        let mut own = Own {
            rows: values::<f32>(task, height * (depth + GAP) * if parts <= KEPT { parts } else { 1 }).as_mut_ptr(),
            holds: None,
            results: values::<f32>(task, if self.out.is_some() { 0 } else { area }).as_mut_ptr(),
            tiles: values::<f32>(task, if self.turned { area } else { 0 }).as_mut_ptr(),
        };
        let buffer = values::<f32>(task, TURNED * (DEPTH + GAP)).as_mut_ptr();
        let batches = if apart { share(s.batch, 1, task.thread(), task.threads()) } else { 0..s.batch };
        let last = (batches.end, panels);
        for batch in batches {
            for c0 in (0..panels).step_by(chunk) {
                let c = chunk.min(panels - c0);
                for p in share(c, TOGETHER, thread, threads).step_by(TOGETHER) {
                    let first = (c0 + p) * width;
                    let count = (TOGETHER.min(c - p) * width).min(self.columns.rows - first);
                    // SAFETY: there is room for `chunk` panels; each is packed by one thread.
                    unsafe {
                        let to = packed.add(p * steps * width);
                        self.columns.pack_panels(self.pairs, batch, [first, count], width, steps, to, buffer);
                    }
                }
                if !apart {
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
                        self.strip(batch, rows, [c0 + p0, count], width, [steps, depth], panels, &mut own);
                    }
                    item += count;
                }
                // The next panels take the place of these.
                if !apart && (batch + 1, c0 + c) != last {
                    task.barrier();
                }
            }
        }
    }

    /// A block of rows times some panels.
    ///
    /// # Safety
    /// As [`product`]; the panels are packed.
    unsafe fn strip(
        &self,
        batch: usize,
        [first, height]: [usize; 2],
        [panel, panels]: [usize; 2],
        width: usize,
        [steps, depth]: [usize; 2],
        packed: *const f32,
        own: &mut Own,
    ) {
        let s = self.s;
        let columns = (panels * width).min(self.columns.rows - panel * width);
        // Where the result's rows and columns begin, how many there are, and where they are put.
        let ([m0, n0], [m, n]) =
            if self.turned { ([panel * width, first], [columns, height]) } else { ([first, panel * width], [height, columns]) };
        let begin = (batch * s.m + m0) * s.n + n0;
        let (to, to_row) = self.out.map_or((own.results, n), |out| (out.wrapping_add(begin), s.n));
        let parts = steps.div_ceil(depth);
        // SAFETY: rows, panels and results have room for the block, and the result's block belongs to this thread.
        unsafe {
            for part in 0..parts {
                let from = part * depth;
                let some = depth.min(steps - from);
                let (rows, row) = match self.rows.rows_in_place(batch, first) {
                    Some((rows, row)) if !self.pairs => (rows.add(from), row),
                    _ => {
                        let (row, keep) = (depth + GAP, parts <= KEPT);
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
                let groups = height.div_ceil(TALL);
                for p in 0..panels {
                    let columns = Columns::of(width, width.min(columns - p * width));
                    for g in 0..groups {
                        let (r, end_row) = (height * g / groups, height * (g + 1) / groups);
                        let (c, c_row) = if self.turned {
                            (own.tiles.add((p * height + r) * width), width)
                        } else {
                            (to.add(r * to_row + p * width), to_row)
                        };
                        let rows = rows.add(r * row);
                        // The last rows of the block bring the next panel.
                        let ahead = if g + 1 == groups && p + 1 < panels { steps * width } else { 0 };
                        let panel = packed.add((p * steps + from) * width);
                        let t = Tile { steps: some, rows, row, panel, ahead, c, c_row, columns, add: part > 0 };
                        if self.pairs { pairs::tile(end_row - r, t) } else { floats::tile(end_row - r, t) }
                    }
                }
            }
            if self.turned {
                for p in 0..panels {
                    let (from, count) = (own.tiles.add(p * height * width), width.min(columns - p * width));
                    transpose(4, from.cast(), width as isize, to.add(p * width * to_row).cast(), to_row as isize, height, count);
                }
            }
            if self.out.is_none() {
                if n == s.n {
                    self.task.store(0, begin, f32::lane(std::slice::from_raw_parts_mut(own.results, m * n)));
                } else {
                    for i in 0..m {
                        self.task.store(0, begin + i * s.n, f32::lane(std::slice::from_raw_parts_mut(own.results.add(i * n), n)));
                    }
                }
            }
        }
    }
}
