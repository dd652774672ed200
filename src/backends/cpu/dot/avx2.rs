//! The kernels with AVX2, FMA and F16C: 8 weights a register.

// Loops over R rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::unpack::*;
use super::{CHUNK, MAX_ROWS, Rows, plain, prefetch_stream};
use crate::dtype::DType;
use crate::quant::{LINEAR, Scales, with_format};
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
        ($kernel:ident, $q:ident, $x:expr) => {{
            let rows = Rows { w: w.as_ptr(), row_bytes, x: $x, k: x.len() };
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
        DType::F32 => by!(plain_rows, F32, x.as_ptr()),
        DType::F16 => by!(plain_rows, F16, x.as_ptr()),
        DType::BF16 => by!(plain_rows, BF16, x.as_ptr()),
        _ => with_format!(dtype, Q => {
            let rows = |lanes| by!(block_rows, Q, lanes);
            // SAFETY: the features are this function's own, and rows hold whole blocks.
            unsafe { with_lanes(x, rows) }
        }, _ => ()),
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
            prefetch_stream::<R>(rows.w, i * size, 16 * size);
            for r in 0..R {
                let p = rows.w.add(r * rows.row_bytes + i * size);
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

/// A row of activations for [`in_lanes`]: of each 32 numbers, the eight at 4j, then those at 4j + 1, at 4j + 2 and at 4j + 3.
///
/// # Safety
/// The processor has the features; `x` and `lanes` hold the same whole number of 32 numbers.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn to_lanes(x: &[f32], lanes: &mut [f32]) {
    for (x, to) in x.as_chunks::<32>().0.iter().zip(lanes.as_chunks_mut::<32>().0) {
        // SAFETY: all loads and stores lie in the 32 numbers.
        unsafe {
            let both = |j: usize| _mm256_loadu2_m128(x.as_ptr().add(16 + 4 * j), x.as_ptr().add(4 * j));
            let (a, b, c, d) = (both(0), both(1), both(2), both(3));
            let (ab, cd) = (_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpacklo_ps(c, d)));
            let (ab_high, cd_high) = (_mm256_castps_pd(_mm256_unpackhi_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d)));
            let to = to.as_mut_ptr().cast::<f64>();
            _mm256_storeu_pd(to, _mm256_unpacklo_pd(ab, cd));
            _mm256_storeu_pd(to.add(4), _mm256_unpackhi_pd(ab, cd));
            _mm256_storeu_pd(to.add(8), _mm256_unpacklo_pd(ab_high, cd_high));
            _mm256_storeu_pd(to.add(12), _mm256_unpackhi_pd(ab_high, cd_high));
        }
    }
}

/// The rows of activations that a format's rows are multiplied with, in the order of [`to_lanes`].
///
/// # Safety
/// The processor has the features; `x` holds whole blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn with_lanes(x: &[f32], run: impl FnOnce(*const f32)) {
    thread_local! {
        static LANES: std::cell::RefCell<Vec<f32>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    LANES.with_borrow_mut(|lanes| {
        lanes.resize(lanes.len().max(x.len()), 0.0);
        // SAFETY: as promised to this function; a block is 32 numbers or several times as many.
        unsafe { to_lanes(x, &mut lanes[..x.len()]) }
        run(lanes.as_ptr());
    })
}

/// The integers of run `g` as floats, their bias taken off, in the order of [`to_lanes`].
///
/// # Safety
/// The processor has the features; `p` is at a block, `g` is less than its runs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn in_lanes<const Q: usize>(p: *const u8, g: usize) -> [__m256; 4] {
    // SAFETY: as promised to this function.
    let q = unsafe { quants::<Q>(p, g) };
    if const { LINEAR[Q].quants.signed } {
        return bytes_in_lanes(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), 128);
    }
    bytes_in_lanes(q, const { shape(Q).bias as u8 })
}

/// 32 unsigned bytes less `bias` as floats, in the order of [`to_lanes`]. Bytes of 32-bit lanes cost a shift and a mask, where widening moves them between
/// lanes, for which processors have fewer units. Where there is a bias, the float of 2²³ + q is made by its bits, and both are taken off together, exactly.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn bytes_in_lanes(q: __m256i, bias: u8) -> [__m256; 4] {
    const BITS: f32 = (1 << 23) as f32;
    let mask = _mm256_set1_epi32(255);
    let bytes = [
        _mm256_and_si256(q, mask),
        _mm256_and_si256(_mm256_srli_epi32::<8>(q), mask),
        _mm256_and_si256(_mm256_srli_epi32::<16>(q), mask),
        _mm256_srli_epi32::<24>(q),
    ];
    // Written out: see `bytes_as_floats`.
    if bias == 0 {
        return [_mm256_cvtepi32_ps(bytes[0]), _mm256_cvtepi32_ps(bytes[1]), _mm256_cvtepi32_ps(bytes[2]), _mm256_cvtepi32_ps(bytes[3])];
    }
    let (bits, less) = (_mm256_set1_ps(BITS), _mm256_set1_ps(BITS + bias as f32));
    let float = |bytes: __m256i| _mm256_sub_ps(_mm256_or_ps(_mm256_castsi256_ps(bytes), bits), less);
    [float(bytes[0]), float(bytes[1]), float(bytes[2]), float(bytes[3])]
}

/// The scales of a block in each of R rows: `d` and `m` of run `g` for the lanes of [`in_lanes`].
pub(super) struct RowScales<const Q: usize, const R: usize> {
    /// By rows, where a block has several.
    each: [[f32; 32]; R],
    /// Of four rows, where a block has one: `d` of each, or `d, m` of each.
    whole: [f32; 8],
}

impl<const Q: usize, const R: usize> RowScales<Q, R> {
    /// Whether the scales of the rows are converted together.
    const TOGETHER: bool = R == 4 && matches!(LINEAR[Q].scales, Scales::Whole);

    pub(super) fn new() -> Self {
        RowScales { each: [[0.0; 32]; R], whole: [0.0; 8] }
    }

    /// Reads those of a block in R rows.
    ///
    /// # Safety
    /// The processor has the features; a block lies at `p`, and `row_bytes` further for each row.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn read(&mut self, p: *const u8, row_bytes: usize) {
        // SAFETY: as promised to this function.
        unsafe {
            if !const { Self::TOGETHER } {
                for r in 0..R {
                    scales::<Q>(p.add(r * row_bytes), &mut self.each[r]);
                }
                return;
            }
            let at = const { LINEAR[Q].d };
            if const { LINEAR[Q].dmin.is_some() } {
                // The minimum is just behind the scale.
                let word = |r: usize| p.add(r * row_bytes + at).cast::<u32>().read_unaligned() as i32;
                let halves = _mm_setr_epi32(word(0), word(1), word(2), word(3));
                _mm256_storeu_ps(self.whole.as_mut_ptr(), _mm256_cvtph_ps(halves));
            } else {
                let half = |r: usize| p.add(r * row_bytes + at).cast::<u16>().read_unaligned() as i64;
                let halves = half(0) | half(1) << 16 | half(2) << 32 | half(3) << 48;
                _mm_storeu_ps(self.whole.as_mut_ptr(), _mm_cvtph_ps(_mm_cvtsi64_si128(halves)));
            }
        }
    }

    /// Of row `r`: `d` of run `g`, or of each of its halves; and `m`, zeros where there is none.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn of(&self, r: usize, g: usize) -> [__m256; 2] {
        if const { Self::TOGETHER } {
            return if const { LINEAR[Q].dmin.is_some() } {
                [_mm256_set1_ps(self.whole[2 * r]), _mm256_set1_ps(self.whole[2 * r + 1])]
            } else {
                [_mm256_set1_ps(self.whole[r]), _mm256_setzero_ps()]
            };
        }
        if !const { shape(Q).by16 } {
            return [_mm256_set1_ps(self.each[r][g]), _mm256_set1_ps(self.each[r][16 + g])];
        }
        let halves = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
        // SAFETY: two floats each.
        let two =
            |at: usize| unsafe { _mm256_castpd_ps(_mm256_broadcast_sd(&self.each[r][at..][..2].as_ptr().cast::<f64>().read_unaligned())) };
        [_mm256_permutevar8x32_ps(two(2 * g), halves), _mm256_permutevar8x32_ps(two(16 + 2 * g), halves)]
    }
}

/// R rows of a block format times a row of activations in the order of [`to_lanes`].
///
/// # Safety
/// The processor has the features; `rows` are R rows of weights of the format, `y` is R numbers.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_rows<const Q: usize, const R: usize>(rows: Rows, y: *mut f32) {
    let Shape { bytes, runs, min, .. } = const { shape(Q) };
    let mut acc = [_mm256_setzero_ps(); R];
    let mut all_scales = RowScales::<Q, R>::new();
    // SAFETY: block b of row r and its activations exist.
    unsafe {
        for b in 0..rows.k / (runs * 32) {
            prefetch_stream::<R>(rows.w, b * bytes, bytes);
            all_scales.read(rows.w.add(b * bytes), rows.row_bytes);
            for g in 0..runs {
                let x = load_32(rows.x.add((b * runs + g) * 32));
                let sums = _mm256_add_ps(_mm256_add_ps(x[0], x[1]), _mm256_add_ps(x[2], x[3]));
                for r in 0..R {
                    let q = in_lanes::<Q>(rows.w.add(r * rows.row_bytes + b * bytes), g);
                    let [d, m] = all_scales.of(r, g);
                    let first = _mm256_fmadd_ps(q[1], x[1], _mm256_mul_ps(q[0], x[0]));
                    let all = _mm256_fmadd_ps(q[3], x[3], _mm256_fmadd_ps(q[2], x[2], first));
                    acc[r] = _mm256_fmadd_ps(all, d, acc[r]);
                    if min {
                        acc[r] = _mm256_fmadd_ps(sums, m, acc[r]);
                    }
                }
            }
        }
        for r in 0..R {
            *y.add(r) = sum(acc[r]);
        }
    }
}

/// R rows of a block format times M rows of activations, each in the order of [`to_lanes`]: each weight is decoded once, in registers.
///
/// # Safety
/// The processor has the features; `rows` are R rows of weights of the format, and its activations M rows; `y` is M rows of R numbers, `ldy` apart.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_rows_multi<const Q: usize, const R: usize, const M: usize>(rows: Rows, y: *mut f32, ldy: usize) {
    let Shape { bytes, runs, min, .. } = const { shape(Q) };
    let mut acc = [[_mm256_setzero_ps(); M]; R];
    let mut all_scales = RowScales::<Q, R>::new();
    // SAFETY: block b of row r and its activations exist.
    unsafe {
        for b in 0..rows.k / (runs * 32) {
            prefetch_stream::<R>(rows.w, b * bytes, bytes);
            all_scales.read(rows.w.add(b * bytes), rows.row_bytes);
            for g in 0..runs {
                let x = rows.x.add((b * runs + g) * 32);
                for r in 0..R {
                    let q = in_lanes::<Q>(rows.w.add(r * rows.row_bytes + b * bytes), g);
                    let [d, m] = all_scales.of(r, g);
                    let weight = |q: __m256| if min { _mm256_fmadd_ps(q, d, m) } else { _mm256_mul_ps(q, d) };
                    let w = [weight(q[0]), weight(q[1]), weight(q[2]), weight(q[3])];
                    for i in 0..M {
                        let x = x.add(i * rows.k);
                        for part in 0..4 {
                            acc[r][i] = _mm256_fmadd_ps(w[part], _mm256_loadu_ps(x.add(8 * part)), acc[r][i]);
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

/// `y[i][r] = sum_k w[r][k] * x[i][k]` for a block format; see [`super::gemv_multi`]. `false`, and nothing is written, for another dtype.
///
/// # Safety
/// The processor has the features; `w` holds the rows of weights, of as many as each of x's m rows has.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemv_multi(dtype: DType, w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32], [m, ldy]: [usize; 2]) -> bool {
    let (k, rows) = (x.len() / m, y.len() - (m - 1) * ldy);
    with_format!(dtype, Q => {
        // SAFETY: the caller's promise; rows r .. r + step lie inside `w` and each row of `y`.
        unsafe {
            with_lanes(x, |x| {
                for first in (0..m).step_by(MAX_ROWS) {
                    let all = Rows { w: w.as_ptr(), row_bytes, x: x.add(first * k), k };
                    multi::<Q>(all, &mut y[first * ldy..], [MAX_ROWS.min(m - first), rows, ldy]);
                }
            })
        }
        true
    }, _ => false)
}

/// All rows of weights times m rows of activations, which are at most [`MAX_ROWS`].
///
/// # Safety
/// See [`gemv_multi`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multi<const Q: usize>(all: Rows, y: &mut [f32], [m, rows, ldy]: [usize; 3]) {
    // SAFETY: the caller's promise.
    unsafe {
        match m {
            1 => rows_multi::<Q, 4, 1>(all, y, [rows, ldy]),
            2 => rows_multi::<Q, 2, 2>(all, y, [rows, ldy]),
            3 => rows_multi::<Q, 2, 3>(all, y, [rows, ldy]),
            4 => rows_multi::<Q, 2, 4>(all, y, [rows, ldy]),
            5 => rows_multi::<Q, 1, 5>(all, y, [rows, ldy]),
            6 => rows_multi::<Q, 1, 6>(all, y, [rows, ldy]),
            7 => rows_multi::<Q, 1, 7>(all, y, [rows, ldy]),
            _ => rows_multi::<Q, 1, 8>(all, y, [rows, ldy]),
        }
    }
}

/// All rows of weights, R at a time, times M rows of activations.
///
/// # Safety
/// See [`gemv_multi`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_multi<const Q: usize, const R: usize, const M: usize>(all: Rows, y: &mut [f32], [rows, ldy]: [usize; 2]) {
    let mut r = 0;
    while r < rows {
        // SAFETY: rows r .. r + R, or r alone, lie inside the weights and each row of `y`.
        unsafe {
            if rows - r >= R {
                block_rows_multi::<Q, R, M>(all.from(r), y.as_mut_ptr().add(r), ldy);
                r += R;
            } else {
                block_rows_multi::<Q, 1, M>(all.from(r), y.as_mut_ptr().add(r), ldy);
                r += 1;
            }
        }
    }
}

/// Decodes blocks, in order.
///
/// # Safety
/// As for [`decode`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode_blocks<const Q: usize>(bytes: &[u8], out: &mut [f32]) {
    let Shape { bytes: size, runs, by16, bias, .. } = const { shape(Q) };
    let mut s = [0f32; 32];
    for (block, y) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(runs * 32)) {
        // SAFETY: `block` is one block; the stores lie in `y`.
        unsafe {
            scales::<Q>(block.as_ptr(), &mut s);
            for g in 0..runs {
                let q = _mm256_sub_epi8(quants::<Q>(block.as_ptr(), g), _mm256_set1_epi8(bias));
                let q = bytes_as_floats(_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
                for (i, q) in q.into_iter().enumerate() {
                    let at = if by16 { g * 2 + i / 2 } else { g };
                    // Formats without minimums leave zeros there.
                    let w = _mm256_fmadd_ps(q, _mm256_set1_ps(s[at]), _mm256_set1_ps(s[16 + at]));
                    _mm256_storeu_ps(y.as_mut_ptr().add(g * 32 + i * 8), w);
                }
            }
        }
    }
}
