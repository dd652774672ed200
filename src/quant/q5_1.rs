//! Q5_1: 32 values in 24 bytes. `x = d·q + m`, q of 5 bits.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..4    m, f16
//! byte 4..8    h, u32: bit i is bit 4 of q[i]
//! byte 8..24   bits 0..4 of q: byte 8+i holds those of q[i] in its low half and of q[i+16] in its high half
//! ```

use super::q5_0::{pack_q, unpack_q};
use super::{BlockFormat, f16_at, inverse, put_f16, range};
use crate::dtype::DType;

/// The format.
pub(super) struct Q5_1;

impl BlockFormat for Q5_1 {
    fn dtype(&self) -> DType {
        DType::Q5_1
    }

    fn unpack(&self, block: &[u8], out: &mut [f32]) {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        unpack_q(&block[4..], |i, q| out[i] = f32::from(q) * d + m);
    }

    fn pack(&self, values: &[f32], block: &mut [u8]) {
        let (lo, hi) = range(values);
        let d = (hi - lo) / 31.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        put_f16(block, 2, lo);
        pack_q(&mut block[4..], |i| ((values[i] - lo) * id + 0.5).min(31.0) as u8);
    }
}
