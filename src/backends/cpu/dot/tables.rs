//! Formats whose values are indices of a table, with AVX2: 32 lookups are two shuffles of bytes.

// Loops over R rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::avx2::{bytes_in_lanes, sum, with_lanes};
use super::unpack::{bytes_as_floats, load_32};
use super::{Rows, prefetch_stream};
use crate::quant::{Coded, Table};
use core::arch::x86_64::*;

/// `y[r] = sum_k w[r][k] * x[k]`.
///
/// # Safety
/// The processor has the features; `w` holds `y.len()` rows of `x.len()` weights of the format, `row_bytes` apart.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemv(format: &Coded, table: Table, w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32]) {
    let rows = |lanes| {
        let rows = Rows { w: w.as_ptr(), row_bytes, x: lanes, k: x.len() };
        let mut r = 0;
        while r < y.len() {
            // SAFETY: rows r .. r + 4, or r alone, lie inside `w` and `y`; the features are this function's own.
            unsafe {
                if r + 4 <= y.len() {
                    table_rows::<4>(format, table, rows.from(r), y.as_mut_ptr().add(r));
                    r += 4;
                } else {
                    table_rows::<1>(format, table, rows.from(r), y.as_mut_ptr().add(r));
                    r += 1;
                }
            }
        }
    };
    // SAFETY: the features are this function's own, and rows hold whole blocks.
    unsafe { with_lanes(x, rows) }
}

/// Decodes whole blocks.
///
/// # Safety
/// The processor has the features; `bytes` holds exactly the blocks of `out`'s elements.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn decode(format: &Coded, table: Table, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: a table has 16 bytes.
    let values = unsafe { _mm_loadu_si128(table.values.as_ptr().cast()) };
    for (block, y) in bytes.chunks_exact(format.bytes).zip(out.chunks_exact_mut(format.len)) {
        for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let s = _mm256_set1_ps((table.factor)(block, g));
            // SAFETY: the item's 16 bytes lie in the block, the stores in `y`.
            unsafe {
                let [low, high] = looked_up(values, block.as_ptr().add(table.at + 16 * g));
                for (i, q) in bytes_as_floats(low, high).into_iter().enumerate() {
                    _mm256_storeu_ps(y.as_mut_ptr().add(8 * i), _mm256_mul_ps(q, s));
                }
            }
        }
    }
}

/// The values of an item, without its factor: those of low nibbles, then those of high ones.
///
/// # Safety
/// The processor has the features; 16 bytes at `p` exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn looked_up(values: __m128i, p: *const u8) -> [__m128i; 2] {
    // SAFETY: as promised to this function.
    let bytes = unsafe { _mm_loadu_si128(p.cast()) };
    let nibbles = |v: __m128i| _mm_shuffle_epi8(values, _mm_and_si128(v, _mm_set1_epi8(15)));
    [nibbles(bytes), nibbles(_mm_srli_epi16::<4>(bytes))]
}

/// R rows times activations in lanes.
///
/// # Safety
/// As for [`gemv`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn table_rows<const R: usize>(format: &Coded, table: Table, rows: Rows, y: *mut f32) {
    let mut acc = [_mm256_setzero_ps(); R];
    // SAFETY: a table has 16 bytes; block b of row r and its activations exist.
    unsafe {
        // Values are signed; 128 more is unsigned.
        let values = _mm_xor_si128(_mm_loadu_si128(table.values.as_ptr().cast()), _mm_set1_epi8(-128));
        for b in 0..rows.k / format.len {
            let blocks: [&[u8]; R] =
                std::array::from_fn(|r| std::slice::from_raw_parts(rows.w.add(r * rows.row_bytes + b * format.bytes), format.bytes));
            prefetch_stream::<R>(rows.w, b * format.bytes, format.bytes);
            for g in 0..format.len / 32 {
                let x = load_32(rows.x.add(b * format.len + 32 * g));
                for r in 0..R {
                    let [low, high] = looked_up(values, blocks[r].as_ptr().add(table.at + 16 * g));
                    let q = bytes_in_lanes(_mm256_set_m128i(high, low), 128);
                    let first = _mm256_fmadd_ps(q[1], x[1], _mm256_mul_ps(q[0], x[0]));
                    let all = _mm256_fmadd_ps(q[3], x[3], _mm256_fmadd_ps(q[2], x[2], first));
                    acc[r] = _mm256_fmadd_ps(all, _mm256_set1_ps((table.factor)(blocks[r], g)), acc[r]);
                }
            }
        }
        for r in 0..R {
            *y.add(r) = sum(acc[r]);
        }
    }
}
