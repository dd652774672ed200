//! What each storage format's bytes mean, in plain Rust: the decoder of the plain path and, compiled again with vector
//! instructions enabled, of the formats without a hand-written one.

use crate::dtype::DType;

/// Reads a little-endian u16 at byte `at`.
#[inline(always)]
fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

/// Reads a little-endian u32 at byte `at`.
#[inline(always)]
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// An IEEE half as f32, without branches so that loops over it vectorize.
#[inline(always)]
pub(super) fn f16_to_f32(h: u16) -> f32 {
    let magnitude = (h & 0x7fff) as u32;
    // Moves the exponent from bias 15 to bias 127 by multiplying with 2^112; that also normalizes subnormals.
    let finite = (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits();
    let special = 0x7f80_0000 | (magnitude << 13);
    let bits = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(bits | ((h & 0x8000) as u32) << 16)
}

#[inline(always)]
fn f16_at(b: &[u8], at: usize) -> f32 {
    f16_to_f32(u16_at(b, at))
}

/// Decodes whole blocks: `bytes` holds exactly the blocks of `out`'s elements. A dtype without floats in it leaves `out` alone;
/// the callers in this module never pass one.
#[inline(always)]
pub(super) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    /// Fixed block sizes, so that the loops vectorize.
    #[inline(always)]
    fn each<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], block: impl Fn(&[u8; B], &mut [f32; N])) {
        for (b, y) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
            block(b, y);
        }
    }
    match dtype {
        DType::F32 => each(bytes, out, |b, [y]| *y = f32::from_le_bytes(*b)),
        DType::F16 => each(bytes, out, |b, [y]| *y = f16_to_f32(u16::from_le_bytes(*b))),
        DType::BF16 => each(bytes, out, |b, [y]| *y = f32::from_bits((u16::from_le_bytes(*b) as u32) << 16)),
        DType::Q4_0 => each(bytes, out, q4_0),
        DType::Q4_1 => each(bytes, out, q4_1),
        DType::Q5_0 => each(bytes, out, q5_0),
        DType::Q5_1 => each(bytes, out, q5_1),
        DType::Q8_0 => each(bytes, out, q8_0),
        DType::Q2_K => each(bytes, out, q2_k),
        DType::Q3_K => each(bytes, out, q3_k),
        DType::Q4_K => each(bytes, out, q4_k),
        DType::Q5_K => each(bytes, out, q5_k),
        DType::Q6_K => each(bytes, out, q6_k),
        _ => {}
    }
}

#[inline(always)]
fn q4_0(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for (j, &q) in b[2..18].iter().enumerate() {
        y[j] = ((q & 15) as i32 - 8) as f32 * d;
        y[j + 16] = ((q >> 4) as i32 - 8) as f32 * d;
    }
}

#[inline(always)]
fn q4_1(b: &[u8; 20], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    for (j, &q) in b[4..20].iter().enumerate() {
        y[j] = (q & 15) as f32 * d + m;
        y[j + 16] = (q >> 4) as f32 * d + m;
    }
}

/// The 5-bit formats keep the fifth bits of all 32 values in one word.
#[inline(always)]
fn five_bits(high: u32, low: &[u8], mut put: impl FnMut(usize, i32)) {
    for (j, &q) in low.iter().enumerate() {
        put(j, (q & 15) as i32 | ((high >> j & 1) << 4) as i32);
        put(j + 16, (q >> 4) as i32 | ((high >> (j + 16) & 1) << 4) as i32);
    }
}

#[inline(always)]
fn q5_0(b: &[u8; 22], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    five_bits(u32_at(b, 2), &b[6..22], |j, q| y[j] = (q - 16) as f32 * d);
}

#[inline(always)]
fn q5_1(b: &[u8; 24], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    five_bits(u32_at(b, 4), &b[8..24], |j, q| y[j] = q as f32 * d + m);
}

#[inline(always)]
fn q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for (y, &q) in y.iter_mut().zip(&b[2..34]) {
        *y = (q as i8) as f32 * d;
    }
}

#[inline(always)]
fn q2_k(b: &[u8; 84], y: &mut [f32; 256]) {
    let (scales, qs) = (&b[..16], &b[16..80]);
    let (d, dmin) = (f16_at(b, 80), f16_at(b, 82));
    for (g, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // Group g of 16: half g/8, two bits at shift 2*(g%8/2), bytes of the first or second 16.
        let (scale, shift) = (d * (scales[g] & 15) as f32, g % 8 / 2 * 2);
        let min = dmin * (scales[g] >> 4) as f32;
        let q = &qs[g / 8 * 32 + g % 2 * 16..][..16];
        for (y, &q) in y.iter_mut().zip(q) {
            *y = scale * (q >> shift & 3) as f32 - min;
        }
    }
}

#[inline(always)]
fn q3_k(b: &[u8; 110], y: &mut [f32; 256]) {
    let (high, qs, s) = (&b[..32], &b[32..96], &b[96..108]);
    let d = f16_at(b, 108);
    for (g, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // Scale g: four low bits in nibbles of s[0..8], two high bits in s[8..12].
        let low = if g < 8 { s[g] & 15 } else { s[g - 8] >> 4 };
        let scale = d * ((low | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4) as i32 - 32) as f32;
        let (shift, bit) = (g % 8 / 2 * 2, g / 2);
        let q = &qs[g / 8 * 32 + g % 2 * 16..][..16];
        let h = &high[g % 2 * 16..][..16];
        for ((y, &q), &h) in y.iter_mut().zip(q).zip(h) {
            let q = (q >> shift & 3) as i32 - 4 + ((h >> bit & 1) << 2) as i32;
            *y = scale * q as f32;
        }
    }
}

/// The eight 6-bit (scale, minimum) pairs of Q4_K and Q5_K.
#[inline(always)]
pub(super) fn scales_k(s: &[u8]) -> [(u8, u8); 8] {
    std::array::from_fn(|j| {
        if j < 4 { (s[j] & 63, s[j + 4] & 63) } else { (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4) }
    })
}

#[inline(always)]
fn q4_k(b: &[u8; 144], y: &mut [f32; 256]) {
    let (d, dmin, s) = (f16_at(b, 0), f16_at(b, 2), scales_k(&b[4..16]));
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min, shift) = (d * s[g].0 as f32, dmin * s[g].1 as f32, g % 2 * 4);
        for (y, &q) in y.iter_mut().zip(&b[16 + g / 2 * 32..][..32]) {
            *y = scale * (q >> shift & 15) as f32 - min;
        }
    }
}

#[inline(always)]
fn q5_k(b: &[u8; 176], y: &mut [f32; 256]) {
    let (d, dmin, s) = (f16_at(b, 0), f16_at(b, 2), scales_k(&b[4..16]));
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min, shift) = (d * s[g].0 as f32, dmin * s[g].1 as f32, g % 2 * 4);
        for ((y, &q), &h) in y.iter_mut().zip(&b[48 + g / 2 * 32..][..32]).zip(&b[16..48]) {
            *y = scale * (q >> shift & 15 | (h >> g & 1) << 4) as f32 - min;
        }
    }
}

#[inline(always)]
fn q6_k(b: &[u8; 210], y: &mut [f32; 256]) {
    let (low, high, s) = (&b[..128], &b[128..192], &b[192..208]);
    let d = f16_at(b, 208);
    for (g, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // Group g of 16: half g/8, quarter g%8/2 of that half (low nibbles, then high ones), first or second 16 bytes.
        let (half, quarter, side) = (g / 8, g % 8 / 2, g % 2 * 16);
        let scale = d * (s[g] as i8) as f32;
        let (low_shift, high_shift) = (quarter / 2 * 4, quarter * 2);
        let l = &low[half * 64 + quarter % 2 * 32 + side..][..16];
        let h = &high[half * 32 + side..][..16];
        for ((y, &l), &h) in y.iter_mut().zip(l).zip(h) {
            *y = scale * ((l >> low_shift & 15 | (h >> high_shift & 3) << 4) as i32 - 32) as f32;
        }
    }
}
