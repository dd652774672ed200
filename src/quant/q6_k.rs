//! Q6_K: 256 values in 210 bytes, in 16 groups of 16. `x = d·s·(q − 32)`, q of 6 bits, s a signed byte per group.
//!
//! ```text
//! value 128·h + 32·k + l                                                            (h < 2, k < 4, l < 32)
//! byte 0..128     bits 0..4 of q: byte 64·h + 32·(k % 2) + l, low half where k < 2
//! byte 128..192   bits 4..6 of q: bits 2k.. of byte 128 + 32·h + l
//! byte 192..208   s of group g: byte 192 + g, i8
//! byte 208..210   d, f16
//! ```

use super::{BlockFormat, f16_at, fit, put_f16};
use crate::dtype::DType;

/// The format.
#[allow(non_camel_case_types)]
pub(super) struct Q6_K;

impl BlockFormat for Q6_K {
    fn dtype(&self) -> DType {
        DType::Q6_K
    }

    fn unpack(&self, block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 208);
        for (i, x) in out.iter_mut().enumerate() {
            let (h, k, l) = (i / 128, i / 32 % 4, i % 32);
            let low = block[64 * h + 32 * (k % 2) + l] >> (4 * (k / 2)) & 15;
            let q = low | (block[128 + 32 * h + l] >> (2 * k) & 3) << 4;
            *x = d * f32::from(block[192 + i / 16] as i8) * (f32::from(q) - 32.0);
        }
    }

    fn pack(&self, values: &[f32], block: &mut [u8]) {
        let mut scales = [0.0f32; 16];
        for (scale, group) in scales.iter_mut().zip(values.chunks_exact(16)) {
            *scale = fit::symmetric(group, 32);
        }
        block.fill(0);
        let d = put_f16(block, 208, super::extreme(&scales) / -128.0);
        for (g, scale) in scales.into_iter().enumerate() {
            let scale = fit::level(scale, d, -128.0, 127.0);
            block[192 + g] = scale as i8 as u8;
            for i in 16 * g..16 * g + 16 {
                let (h, k, l) = (i / 128, i / 32 % 4, i % 32);
                let q = (fit::level(values[i], d * scale, -32.0, 31.0) + 32.0) as u8;
                block[64 * h + 32 * (k % 2) + l] |= (q & 15) << (4 * (k / 2));
                block[128 + 32 * h + l] |= (q >> 4) << (2 * k);
            }
        }
    }
}
