//! eˣ, tanh and the logistic function of sixteen f32 at once (AVX-512): the polynomials of `math`, with instructions that only AVX-512 has.

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
    // The sign of x: NaN keeps being one.
    _mm512_or_ps(size, _mm512_and_ps(x, number(-0.0)))
}
