//! Block formats with AVX2: the integers of 32 consecutive weights, and their scales. The floating and the int8 kernels share it.

use super::blocks::f16_to_f32;
use crate::dtype::DType;
use core::arch::x86_64::*;

pub(super) const Q4_0: u8 = DType::Q4_0 as u8;
pub(super) const Q4_1: u8 = DType::Q4_1 as u8;
pub(super) const Q5_0: u8 = DType::Q5_0 as u8;
pub(super) const Q5_1: u8 = DType::Q5_1 as u8;
pub(super) const Q8_0: u8 = DType::Q8_0 as u8;
pub(super) const Q2_K: u8 = DType::Q2_K as u8;
pub(super) const Q3_K: u8 = DType::Q3_K as u8;
pub(super) const Q4_K: u8 = DType::Q4_K as u8;
pub(super) const Q5_K: u8 = DType::Q5_K as u8;
pub(super) const Q6_K: u8 = DType::Q6_K as u8;

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
    /// What the quants are above the numbers they mean, as a power of two; 0 where they mean themselves.
    pub bias: i8,
}

/// The shape of a block format.
pub(super) const fn shape(q: u8) -> Shape {
    let dtype = match q {
        Q4_0 => DType::Q4_0,
        Q4_1 => DType::Q4_1,
        Q5_0 => DType::Q5_0,
        Q5_1 => DType::Q5_1,
        Q8_0 => DType::Q8_0,
        Q2_K => DType::Q2_K,
        Q3_K => DType::Q3_K,
        Q4_K => DType::Q4_K,
        Q5_K => DType::Q5_K,
        _ => DType::Q6_K,
    };
    Shape {
        bytes: dtype.block_bytes(),
        runs: dtype.block() / 32,
        by16: matches!(q, Q2_K | Q3_K | Q6_K),
        min: matches!(q, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K),
        bias: match q {
            Q3_K => 4,
            Q4_0 => 8,
            Q5_0 => 16,
            Q6_K => 32,
            _ => 0,
        },
    }
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

/// The same bits, kept in a general register: the compiler would load half of them straight into part of a vector register, and
/// so wait for what that register held before.
#[inline(always)]
pub(super) fn whole(mut bits: u32) -> i32 {
    // SAFETY: no instruction.
    unsafe { core::arch::asm!("/* {0:e} */", inout(reg) bits, options(pure, nomem, nostack, preserves_flags)) }
    bits as i32
}

/// The quants of run `g` of the block at `p`, one a byte, before their bias is taken off. Q8_0's are signed, the others unsigned.
///
/// # Safety
/// The processor has the features; `p` is at a block, `g` is less than its runs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn quants<const Q: u8>(p: *const u8, g: usize) -> __m256i {
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
        match Q {
            Q4_0 => nibbles(2),
            Q4_1 => nibbles(4),
            Q5_0 => _mm256_or_si256(nibbles(6), spread(word(p, 2), 16)),
            Q5_1 => _mm256_or_si256(nibbles(8), spread(word(p, 4), 16)),
            Q8_0 => load(2),
            Q2_K => pairs(load(16 + g / 4 * 32), g % 4 * 2),
            Q3_K => _mm256_or_si256(pairs(load(32 + g / 4 * 32), g % 4 * 2), pick(load(0), g, 4)),
            Q4_K => nibble(16 + g / 2 * 32, g % 2 == 1),
            Q5_K => _mm256_or_si256(nibble(48 + g / 2 * 32, g % 2 == 1), pick(load(16), g, 16)),
            _ => {
                let high = load(128 + g / 4 * 32);
                let high = match g % 4 {
                    0 => _mm256_slli_epi16::<4>(high),
                    1 => _mm256_slli_epi16::<2>(high),
                    2 => high,
                    _ => _mm256_srli_epi16::<2>(high),
                };
                _mm256_or_si256(nibble(g / 4 * 64 + g % 2 * 32, g % 4 >= 2), _mm256_and_si256(high, _mm256_set1_epi8(0x30)))
            }
        }
    }
}

/// The scales of the block at `p`: `d` of each run (or each 16) at `s[0..]`, `m` of each at `s[16..]` where there are any.
///
/// # Safety
/// The processor has the features; `p` is at a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn scales<const Q: u8>(p: *const u8, s: &mut [f32; 32]) {
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
        match Q {
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 => {
                let v = _mm_cvtph_ps(_mm_cvtsi32_si128(whole(word(p, 0))));
                s[0] = _mm_cvtss_f32(v);
                if const { shape(Q).min } {
                    s[16] = _mm_cvtss_f32(_mm_movehdup_ps(v));
                }
            }
            Q2_K => {
                let (v, low) = (_mm_loadu_si128(p.cast()), _mm_set1_epi8(15));
                times::<false>(_mm_and_si128(v, low), half(p, 80), &mut s[..16]);
                times::<false>(_mm_and_si128(_mm_srli_epi16::<4>(v), low), -half(p, 82), &mut s[16..]);
            }
            Q3_K => {
                let (a, b, c) = (word(p, 96), word(p, 100), word(p, 104));
                let scale = |low: u32, shift: u32| (low & 0x0f0f_0f0f | (c >> shift & 0x0303_0303) << 4) as i32;
                let v = _mm_setr_epi32(scale(a, 0), scale(b, 2), scale(a >> 4, 4), scale(b >> 4, 6));
                times::<true>(_mm_sub_epi8(v, _mm_set1_epi8(32)), half(p, 108), &mut s[..16]);
            }
            Q4_K | Q5_K => {
                let (a, b, c) = (word(p, 4), word(p, 8), word(p, 12));
                let scales_high = c & 0x0f0f_0f0f | (a >> 6 & 0x0303_0303) << 4;
                let mins_high = c >> 4 & 0x0f0f_0f0f | (b >> 6 & 0x0303_0303) << 4;
                let d = _mm_setr_epi32((a & 0x3f3f_3f3f) as i32, scales_high as i32, 0, 0);
                let m = _mm_setr_epi32((b & 0x3f3f_3f3f) as i32, mins_high as i32, 0, 0);
                times::<false>(d, half(p, 0), &mut s[..8]);
                times::<false>(m, -half(p, 2), &mut s[16..24]);
            }
            _ => times::<true>(_mm_loadu_si128(p.add(192).cast()), half(p, 208), &mut s[..16]),
        }
    }
}
