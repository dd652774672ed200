//! The kernels with NEON for floats: 4 weights a register. Products with block formats are sums of integers, in `split`.

// Loops over R rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::unpack_neon::*;
use super::{CHUNK, Rows, plain};
use crate::dtype::DType;
use crate::quant::with_format;
use core::arch::aarch64::*;

const F32: u8 = DType::F32 as u8;
const F16: u8 = DType::F16 as u8;
const BF16: u8 = DType::BF16 as u8;

/// `y[r] = sum_k w[r][k] * x[k]` of f32, f16 or bf16.
///
/// # Safety
/// `dtype` is one of them, `w` holds `y.len()` rows of `x.len()` weights, `row_bytes` apart.
pub(super) unsafe fn gemv(dtype: DType, w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32]) {
    macro_rules! by {
        ($q:ident) => {{
            let rows = Rows { w: w.as_ptr(), row_bytes, x: x.as_ptr(), k: x.len() };
            let mut r = 0;
            while r < y.len() {
                // SAFETY: rows r .. r + 4, or r alone, lie inside `w` and `y`.
                unsafe {
                    if r + 4 <= y.len() {
                        float_rows::<$q, 4>(rows.from(r), y.as_mut_ptr().add(r));
                        r += 4;
                    } else {
                        float_rows::<$q, 1>(rows.from(r), y.as_mut_ptr().add(r));
                        r += 1;
                    }
                }
            }
        }};
    }
    match dtype {
        DType::F16 => by!(F16),
        DType::BF16 => by!(BF16),
        _ => by!(F32),
    }
}

/// Four plain weights as f32.
#[inline(always)]
unsafe fn load<const Q: u8>(p: *const u8) -> float32x4_t {
    // SAFETY: the caller promises four elements at `p`; NEON is part of the architecture.
    unsafe {
        match Q {
            F32 => vld1q_f32(p.cast()),
            F16 => vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.cast()))),
            _ => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.cast()))),
        }
    }
}

/// R rows of f32, f16 or bf16: each of 8 partial sums a row has the same terms whatever R is.
unsafe fn float_rows<const Q: u8, const R: usize>(rows: Rows, y: *mut f32) {
    let (size, dtype) = match Q {
        F32 => (4, DType::F32),
        F16 => (2, DType::F16),
        _ => (2, DType::BF16),
    };
    let whole = rows.k / 16 * 16;
    // SAFETY: every access lies in the first k elements of a row or of x; NEON is part of the architecture.
    unsafe {
        let mut acc = [[vdupq_n_f32(0.0); 4]; R];
        for i in (0..whole).step_by(16) {
            let x = [0, 4, 8, 12].map(|j| vld1q_f32(rows.x.add(i + j)));
            for r in 0..R {
                let p = rows.w.add(r * rows.row_bytes + i * size);
                for j in 0..4 {
                    acc[r][j] = vfmaq_f32(acc[r][j], load::<Q>(p.add(4 * j * size)), x[j]);
                }
            }
        }
        let left = rows.k - whole;
        for r in 0..R {
            let mut w = [0f32; 16];
            let bytes = std::slice::from_raw_parts(rows.w.add(r * rows.row_bytes + whole * size), left * size);
            plain::floats(dtype, bytes, &mut w[..left]);
            let x = std::slice::from_raw_parts(rows.x.add(whole), left);
            let rest = w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
            let [a, b, c, d] = acc[r];
            *y.add(r) = vaddvq_f32(vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d))) + rest;
        }
    }
}

/// Decodes whole blocks.
///
/// # Safety
/// `bytes` holds exactly the blocks of `out`'s elements.
pub(super) unsafe fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: as promised to this function; NEON is part of the architecture.
    unsafe {
        match dtype {
            DType::F16 => {
                let (whole, rest) = out.as_chunks_mut::<4>();
                for (y, b) in whole.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    vst1q_f32(y.as_mut_ptr(), load::<F16>(b.as_ptr()));
                }
                plain::floats(dtype, &bytes[whole.len() * 8..], rest);
            }
            _ => with_format!(dtype, Q => decode_blocks::<Q>(bytes, out), _ => plain::floats(dtype, bytes, out)),
        }
    }
}

unsafe fn decode_blocks<const Q: usize>(bytes: &[u8], out: &mut [f32]) {
    let Shape { bytes: size, len, group, min, .. } = const { shape(Q) };
    for (block, y) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(len)) {
        // SAFETY: `block` is one block; the stores lie in `y`; NEON is part of the architecture.
        unsafe {
            let all = scales::<Q>(block.as_ptr());
            for run in 0..len / 32 {
                for (half, q) in quants::<Q>(block.as_ptr(), run).into_iter().enumerate() {
                    let at = run * 32 + half * 16;
                    let scale = vdupq_n_f32(all.d * all.s[at / group] as f32);
                    let less = vdupq_n_f32(-(all.dmin * all.m[at / group]));
                    let (low, high) = (vmovl_s8(vget_low_s8(q)), vmovl_high_s8(q));
                    let four = [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)];
                    for (i, q) in four.into_iter().enumerate() {
                        let q = vcvtq_f32_s32(q);
                        let w = if min { vfmaq_f32(less, q, scale) } else { vmulq_f32(q, scale) };
                        vst1q_f32(y.as_mut_ptr().add(at + 4 * i), w);
                    }
                }
            }
        }
    }
}

/// Adds to `out[r][i]` the dot product of decoded row `r` with activation row `i < m <= 4`.
///
/// # Safety
/// `len <= CHUNK`, and `x` holds `m` rows of at least `len` elements, `ldx` apart.
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

unsafe fn tile_m<const M: usize>(w: &[[f32; CHUNK]; 2], len: usize, x: &[f32], ldx: usize, out: &mut [[f32; 4]; 2]) {
    let whole = len / 8 * 8;
    // SAFETY: elements i .. i + 8 of every row exist; NEON is part of the architecture.
    unsafe {
        let mut acc = [[[vdupq_n_f32(0.0); 2]; M]; 2];
        for i in (0..whole).step_by(8) {
            for h in 0..2 {
                let (w0, w1) = (vld1q_f32(w[0].as_ptr().add(i + 4 * h)), vld1q_f32(w[1].as_ptr().add(i + 4 * h)));
                for r in 0..M {
                    let x = vld1q_f32(x.as_ptr().add(r * ldx + i + 4 * h));
                    acc[0][r][h] = vfmaq_f32(acc[0][r][h], w0, x);
                    acc[1][r][h] = vfmaq_f32(acc[1][r][h], w1, x);
                }
            }
        }
        for (j, (out, acc)) in out.iter_mut().zip(acc).enumerate() {
            for (r, (out, acc)) in out.iter_mut().zip(acc).enumerate() {
                let rest = w[j][whole..len].iter().zip(&x[r * ldx + whole..]).map(|(w, x)| w * x).sum::<f32>();
                *out += vaddvq_f32(vaddq_f32(acc[0], acc[1])) + rest;
            }
        }
    }
}
