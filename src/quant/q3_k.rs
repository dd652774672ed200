//! Q3_K: 256 values in 110 bytes, in 16 groups of 16. `x = d·(s − 32)·(q − 4)`, q of 3 bits, s of 6 bits per group.
//!
//! ```text
//! value 128·h + 32·k + l                                                            (h < 2, k < 4, l < 32)
//! byte 0..32      bit 2 of q: bit 4h + k of byte l
//! byte 32..96     bits 0..2 of q: bits 2k.. of byte 32 + 32·h + l
//! byte 96..104    bits 0..4 of s: group g < 8 in the low half of byte 96 + g, group g ≥ 8 in the high half of byte 88 + g
//! byte 104..108   bits 4..6 of s: bits 2(g / 4).. of byte 104 + g % 4
//! byte 108..110   d, f16
//! ```

use super::{BlockFormat, f16_at, fit, put_f16};
use crate::dtype::DType;

/// The format.
#[allow(non_camel_case_types)]
pub(super) struct Q3_K;

impl BlockFormat for Q3_K {
    fn dtype(&self) -> DType {
        DType::Q3_K
    }

    fn unpack(&self, block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 108);
        for (i, x) in out.iter_mut().enumerate() {
            let g = i / 16;
            let low = block[96 + g % 8] >> (4 * (g / 8)) & 15;
            let scale = f32::from(low | (block[104 + g % 4] >> (2 * (g / 4)) & 3) << 4) - 32.0;
            let (h, k, l) = (i / 128, i / 32 % 4, i % 32);
            let q = block[32 + 32 * h + l] >> (2 * k) & 3 | (block[l] >> (4 * h + k) & 1) << 2;
            *x = d * scale * (f32::from(q) - 4.0);
        }
    }

    fn pack(&self, values: &[f32], block: &mut [u8]) {
        let mut scales = [0.0f32; 16];
        for (scale, group) in scales.iter_mut().zip(values.chunks_exact(16)) {
            *scale = fit::symmetric(group, 4);
        }
        block.fill(0);
        let d = put_f16(block, 108, super::extreme(&scales) / -32.0);
        for (g, scale) in scales.into_iter().enumerate() {
            let scale = fit::level(scale, d, -32.0, 31.0);
            let s = (scale + 32.0) as u8;
            block[96 + g % 8] |= (s & 15) << (4 * (g / 8));
            block[104 + g % 4] |= (s >> 4) << (2 * (g / 4));
            for i in 16 * g..16 * g + 16 {
                let (h, k, l) = (i / 128, i / 32 % 4, i % 32);
                let q = (fit::level(values[i], d * scale, -4.0, 3.0) + 4.0) as u8;
                block[32 + 32 * h + l] |= (q & 3) << (2 * k);
                block[l] |= (q >> 2) << (4 * h + k);
            }
        }
    }
}
