//! Operands of a product brought into the order in which tiles read them: rows of numbers, and panels of columns.

use super::tile::{InPlace, MAX_K_STEPS, ROW_PADDING, Stored};
use crate::backends::cpu::operand::stored;
use crate::backends::cpu::span::to_bf16;
use crate::backends::cpu::{dot, path, transpose};
use crate::dtype::DType;
use crate::plan::{Task, Value};
use core::arch::x86_64::*;

/// Rows that are packed together before they are transposed.
pub(super) const TRANSPOSED_ROWS: usize = 16;
/// The most panels that are packed together: their lines of the operand lie side by side, in the same pages.
pub(super) const MAX_PANELS: usize = 16;

/// One operand: `[batch, rows, k]`.
pub(super) struct Side<'a> {
    task: &'a dyn Task,
    load: usize,
    pub rows: usize,
    k: usize,
    plain: Option<Plain>,
    /// Whether it is computed in f32 and rounded to bf16 in the end.
    rounded: bool,
}

/// Numbers that are computed together, to be packed as bf16.
const ROUNDED_TOGETHER: usize = 1024;

/// The form of packed panels.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    /// Whether the numbers are pairs of bf16.
    pub pairs: bool,
    /// Columns of a panel: 16 or 32.
    pub width: usize,
    /// Steps of k.
    pub steps: usize,
}

/// An operand in memory as it is: the first element, and the distance of batches, rows and neighbours along k.
#[derive(Clone, Copy)]
struct Plain {
    dtype: DType,
    /// Elements of a block of the dtype, and its bytes: looked up once, since `at` is called for every step of k.
    block: [isize; 2],
    ptr: *const u8,
    batch: isize,
    row: isize,
    col: isize,
}

impl Plain {
    fn at(&self, batch: usize, row: usize, col: usize) -> *const u8 {
        let element = batch as isize * self.batch + row as isize * self.row + col as isize * self.col;
        let [elements, bytes] = self.block;
        self.ptr.wrapping_offset(if elements == 1 { element * bytes } else { element / elements * bytes })
    }
}

impl<'a> Side<'a> {
    pub(super) fn of(task: &'a dyn Task, load: usize) -> Side<'a> {
        let operand = &task.step().loads[load];
        let plain = || {
            let known = |d: DType| matches!(d, DType::F32 | DType::F16 | DType::BF16) || d.is_block();
            let source = stored(operand).filter(|s| known(s.dtype))?;
            let st = source.layout.reshape(operand.shape)?.strides;
            let (raw, size) = (task.raw_load(load), source.dtype.block_bytes());
            let one = |n: usize, stride: isize| if operand.shape[n] == 1 { 1 } else { stride };
            let block = source.dtype.block();
            // Rows of packed formats are whole blocks.
            let whole = |n: isize| n.unsigned_abs().is_multiple_of(block);
            let rows = whole(st[0]) && (operand.shape[1] == 1 || whole(st[1])) && st[2] == 1 && whole(operand.shape[2] as isize);
            if block > 1 && !(rows && raw.offset.is_multiple_of(block)) {
                return None;
            }
            let ptr = raw.ptr.wrapping_add(raw.offset / block * size).cast_const();
            let block = [block as isize, size as isize];
            Some(Plain { dtype: source.dtype, block, ptr, batch: st[0], row: one(1, st[1]), col: one(2, st[2]) })
        };
        let plain = plain();
        let rounded = plain.is_none() && operand.program.rounds_to_bf16();
        Side { task, load, rows: operand.shape[1], k: operand.shape[2], plain, rounded }
    }

    /// Whether rows and panels of bf16 pairs can be made.
    pub(super) fn has_pairs(&self) -> bool {
        self.rounded || self.plain.is_some_and(|p| p.dtype == DType::BF16 && (p.col == 1 || p.row == 1))
    }

    /// What it costs to pack rows, and to pack panels, per number, in the time of copying one.
    pub(super) fn costs(&self) -> (usize, usize) {
        match self.plain {
            Some(p) if p.row == 1 && p.col != 1 => (if p.dtype == DType::F32 { 3 } else { 8 }, 1),
            Some(p) if p.dtype == DType::F32 && p.col == 1 => (1, 3),
            _ => (2, 4),
        }
    }

    /// The rows from `first` on and their distance, where tiles may read them as they lie: not where they would share a few cache sets.
    pub(super) fn rows_in_place(&self, pairs: bool, batch: usize, first: usize) -> Option<(*const f32, usize)> {
        let p = self.plain.filter(|p| p.col == 1 && p.row > 0)?;
        let bytes = p.row as usize * p.dtype.block_bytes();
        let at = p.at(batch, first, 0);
        // Pairs are read as one number: none may begin with the second half of one.
        let whole = [bytes, at.addr(), p.batch.unsigned_abs() * 2, self.k * 2].iter().all(|n| n.is_multiple_of(4));
        let fits = if pairs { p.dtype == DType::BF16 && whole } else { p.dtype == DType::F32 };
        (fits && !bytes.is_multiple_of(4096)).then_some((at.cast(), bytes / 4))
    }

    /// The columns from `first` on as they lie, where they lie side by side.
    pub(super) fn columns_in_place(&self, batch: usize, first: usize) -> Option<InPlace> {
        let p = self.plain.filter(|p| p.row == 1 && p.col > 1)?;
        let stored = match p.dtype {
            DType::F32 => Stored::F32,
            DType::F16 => Stored::F16,
            DType::BF16 => Stored::Bf16,
            _ => return None,
        };
        Some(InPlace { at: p.at(batch, first, 0), stored, step: p.col as usize * stored.bytes() })
    }

    /// Numbers that the buffer of `pack_panels` must hold.
    pub(super) fn buffer(&self) -> usize {
        TRANSPOSED_ROWS * (MAX_K_STEPS + ROW_PADDING)
    }

    /// Where the rows from `first` on begin, and the bytes of one, where they follow each other in memory.
    pub(super) fn rows_in_order(&self, batch: usize, first: usize) -> Option<(*const u8, usize)> {
        let p = self.plain.filter(|p| p.col == 1 && p.row == self.k as isize)?;
        Some((p.at(batch, first, 0), self.k / p.dtype.block() * p.dtype.block_bytes()))
    }

    /// Rows `first..first + count`, steps `from..from + steps`, as floats or pairs, `row` numbers apart.
    ///
    /// # Safety
    /// `out` has room for the rows; the operand lies within its buffer.
    pub(super) unsafe fn pack_rows(
        &self,
        pairs: bool,
        batch: usize,
        [first, count]: [usize; 2],
        [from, steps]: [usize; 2],
        out: *mut f32,
        row: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.plain {
                Some(p) if pairs => {
                    let (k0, k) = (2 * from, (2 * steps).min(self.k - 2 * from));
                    let (out, row) = (out.cast::<u16>(), 2 * row);
                    if p.col == 1 {
                        for r in 0..count {
                            std::ptr::copy_nonoverlapping(p.at(batch, first + r, k0).cast(), out.add(r * row), k);
                        }
                    } else {
                        transpose(2, p.at(batch, first, k0), p.col, out.cast(), row as isize, k, count);
                    }
                    if k % 2 == 1 {
                        (0..count).for_each(|r| *out.add(r * row + k) = 0);
                    }
                }
                None if pairs => {
                    let (k0, k) = (2 * from, (2 * steps).min(self.k - 2 * from));
                    let mut values = [0f32; ROUNDED_TOGETHER];
                    for r in 0..count {
                        let (begin, out) = ((batch * self.rows + first + r) * self.k + k0, out.add(r * row).cast::<u16>());
                        for at in (0..k).step_by(ROUNDED_TOGETHER) {
                            let values = &mut values[..ROUNDED_TOGETHER.min(k - at)];
                            self.task.load(self.load, begin + at, f32::slice_mut(values));
                            to_bf16(values, std::slice::from_raw_parts_mut(out.add(at), values.len()));
                        }
                        if k % 2 == 1 {
                            *out.add(k) = 0;
                        }
                    }
                }
                Some(p) if p.dtype == DType::F32 && p.col == 1 => {
                    for r in 0..count {
                        std::ptr::copy_nonoverlapping(p.at(batch, first + r, from).cast(), out.add(r * row), steps);
                    }
                }
                Some(p) if p.dtype == DType::F32 && p.row == 1 => {
                    transpose(4, p.at(batch, first, from), p.col, out.cast(), row as isize, steps, count);
                }
                Some(p) if p.dtype != DType::F32 && p.col == 1 => {
                    for r in 0..count {
                        let bytes = steps / p.dtype.block() * p.dtype.block_bytes();
                        let from = std::slice::from_raw_parts(p.at(batch, first + r, from), bytes);
                        dot::dequantize(path::current(), p.dtype, from, std::slice::from_raw_parts_mut(out.add(r * row), steps));
                    }
                }
                _ => {
                    for r in 0..count {
                        let row = std::slice::from_raw_parts_mut(out.add(r * row), steps);
                        self.task.load(self.load, (batch * self.rows + first + r) * self.k + from, f32::slice_mut(row));
                    }
                }
            }
        }
    }

    /// Panels of columns: rows `first..first + count` of the operand side by side, the rest of the last panel zero, all steps. `buffer` holds
    /// [`TRANSPOSED_ROWS`] rows of `MAX_K_STEPS + ROW_PADDING`.
    ///
    /// # Safety
    /// `out` has room for the panels; the operand lies within its buffer; the processor has AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn pack_panels(&self, form: Panels, batch: usize, [first, count]: [usize; 2], out: *mut f32, buffer: *mut f32) {
        let Panels { pairs, width, steps } = form;
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(p) = self.plain
                && p.row == 1
                && p.col != 1
                && !p.dtype.is_block()
            {
                return self.widen(p, form, batch, [first, count], out);
            }
            for (n, done) in (0..count).step_by(width).enumerate() {
                let (out, first, count) = (out.add(n * steps * width), first + done, width.min(count - done));
                if count < width {
                    out.write_bytes(0, steps * width);
                }
                match self.plain {
                    Some(p) if p.dtype == DType::F32 && p.col == 1 && !pairs => {
                        transpose(4, p.at(batch, first, 0), p.row, out.cast(), width as isize, count, steps);
                    }
                    _ => {
                        for r in (0..count).step_by(TRANSPOSED_ROWS) {
                            let (rows, row) = (TRANSPOSED_ROWS.min(count - r), MAX_K_STEPS + ROW_PADDING);
                            for s in (0..steps).step_by(MAX_K_STEPS) {
                                let some = MAX_K_STEPS.min(steps - s);
                                self.pack_rows(pairs, batch, [first + r, rows], [s, some], buffer, row);
                                transpose(4, buffer.cast(), row as isize, out.add(s * width + r).cast(), width as isize, rows, some);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Panels of columns that lie side by side in memory.
    ///
    /// # Safety
    /// See `pack_panels`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn widen(&self, p: Plain, form: Panels, batch: usize, [first, count]: [usize; 2], out: *mut f32) {
        let Panels { pairs, width, steps } = form;
        // Each vector of the panels: where it goes, and its lanes that exist.
        let mut vectors = [(out, 0u16); 2 * MAX_PANELS];
        let vectors = &mut vectors[..count.div_ceil(width) * width / 16];
        for (v, (to, mask)) in vectors.iter_mut().enumerate() {
            let (panel, lane) = (v * 16 / width, v * 16 % width);
            *to = to.wrapping_add(panel * steps * width + lane);
            *mask = ((1u32 << count.saturating_sub(v * 16).min(16)) - 1) as u16;
        }
        let at = |step: usize| p.at(batch, first, step);
        macro_rules! each {
            ($step:ident, [$($row:ident = $k:expr),+], $lane:ident, $mask:ident => $load:expr) => {
                for $step in 0..steps {
                    $(let $row = at($k);)+
                    for (v, &(to, $mask)) in vectors.iter().enumerate() {
                        let $lane = v * 16;
                        // SAFETY: masks keep the reads inside the operand; there is room for whole panels.
                        unsafe { _mm512_storeu_ps(to.add($step * width), $load) }
                    }
                }
            };
        }
        let halves = |at: *const u8, lane: usize, mask: u16| {
            // SAFETY: as above.
            unsafe { _mm256_maskz_loadu_epi16(mask, at.cast::<i16>().wrapping_add(lane)) }
        };
        let wide = |at: *const u8, lane: usize, mask: u16| _mm512_cvtepu16_epi32(halves(at, lane, mask));
        if pairs && width == 32 {
            // 32 columns of two steps, whose numbers take turns.
            let low = _mm512_set_epi16(
                47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0,
            );
            let high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
            for s in 0..steps {
                let [even, odd] = [2 * s, 2 * s + 1].map(|k| (at(k).cast::<i16>(), k < self.k));
                for (v, to) in vectors.chunks_exact(2).enumerate() {
                    let mask = to[0].1 as u32 | (to[1].1 as u32) << 16;
                    // SAFETY: as above.
                    unsafe {
                        let x = _mm512_maskz_loadu_epi16(mask, even.0.wrapping_add(v * 32));
                        let y = _mm512_maskz_loadu_epi16(if odd.1 { mask } else { 0 }, odd.0.wrapping_add(v * 32));
                        _mm512_storeu_si512(to[0].0.add(s * 32).cast(), _mm512_permutex2var_epi16(x, low, y));
                        _mm512_storeu_si512(to[1].0.add(s * 32).cast(), _mm512_permutex2var_epi16(x, high, y));
                    }
                }
            }
            return;
        }
        match p.dtype {
            DType::F32 => each!(s, [row = s], lane, mask => _mm512_maskz_loadu_ps(mask, row.cast::<f32>().wrapping_add(lane))),
            DType::F16 => each!(s, [row = s], lane, mask => _mm512_cvtph_ps(halves(row, lane, mask))),
            _ if pairs => each!(s, [even = 2 * s, odd = 2 * s + 1], lane, mask => {
                // The last of an odd number has no other half.
                let high = wide(odd, lane, if 2 * s + 1 < self.k { mask } else { 0 });
                _mm512_castsi512_ps(_mm512_or_si512(wide(even, lane, mask), _mm512_slli_epi32::<16>(high)))
            }),
            _ => each!(s, [row = s], lane, mask => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide(row, lane, mask)))),
        }
    }
}
