//! Block formats times activations of int8 with AVX2: one instruction multiplies 32 pairs of bytes.

// Loops over R rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::super::avx2::{RowScales, sum};
use super::super::unpack::{Shape, bytes_as_floats, load_32, quants, shape};
use super::super::{Rows, prefetch_stream};
use super::{GROUP, Rounded, scale_of};
use crate::dtype::DType;
use crate::quant::{LINEAR, with_format};
use core::arch::x86_64::*;

/// Rows of activations up to which integers cost less than weights that are decoded once.
const MAX_ROWS: usize = 4;

/// Rounds groups of activations. `false` where one of them is not finite.
///
/// # Safety
/// The processor has the features; there are as many integers as activations, and a scale for each whole group.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn round(x: &[f32], integers: &mut [i8], scales: &mut [f32]) -> bool {
    let mut not_finite = _mm256_setzero_ps();
    for ((group, integers), scale) in x.as_chunks::<GROUP>().0.iter().zip(integers.as_chunks_mut::<GROUP>().0).zip(scales) {
        // SAFETY: 32 floats and 32 bytes.
        unsafe {
            let x = load_32(group.as_ptr());
            let size = |x: __m256| _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
            let most = _mm256_max_ps(_mm256_max_ps(size(x[0]), size(x[1])), _mm256_max_ps(size(x[2]), size(x[3])));
            let most = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps::<1>(most));
            let most = _mm_max_ps(most, _mm_movehl_ps(most, most));
            let [of, inverse] = scale_of(_mm_cvtss_f32(_mm_max_ss(most, _mm_shuffle_ps::<1>(most, most))));
            *scale = of;
            for x in x {
                not_finite = _mm256_fmadd_ps(x, _mm256_setzero_ps(), not_finite);
            }
            let integer = |x: __m256| _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(inverse)));
            let (low, high) = (_mm256_packs_epi32(integer(x[0]), integer(x[1])), _mm256_packs_epi32(integer(x[2]), integer(x[3])));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
            _mm256_storeu_si256(integers.as_mut_ptr().cast(), bytes);
        }
    }
    sum(not_finite) == 0.0
}

/// Groups of integers times their scales.
///
/// # Safety
/// The processor has the features; `out` is as long as the integers, and each group has a scale.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn floats(integers: &[i8], scales: &[f32], out: &mut [f32]) {
    let groups = integers.as_chunks::<GROUP>().0.iter().zip(scales);
    for (out, (integers, &scale)) in out.as_chunks_mut::<GROUP>().0.iter_mut().zip(groups) {
        // SAFETY: 32 bytes and 32 floats.
        unsafe {
            let q = _mm256_loadu_si256(integers.as_ptr().cast());
            let floats = bytes_as_floats(_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
            for (i, q) in floats.into_iter().enumerate() {
                _mm256_storeu_ps(out.as_mut_ptr().add(8 * i), _mm256_mul_ps(q, _mm256_set1_ps(scale)));
            }
        }
    }
}

/// `y[i][r] = sum_k w[r][k] * x[i][k]`. `false`, and nothing is written, for other dtypes and more rows.
///
/// # Safety
/// The processor has the features; `w` holds the rows of weights, of as many as each of x's m rows has.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn products(dtype: DType, w: &[u8], row_bytes: usize, x: &Rounded, y: &mut [f32], [m, ldy]: [usize; 2]) -> bool {
    if m > MAX_ROWS {
        return false;
    }
    let (k, rows) = (x.integers.len() / m, y.len() - (m - 1) * ldy);
    let all = Rows { w: w.as_ptr(), row_bytes, x: x.scales.as_ptr(), k };
    // SAFETY: the caller's promise.
    with_format!(dtype, Q => unsafe {
        match m {
            1 => rows_of::<Q, 4, 1>(all, x, y.as_mut_ptr(), [rows, ldy]),
            2 => rows_of::<Q, 2, 2>(all, x, y.as_mut_ptr(), [rows, ldy]),
            3 => rows_of::<Q, 1, 3>(all, x, y.as_mut_ptr(), [rows, ldy]),
            _ => rows_of::<Q, 1, 4>(all, x, y.as_mut_ptr(), [rows, ldy]),
        }
        true
    }, _ => false)
}

/// Every row of weights, R at a time.
///
/// # Safety
/// See [`products`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_of<const Q: usize, const R: usize, const M: usize>(all: Rows, x: &Rounded, y: *mut f32, [rows, ldy]: [usize; 2]) {
    let mut r = 0;
    while r < rows {
        // SAFETY: rows r .. r + R, or r alone, lie inside the weights and each row of `y`.
        unsafe {
            if r + R <= rows {
                block_rows::<Q, R, M>(all.from(r), x, y.add(r), ldy);
                r += R;
            } else {
                block_rows::<Q, 1, M>(all.from(r), x, y.add(r), ldy);
                r += 1;
            }
        }
    }
}

/// R rows of weights times M rows of activations. Sums of products of one run of 32 are exact: |q − bias| is below 2⁷, |x| at most 127, so that two
/// products fit 16 bits.
///
/// # Safety
/// The processor has the features; `rows` are R rows of weights of the format, `x` M rows as long, `y` M rows of R numbers, `ldy` apart.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_rows<const Q: usize, const R: usize, const M: usize>(rows: Rows, x: &Rounded, y: *mut f32, ldy: usize) {
    let Shape { bytes, runs, min, bias, .. } = const { shape(Q) };
    let signed = const { LINEAR[Q].quants.signed };
    let ones = _mm256_set1_epi16(1);
    let mut acc = [[_mm256_setzero_ps(); M]; R];
    let mut scales = RowScales::<Q, R>::new();
    // SAFETY: block b of row r and its activations exist.
    unsafe {
        for b in 0..rows.k / (runs * GROUP) {
            prefetch_stream::<R>(rows.w, b * bytes, bytes);
            scales.read(rows.w.add(b * bytes), rows.row_bytes);
            for g in 0..runs {
                let run = b * runs + g;
                let integers = |i: usize| _mm256_loadu_si256(x.integers.as_ptr().add(i * rows.k + run * GROUP).cast());
                let scale = |i: usize| _mm256_set1_ps(*x.scales.as_ptr().add(i * (rows.k / GROUP) + run));
                let float = |pairs: __m256i| _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                for r in 0..R {
                    let q = quants::<Q>(rows.w.add(r * rows.row_bytes + b * bytes), g);
                    let [d, m] = scales.of(r, g);
                    for i in 0..M {
                        let (x, s) = (integers(i), scale(i));
                        let pairs = if signed {
                            _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
                        } else {
                            _mm256_maddubs_epi16(q, x)
                        };
                        let pairs =
                            if bias == 0 { pairs } else { _mm256_sub_epi16(pairs, _mm256_maddubs_epi16(_mm256_set1_epi8(bias), x)) };
                        acc[r][i] = _mm256_fmadd_ps(float(pairs), _mm256_mul_ps(d, s), acc[r][i]);
                        if min {
                            let sums = float(_mm256_maddubs_epi16(_mm256_set1_epi8(1), x));
                            acc[r][i] = _mm256_fmadd_ps(sums, _mm256_mul_ps(m, s), acc[r][i]);
                        }
                    }
                }
            }
        }
        for r in 0..R {
            for i in 0..M {
                *y.add(i * ldy + r) = sum(acc[r][i]);
            }
        }
    }
}
