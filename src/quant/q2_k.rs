//! Q2_K: 256 values in 84 bytes, in 16 groups of 16. `x = d·s·q − dmin·m`, q of 2 bits, s and m of 4 bits per group.
//!
//! ```text
//! byte 0..16    group g: s in the low half of byte g, m in the high half
//! byte 16..80   q: value 128·h + 32·k + l is at bits 2k.. of byte 16 + 32·h + l     (h < 2, k < 4, l < 32)
//! byte 80..82   d, f16
//! byte 82..84   dmin, f16
//! ```

use super::{BlockFormat, f16_at, fit, put_f16};
use crate::dtype::DType;

/// The format.
#[allow(non_camel_case_types)]
pub(super) struct Q2_K;

impl BlockFormat for Q2_K {
    fn dtype(&self) -> DType {
        DType::Q2_K
    }

    fn unpack(&self, block: &[u8], out: &mut [f32]) {
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for (i, x) in out.iter_mut().enumerate() {
            let group = block[i / 16];
            let (byte, shift) = place(i);
            *x = d * f32::from(group & 15) * f32::from(block[byte] >> shift & 3) - dmin * f32::from(group >> 4);
        }
    }

    fn pack(&self, values: &[f32], block: &mut [u8]) {
        let mut fits = [(0.0f32, 0.0f32); 16];
        for (fit, group) in fits.iter_mut().zip(values.chunks_exact(16)) {
            *fit = fit::affine(group, 3);
        }
        let most = |part: fn(&(f32, f32)) -> f32| fits.iter().map(part).fold(0.0, f32::max);
        let d = put_f16(block, 80, most(|f| f.0) / 15.0);
        let dmin = put_f16(block, 82, most(|f| f.1) / 15.0);
        block[16..80].fill(0);
        for (g, (scale, min)) in fits.into_iter().enumerate() {
            let (s, m) = (fit::level(scale, d, 0.0, 15.0), fit::level(min, dmin, 0.0, 15.0));
            block[g] = s as u8 | (m as u8) << 4;
            for i in 16 * g..16 * g + 16 {
                let (byte, shift) = place(i);
                block[byte] |= (fit::level(values[i] + dmin * m, d * s, 0.0, 3.0) as u8) << shift;
            }
        }
    }
}

/// The byte and the shift of value `i`.
fn place(i: usize) -> (usize, usize) {
    (16 + 32 * (i / 128) + i % 32, 2 * (i / 32 % 4))
}
