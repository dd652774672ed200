//! Q5_K: 256 values in 176 bytes, in 8 groups of 32. `x = d·s·q − dmin·m`, q of 5 bits, s and m of 6 bits per group.
//!
//! ```text
//! byte 0..2      d, f16
//! byte 2..4      dmin, f16
//! byte 4..16     s and m, as in Q4_K
//! byte 16..48    bit 4 of q: value l of group g is at bit g of byte 16 + l
//! byte 48..176   bits 0..4 of q: value l of group g is in byte 48 + 32·(g / 2) + l, low half where g is even
//! ```

use super::q4_k::{pack_groups, scale_min};
use super::{BlockFormat, f16_at};
use crate::dtype::DType;

/// The format.
#[allow(non_camel_case_types)]
pub(super) struct Q5_K;

impl BlockFormat for Q5_K {
    fn dtype(&self) -> DType {
        DType::Q5_K
    }

    fn unpack(&self, block: &[u8], out: &mut [f32]) {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for (i, x) in out.iter_mut().enumerate() {
            let (g, l) = (i / 32, i % 32);
            let (s, m) = scale_min(&block[4..16], g);
            let q = block[48 + 32 * (g / 2) + l] >> (4 * (g % 2)) & 15 | (block[16 + l] >> g & 1) << 4;
            *x = d * f32::from(s) * f32::from(q) - dmin * f32::from(m);
        }
    }

    fn pack(&self, values: &[f32], block: &mut [u8]) {
        block.fill(0);
        let q = pack_groups(values, 31, &mut block[..16]);
        for (i, q) in q.into_iter().enumerate() {
            let (g, l) = (i / 32, i % 32);
            block[48 + 32 * (g / 2) + l] |= (q & 15) << (4 * (g % 2));
            block[16 + l] |= (q >> 4) << g;
        }
    }
}
