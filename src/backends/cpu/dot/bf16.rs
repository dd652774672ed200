//! Rows of bf16 weights times rows of bf16 activations by `bfdot`, which multiplies eight numbers with eight others.

// Loops over rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use crate::backends::cpu::span::to_bf16;
use core::arch::aarch64::*;
use core::arch::asm;
use std::cell::RefCell;

/// Rows of weights that are taken together.
const BLOCK: usize = 8;

/// Lane `i` is `sum[i] + (a[2i] · b[2i] + a[2i + 1] · b[2i + 1])`. Both additions round to odd, and what is subnormal counts as zero.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn bfdot(mut sum: float32x4_t, a: uint16x8_t, b: uint16x8_t) -> float32x4_t {
    // SAFETY: the instruction computes with these registers only. It has no intrinsic in stable Rust.
    unsafe {
        asm!("bfdot {sum:v}.4s, {a:v}.8h, {b:v}.8h", sum = inlateout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `y[i][r] = sum_k w[r][k] * x[i][k]` for m rows of x, whose numbers bf16 holds, and rows of y `ldy` apart. A sum has the same bits
/// whatever the numbers of rows are.
///
/// # Safety
/// The processor has the instruction; `w` holds the rows of weights, of `x.len() / m` each, `row_bytes` apart.
pub(super) unsafe fn products(w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32], [m, ldy]: [usize; 2]) {
    thread_local! {
        static ROUNDED: RefCell<Vec<u16>> = const { RefCell::new(Vec::new()) };
    }
    let (k, rows) = (x.len() / m, y.len() - (m - 1) * ldy);
    ROUNDED.with_borrow_mut(|rounded| {
        rounded.resize(x.len(), 0);
        to_bf16(x, rounded);
        let mut r = 0;
        while r < rows {
            let block = if rows - r >= BLOCK { BLOCK } else { 1 };
            let mut i = 0;
            while i < m {
                let some = if m - i >= 4 { 4 } else { 1 };
                // SAFETY: rows r .. r + block lie inside `w`, i .. i + some inside `x`, and both inside `y`.
                unsafe {
                    let (w, x, y) = (w.as_ptr().add(r * row_bytes), rounded.as_ptr().add(i * k), y.as_mut_ptr().add(i * ldy + r));
                    match (block, some) {
                        (BLOCK, 4) => {
                            tile::<4, 4>(w, row_bytes, x, k, y, ldy);
                            tile::<4, 4>(w.add(4 * row_bytes), row_bytes, x, k, y.add(4), ldy);
                        }
                        (BLOCK, _) => tile::<BLOCK, 1>(w, row_bytes, x, k, y, ldy),
                        (_, 4) => tile::<1, 4>(w, row_bytes, x, k, y, ldy),
                        _ => tile::<1, 1>(w, row_bytes, x, k, y, ldy),
                    }
                }
                i += some;
            }
            r += block;
        }
    });
}

/// The first `n` of eight numbers at `p`, the others zero.
///
/// # Safety
/// The numbers lie there.
unsafe fn first(p: *const u8, n: usize) -> uint16x8_t {
    let mut eight = [0u16; 8];
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(p, eight.as_mut_ptr().cast(), 2 * n);
        vld1q_u16(eight.as_ptr())
    }
}

/// R rows of weights times M rows of x.
///
/// # Safety
/// See `products`.
#[target_feature(enable = "neon,bf16")]
unsafe fn tile<const R: usize, const M: usize>(w: *const u8, row_bytes: usize, x: *const u16, k: usize, y: *mut f32, ldy: usize) {
    let (whole, left) = (k / 8 * 8, k % 8);
    // SAFETY: every access lies in the first k elements of a row.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); M]; R];
        for i in (0..whole).step_by(8) {
            let mut right = [vdupq_n_u16(0); M];
            for m in 0..M {
                right[m] = vld1q_u16(x.add(m * k + i));
            }
            for r in 0..R {
                let left = vreinterpretq_u16_u8(vld1q_u8(w.add(r * row_bytes + 2 * i)));
                for m in 0..M {
                    sums[r][m] = bfdot(sums[r][m], left, right[m]);
                }
            }
        }
        for r in 0..R {
            for m in 0..M {
                if left > 0 {
                    let (a, b) = (first(w.add(r * row_bytes + 2 * whole), left), first(x.add(m * k + whole).cast(), left));
                    sums[r][m] = bfdot(sums[r][m], a, b);
                }
                *y.add(m * ldy + r) = vaddvq_f32(sums[r][m]);
            }
        }
    }
}
