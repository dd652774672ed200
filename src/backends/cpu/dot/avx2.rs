//! The kernels with AVX2, FMA and F16C: 8 weights a register.

// Loops over R rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::unpack::*;
use super::{CHUNK, Rows, plain, prefetch};
use crate::dtype::DType;
use crate::quant::with_format;
use core::arch::x86_64::*;

const F32: u8 = DType::F32 as u8;
const F16: u8 = DType::F16 as u8;
const BF16: u8 = DType::BF16 as u8;

/// `y[r] = sum_k w[r][k] * x[k]`.
///
/// # Safety
/// The processor has the features; `dtype` is a format of weights, `w` holds `y.len()` rows of `x.len()` of them, `row_bytes` apart.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemv(dtype: DType, w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32]) {
    macro_rules! by {
        ($kernel:ident, $q:ident) => {{
            let rows = Rows { w: w.as_ptr(), row_bytes, x: x.as_ptr(), k: x.len() };
            let mut r = 0;
            while r < y.len() {
                // SAFETY: rows r .. r + 4, or r alone, lie inside `w` and `y`; the features are this function's own.
                unsafe {
                    if r + 4 <= y.len() {
                        $kernel::<$q, 4>(rows.from(r), y.as_mut_ptr().add(r));
                        r += 4;
                    } else {
                        $kernel::<$q, 1>(rows.from(r), y.as_mut_ptr().add(r));
                        r += 1;
                    }
                }
            }
        }};
    }
    match dtype {
        DType::F32 => by!(plain_rows, F32),
        DType::F16 => by!(plain_rows, F16),
        DType::BF16 => by!(plain_rows, BF16),
        _ => with_format!(dtype, Q => by!(block_rows, Q), _ => ()),
    }
}

/// Decodes whole blocks.
///
/// # Safety
/// The processor has the features; `bytes` holds exactly the blocks of `out`'s elements.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: as promised to this function.
    unsafe {
        match dtype {
            DType::F16 => {
                let (whole, rest) = out.as_chunks_mut::<8>();
                for (y, b) in whole.iter_mut().zip(bytes.as_chunks::<16>().0) {
                    _mm256_storeu_ps(y.as_mut_ptr(), load::<F16>(b.as_ptr()));
                }
                plain::floats(dtype, &bytes[whole.len() * 16..], rest);
            }
            _ => with_format!(dtype, Q => decode_blocks::<Q>(bytes, out), _ => plain::floats(dtype, bytes, out)),
        }
    }
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
pub(super) fn sum(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
}

/// Eight plain weights as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<const Q: u8>(p: *const u8) -> __m256 {
    // SAFETY: the caller promises eight elements at `p`.
    unsafe {
        match Q {
            F32 => _mm256_loadu_ps(p.cast()),
            F16 => _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
            _ => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))),
        }
    }
}

/// R rows of f32, f16 or bf16.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn plain_rows<const Q: u8, const R: usize>(rows: Rows, y: *mut f32) {
    let (size, dtype) = match Q {
        F32 => (4, DType::F32),
        F16 => (2, DType::F16),
        _ => (2, DType::BF16),
    };
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    let whole = rows.k / 16 * 16;
    // SAFETY: every access lies in the first k elements of a row or of x.
    unsafe {
        for i in (0..whole).step_by(16) {
            let x = [_mm256_loadu_ps(rows.x.add(i)), _mm256_loadu_ps(rows.x.add(i + 8))];
            for r in 0..R {
                let p = rows.w.add(r * rows.row_bytes + i * size);
                prefetch::<R>(p, rows.row_bytes, 16 * size);
                acc[r][0] = _mm256_fmadd_ps(load::<Q>(p), x[0], acc[r][0]);
                acc[r][1] = _mm256_fmadd_ps(load::<Q>(p.add(8 * size)), x[1], acc[r][1]);
            }
        }
        let left = rows.k - whole;
        for r in 0..R {
            let mut w = [0f32; 16];
            let bytes = std::slice::from_raw_parts(rows.w.add(r * rows.row_bytes + whole * size), left * size);
            plain::floats(dtype, bytes, &mut w[..left]);
            let x = std::slice::from_raw_parts(rows.x.add(whole), left);
            let rest = w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
            *y.add(r) = sum(_mm256_add_ps(acc[r][0], acc[r][1])) + rest;
        }
    }
}

/// The integers of run `g` as floats, their bias taken off.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn floats<const Q: usize>(p: *const u8, g: usize) -> [__m256; 4] {
    // SAFETY: as promised to this function.
    let q = unsafe { quants::<Q>(p, g) };
    let q = _mm256_sub_epi8(q, _mm256_set1_epi8(const { shape(Q).bias }));
    bytes_as_floats(_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q))
}

/// R rows of a block format.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_rows<const Q: usize, const R: usize>(rows: Rows, y: *mut f32) {
    let Shape { bytes, runs, by16, min, .. } = const { shape(Q) };
    let mut acc = [_mm256_setzero_ps(); R];
    let mut s = [[0f32; 32]; R];
    // SAFETY: block b of row r and its activations exist.
    unsafe {
        for b in 0..rows.k / (runs * 32) {
            for r in 0..R {
                let p = rows.w.add(r * rows.row_bytes + b * bytes);
                prefetch::<R>(p, rows.row_bytes, bytes);
                scales::<Q>(p, &mut s[r]);
            }
            for g in 0..runs {
                let x = rows.x.add((b * runs + g) * 32);
                let x = load_32(x);
                let ends = [_mm256_add_ps(x[0], x[1]), _mm256_add_ps(x[2], x[3])];
                for r in 0..R {
                    let q = floats::<Q>(rows.w.add(r * rows.row_bytes + b * bytes), g);
                    let s = |i: usize| _mm256_set1_ps(s[r][i]);
                    let first = _mm256_fmadd_ps(q[1], x[1], _mm256_mul_ps(q[0], x[0]));
                    if by16 {
                        acc[r] = _mm256_fmadd_ps(first, s(g * 2), acc[r]);
                        let second = _mm256_fmadd_ps(q[3], x[3], _mm256_mul_ps(q[2], x[2]));
                        acc[r] = _mm256_fmadd_ps(second, s(g * 2 + 1), acc[r]);
                        if min {
                            acc[r] = _mm256_fmadd_ps(ends[0], s(16 + g * 2), acc[r]);
                            acc[r] = _mm256_fmadd_ps(ends[1], s(16 + g * 2 + 1), acc[r]);
                        }
                    } else {
                        let all = _mm256_fmadd_ps(q[3], x[3], _mm256_fmadd_ps(q[2], x[2], first));
                        acc[r] = _mm256_fmadd_ps(all, s(g), acc[r]);
                        if min {
                            acc[r] = _mm256_fmadd_ps(_mm256_add_ps(ends[0], ends[1]), s(16 + g), acc[r]);
                        }
                    }
                }
            }
        }
        for r in 0..R {
            *y.add(r) = sum(acc[r]);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode_blocks<const Q: usize>(bytes: &[u8], out: &mut [f32]) {
    let Shape { bytes: size, runs, by16, .. } = const { shape(Q) };
    let mut s = [0f32; 32];
    for (block, y) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(runs * 32)) {
        // SAFETY: `block` is one block; the stores lie in `y`.
        unsafe {
            scales::<Q>(block.as_ptr(), &mut s);
            for g in 0..runs {
                for (i, q) in floats::<Q>(block.as_ptr(), g).into_iter().enumerate() {
                    let at = if by16 { g * 2 + i / 2 } else { g };
                    // Formats without minimums leave zeros there.
                    let w = _mm256_fmadd_ps(q, _mm256_set1_ps(s[at]), _mm256_set1_ps(s[16 + at]));
                    _mm256_storeu_ps(y.as_mut_ptr().add(g * 32 + i * 8), w);
                }
            }
        }
    }
}
