//! Integer dot products with AVX2, and with VNNI where there is AVX-512.

// Loops over R rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::q8::{Q8Block, Row};
use core::arch::x86_64::*;

/// One block of activations: its bytes, sums of four, and the scale.
///
/// # Safety
/// The processor has the features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn quantize(x: &[f32; 32], quants: &mut [i8; 32], fours: &mut [i32; 8]) -> f32 {
    // SAFETY: the arrays have the sizes that are loaded and stored.
    unsafe {
        let x = [0, 8, 16, 24].map(|i| _mm256_loadu_ps(x.as_ptr().add(i)));
        // Magnitudes compare like their bits, and NaN's are the largest.
        let bits = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX)));
        let max = _mm256_max_epi32(_mm256_max_epi32(bits[0], bits[1]), _mm256_max_epi32(bits[2], bits[3]));
        let max = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
        let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
        let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
        let Q8Block { scale, inverse } = Q8Block::of(_mm_cvtsi128_si32(max) as u32);
        let q = if inverse == 0.0 {
            _mm256_setzero_si256()
        } else {
            let q = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(inverse))));
            let q = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
            _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
        };
        _mm256_storeu_si256(quants.as_mut_ptr().cast(), q);
        let twos = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
        _mm256_storeu_si256(fours.as_mut_ptr().cast(), _mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
        scale
    }
}

/// The activations as the kernels read them.
#[derive(Clone, Copy)]
struct X {
    quants: *const i8,
    fours: *const i32,
    scales: *const f32,
    scales16: *const f32,
    pairs: *const f32,
    sums: *const f32,
    sums16: *const f32,
}

impl X {
    fn of(x: &Row) -> X {
        X {
            quants: x.quants.as_ptr(),
            fours: x.fours.as_ptr(),
            scales: x.scales.as_ptr(),
            scales16: x.scales16.as_ptr(),
            pairs: x.pairs.as_ptr().cast(),
            sums: x.sums.as_ptr(),
            sums16: x.sums16.as_ptr(),
        }
    }
}

/// The kernels once per instruction set: `$dot` adds to each 32-bit lane the products of four unsigned with four signed bytes.
macro_rules! kernels {
    ($name:ident, $features:literal, $vnni:literal, $dot:expr) => {
        pub(super) mod $name {
            use super::super::q8::Row;
            use super::super::unpack::*;
            use super::super::{avx2::sum, prefetch};
            use super::X;
            use crate::dtype::DType;
            use core::arch::x86_64::*;

            /// `y[r] = sum_k w[r][k] * x[k]`.
            ///
            /// # Safety
            /// The processor has the features; `w` holds `y.len()` rows of `x.len()` weights of a block format, `row_bytes` apart.
            #[target_feature(enable = $features)]
            pub unsafe fn matvec(dtype: DType, w: &[u8], row_bytes: usize, x: &Row, y: &mut [f32]) {
                macro_rules! by {
                    ($q:ident) => {{
                        let mut r = 0;
                        while r < y.len() {
                            let w = w.as_ptr().wrapping_add(r * row_bytes);
                            // SAFETY: rows r .. r + 4, or r alone, lie inside `w` and `y`.
                            unsafe {
                                if r + 4 <= y.len() {
                                    rows::<$q, 4>(w, row_bytes, X::of(x), x.len(), y.as_mut_ptr().add(r));
                                    r += 4;
                                } else {
                                    rows::<$q, 1>(w, row_bytes, X::of(x), x.len(), y.as_mut_ptr().add(r));
                                    r += 1;
                                }
                            }
                        }
                    }};
                }
                match dtype {
                    DType::Q4_0 => by!(Q4_0),
                    DType::Q4_1 => by!(Q4_1),
                    DType::Q5_0 => by!(Q5_0),
                    DType::Q5_1 => by!(Q5_1),
                    DType::Q8_0 => by!(Q8_0),
                    DType::Q2_K => by!(Q2_K),
                    DType::Q3_K => by!(Q3_K),
                    DType::Q4_K => by!(Q4_K),
                    DType::Q5_K => by!(Q5_K),
                    DType::Q6_K => by!(Q6_K),
                    _ => {}
                }
            }

            /// What the accumulators start from: minus the bias times the sums of the activations.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn start<const Q: u8>(x: X, run: usize) -> __m256i {
                let bias = if Q == Q8_0 && $vnni { 128 } else { const { shape(Q).bias as i32 } };
                if bias == 0 {
                    return _mm256_setzero_si256();
                }
                // SAFETY: the caller promises the run.
                let fours = unsafe { _mm256_loadu_si256(x.fours.add(run * 8).cast()) };
                _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_sll_epi32(fours, _mm_cvtsi32_si128(bias.ilog2() as i32)))
            }

            /// The integer products of run `g` of the block at `p` with 32 activations, in eight sums, as floats.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn products<const Q: u8>(p: *const u8, g: usize, start: __m256i, x: __m256i) -> __m256 {
                let dot = $dot;
                // SAFETY: the caller promises the block.
                let q = unsafe { quants::<Q>(p, g) };
                let sums = if Q != Q8_0 {
                    dot(start, q, x)
                } else if $vnni {
                    // Signed to unsigned; `start` takes the 128 off again.
                    dot(start, _mm256_xor_si256(q, _mm256_set1_epi8(-128)), x)
                } else {
                    // Unsigned bytes up to 255 would saturate here: the sign goes to the activations.
                    dot(start, _mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
                };
                _mm256_cvtepi32_ps(sums)
            }

            /// R rows.
            #[target_feature(enable = $features)]
            unsafe fn rows<const Q: u8, const R: usize>(w: *const u8, row_bytes: usize, x: X, k: usize, y: *mut f32) {
                let mut acc = [_mm256_setzero_ps(); R];
                // SAFETY: every block of every row exists, and so do the activations.
                unsafe {
                    if const { shape(Q).runs } == 1 {
                        blocks32::<Q, R>(w, row_bytes, x, k / 32, &mut acc);
                    } else {
                        blocks256::<Q, R>(w, row_bytes, x, k / 256, &mut acc);
                    }
                    for r in 0..R {
                        *y.add(r) = sum(acc[r]);
                    }
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn blocks32<const Q: u8, const R: usize>(w: *const u8, row_bytes: usize, x: X, blocks: usize, acc: &mut [__m256; R]) {
                let Shape { bytes, min, .. } = const { shape(Q) };
                // Scale times scale in the even lanes, minimum times sum in the odd ones; without minimums only scales, in four lanes.
                let mut mins = [_mm256_setzero_ps(); R];
                let mut s = [[0f32; 8]; R];
                let step = if min { 2 } else { 1 };
                let mut b = 0;
                // SAFETY: as promised to `rows`.
                unsafe {
                    while b < blocks {
                        // Four blocks at a time, and one at a time in the end.
                        let four = b + 4 <= blocks;
                        for r in 0..R {
                            let p = w.add(r * row_bytes + b * bytes);
                            prefetch::<R>(p, row_bytes, if four { 4 * bytes } else { bytes });
                            if min {
                                let at = |i: usize| p.add(i * bytes).cast::<u32>().read_unaligned() as i64;
                                let (halves, pairs) = if four {
                                    let halves = _mm_set_epi64x(at(2) | at(3) << 32, at(0) | at(1) << 32);
                                    (halves, _mm256_loadu_ps(x.pairs.add(b * 2)))
                                } else {
                                    let pair = _mm_castsi128_ps(_mm_loadl_epi64(x.pairs.add(b * 2).cast()));
                                    (_mm_cvtsi64_si128(at(0)), _mm256_zextps128_ps256(pair))
                                };
                                let both = _mm256_mul_ps(_mm256_cvtph_ps(halves), pairs);
                                mins[r] = _mm256_add_ps(mins[r], both);
                                _mm256_storeu_ps(s[r].as_mut_ptr(), both);
                            } else {
                                let at = |i: usize| p.add(i * bytes).cast::<u16>().read_unaligned() as i64;
                                let (halves, scales) = if four {
                                    let halves = _mm_cvtsi64_si128(at(0) | at(1) << 16 | at(2) << 32 | at(3) << 48);
                                    (halves, _mm_loadu_ps(x.scales.add(b)))
                                } else {
                                    (_mm_cvtsi64_si128(at(0)), _mm_load_ss(x.scales.add(b)))
                                };
                                _mm_storeu_ps(s[r].as_mut_ptr(), _mm_mul_ps(_mm_cvtph_ps(halves), scales));
                            }
                        }
                        let n = if four { 4 } else { 1 };
                        for j in 0..n {
                            let start = start::<Q>(x, b + j);
                            let xs = _mm256_loadu_si256(x.quants.add((b + j) * 32).cast());
                            for r in 0..R {
                                let products = products::<Q>(w.add(r * row_bytes + (b + j) * bytes), 0, start, xs);
                                acc[r] = _mm256_fmadd_ps(products, _mm256_set1_ps(s[r][j * step]), acc[r]);
                            }
                        }
                        b += n;
                    }
                }
                if min {
                    for r in 0..R {
                        acc[r] = _mm256_add_ps(acc[r], _mm256_blend_ps::<0b1010_1010>(_mm256_setzero_ps(), mins[r]));
                    }
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn blocks256<const Q: u8, const R: usize>(w: *const u8, row_bytes: usize, x: X, blocks: usize, acc: &mut [__m256; R]) {
                let Shape { bytes, by16, min, .. } = const { shape(Q) };
                let mut s = [[0f32; 32]; R];
                // SAFETY: as promised to `rows`.
                unsafe {
                    for b in 0..blocks {
                        for r in 0..R {
                            let p = w.add(r * row_bytes + b * bytes);
                            prefetch::<R>(p, row_bytes, bytes);
                            scales::<Q>(p, &mut s[r]);
                            let s = s[r].as_mut_ptr();
                            let (each, of, sums) = if by16 { (2, x.scales16, x.sums16) } else { (1, x.scales, x.sums) };
                            for i in 0..each {
                                let (at, i) = (b * 8 * each + i * 8, i * 8);
                                if min {
                                    acc[r] = _mm256_fmadd_ps(_mm256_loadu_ps(s.add(16 + i)), _mm256_loadu_ps(sums.add(at)), acc[r]);
                                }
                                _mm256_storeu_ps(s.add(i), _mm256_mul_ps(_mm256_loadu_ps(s.add(i)), _mm256_loadu_ps(of.add(at))));
                            }
                        }
                        for g in 0..8 {
                            let start = start::<Q>(x, b * 8 + g);
                            let xs = _mm256_loadu_si256(x.quants.add((b * 8 + g) * 32).cast());
                            for r in 0..R {
                                let products = products::<Q>(w.add(r * row_bytes + b * bytes), g, start, xs);
                                let scale = if by16 {
                                    // The first four sums are of the first 16 weights.
                                    let both = _mm256_castpd_ps(_mm256_set1_pd(s[r].as_ptr().add(g * 2).cast::<f64>().read_unaligned()));
                                    _mm256_permutevar_ps(both, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1))
                                } else {
                                    _mm256_set1_ps(s[r][g])
                                };
                                acc[r] = _mm256_fmadd_ps(products, scale, acc[r]);
                            }
                        }
                    }
                }
            }
        }
    };
}

kernels!(avx2, "avx2,fma,f16c", false, |sums: __m256i, unsigned: __m256i, signed: __m256i| {
    let twos = _mm256_maddubs_epi16(unsigned, signed);
    _mm256_add_epi32(sums, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)))
});
kernels!(vnni, "avx2,fma,f16c,avx512f,avx512vl,avx512vnni", true, |sums: __m256i, unsigned: __m256i, signed: __m256i| {
    _mm256_dpbusd_epi32(sums, unsigned, signed)
});
