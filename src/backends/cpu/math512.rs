//! eˣ, tanh, the logistic function and softmax of sixteen f32 at once (AVX-512): the polynomials of `math`, with instructions that only AVX-512 has.

use super::math::{EXP, LN2_HIGH, LN2_LOW, MAGIC};
use core::arch::x86_64::*;
use std::f32::consts::LOG2_E;

#[inline]
#[target_feature(enable = "avx512f")]
fn number(x: f32) -> __m512 {
    _mm512_set1_ps(x)
}

/// `x = n ln 2 + r` with an integer n: (n + `MAGIC`, n, r).
#[inline]
#[target_feature(enable = "avx512f")]
fn reduce_ln2(x: __m512) -> (__m512, __m512, __m512) {
    let t = _mm512_fmadd_ps(x, number(LOG2_E), number(MAGIC));
    let n = _mm512_sub_ps(t, number(MAGIC));
    let r = _mm512_fmadd_ps(n, number(-LN2_HIGH), x);
    (t, n, _mm512_fmadd_ps(n, number(-LN2_LOW), r))
}

/// (eʳ − 1 − r) / r²
#[inline]
#[target_feature(enable = "avx512f")]
fn poly(r: __m512) -> __m512 {
    let mut y = number(EXP[4]);
    for i in (0..4).rev() {
        y = _mm512_fmadd_ps(y, r, number(EXP[i]));
    }
    y
}

/// eˣ for x up to 40, or NaN.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn exp_below(x: __m512) -> __m512 {
    // The second operand of a maximum is kept where it is NaN.
    let (_, n, r) = reduce_ln2(_mm512_max_ps(number(-105.0), x));
    let y = _mm512_fmadd_ps(poly(r), r, number(1.0));
    // Rounded once, also where the result is subnormal.
    _mm512_scalef_ps(_mm512_fmadd_ps(y, r, number(1.0)), n)
}

/// eˣ
#[inline]
#[target_feature(enable = "avx512f")]
pub fn exp(x: __m512) -> __m512 {
    exp_below(_mm512_min_ps(number(90.0), x))
}

/// 1/(1 + e⁻ˣ)
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub fn sigmoid(x: __m512) -> __m512 {
    let e = exp_below(_mm512_or_ps(x, number(-0.0)));
    let negative = _mm512_movepi32_mask(_mm512_castps_si512(x));
    _mm512_div_ps(_mm512_mask_mov_ps(number(1.0), negative, e), _mm512_add_ps(number(1.0), e))
}

/// Hyperbolic tangent, as in `math`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub fn tanh(x: __m512) -> __m512 {
    let t = _mm512_min_ps(number(9.5), _mm512_abs_ps(x));
    let (t, _, r) = reduce_ln2(_mm512_add_ps(t, t));
    let p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), poly(r), r);
    let one = _mm512_castps_si512(number(1.0));
    let s = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32::<23>(_mm512_castps_si512(t)), one));
    let e = _mm512_fmadd_ps(s, p, _mm512_sub_ps(s, number(1.0)));
    let size = _mm512_div_ps(e, _mm512_add_ps(e, number(2.0)));
    // The sign of x; NaN stays NaN.
    _mm512_or_ps(size, _mm512_and_ps(x, number(-0.0)))
}

/// See `Real::softmax_rows`.
#[target_feature(enable = "avx512f,avx512dq")]
pub fn softmax_rows(y: &mut [f32], x: &[f32], cols: usize, ahead: usize) {
    const STEP: usize = 64;
    let lowest = number(f32::NEG_INFINITY);
    for (y, x) in y.chunks_exact_mut(cols).zip(x.chunks_exact(cols)) {
        let (x, y) = (x.as_ptr(), y.as_mut_ptr());
        let whole = cols / STEP * STEP;
        // The lanes of vector i that the row has behind its whole steps.
        let rest = (1u64 << (cols - whole)) - 1;
        let lanes = |i: usize| (rest >> (16 * i)) as u16;
        // SAFETY: whole steps and the lanes of the rest are elements of the row; a prefetch reads nothing.
        unsafe {
            let mut most = [lowest; 4];
            for at in (0..whole).step_by(STEP) {
                // A NaN that the maximum ignores makes the sum NaN.
                (0..4).for_each(|i| most[i] = _mm512_max_ps(_mm512_loadu_ps(x.add(at + 16 * i)), most[i]));
            }
            for i in 0..4 {
                most[i] = _mm512_max_ps(_mm512_mask_loadu_ps(lowest, lanes(i), x.wrapping_add(whole + 16 * i)), most[i]);
            }
            let most = _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
            let shift = number(_mm512_reduce_max_ps(most));
            let mut sums = [_mm512_setzero_ps(); 4];
            for at in (0..whole).step_by(STEP) {
                for i in 0..4 {
                    let at = at + 16 * i;
                    _mm_prefetch::<_MM_HINT_T0>(x.wrapping_add(at + ahead).cast());
                    _mm_prefetch::<_MM_HINT_T0>(y.wrapping_add(at + ahead).cast());
                    let e = exp_below(_mm512_sub_ps(_mm512_loadu_ps(x.add(at)), shift));
                    _mm512_storeu_ps(y.add(at), e);
                    sums[i] = _mm512_add_ps(sums[i], e);
                }
            }
            for i in 0..4 {
                let at = whole + 16 * i;
                let e = exp_below(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes(i), x.wrapping_add(at)), shift));
                _mm512_mask_storeu_ps(y.wrapping_add(at), lanes(i), e);
                sums[i] = _mm512_mask_add_ps(sums[i], lanes(i), sums[i], e);
            }
            let sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
            let factor = number((1.0 / _mm512_reduce_add_ps(sum) as f64) as f32);
            for at in (0..whole).step_by(16) {
                _mm512_storeu_ps(y.add(at), _mm512_mul_ps(_mm512_loadu_ps(y.add(at)), factor));
            }
            for i in 0..4 {
                let at = y.wrapping_add(whole + 16 * i);
                _mm512_mask_storeu_ps(at, lanes(i), _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes(i), at), factor));
            }
        }
    }
}
