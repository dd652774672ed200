//! Q4_1: 32 values in 20 bytes. `x = d·q + m`, q of 4 bits.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..4    m, f16
//! byte 4..20   q: byte 4+i holds q[i] in its low half and q[i+16] in its high half
//! ```

use super::{BlockFormat, f16_at, inverse, put_f16, range};
use crate::dtype::DType;

/// The format.
pub(super) struct Q4_1;

impl BlockFormat for Q4_1 {
    fn dtype(&self) -> DType {
        DType::Q4_1
    }

    fn unpack(&self, block: &[u8], out: &mut [f32]) {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        for i in 0..16 {
            out[i] = f32::from(block[4 + i] & 15) * d + m;
            out[i + 16] = f32::from(block[4 + i] >> 4) * d + m;
        }
    }

    fn pack(&self, values: &[f32], block: &mut [u8]) {
        let (lo, hi) = range(values);
        let d = (hi - lo) / 15.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        put_f16(block, 2, lo);
        let q = |x: f32| ((x - lo) * id + 0.5).min(15.0) as u8;
        for i in 0..16 {
            block[4 + i] = q(values[i]) | q(values[i + 16]) << 4;
        }
    }
}
