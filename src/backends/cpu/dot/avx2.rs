//! The kernels with AVX2, FMA and F16C: 8 weights a register.

// Loops over R rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::{CHUNK, blocks};
use crate::dtype::DType;
use core::arch::x86_64::*;

/// `y[r] = sum_k w[r][k] * x[k]`; false where this format has no direct kernel.
///
/// # Safety
/// The processor has the features; `w` holds `y.len()` rows of `x.len()` elements, `row_bytes` apart.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn matvec(_dtype: DType, _w: &[u8], _row_bytes: usize, _x: &[f32], _y: &mut [f32]) -> bool {
    false
}

/// Decodes whole blocks.
///
/// # Safety
/// The processor has the features; `bytes` holds exactly the blocks of `out`'s elements.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    blocks::decode(dtype, bytes, out);
}

/// Adds to `out[r][i]` the dot product of decoded row `r` with activation row `i < m <= 4`.
///
/// # Safety
/// The processor has the features; `len <= CHUNK`, and `x` holds `m` rows of at least `len` elements, `ldx` apart.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile(w: &[[f32; CHUNK]; 2], len: usize, x: &[f32], ldx: usize, m: usize, out: &mut [[f32; 4]; 2]) {
    // SAFETY: as promised to this function.
    unsafe {
        match m {
            1 => tile_m::<1>(w, len, x, ldx, out),
            2 => tile_m::<2>(w, len, x, ldx, out),
            3 => tile_m::<3>(w, len, x, ldx, out),
            _ => tile_m::<4>(w, len, x, ldx, out),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile_m<const M: usize>(w: &[[f32; CHUNK]; 2], len: usize, x: &[f32], ldx: usize, out: &mut [[f32; 4]; 2]) {
    let mut acc = [[_mm256_setzero_ps(); M]; 2];
    let whole = len / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: elements i .. i + 8 of every row exist.
        unsafe {
            let (w0, w1) = (_mm256_loadu_ps(w[0].as_ptr().add(i)), _mm256_loadu_ps(w[1].as_ptr().add(i)));
            for r in 0..M {
                let x = _mm256_loadu_ps(x.as_ptr().add(r * ldx + i));
                acc[0][r] = _mm256_fmadd_ps(w0, x, acc[0][r]);
                acc[1][r] = _mm256_fmadd_ps(w1, x, acc[1][r]);
            }
        }
    }
    for (j, (out, acc)) in out.iter_mut().zip(acc).enumerate() {
        for (r, (out, acc)) in out.iter_mut().zip(acc).enumerate() {
            let rest = w[j][whole..len].iter().zip(&x[r * ldx + whole..]).map(|(w, x)| w * x).sum::<f32>();
            *out += sum(acc) + rest;
        }
    }
}

/// The sum of the lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
}
