//! IQ1_S: 256 values in 50 bytes, in 8 groups of 32. `x = d·(2·s + 1)·(q ± 1/8)`, q −1, 0 or 1, from
//! a codebook of 2048 entries of 8 values each, s of 3 bits per group.
//!
//! ```text
//! byte 0..2     d, f16
//! byte 2..34    bits 0..8 of the entries, one each 8 values
//! byte 34..50   two bytes each group: bits 8..11 of entry k in bits 3k.., s in bits 12..15, bit 15 where 1/8 is taken off
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, Packed, entry, half, short, sign, words};

/// The codebook, of IQ1_M too.
pub(super) const BOOK: [u32; 1024] = words(include_str!("codebooks/iq1_s.txt"));

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "iq1_s",
    gguf: Some(GgufType { number: 19, name: "IQ1_S", file_type: 24 }),
    values: Values::Coded(Coded {
        len: 256,
        bytes: 50,
        factor: Factor::Half(0),
        item,
        table: None,
        book: Some(&BOOK),
        parts: 1,
        shifted: false,
        packed: Packed::Above(16),
        wgsl: ("quant/iq1_s.wgsl", include_str!("iq1_s.wgsl")),
        item_rows: 1,
    }),
    substitute: None,
    pack: None,
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    let bits = short(block, 34 + 2 * g);
    let (scale, delta) = (half(block, 0) * (2 * (bits >> 12 & 7) + 1) as f32, 0.125 * sign(bits, 15));
    for (k, out) in out.chunks_exact_mut(8).enumerate() {
        let values = entry(&BOOK, block[2 + 4 * g + k] as u32 | (bits >> (3 * k) & 7) << 8);
        for (i, x) in out.iter_mut().enumerate() {
            *x = scale * ((values >> (2 * i) & 3) as f32 - 1.0 + delta);
        }
    }
}
