//! The kernels with AVX-512: 16 weights a register, 4-bit values turned into floats by a 16-entry table lookup.

// Loops over R rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::unpack::{Shape, shape, whole};
use super::{CHUNK, MAX_ROWS, Rows, avx2, plain, prefetch};
use crate::dtype::DType;
use crate::quant::{LINEAR, Numbers, Scales, f16_to_f32, with_format};
use core::arch::x86_64::*;

const F32: u8 = DType::F32 as u8;
const F16: u8 = DType::F16 as u8;
const BF16: u8 = DType::BF16 as u8;

/// `y[r] = sum_k w[r][k] * x[k]`.
///
/// # Safety
/// The processor has the features; `dtype` is a format of weights, `w` holds `y.len()` rows of `x.len()` of them, `row_bytes` apart.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn gemv(dtype: DType, w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32]) {
    let rows = Rows { w: w.as_ptr(), row_bytes, x: x.as_ptr(), k: x.len() };
    // Plain weights are bound by memory, which answers one long stream best.
    macro_rules! one_by_one {
        ($q:ident) => {
            for (r, y) in y.iter_mut().enumerate() {
                // SAFETY: row r lies inside `w`; the features are this function's own.
                *y = unsafe { plain_row::<$q>(rows.from(r)) };
            }
        };
    }
    match dtype {
        DType::F32 => one_by_one!(F32),
        DType::F16 => one_by_one!(F16),
        DType::BF16 => one_by_one!(BF16),
        _ => with_format!(dtype, Q => {
            let all = y.len();
            // SAFETY: as promised to this function.
            unsafe {
                match const { kernel(Q) } {
                    Kernel::Blocks32 => few::<Block32<Q>>(rows, y, [1, all, all]),
                    Kernel::Blocks256 => few::<Block256<Q>>(rows, y, [1, all, all]),
                    Kernel::Avx2 => avx2::gemv(dtype, w, row_bytes, x, y),
                }
            }
        }, _ => ()),
    }
}

/// Rows of weights that are multiplied with all rows of activations before the next ones: their bytes stay in the L2 cache meanwhile.
const PASS_ROWS: usize = 32;
/// Activations that the L1 cache holds beside a few rows of weights.
const L1_ELEMENTS: usize = 10 << 10;

/// `y[i][r] = sum_k w[r][k] * x[i][k]`; see [`super::gemv_multi`]. `false`, and nothing is written, for a format without a kernel.
///
/// # Safety
/// The processor has the features; `w` holds the rows of weights, of as many as each of x's m rows has.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn gemv_multi(dtype: DType, w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32], [m, ldy]: [usize; 2]) -> bool {
    let (k, rows) = (x.len() / m, y.len() - (m - 1) * ldy);
    // Seven or eight long rows of activations do not stay in the L1 cache, and two passes with half of them each cost less.
    let pass = if m > 6 && MAX_ROWS * k > L1_ELEMENTS { MAX_ROWS / 2 } else { MAX_ROWS };
    macro_rules! by {
        ($weights:ty) => {{
            for r in (0..rows).step_by(PASS_ROWS) {
                let n = PASS_ROWS.min(rows - r);
                for first in (0..m).step_by(pass) {
                    let all = Rows { w: w.as_ptr(), row_bytes, x: x[first * k..].as_ptr(), k }.from(r);
                    // SAFETY: as promised to this function.
                    unsafe { few::<$weights>(all, &mut y[first * ldy + r..], [pass.min(m - first), n, ldy]) }
                }
            }
            true
        }};
    }
    match dtype {
        DType::F32 => by!(Floats<F32>),
        DType::F16 => by!(Floats<F16>),
        DType::BF16 => by!(Floats<BF16>),
        _ => with_format!(dtype, Q => match const { kernel(Q) } {
            Kernel::Blocks32 => by!(Block32<Q>),
            Kernel::Blocks256 => by!(Block256<Q>),
            // SAFETY: as promised to this function.
            Kernel::Avx2 => unsafe { avx2::gemv_multi(dtype, w, row_bytes, x, y, [m, ldy]) },
        }, _ => false),
    }
}

/// Weights of some storage format that are multiplied as they are decoded, in registers.
trait RowDecoder {
    /// Rows of weights that one row of activations is multiplied with at once: more where decoding, not memory, takes the time.
    const AT_ONCE: AtOnce = AtOnce::Eight;

    /// R rows of weights times M rows of activations, `rows.k` apart: `y[i * ldy + r]`.
    ///
    /// # Safety
    /// The processor has the features; `rows` are R rows of weights of the format, and its activations M rows; `y` is M rows of R numbers, `ldy` apart.
    unsafe fn rows<const R: usize, const M: usize>(rows: Rows, y: *mut f32, ldy: usize);
}

/// Rows of weights.
#[derive(Clone, Copy)]
enum AtOnce {
    Four,
    Eight,
}

/// f32, f16 or bf16.
struct Floats<const Q: u8>;
/// A format of 32-wide blocks.
struct Block32<const Q: usize>;
/// A format of 256-wide blocks.
struct Block256<const Q: usize>;

/// All rows of weights times m rows of activations, at most [`MAX_ROWS`]: as many rows at once as have their sums in at most 20 of the 32 registers.
///
/// # Safety
/// The processor has the features; the weights have `rows` rows, the activations `m`, and so has `y`, `ldy` apart.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn few<W: RowDecoder>(all: Rows, y: &mut [f32], [m, rows, ldy]: [usize; 3]) {
    // SAFETY: the caller's promise.
    unsafe {
        match m {
            1 => match const { W::AT_ONCE } {
                AtOnce::Four => by_rows::<W, 4, 1>(all, y, [rows, ldy]),
                AtOnce::Eight => by_rows::<W, 8, 1>(all, y, [rows, ldy]),
            },
            2 => by_rows::<W, 8, 2>(all, y, [rows, ldy]),
            3 => by_rows::<W, 4, 3>(all, y, [rows, ldy]),
            4 => by_rows::<W, 4, 4>(all, y, [rows, ldy]),
            5 => by_rows::<W, 4, 5>(all, y, [rows, ldy]),
            6 => by_rows::<W, 3, 6>(all, y, [rows, ldy]),
            7 => by_rows::<W, 2, 7>(all, y, [rows, ldy]),
            _ => by_rows::<W, 2, 8>(all, y, [rows, ldy]),
        }
    }
}

/// All rows of weights, R at a time, times M rows of activations.
///
/// # Safety
/// See [`few`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn by_rows<W: RowDecoder, const R: usize, const M: usize>(all: Rows, y: &mut [f32], [rows, ldy]: [usize; 2]) {
    let mut r = 0;
    while r < rows {
        // SAFETY: rows r .. r + R, or r alone, lie inside the weights and each row of `y`.
        unsafe {
            if rows - r >= R {
                W::rows::<R, M>(all.from(r), y.as_mut_ptr().add(r), ldy);
                r += R;
            } else {
                W::rows::<1, M>(all.from(r), y.as_mut_ptr().add(r), ldy);
                r += 1;
            }
        }
    }
}

/// Decodes whole blocks.
///
/// # Safety
/// The processor has the features; `bytes` holds exactly the blocks of `out`'s elements.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    macro_rules! by {
        ($kernel:ident, $q:ident) => {{
            let mut p = bytes.as_ptr();
            for y in out.as_chunks_mut().0 {
                // SAFETY: `p` is at the block of `y`.
                unsafe {
                    $kernel::<$q>(p, y);
                    p = p.add(const { LINEAR[$q].bytes() });
                }
            }
        }};
    }
    match dtype {
        // SAFETY: as promised to this function.
        DType::F16 => unsafe { decode_halves::<F16>(bytes, out) },
        // SAFETY: as above.
        DType::BF16 => unsafe { decode_halves::<BF16>(bytes, out) },
        _ => with_format!(dtype, Q => match const { kernel(Q) } {
            Kernel::Blocks32 => by!(decode32, Q),
            Kernel::Blocks256 => by!(decode256, Q),
            // SAFETY: as above.
            Kernel::Avx2 => unsafe { avx2::decode(dtype, bytes, out) },
        }, _ => plain::floats(dtype, bytes, out)),
    }
}

/// What reads a block format.
#[derive(Clone, Copy)]
enum Kernel {
    /// 32 values in one group: nibbles, with a fifth bit or without, or bytes.
    Blocks32,
    /// 256 values: nibbles with six-bit scales and minimums, and a fifth bit or none, or six bits with bytes as scales.
    Blocks256,
    /// The kernels with AVX2.
    Avx2,
}

/// The kernel of format number `q`.
const fn kernel(q: usize) -> Kernel {
    match LINEAR[q].scales {
        Scales::Whole => Kernel::Blocks32,
        Scales::SixBits32 { .. } => Kernel::Blocks256,
        Scales::Each16(n) if n.signed => Kernel::Blocks256,
        Scales::Each16(_) | Scales::Nibbles16 { .. } => Kernel::Avx2,
    }
}

/// Whether a block format has a kernel here, instead of the one with AVX2.
pub(super) fn decodes(dtype: DType) -> bool {
    with_format!(dtype, Q => !matches!(const { kernel(Q) }, Kernel::Avx2), _ => false)
}

/// f16 or bf16 as f32.
///
/// # Safety
/// See `decode`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn decode_halves<const Q: u8>(bytes: &[u8], out: &mut [f32]) {
    let (whole, rest) = out.as_chunks_mut::<16>();
    let (bytes, bytes_rest) = bytes.split_at(whole.len() * 32);
    // SAFETY: 16 elements each; the mask keeps the last accesses inside the slices.
    unsafe {
        for (y, b) in whole.iter_mut().zip(bytes.as_chunks::<32>().0) {
            _mm512_storeu_ps(y.as_mut_ptr(), load::<Q>(b.as_ptr()));
        }
        let mask = lanes(rest.len());
        _mm512_mask_storeu_ps(rest.as_mut_ptr(), mask, load_masked::<Q>(bytes_rest.as_ptr(), mask));
    }
}

/// Adds to `out[r][i]` the dot product of decoded row `r` with activation row `i < m <= 4`.
///
/// # Safety
/// The processor has the features; `len <= CHUNK`, and `x` holds `m` rows of at least `len` elements, `ldx` apart.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn tile_m<const M: usize>(w: &[[f32; CHUNK]; 2], len: usize, x: &[f32], ldx: usize, out: &mut [[f32; 4]; 2]) {
    let mut acc = [[_mm512_setzero_ps(); M]; 2];
    let mut i = 0;
    while i < len {
        let mask = lanes(len - i);
        // SAFETY: the mask keeps the accesses inside the rows.
        unsafe {
            let (w0, w1) = (_mm512_maskz_loadu_ps(mask, w[0].as_ptr().add(i)), _mm512_maskz_loadu_ps(mask, w[1].as_ptr().add(i)));
            for r in 0..M {
                let x = _mm512_maskz_loadu_ps(mask, x.as_ptr().add(r * ldx + i));
                acc[0][r] = _mm512_fmadd_ps(w0, x, acc[0][r]);
                acc[1][r] = _mm512_fmadd_ps(w1, x, acc[1][r]);
            }
        }
        i += 16;
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        for (out, acc) in out.iter_mut().zip(acc) {
            *out += _mm512_reduce_add_ps(acc);
        }
    }
}

/// Makes the compiler load what was just stored at `p`: a broadcast from memory is free, one from a register takes two shuffles.
#[inline(always)]
fn from_memory(p: *const f32) {
    // SAFETY: no instruction; the compiler must assume that the memory was read and written.
    unsafe { core::arch::asm!("/* {} */", in(reg) p, options(nostack, preserves_flags)) }
}

/// The mask of the first `n` of 16 lanes.
#[inline]
fn lanes(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}

/// Stores the sum of the lanes of `acc[r][i]` at `y[i * ldy + r]`. The order of the additions is the same for any R and M.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn store_sums<const R: usize, const M: usize>(acc: &[[__m512; M]; R], y: *mut f32, ldy: usize) {
    let half = |v: __m512| _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    let at = |n: usize| n.min(R * M - 1);
    for first in (0..R * M).step_by(4) {
        let acc = |n: usize| half(acc[at(first + n) % R][at(first + n) / R]);
        let (low, high) = (_mm256_hadd_ps(acc(0), acc(1)), _mm256_hadd_ps(acc(2), acc(3)));
        let all = _mm256_hadd_ps(low, high);
        let all = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
        let mut sums = [0f32; 4];
        // SAFETY: four numbers; the caller has room for R sums in each of M rows.
        unsafe {
            _mm_storeu_ps(sums.as_mut_ptr(), all);
            for n in first..(first + 4).min(R * M) {
                *y.add(n / R * ldy + n % R) = sums[n - first];
            }
        }
    }
}

/// 16 plain weights as f32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn load<const Q: u8>(p: *const u8) -> __m512 {
    // SAFETY: the caller promises 16 elements at `p`.
    unsafe {
        match Q {
            F32 => _mm512_loadu_ps(p.cast()),
            F16 => _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())),
            _ => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))),
        }
    }
}

/// The plain weights of the lanes in `mask`, zero elsewhere.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn load_masked<const Q: u8>(p: *const u8, mask: __mmask16) -> __m512 {
    // SAFETY: masked loads do not touch the other lanes' memory.
    unsafe {
        match Q {
            F32 => _mm512_maskz_loadu_ps(mask, p.cast()),
            F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p.cast())),
            _ => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p.cast())))),
        }
    }
}

/// How far ahead plain weights are prefetched.
const PREFETCH_BYTES: usize = 8192;

/// The sum of a row of f32, f16 or bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn plain_row<const Q: u8>(row: Rows) -> f32 {
    let size = if Q == F32 { 4 } else { 2 };
    let mut acc = [_mm512_setzero_ps(); 2];
    let mut i = 0;
    // SAFETY: every access lies in the first k elements of the row or of x; the last ones are masked; a prefetch reads nothing.
    unsafe {
        while i + 32 <= row.k {
            let p = row.w.add(i * size);
            for line in (0..32 * size).step_by(64) {
                // Weights are used once: they need not take the place of what is used again.
                _mm_prefetch::<_MM_HINT_NTA>(p.wrapping_add(PREFETCH_BYTES + line).cast());
            }
            acc[0] = _mm512_fmadd_ps(load::<Q>(p), _mm512_loadu_ps(row.x.add(i)), acc[0]);
            acc[1] = _mm512_fmadd_ps(load::<Q>(p.add(16 * size)), _mm512_loadu_ps(row.x.add(i + 16)), acc[1]);
            i += 32;
        }
        while i < row.k {
            let mask = lanes(row.k - i);
            let w = load_masked::<Q>(row.w.add(i * size), mask);
            acc[0] = _mm512_fmadd_ps(w, _mm512_maskz_loadu_ps(mask, row.x.add(i)), acc[0]);
            i += 16;
        }
    }
    _mm512_reduce_add_ps(_mm512_add_ps(acc[0], acc[1]))
}

impl<const Q: u8> RowDecoder for Floats<Q> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn rows<const R: usize, const M: usize>(rows: Rows, y: *mut f32, ldy: usize) {
        let size = if Q == F32 { 4 } else { 2 };
        let mut acc = [[_mm512_setzero_ps(); M]; R];
        let mut i = 0;
        // SAFETY: every access lies in the first k elements of a row or of x; the last ones are masked; a prefetch reads nothing.
        unsafe {
            while i + 32 <= rows.k {
                for r in 0..R {
                    let p = rows.w.add(r * rows.row_bytes + i * size);
                    prefetch::<R>(p, rows.row_bytes, 32 * size);
                    let w = [load::<Q>(p), load::<Q>(p.add(16 * size))];
                    for m in 0..M {
                        let x = rows.x.add(m * rows.k + i);
                        acc[r][m] = _mm512_fmadd_ps(w[0], _mm512_loadu_ps(x), acc[r][m]);
                        acc[r][m] = _mm512_fmadd_ps(w[1], _mm512_loadu_ps(x.add(16)), acc[r][m]);
                    }
                }
                i += 32;
            }
            while i < rows.k {
                let mask = lanes(rows.k - i);
                for r in 0..R {
                    let w = load_masked::<Q>(rows.w.add(r * rows.row_bytes + i * size), mask);
                    for m in 0..M {
                        let x = _mm512_maskz_loadu_ps(mask, rows.x.add(m * rows.k + i));
                        acc[r][m] = _mm512_fmadd_ps(w, x, acc[r][m]);
                    }
                }
                i += 16;
            }
            store_sums(&acc, y, ldy);
        }
    }
}

/// The scales of four blocks as f32 at `s`: [d; 4], or [d, m; 4] where there are minimums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn scales4<const Q: usize>(p: *const u8, s: *mut f32) {
    let Shape { bytes, min, .. } = const { shape(Q) };
    // SAFETY: the caller promises four blocks at `p` and eight floats at `s`.
    unsafe {
        if min {
            let at = |i: usize| p.add(i * bytes).cast::<u32>().read_unaligned() as u64;
            let v = _mm_set_epi64x((at(2) | at(3) << 32) as i64, (at(0) | at(1) << 32) as i64);
            _mm256_storeu_ps(s, _mm256_cvtph_ps(v));
        } else {
            let at = |i: usize| p.add(i * bytes).cast::<u16>().read_unaligned() as u64;
            let v = _mm_cvtsi64_si128((at(0) | at(1) << 16 | at(2) << 32 | at(3) << 48) as i64);
            _mm_storeu_ps(s, _mm_cvtph_ps(v));
        }
    }
}

/// The scales of one block, as above.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn scales1<const Q: usize>(p: *const u8) -> [f32; 2] {
    // SAFETY: the caller promises a block at `p`; every 32-wide block has at least four bytes.
    unsafe {
        let v = _mm_cvtph_ps(_mm_cvtsi32_si128(whole(p.cast::<u32>().read_unaligned())));
        let mut s = [0.0; 4];
        _mm_storeu_ps(s.as_mut_ptr(), v);
        [s[0], s[1]]
    }
}

/// The 32 weights of a block at `p` whose scales, as f32, are at `s`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn weights32<const Q: usize>(p: *const u8, s: *const f32) -> [__m512; 2] {
    // SAFETY: the caller promises a block at `p` and its scales at `s`.
    unsafe {
        let d = _mm512_set1_ps(*s);
        let Numbers { low, high, bias, signed } = const { LINEAR[Q].quants };
        if signed {
            return [signed16(p.add(low.at), d), signed16(p.add(low.at + 16), d)];
        }
        let counting = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
        // The lookup uses the low four bits of each index, so the low nibbles need no mask.
        let first = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.add(low.at).cast()));
        let second = _mm512_srli_epi32::<4>(first);
        // The values of 0..16, and of 16..32. Two tables rather than a sum: of an infinite d that would be NaN.
        let table = |from: f32| {
            let q = _mm512_add_ps(counting, _mm512_set1_ps(from));
            if const { shape(Q).min } { _mm512_fmadd_ps(q, d, _mm512_set1_ps(*s.add(1))) } else { _mm512_mul_ps(q, d) }
        };
        let lower = table(-(bias as f32));
        let w = [_mm512_permutexvar_ps(first, lower), _mm512_permutexvar_ps(second, lower)];
        let Some(high) = high else { return w };
        let (fifth, upper) = (p.add(high.at).cast::<u32>().read_unaligned(), table(16.0 - bias as f32));
        [
            _mm512_mask_permutexvar_ps(w[0], fifth as __mmask16, first, upper),
            _mm512_mask_permutexvar_ps(w[1], (fifth >> 16) as __mmask16, second, upper),
        ]
    }
}

/// 16 signed bytes times `d`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn signed16(p: *const u8, d: __m512) -> __m512 {
    // SAFETY: the caller promises 16 bytes at `p`.
    unsafe { _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))), d) }
}

impl<const Q: usize> RowDecoder for Block32<Q> {
    const AT_ONCE: AtOnce = if LINEAR[Q].quants.low.width == 8 { AtOnce::Four } else { AtOnce::Eight };

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn rows<const R: usize, const M: usize>(rows: Rows, y: *mut f32, ldy: usize) {
        let Shape { bytes, min, .. } = const { shape(Q) };
        let step = if min { 2 } else { 1 };
        let blocks = rows.k / 32;
        let mut acc = [[_mm512_setzero_ps(); M]; R];
        let mut s = [[0f32; 8]; R];
        let mut b = 0;
        // SAFETY: block b of row r and its 32 activations exist for b < blocks; `s` has room for four blocks' scales.
        unsafe {
            let add = |acc: &mut [__m512; M], r: usize, b: usize, s: *const f32| {
                let w = weights32::<Q>(rows.w.add(r * rows.row_bytes + b * bytes), s);
                for i in 0..M {
                    let x = rows.x.add(i * rows.k + b * 32);
                    acc[i] = _mm512_fmadd_ps(w[0], _mm512_loadu_ps(x), acc[i]);
                    acc[i] = _mm512_fmadd_ps(w[1], _mm512_loadu_ps(x.add(16)), acc[i]);
                }
            };
            while b + 4 <= blocks {
                for r in 0..R {
                    let p = rows.w.add(r * rows.row_bytes + b * bytes);
                    prefetch::<R>(p, rows.row_bytes, 4 * bytes);
                    scales4::<Q>(p, s[r].as_mut_ptr());
                    from_memory(s[r].as_ptr());
                }
                for j in 0..4 {
                    for r in 0..R {
                        add(&mut acc[r], r, b + j, s[r].as_ptr().add(j * step));
                    }
                }
                b += 4;
            }
            while b < blocks {
                for r in 0..R {
                    let s = scales1::<Q>(rows.w.add(r * rows.row_bytes + b * bytes));
                    add(&mut acc[r], r, b, s.as_ptr());
                }
                b += 1;
            }
            store_sums(&acc, y, ldy);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn decode32<const Q: usize>(p: *const u8, y: &mut [f32; 32]) {
    // SAFETY: the caller promises a block at `p`.
    unsafe {
        let w = weights32::<Q>(p, scales1::<Q>(p).as_ptr());
        _mm512_storeu_ps(y.as_mut_ptr(), w[0]);
        _mm512_storeu_ps(y.as_mut_ptr().add(16), w[1]);
    }
}

/// The scales of a 256-wide block: eight scales then eight negated minimums where they have six bits, else 16 scales.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn scales256<const Q: usize>(p: *const u8, s: &mut [f32; 16]) {
    // SAFETY: the caller promises a block at `p`.
    unsafe {
        let word = |at: usize| p.add(at).cast::<u32>().read_unaligned();
        let at = const { LINEAR[Q].d };
        let v = if let Scales::SixBits32 { at: six } = const { LINEAR[Q].scales } {
            let (a, b, c) = (word(six), word(six + 4), word(six + 8));
            let scales_high = c & 0x0f0f_0f0f | (a >> 6 & 0x0303_0303) << 4;
            let mins_high = c >> 4 & 0x0f0f_0f0f | (b >> 6 & 0x0303_0303) << 4;
            let bits = _mm_setr_epi32((a & 0x3f3f_3f3f) as i32, scales_high as i32, (b & 0x3f3f_3f3f) as i32, mins_high as i32);
            // `dmin` lies behind `d`.
            let d = _mm_cvtph_ps(_mm_cvtsi32_si128(word(at) as i32));
            // d in the first eight lanes, -dmin in the others.
            let d = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), _mm512_castps128_ps512(d));
            let d = _mm512_mask_sub_ps(d, 0xff00, _mm512_setzero_ps(), d);
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bits)), d)
        } else if let Scales::Each16(n) = const { LINEAR[Q].scales } {
            signed16(p.add(n.low.at), _mm512_set1_ps(f16_to_f32(p.add(at).cast::<u16>().read_unaligned())))
        } else {
            unreachable!("no reader of these scales")
        };
        _mm512_storeu_ps(s.as_mut_ptr(), v);
    }
}

/// Calls `put(i, w)` with the 16 weights from element `i` on, for one quarter (64 elements) of a 256-wide block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn quarter<const Q: usize>(p: *const u8, j: usize, s: &[f32; 16], mut put: impl FnMut(usize, __m512)) {
    // SAFETY: the caller promises a block at `p`, and j < 4.
    unsafe {
        let Numbers { low: low_bits, high: high_bits, bias, .. } = const { LINEAR[Q].quants };
        if let (64, Some(high_bits)) = (low_bits.lanes, high_bits) {
            // Two quarters share 64 bytes of low nibbles; the high bits of quarters 0 and 1, then 2 and 3, differ in their shift.
            let (half, upper) = (j / 2, j % 2 == 1);
            let low = _mm512_loadu_si512(p.add(low_bits.at + half * 64).cast());
            let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.add(high_bits.at + half * 32).cast()));
            let (low, high) = if upper {
                let shifts = _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
                (_mm512_srli_epi16::<4>(low), _mm512_srlv_epi64(high, shifts))
            } else {
                let shifts = _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2);
                (low, _mm512_sllv_epi64(high, shifts))
            };
            let high = _mm512_and_si512(high, _mm512_set1_epi8(0x30));
            // (low & 15) | high
            let q = _mm512_ternarylogic_epi32::<0xf8>(high, low, _mm512_set1_epi8(15));
            let mut bytes = [0u8; 64];
            _mm512_storeu_si512(bytes.as_mut_ptr().cast(), _mm512_sub_epi8(q, _mm512_set1_epi8(bias as i8)));
            for i in 0..4 {
                let d = _mm512_set1_ps(s[j * 4 + i]);
                put(j * 64 + i * 16, signed16(bytes.as_ptr().add(i * 16), d));
            }
            return;
        }
        let counting = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
        let qs = p.add(low_bits.at + j * 32);
        for g in 0..2 {
            let (d, min) = (_mm512_set1_ps(s[j * 2 + g]), _mm512_set1_ps(s[8 + j * 2 + g]));
            let table = _mm512_fmadd_ps(counting, d, min);
            let fifth = if let Some(high) = high_bits {
                let high = _mm256_loadu_si256(p.add(high.at).cast());
                _mm256_test_epi8_mask(high, _mm256_set1_epi8((1u8 << (j * 2 + g)) as i8))
            } else {
                0
            };
            for i in 0..2 {
                let index = _mm512_cvtepu8_epi32(_mm_loadu_si128(qs.add(i * 16).cast()));
                let index = if g == 1 { _mm512_srli_epi32::<4>(index) } else { index };
                let mut w = _mm512_permutexvar_ps(index, table);
                if high_bits.is_some() {
                    let upper = _mm512_fmadd_ps(_mm512_add_ps(counting, _mm512_set1_ps(16.0)), d, min);
                    w = _mm512_mask_permutexvar_ps(w, (fifth >> (i * 16)) as __mmask16, index, upper);
                }
                put(j * 64 + g * 32 + i * 16, w);
            }
        }
    }
}

impl<const Q: usize> RowDecoder for Block256<Q> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn rows<const R: usize, const M: usize>(rows: Rows, y: *mut f32, ldy: usize) {
        let bytes = const { LINEAR[Q].bytes() };
        let mut acc = [[_mm512_setzero_ps(); M]; R];
        let mut s = [[0f32; 16]; R];
        for b in 0..rows.k / 256 {
            // SAFETY: block b of every row and its 256 activations exist.
            unsafe {
                let x = rows.x.add(b * 256);
                let block = |r: usize| rows.w.add(r * rows.row_bytes + b * bytes);
                for r in 0..R {
                    prefetch::<R>(block(r), rows.row_bytes, bytes);
                    scales256::<Q>(block(r), &mut s[r]);
                    from_memory(s[r].as_ptr());
                }
                for j in 0..4 {
                    for r in 0..R {
                        quarter::<Q>(block(r), j, &s[r], |at, w| {
                            for i in 0..M {
                                acc[r][i] = _mm512_fmadd_ps(w, _mm512_loadu_ps(x.add(i * rows.k + at)), acc[r][i]);
                            }
                        });
                    }
                }
            }
        }
        // SAFETY: the caller has room for R sums in each of M rows.
        unsafe { store_sums(&acc, y, ldy) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn decode256<const Q: usize>(p: *const u8, y: &mut [f32; 256]) {
    // SAFETY: the caller promises a block at `p`; `i` is at most 240.
    unsafe {
        let mut s = [0f32; 16];
        scales256::<Q>(p, &mut s);
        for j in 0..4 {
            quarter::<Q>(p, j, &s, |i, w| _mm512_storeu_ps(y.as_mut_ptr().add(i), w));
        }
    }
}
