//! Matrix products of bf16 with bf16 by Arm's `bfmmla`, which adds the products of 2×4 numbers with 4×2 to 2×2 sums of f32.
//!
//! A sum runs over k in an order of its own, so a result's bits do not depend on threads, blocks or neighbours. The instruction adds two
//! products, then both to the sum; each addition rounds to odd, an error below 2⁻²³ of its result, and what is subnormal counts as zero.

use super::gemm::Sizes;
use super::operand::{is_bf16, strided, target, values};
use super::path::{Path, current};
use super::share;
use super::span::to_bf16;
use crate::plan::{Task, Value};
use core::arch::aarch64::*;
use core::arch::asm;
use half::bf16;
use std::ops::Range;

/// Rows and columns of a tile: 16 of the 32 registers hold its sums.
const TILE_EDGE: usize = 8;
/// Numbers along k that one instruction takes.
const STEP: usize = 4;
/// Numbers of one step of a packed tile.
const TILE_STEP: usize = TILE_EDGE * STEP;
/// Columns that a thread packs together.
const PANEL_COLUMNS: usize = 128;
/// Steps of k that are added in registers before sums go to memory: so much of a tile's rows stays in the L1 cache, of a panel in L2.
const PART_STEPS: usize = 256;
/// The most rows whose results a thread keeps before they are handed over, and the fewest that are worth a panel's packing.
const SLAB_ROWS: [usize; 2] = [256, 32];
/// Blocks of the result that each thread should have, for even shares.
const BLOCKS_PER_THREAD: usize = 4;
/// Fewer rows or columns leave more than half of a tile empty.
const MIN_SIDE: usize = 4;
/// Numbers of a row that are brought together where they do not lie so.
const STAGED: usize = 256;

/// Whether [`product`] can run here: both operands are bf16, and the processor multiplies such.
pub fn can(task: &dyn Task, s: &Sizes) -> bool {
    current() == Path::Bf16 && s.m.min(s.n) >= MIN_SIDE && s.batch.min(s.k) > 0 && is_bf16(task, 0) && is_bf16(task, 1)
}

/// Loads 0 and 1 multiplied, this thread's share: into `out`, row-major and as large as the result, or else into store 0.
///
/// # Safety
/// [`can`] returned true, and nothing else uses `out` meanwhile.
pub unsafe fn product(task: &dyn Task, s: &Sizes, out: Option<*mut f32>) {
    let (thread, threads) = (task.thread(), task.threads());
    let (a, b) = (Bf16Side::of(task, 0, s.m, s.k), Bf16Side::of(task, 1, s.n, s.k));
    let results = Results::of(task, s, out);
    let (tiles, steps) = (s.m.div_ceil(TILE_EDGE), s.k.div_ceil(STEP));
    let tile = steps * TILE_STEP;
    // The rows are packed by all threads, for all.
    let rows = task.shared(s.batch * tiles * tile * size_of::<u16>()).cast::<u16>();
    for t in share(s.batch * tiles, 1, thread, threads) {
        let first = t % tiles * TILE_EDGE;
        // SAFETY: there is room for all tiles, and each is packed by one thread.
        unsafe { a.pack(t / tiles, first..s.m.min(first + TILE_EDGE), std::slice::from_raw_parts_mut(rows.add(t * tile), tile)) };
    }
    task.barrier();
    let panels = s.n.div_ceil(PANEL_COLUMNS);
    let [least, most] = SLAB_ROWS.map(|rows| s.m.div_ceil(rows));
    let slabs = (BLOCKS_PER_THREAD * threads).div_ceil(s.batch * panels).clamp(least, most);
    let height = s.m.div_ceil(slabs).next_multiple_of(TILE_EDGE);
    let slabs = s.m.div_ceil(height);
    let panel: &mut [u16] = bytemuck::cast_slice_mut(values::<f32>(task, PANEL_COLUMNS.min(s.n).div_ceil(TILE_EDGE) * tile / 2));
    let sums: &mut [f32] = values(task, height * PANEL_COLUMNS);
    let mut packed = usize::MAX;
    for item in share(s.batch * panels * slabs, 1, thread, threads) {
        let (batch, p, slab) = (item / slabs / panels, item / slabs % panels, item % slabs);
        let (m0, n0) = (slab * height, p * PANEL_COLUMNS);
        let (m, n) = (height.min(s.m - m0), PANEL_COLUMNS.min(s.n - n0));
        // SAFETY: the rows are packed, there is room for the panel and for whole tiles of sums, and the block of the result is this thread's.
        unsafe {
            if packed != item / slabs {
                packed = item / slabs;
                b.pack(batch, n0..n0 + n, panel);
            }
            let rows = rows.add((batch * tiles + m0 / TILE_EDGE) * tile);
            multiply([m, n].map(|n| n.div_ceil(TILE_EDGE)), steps, rows, panel.as_ptr(), sums.as_mut_ptr());
            results.put((batch * s.m + m0) * s.n + n0, m, n, sums);
        }
    }
}

/// Where results go, as rows that are so far apart.
struct Results<'a> {
    task: &'a dyn Task,
    row: usize,
    to: Target,
}

enum Target {
    F32(*mut f32),
    /// Rounded to bf16, which is all that the store would do.
    Bf16(*mut u16),
    Store,
}

impl<'a> Results<'a> {
    fn of(task: &'a dyn Task, s: &Sizes, out: Option<*mut f32>) -> Results<'a> {
        let rounded = || target::<bf16>(task, 0, 0, 0).map(|t| Target::Bf16(t.as_mut_ptr().cast()));
        Results { task, row: s.n, to: out.map(Target::F32).or_else(rounded).unwrap_or(Target::Store) }
    }

    /// Hands over `m` rows of `n` sums, `PANEL_COLUMNS` apart, for the result's elements from `begin` on.
    ///
    /// # Safety
    /// The elements belong to this thread.
    unsafe fn put(&self, begin: usize, m: usize, n: usize, sums: &mut [f32]) {
        for (i, sums) in sums.chunks_mut(PANEL_COLUMNS).take(m).enumerate() {
            let (at, sums) = (begin + i * self.row, &mut sums[..n]);
            // SAFETY: the caller's promise.
            unsafe {
                match self.to {
                    Target::F32(to) => std::ptr::copy_nonoverlapping(sums.as_ptr(), to.add(at), n),
                    Target::Bf16(to) => to_bf16(sums, std::slice::from_raw_parts_mut(to.add(at), n)),
                    Target::Store => self.task.store(0, at, f32::slice_mut(sums)),
                }
            }
        }
    }
}

/// An operand, `[batch, rows, k]`.
struct Bf16Side<'a> {
    task: &'a dyn Task,
    load: usize,
    rows: usize,
    k: usize,
    /// Where it lies, if it is stored, and the distance of batches, rows and neighbours along k.
    place: Option<(*const u16, [isize; 3])>,
}

impl<'a> Bf16Side<'a> {
    fn of(task: &'a dyn Task, load: usize, rows: usize, k: usize) -> Bf16Side<'a> {
        let place = strided::<bf16>(task, load).map(|(ptr, st)| (ptr.cast(), [st[0], st[1], if k == 1 { 1 } else { st[2] }]));
        Bf16Side { task, load, rows, k, place }
    }

    /// Packs rows as tiles: each step of a tile has four numbers of each of its rows. What lies beyond the rows and beyond k is zero.
    ///
    /// # Safety
    /// The rows are the operand's, which lies within its buffer; `out` has room for whole tiles.
    unsafe fn pack(&self, batch: usize, rows: Range<usize>, out: &mut [u16]) {
        let tiles = out.chunks_exact_mut(self.k.div_ceil(STEP) * TILE_STEP);
        for (tile, first) in tiles.zip(rows.clone().step_by(TILE_EDGE)) {
            let count = TILE_EDGE.min(rows.end - first);
            let at = self.place.map(|(ptr, [b, row, col])| (ptr.wrapping_offset(batch as isize * b + first as isize * row), row, col));
            // SAFETY: the caller's promise.
            unsafe {
                match at {
                    Some((at, row, 1)) => tile_of_rows(at, row, count, self.k, tile),
                    Some((at, 1, col)) if count == TILE_EDGE => tile_of_columns(at, col, self.k, tile),
                    _ => self.gather(batch, first, count, tile),
                }
            }
        }
    }

    /// The same for a tile whose numbers are computed, or lie anywhere.
    ///
    /// # Safety
    /// See `pack`.
    unsafe fn gather(&self, batch: usize, first: usize, count: usize, tile: &mut [u16]) {
        let mut staged = [[0u16; STAGED]; TILE_EDGE];
        let mut wide = [0f32; STAGED];
        for (part, k0) in tile.chunks_mut(STAGED / STEP * TILE_STEP).zip((0..self.k).step_by(STAGED)) {
            let some = STAGED.min(self.k - k0);
            for (r, staged) in staged.iter_mut().enumerate().take(count) {
                let staged = &mut staged[..some];
                match self.place {
                    Some((ptr, [b, row, col])) => {
                        let at = ptr.wrapping_offset(batch as isize * b + (first + r) as isize * row + k0 as isize * col);
                        // SAFETY: the caller's promise.
                        staged.iter_mut().enumerate().for_each(|(i, to)| *to = unsafe { *at.wrapping_offset(i as isize * col) });
                    }
                    None => {
                        let begin = (batch * self.rows + first + r) * self.k + k0;
                        self.task.load(self.load, begin, f32::slice_mut(&mut wide[..some]));
                        to_bf16(&wide[..some], staged);
                    }
                }
            }
            // SAFETY: the rows have so many numbers.
            unsafe { tile_of_rows(staged.as_ptr().cast(), STAGED as isize, count, some, part) };
        }
    }
}

/// Packs a tile of `count` rows of `k` neighbours, which are `row` apart.
///
/// # Safety
/// The rows lie there.
unsafe fn tile_of_rows(at: *const u16, row: isize, count: usize, k: usize, tile: &mut [u16]) {
    for (s, step) in tile.as_chunks_mut::<TILE_STEP>().0.iter_mut().enumerate() {
        let some = STEP.min(k - s * STEP);
        for (r, four) in step.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
            let at = at.wrapping_offset(r as isize * row).wrapping_add(s * STEP);
            // SAFETY: the caller's promise.
            unsafe {
                if r < count && some == STEP {
                    *four = at.cast::<[u16; STEP]>().read_unaligned();
                } else {
                    *four = [0; STEP];
                    std::ptr::copy_nonoverlapping(at, four.as_mut_ptr(), if r < count { some } else { 0 });
                }
            }
        }
    }
}

/// Packs a tile of `TILE_EDGE` rows that lie side by side, `col` apart from one number along k to the next.
///
/// # Safety
/// The rows lie there.
unsafe fn tile_of_columns(at: *const u16, col: isize, k: usize, tile: &mut [u16]) {
    for (s, step) in tile.as_chunks_mut::<TILE_STEP>().0.iter_mut().enumerate() {
        // SAFETY: the caller's promise; NEON is part of the architecture.
        unsafe {
            let mut x = [vdupq_n_u16(0); STEP];
            for (i, x) in x.iter_mut().enumerate().take(k - s * STEP) {
                *x = vld1q_u16(at.wrapping_offset((s * STEP + i) as isize * col));
            }
            // Pairs along k, then quads: each vector ends with the quads of two rows.
            let pairs = |x, y| [vzip1q_u16(x, y), vzip2q_u16(x, y)].map(|pairs| vreinterpretq_u32_u16(pairs));
            let (low, high) = (pairs(x[0], x[1]), pairs(x[2], x[3]));
            for h in 0..2 {
                let quads = [vzip1q_u32(low[h], high[h]), vzip2q_u32(low[h], high[h])];
                for (i, two) in quads.into_iter().enumerate() {
                    vst1q_u16(step.as_mut_ptr().add(16 * h + 8 * i), vreinterpretq_u16_u32(two));
                }
            }
        }
    }
}

/// Tiles of packed rows times tiles of packed columns; rows of sums are `PANEL_COLUMNS` apart.
///
/// # Safety
/// The processor has the instruction; there are so many tiles of `steps` steps, and sums.
#[target_feature(enable = "neon,bf16")]
unsafe fn multiply([rows, columns]: [usize; 2], steps: usize, a: *const u16, b: *const u16, sums: *mut f32) {
    for from in (0..steps).step_by(PART_STEPS) {
        let at = |t: usize| (t * steps + from) * TILE_STEP;
        for (r, c) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
            // SAFETY: the caller's promise.
            unsafe {
                let sums = sums.add(r * TILE_EDGE * PANEL_COLUMNS + c * TILE_EDGE);
                tile(PART_STEPS.min(steps - from), a.add(at(r)), b.add(at(c)), sums, from > 0);
            }
        }
    }
}

/// Adds the products of the 2×4 numbers in `a` with the 2×4 in `b`, row by row, to 2×2 sums.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn bfmmla(mut sums: float32x4_t, a: uint16x8_t, b: uint16x8_t) -> float32x4_t {
    // SAFETY: the instruction computes with these registers only. It has no intrinsic in stable Rust.
    unsafe {
        asm!("bfmmla {sums:v}.4s, {a:v}.8h, {b:v}.8h", sums = inlateout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// One tile: writes its sums over `steps` steps, or adds them to what is there.
///
/// # Safety
/// See `multiply`.
#[target_feature(enable = "neon,bf16")]
unsafe fn tile(steps: usize, mut a: *const u16, mut b: *const u16, sums: *mut f32, add: bool) {
    const PAIRS: usize = TILE_EDGE / 2;
    let mut acc = [[vdupq_n_f32(0.0); PAIRS]; PAIRS];
    // SAFETY: the caller's promise.
    unsafe {
        for _ in 0..steps {
            let [x, y] = [a, b].map(|p| [0, 8, 16, 24].map(|i| vld1q_u16(p.add(i))));
            for (acc, x) in acc.iter_mut().zip(x) {
                for (acc, y) in acc.iter_mut().zip(y) {
                    *acc = bfmmla(*acc, x, y);
                }
            }
            (a, b) = (a.add(TILE_STEP), b.add(TILE_STEP));
        }
        for (i, acc) in acc.iter().enumerate() {
            for (j, two) in acc.as_chunks::<2>().0.iter().enumerate() {
                let [x, y] = two.map(|sums| vreinterpretq_f64_f32(sums));
                for (r, four) in [vzip1q_f64(x, y), vzip2q_f64(x, y)].into_iter().enumerate() {
                    let at = sums.add((2 * i + r) * PANEL_COLUMNS + 4 * j);
                    let four = vreinterpretq_f32_f64(four);
                    vst1q_f32(at, if add { vaddq_f32(vld1q_f32(at), four) } else { four });
                }
            }
        }
    }
}
