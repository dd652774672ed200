//! IQ2_S: 256 values in 82 bytes, in 16 groups of 16. `x = d·(2·s + 1)/8·±q`, q from a codebook of 1024 entries of 8 values each, s of 4 bits per group.
//!
//! ```text
//! byte 0..2     d, f16
//! byte 2..34    bits 0..8 of the entries, one each 8 values
//! byte 34..66   signs: value i in bit i % 8 of byte 34 + i / 8
//! byte 66..74   bits 8..10 of the entries: entry e in bits 2·(e % 4).. of byte 66 + e / 4
//! byte 74..82   s: group g in byte 74 + g / 2, low half where g is even
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, Packed, entry, half, of_three, sign, words};

/// The codebook.
const BOOK: [u32; 512] = words(include_str!("codebooks/iq2_s.txt"));

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "iq2_s",
    gguf: Some(GgufType { number: 22, name: "IQ2_S", file_type: 28 }),
    values: Values::Coded(Coded {
        len: 256,
        bytes: 82,
        factor: Factor::Half(0),
        item,
        table: None,
        book: Some(&BOOK),
        parts: 2,
        shifted: false,
        packed: Packed::Signed,
        wgsl: ("quant/iq2_s.wgsl", include_str!("iq2_s.wgsl")),
        item_rows: 1,
    }),
    substitute: None,
    pack: None,
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    let (d, s, high) = (half(block, 0), block[74 + g], block[66 + g] as u32);
    for (k, out) in out.chunks_exact_mut(8).enumerate() {
        let scale = d * (0.5 + (s >> (k / 2 * 4) & 15) as f32) * 0.25;
        let values = entry(&BOOK, block[2 + 4 * g + k] as u32 | (high >> (2 * k) & 3) << 8);
        let signs = block[34 + 4 * g + k].into();
        for (i, x) in out.iter_mut().enumerate() {
            *x = scale * of_three(values, i) * sign(signs, i);
        }
    }
}
