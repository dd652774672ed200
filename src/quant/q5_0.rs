//! Q5_0: 32 values in 22 bytes. `x = d·(q − 16)`, q of 5 bits.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..6    h, u32: bit i is bit 4 of q[i]
//! byte 6..22   bits 0..4 of q: byte 6+i holds those of q[i] in its low half and of q[i+16] in its high half
//! ```

use super::{BlockFormat, extreme, f16_at, inverse, put_f16};
use crate::dtype::DType;

/// The format.
pub(super) struct Q5_0;

impl BlockFormat for Q5_0 {
    fn dtype(&self) -> DType {
        DType::Q5_0
    }

    fn unpack(&self, block: &[u8], out: &mut [f32]) {
        let d = f16_at(block, 0);
        unpack_q(&block[2..], |i, q| out[i] = (f32::from(q) - 16.0) * d);
    }

    fn pack(&self, values: &[f32], block: &mut [u8]) {
        // The value of largest magnitude becomes q = 0, that is −16·d.
        let d = extreme(values) / -16.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        // In f64, as the sum's rounding in f32 depends on whether a compiler fuses it.
        pack_q(&mut block[2..], |i| (f64::from(values[i]) * f64::from(id) + 16.5).min(31.0) as u8);
    }
}

/// Calls `put` with each index and its 5-bit number; `bytes` starts at the u32 of high bits.
pub(super) fn unpack_q(bytes: &[u8], mut put: impl FnMut(usize, u8)) {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let bit = |i: usize| ((high >> i) as u8 & 1) << 4;
    for i in 0..16 {
        put(i, bytes[4 + i] & 15 | bit(i));
        put(i + 16, bytes[4 + i] >> 4 | bit(i + 16));
    }
}

/// The reverse of [`unpack_q`]; `q` gives the number of an index.
pub(super) fn pack_q(bytes: &mut [u8], q: impl Fn(usize) -> u8) {
    let mut high = 0u32;
    for i in 0..16 {
        let (a, b) = (q(i), q(i + 16));
        bytes[4 + i] = a & 15 | b << 4;
        high |= u32::from(a >> 4) << i | u32::from(b >> 4) << (i + 16);
    }
    bytes[..4].copy_from_slice(&high.to_le_bytes());
}
