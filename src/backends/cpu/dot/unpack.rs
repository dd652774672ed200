//! Block formats with AVX2: the integers of 32 consecutive weights, and their scales. By hand for each kind of field, not for each format: which
//! kinds a format has stands in its descriptor, so that what is compiled for format number Q of [`LINEAR`] has no branches left.

use crate::quant::{LINEAR, Scales, f16_to_f32};
use core::arch::x86_64::*;

/// What the kernels need to know of a block format: `weight = d * (quant - bias) + m`.
pub(super) struct Shape {
    /// Bytes of a block.
    pub bytes: usize,
    /// Runs of 32 weights in a block.
    pub runs: usize,
    /// Whether each 16 weights have a scale, instead of each 32.
    pub by16: bool,
    /// Whether there is an `m`.
    pub min: bool,
    /// What the quants are above the numbers they mean.
    pub bias: i8,
}

/// The shape of a block format.
pub(super) const fn shape(q: usize) -> Shape {
    let f = LINEAR[q];
    Shape { bytes: f.bytes(), runs: f.len / 32, by16: f.group() == 16, min: f.dmin.is_some(), bias: f.quants.bias as i8 }
}

/// Four bytes at `p + at`.
#[inline(always)]
unsafe fn word(p: *const u8, at: usize) -> u32 {
    // SAFETY: the caller promises the bytes.
    unsafe { p.add(at).cast::<u32>().read_unaligned() }
}

/// An f16 at `p + at`.
#[inline(always)]
unsafe fn half(p: *const u8, at: usize) -> f32 {
    // SAFETY: the caller promises the bytes.
    f16_to_f32(unsafe { p.add(at).cast::<u16>().read_unaligned() })
}

/// 32 signed bytes as floats. Written out, as [`load_32`] is: the methods of arrays are compiled without these features, so that what they are given may
/// stay a call with its vectors in memory.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn bytes_as_floats(low: __m128i, high: __m128i) -> [__m256; 4] {
    let float = |bytes: __m128i| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    [float(low), float(_mm_unpackhi_epi64(low, low)), float(high), float(_mm_unpackhi_epi64(high, high))]
}

/// 32 floats.
///
/// # Safety
/// They lie at `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn load_32(x: *const f32) -> [__m256; 4] {
    // SAFETY: as promised to this function.
    unsafe { [_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(8)), _mm256_loadu_ps(x.add(16)), _mm256_loadu_ps(x.add(24))] }
}

/// The same bits, kept in a general register: the compiler would load half of them straight into part of a vector register, and
/// so wait for what that register held before.
#[inline(always)]
pub(super) fn whole(mut bits: u32) -> i32 {
    // SAFETY: no instruction.
    unsafe { core::arch::asm!("/* {0:e} */", inout(reg) bits, options(pure, nomem, nostack, preserves_flags)) }
    bits as i32
}

/// The quants of run `g` of the block at `p`, one a byte, before their bias is taken off; signed bytes as they are.
///
/// # Safety
/// The processor has the features; `p` is at a block, `g` is less than its runs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn quants<const Q: usize>(p: *const u8, g: usize) -> __m256i {
    // SAFETY: all offsets lie in the block.
    unsafe {
        let load = |at: usize| _mm256_loadu_si256(p.add(at).cast());
        // Low nibbles of 16 bytes, then the high ones.
        let nibbles = |at: usize| {
            let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.add(at).cast()));
            _mm256_and_si256(_mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15))
        };
        // `value` in the bytes whose bit is set in a 32-bit word.
        let spread = |bits: u32, value: i8| {
            let each = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
            let bytes = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bits = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), bytes), each);
            _mm256_and_si256(_mm256_cmpeq_epi8(bits, each), _mm256_set1_epi8(value))
        };
        // `value` in the bytes that have bit `bit` set.
        let pick = |v: __m256i, bit: usize, value: i8| {
            let mask = _mm256_set1_epi8((1u8 << bit) as i8);
            _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(v, mask), mask), _mm256_set1_epi8(value))
        };
        // Bits `shift .. shift + 2` of each byte.
        let pairs = |v: __m256i, shift: usize| _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(shift as i32)), _mm256_set1_epi8(3));
        let nibble = |at: usize, high: bool| {
            let v = load(at);
            _mm256_and_si256(if high { _mm256_srli_epi16::<4>(v) } else { v }, _mm256_set1_epi8(15))
        };
        let low = const { LINEAR[Q].quants.low };
        let bits = match (low.width, low.lanes) {
            (8, 32) => load(low.at + g * 32),
            (4, 16) => nibbles(low.at),
            (4, 32) => nibble(low.at + g / 2 * 32, g % 2 == 1),
            (4, 64) => nibble(low.at + g / 4 * 64 + g % 2 * 32, g % 4 >= 2),
            (2, 32) => pairs(load(low.at + g / 4 * 32), g % 4 * 2),
            _ => unreachable!("no reader of these quants"),
        };
        let Some(high) = (const { LINEAR[Q].quants.high }) else { return bits };
        let above = match (low.width, high.width, high.lanes) {
            (4, 1, 1) => spread(word(p, high.at), 16),
            (_, 1, 32) => pick(load(high.at), g, 1 << low.width),
            (4, 2, 32) => {
                let high = load(high.at + g / 4 * 32);
                let high = match g % 4 {
                    0 => _mm256_slli_epi16::<4>(high),
                    1 => _mm256_slli_epi16::<2>(high),
                    2 => high,
                    _ => _mm256_srli_epi16::<2>(high),
                };
                _mm256_and_si256(high, _mm256_set1_epi8(0x30))
            }
            _ => unreachable!("no reader of these high bits"),
        };
        _mm256_or_si256(bits, above)
    }
}

/// The scales of the block at `p`: `d` of each run (or each 16) at `s[0..]`, `m` of each at `s[16..]` where there are any.
///
/// # Safety
/// The processor has the features; `p` is at a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn scales<const Q: usize>(p: *const u8, s: &mut [f32; 32]) {
    /// 16 unsigned or signed bytes times `d`, stored at `s`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn times<const SIGNED: bool>(bytes: __m128i, d: f32, s: &mut [f32]) {
        for (bytes, s) in [bytes, _mm_unpackhi_epi64(bytes, bytes)].into_iter().zip(s.as_chunks_mut::<8>().0) {
            let v = if SIGNED { _mm256_cvtepi8_epi32(bytes) } else { _mm256_cvtepu8_epi32(bytes) };
            // SAFETY: `s` is eight floats.
            unsafe { _mm256_storeu_ps(s.as_mut_ptr(), _mm256_mul_ps(_mm256_cvtepi32_ps(v), _mm256_set1_ps(d))) }
        }
    }
    // SAFETY: all offsets lie in the block.
    unsafe {
        let (d_at, dmin_at) = const { (LINEAR[Q].d, LINEAR[Q].dmin) };
        let d = || half(p, d_at);
        let less_dmin = || dmin_at.map_or(0.0, |at| -half(p, at));
        match const { LINEAR[Q].scales } {
            // `d`, and the minimum just behind it.
            Scales::Whole => {
                let v = _mm_cvtph_ps(_mm_cvtsi32_si128(whole(word(p, d_at))));
                s[0] = _mm_cvtss_f32(v);
                if dmin_at.is_some() {
                    s[16] = _mm_cvtss_f32(_mm_movehdup_ps(v));
                }
            }
            Scales::Nibbles16 { at } => {
                let (v, low) = (_mm_loadu_si128(p.add(at).cast()), _mm_set1_epi8(15));
                times::<false>(_mm_and_si128(v, low), d(), &mut s[..16]);
                times::<false>(_mm_and_si128(_mm_srli_epi16::<4>(v), low), less_dmin(), &mut s[16..]);
            }
            Scales::Each16(n) if n.signed => times::<true>(_mm_loadu_si128(p.add(n.low.at).cast()), d(), &mut s[..16]),
            // Four bits in eight bytes, and two more in four.
            Scales::Each16(n) => {
                let (a, b, c) = (word(p, n.low.at), word(p, n.low.at + 4), word(p, n.low.at + 8));
                let scale = |low: u32, shift: u32| (low & 0x0f0f_0f0f | (c >> shift & 0x0303_0303) << 4) as i32;
                let v = _mm_setr_epi32(scale(a, 0), scale(b, 2), scale(a >> 4, 4), scale(b >> 4, 6));
                times::<true>(_mm_sub_epi8(v, _mm_set1_epi8(n.bias as i8)), d(), &mut s[..16]);
            }
            Scales::SixBits32 { at } => {
                let (a, b, c) = (word(p, at), word(p, at + 4), word(p, at + 8));
                let scales_high = c & 0x0f0f_0f0f | (a >> 6 & 0x0303_0303) << 4;
                let mins_high = c >> 4 & 0x0f0f_0f0f | (b >> 6 & 0x0303_0303) << 4;
                let scales = _mm_setr_epi32((a & 0x3f3f_3f3f) as i32, scales_high as i32, 0, 0);
                let mins = _mm_setr_epi32((b & 0x3f3f_3f3f) as i32, mins_high as i32, 0, 0);
                times::<false>(scales, d(), &mut s[..8]);
                times::<false>(mins, less_dmin(), &mut s[16..24]);
            }
        }
    }
}
