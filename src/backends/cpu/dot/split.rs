//! Block formats times activations as sums of integers, as accurate as floats: the activations of a block become integers of 24 bits with one
//! scale, kept as three signed bytes each (`x = scale · (65536 high + 256 middle + low)`). Sums of bytes times quants are exact.
//!
//! An activation is off by 2⁻²⁴ of the largest in its block, besides the roundings that f32 makes anyway. Rows with activations that are not
//! finite, or blocks whose largest is almost zero, are left to the kernels for floats.

// Loops over rows and parts index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::unpack_neon::*;
use super::{Path, Rows};
use crate::dtype::DType;
use crate::quant::with_format;
use core::arch::aarch64::*;
use core::arch::asm;
use std::cell::RefCell;

/// The largest integer, a little below the largest that three signed bytes hold, so that rounding stays below that.
const MAX_THREE_BYTES: f32 = 8_355_000.0;
/// Blocks whose largest activation is smaller, but not zero, would have a scale without all of its bits.
const SMALLEST: f32 = 1e-25;

/// One row of activations split into bytes; or two rows, of which eight bytes of one alternate with eight of the other.
#[derive(Default)]
struct Split {
    /// High, middle and low bytes.
    parts: [Vec<i8>; 3],
    /// Of each block, and the sums of each group's activations; of two rows alternately.
    scales: Vec<f32>,
    sums: Vec<f32>,
}

impl Split {
    /// Room for `lanes` rows of `k` activations.
    fn resize(&mut self, k: usize, len: usize, group: usize, lanes: usize) {
        self.parts.iter_mut().for_each(|p| {
            p.clear();
            p.resize(k * lanes, 0)
        });
        for (v, n) in [(&mut self.scales, k / len), (&mut self.sums, k / group)] {
            v.clear();
            v.resize(n * lanes, 0.0);
        }
    }

    /// Splits a row, as number `lane` of `lanes`. `false` where floats have to be used.
    fn row(&mut self, x: &[f32], len: usize, group: usize, [lane, lanes]: [usize; 2]) -> bool {
        for (b, block) in x.chunks_exact(len).enumerate() {
            let most = block.iter().fold(0f32, |m, &x| if x.abs() <= m { m } else { x.abs() });
            // NaN passes the fold and fails here.
            if !(most < f32::INFINITY) || (most > 0.0 && most < SMALLEST) || block.iter().any(|x| x.is_nan()) {
                return false;
            }
            let inverse = if most > 0.0 { MAX_THREE_BYTES / most } else { 0.0 };
            self.scales[b * lanes + lane] = most / MAX_THREE_BYTES;
            for (g, values) in block.chunks_exact(group).enumerate() {
                self.sums[(b * (len / group) + g) * lanes + lane] = values.iter().sum();
            }
            for (i, eight) in block.as_chunks::<8>().0.iter().enumerate() {
                let at = ((b * len / 8 + i) * lanes + lane) * 8;
                for j in 0..8 {
                    let q = (eight[j] * inverse).round_ties_even() as i32;
                    let low = q as i8;
                    let above = (q - low as i32) >> 8;
                    let middle = above as i8;
                    self.parts[0][at + j] = ((above - middle as i32) >> 8) as i8;
                    self.parts[1][at + j] = middle;
                    self.parts[2][at + j] = low;
                }
            }
        }
        true
    }
}

/// Adds the products of 16 pairs of bytes to four sums.
trait Dot {
    /// # Safety
    /// The processor has the instruction.
    unsafe fn dot(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t;
}

/// With what NEON always had.
struct Widening;
impl Dot for Widening {
    #[inline(always)]
    unsafe fn dot(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vpadalq_s16(vpadalq_s16(sums, vmull_s8(vget_low_s8(a), vget_low_s8(b))), vmull_high_s8(a, b)) }
    }
}

/// With `sdot`, whose intrinsic is not stable yet.
struct Sdot;
impl Dot for Sdot {
    #[inline(always)]
    unsafe fn dot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's promise; the instruction uses registers only.
        unsafe {
            asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sums, in(vreg) a, in(vreg) b, options(pure, nomem, nostack, preserves_flags))
        }
        sums
    }
}

/// Adds the products of a's two rows of eight bytes with b's two: `[a0·b0, a0·b1, a1·b0, a1·b1]`. The intrinsic is not stable yet.
#[inline(always)]
unsafe fn smmla(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller promises the instruction, which uses registers only.
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sums, in(vreg) a, in(vreg) b, options(pure, nomem, nostack, preserves_flags))
    }
    sums
}

/// `65536 high + 256 middle + low`
#[inline(always)]
fn combined([high, middle, low]: [int32x4_t; 3]) -> float32x4_t {
    // SAFETY: NEON is part of the architecture.
    unsafe {
        let sum = vfmaq_n_f32(vcvtq_f32_s32(low), vcvtq_f32_s32(middle), 256.0);
        vfmaq_n_f32(sum, vcvtq_f32_s32(high), 65536.0)
    }
}

/// R rows of weights times one row of activations.
#[inline(always)]
unsafe fn rows_body<D: Dot, const Q: usize, const R: usize>(rows: Rows, x: &Split, y: *mut f32) {
    let Shape { bytes, len, group, whole, min } = const { shape(Q) };
    // SAFETY: block b of every row, its activations and their sums exist.
    unsafe {
        let zero = vdupq_n_s32(0);
        let mut acc = [vdupq_n_f32(0.0); R];
        for b in 0..rows.k / len {
            let block = |r: usize| rows.w.add(r * rows.row_bytes + b * bytes);
            let all: [BlockScales; R] = std::array::from_fn(|r| scales::<Q>(block(r)));
            let mut sums = [[zero; 3]; R];
            for run in 0..len / 32 {
                let x = [0, 1, 2].map(|part| [0, 16].map(|i| vld1q_s8(x.parts[part].as_ptr().add(b * len + run * 32 + i))));
                for r in 0..R {
                    let q = quants::<Q>(block(r), run);
                    for part in 0..3 {
                        let sum = &mut sums[r][part];
                        if whole {
                            *sum = D::dot(D::dot(*sum, q[0], x[part][0]), q[1], x[part][1]);
                        } else if group == 32 {
                            *sum = vmlaq_n_s32(*sum, D::dot(D::dot(zero, q[0], x[part][0]), q[1], x[part][1]), all[r].s[run]);
                        } else {
                            for i in 0..2 {
                                *sum = vmlaq_n_s32(*sum, D::dot(zero, q[i], x[part][i]), all[r].s[run * 2 + i]);
                            }
                        }
                    }
                }
            }
            for r in 0..R {
                acc[r] = vfmaq_n_f32(acc[r], combined(sums[r]), all[r].d * x.scales[b]);
                if min {
                    let groups = len / group;
                    let of = &x.sums[b * groups..][..groups];
                    let mins = if groups == 1 {
                        vsetq_lane_f32::<0>(all[r].m[0] * of[0], vdupq_n_f32(0.0))
                    } else {
                        let four = |sum, g| vfmaq_f32(sum, vld1q_f32(all[r].m.as_ptr().add(g)), vld1q_f32(of.as_ptr().add(g)));
                        (0..groups).step_by(4).fold(vdupq_n_f32(0.0), four)
                    };
                    acc[r] = vfmsq_n_f32(acc[r], mins, all[r].dmin);
                }
            }
        }
        for r in 0..R {
            *y.add(r) = vaddvq_f32(acc[r]);
        }
    }
}

/// Two rows of weights (the second as far from the first as `rows` says) times two rows of activations:
/// `[w0·x0, w0·x1, w1·x0, w1·x1]`.
#[target_feature(enable = "neon,i8mm")]
unsafe fn pair<const Q: usize>(rows: Rows, x: &Split) -> [f32; 4] {
    let Shape { bytes, len, group, whole, min } = const { shape(Q) };
    // SAFETY: block b of both rows, the activations and their sums exist.
    unsafe {
        let zero = vdupq_n_s32(0);
        let mut acc = vdupq_n_f32(0.0);
        // A number of each row of weights times two of the activations.
        let times = |of: [f32; 2], x: *const f32| {
            let x = vld1_f32(x);
            vcombine_f32(vmul_n_f32(x, of[0]), vmul_n_f32(x, of[1]))
        };
        for b in 0..rows.k / len {
            let block = |r: usize| rows.w.add(r * rows.row_bytes + b * bytes);
            let all = [scales::<Q>(block(0)), scales::<Q>(block(1))];
            let mut sums = [zero; 3];
            for run in 0..len / 32 {
                let q = [quants::<Q>(block(0), run), quants::<Q>(block(1), run)];
                let both = |i: usize| {
                    let [a, b] = [q[0][i], q[1][i]].map(|q| vreinterpretq_s64_s8(q));
                    [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))]
                };
                let w = [both(0), both(1)];
                let scale = |g: usize| vcombine_s32(vdup_n_s32(all[0].s[g]), vdup_n_s32(all[1].s[g]));
                for part in 0..3 {
                    let at = x.parts[part].as_ptr().add((b * len + run * 32) * 2);
                    // 16 activations of both rows.
                    let some = |sum, i: usize| smmla(smmla(sum, w[i][0], vld1q_s8(at.add(32 * i))), w[i][1], vld1q_s8(at.add(32 * i + 16)));
                    let sum = &mut sums[part];
                    if whole {
                        *sum = some(some(*sum, 0), 1);
                    } else if group == 32 {
                        *sum = vmlaq_s32(*sum, some(some(zero, 0), 1), scale(run));
                    } else {
                        *sum = vmlaq_s32(*sum, some(zero, 0), scale(run * 2));
                        *sum = vmlaq_s32(*sum, some(zero, 1), scale(run * 2 + 1));
                    }
                }
            }
            acc = vfmaq_f32(acc, combined(sums), times([all[0].d, all[1].d], x.scales.as_ptr().add(b * 2)));
            if min {
                for g in 0..len / group {
                    let m = [all[0].dmin * all[0].m[g], all[1].dmin * all[1].m[g]];
                    acc = vsubq_f32(acc, times(m, x.sums.as_ptr().add((b * (len / group) + g) * 2)));
                }
            }
        }
        let mut out = [0.0; 4];
        vst1q_f32(out.as_mut_ptr(), acc);
        out
    }
}

/// # Safety
/// See `block_products`.
#[target_feature(enable = "neon")]
unsafe fn widening_rows<const Q: usize, const R: usize>(rows: Rows, x: &Split, y: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { rows_body::<Widening, Q, R>(rows, x, y) }
}

/// # Safety
/// See `block_products`.
#[target_feature(enable = "neon,dotprod")]
unsafe fn sdot_rows<const Q: usize, const R: usize>(rows: Rows, x: &Split, y: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { rows_body::<Sdot, Q, R>(rows, x, y) }
}

/// `y[i][r] = sum_k w[r][k] * x[i][k]` for a block format; see `gemv_multi`. `false`, and nothing is written, where floats have to be used.
///
/// # Safety
/// The processor has the path, which is not the plain one; `w` holds the rows of weights, of `k` each, and `x` m rows of k.
pub(super) unsafe fn block_products(
    path: Path,
    dtype: DType,
    w: &[u8],
    row_bytes: usize,
    x: &[f32],
    y: &mut [f32],
    [m, ldy]: [usize; 2],
) -> bool {
    thread_local! {
        static SPLIT: RefCell<Vec<Split>> = const { RefCell::new(Vec::new()) };
    }
    let Some(format) = dtype.format().and_then(|f| f.linear()) else { return false };
    let (k, rows, lanes) = (x.len() / m, y.len() - (m - 1) * ldy, if matches!(path, Path::I8mm | Path::Bf16) && m > 1 { 2 } else { 1 });
    SPLIT.with_borrow_mut(|splits| {
        splits.resize_with(splits.len().max(m.div_ceil(lanes)), Split::default);
        for i in 0..m {
            let split = &mut splits[i / lanes];
            if i % lanes == 0 {
                split.resize(k, format.len, format.group(), lanes);
            }
            if !split.row(&x[i * k..][..k], format.len, format.group(), [i % lanes, lanes]) {
                return false;
            }
        }
        let all = Rows { w: w.as_ptr(), row_bytes, x: x.as_ptr(), k };
        let splits = &splits[..m.div_ceil(lanes)];
        with_format!(dtype, Q => {
            // SAFETY: the caller's promise; rows r .. r + step lie inside `w` and each row of `y`.
            unsafe {
                if lanes == 2 { pairs::<Q>(all, splits, y, [m, rows, ldy]) } else { singles::<Q>(path, all, splits, y, [rows, ldy]) }
            }
        }, _ => ());
        true
    })
}

/// Every row of weights times each row of activations.
unsafe fn singles<const Q: usize>(path: Path, all: Rows, splits: &[Split], y: &mut [f32], [rows, ldy]: [usize; 2]) {
    let mut r = 0;
    while r < rows {
        let step = if r + 4 <= rows { 4 } else { 1 };
        for (i, x) in splits.iter().enumerate() {
            let y = y[i * ldy + r..][..step].as_mut_ptr();
            // SAFETY: the caller's promise.
            unsafe {
                match (path == Path::Neon, step) {
                    (true, 4) => widening_rows::<Q, 4>(all.from(r), x, y),
                    (true, _) => widening_rows::<Q, 1>(all.from(r), x, y),
                    (false, 4) => sdot_rows::<Q, 4>(all.from(r), x, y),
                    (false, _) => sdot_rows::<Q, 1>(all.from(r), x, y),
                }
            }
        }
        r += step;
    }
}

/// Pairs of rows of weights times pairs of rows of activations.
unsafe fn pairs<const Q: usize>(all: Rows, splits: &[Split], y: &mut [f32], [m, rows, ldy]: [usize; 3]) {
    for r in (0..rows).step_by(2) {
        let two = (rows - r).min(2);
        // A last row alone stands for both.
        let at = Rows { row_bytes: if two == 2 { all.row_bytes } else { 0 }, ..all.from(r) };
        for (i, x) in splits.iter().enumerate() {
            // SAFETY: the caller's promise.
            let sums = unsafe { pair::<Q>(at, x) };
            for (j, sum) in sums.into_iter().enumerate() {
                let (row, of) = (j / 2, i * 2 + j % 2);
                if row < two && of < m {
                    y[of * ldy + r + row] = sum;
                }
            }
        }
    }
}
