//! Q4_0: 32 values in 18 bytes. `x = d·(q − 8)`, q of 4 bits.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..18   q: byte 2+i holds q[i] in its low half and q[i+16] in its high half
//! ```

use super::{BlockFormat, extreme, f16_at, inverse, put_f16};
use crate::dtype::DType;

/// The format.
pub(super) struct Q4_0;

impl BlockFormat for Q4_0 {
    fn dtype(&self) -> DType {
        DType::Q4_0
    }

    fn unpack(&self, block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        for i in 0..16 {
            out[i] = (f32::from(block[2 + i] & 15) - 8.0) * d;
            out[i + 16] = (f32::from(block[2 + i] >> 4) - 8.0) * d;
        }
    }

    fn pack(&self, values: &[f32], block: &mut [u8]) {
        // The value of largest magnitude becomes q = 0, that is −8·d.
        let d = extreme(values) / -8.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        // In f64, as the sum's rounding in f32 depends on whether a compiler fuses it.
        let q = |x: f32| (f64::from(x) * f64::from(id) + 8.5).min(15.0) as u8;
        for i in 0..16 {
            block[2 + i] = q(values[i]) | q(values[i + 16]) << 4;
        }
    }
}
