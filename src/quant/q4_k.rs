//! Q4_K: 256 values in 144 bytes, in 8 groups of 32. `x = d·s·q − dmin·m`, q of 4 bits, s and m of 6 bits per group.
//!
//! ```text
//! byte 0..2      d, f16
//! byte 2..4      dmin, f16
//! byte 4..16     s and m: group g < 4 has s in bits 0..6 of byte 4 + g and m in bits 0..6 of byte 8 + g;
//!                group g ≥ 4 has bits 0..4 of s and m in the low and high half of byte 8 + g,
//!                bits 4..6 of s in bits 6..8 of byte g and those of m in bits 6..8 of byte 4 + g
//! byte 16..144   q: value l of group g is in byte 16 + 32·(g / 2) + l, low half where g is even
//! ```

use super::{BlockFormat, f16_at, fit, put_f16};
use crate::dtype::DType;

/// The format.
#[allow(non_camel_case_types)]
pub(super) struct Q4_K;

impl BlockFormat for Q4_K {
    fn dtype(&self) -> DType {
        DType::Q4_K
    }

    fn unpack(&self, block: &[u8], out: &mut [f32]) {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for (i, x) in out.iter_mut().enumerate() {
            let (g, l) = (i / 32, i % 32);
            let (s, m) = scale_min(&block[4..16], g);
            let q = block[16 + 32 * (g / 2) + l] >> (4 * (g % 2)) & 15;
            *x = d * f32::from(s) * f32::from(q) - dmin * f32::from(m);
        }
    }

    fn pack(&self, values: &[f32], block: &mut [u8]) {
        let (head, quants) = block.split_at_mut(16);
        let q = pack_groups(values, 15, head);
        for (bytes, pair) in quants.chunks_exact_mut(32).zip(q.chunks_exact(64)) {
            for (l, byte) in bytes.iter_mut().enumerate() {
                *byte = pair[l] | pair[l + 32] << 4;
            }
        }
    }
}

/// The scale and the minimum of group `g` from the twelve bytes that hold those of all eight; the same in Q5_K.
pub(super) fn scale_min(packed: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        (packed[g + 4] & 15 | (packed[g - 4] >> 6) << 4, packed[g + 4] >> 4 | (packed[g] >> 6) << 4)
    }
}

/// Fills the sixteen bytes that Q4_K and Q5_K begin with; gives the q of every value, in `0..=levels`.
pub(super) fn pack_groups(values: &[f32], levels: u8, head: &mut [u8]) -> [u8; 256] {
    let mut fits = [(0.0f32, 0.0f32); 8];
    for (fit, group) in fits.iter_mut().zip(values.chunks_exact(32)) {
        *fit = fit::affine(group, levels);
    }
    let most = |part: fn(&(f32, f32)) -> f32| fits.iter().map(part).fold(0.0, f32::max);
    head.fill(0);
    let d = put_f16(head, 0, most(|f| f.0) / 63.0);
    let dmin = put_f16(head, 2, most(|f| f.1) / 63.0);
    let mut q = [0u8; 256];
    for (g, (scale, min)) in fits.into_iter().enumerate() {
        let (scale, min) = (fit::level(scale, d, 0.0, 63.0), fit::level(min, dmin, 0.0, 63.0));
        let (s, m) = (scale as u8, min as u8);
        let packed = &mut head[4..16];
        if g < 4 {
            packed[g] |= s;
            packed[g + 4] |= m;
        } else {
            packed[g + 4] |= s & 15 | m << 4;
            packed[g - 4] |= s >> 4 << 6;
            packed[g] |= m >> 4 << 6;
        }
        for i in 32 * g..32 * g + 32 {
            q[i] = fit::level(values[i] + dmin * min, d * scale, 0.0, f32::from(levels)) as u8;
        }
    }
    q
}
