//! IQ3_S: 256 values in 110 bytes, in 8 groups of 32. `x = d·(2·s + 1)·±q`, q from a codebook of 512 entries of 4 values each, s of 4 bits per group.
//!
//! ```text
//! byte 0..2       d, f16
//! byte 2..66      bits 0..8 of the entries, one each 4 values
//! byte 66..74     bit 8 of the entries: entry e in bit e % 8 of byte 66 + e / 8
//! byte 74..106    signs: value i in bit i % 8 of byte 74 + i / 8
//! byte 106..110   s: group g in byte 106 + g / 2, low half where g is even
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, Packed, entry, half, sign, words};

/// The codebook.
const BOOK: [u32; 256] = words(include_str!("codebooks/iq3_s.txt"));

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "iq3_s",
    gguf: Some(GgufType { number: 21, name: "IQ3_S", file_type: 26 }),
    values: Values::Coded(Coded {
        len: 256,
        bytes: 110,
        factor: Factor::Half(0),
        item,
        table: None,
        book: Some(&BOOK),
        parts: 1,
        shifted: false,
        packed: Packed::Signed,
        wgsl: ("quant/iq3_s.wgsl", include_str!("iq3_s.wgsl")),
        item_rows: 2,
    }),
    substitute: None,
    pack: None,
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    let s = block[106 + g / 2] >> (4 * (g & 1)) & 15;
    let scale = half(block, 0) * f32::from(1 + 2 * s);
    for (k, out) in out.chunks_exact_mut(4).enumerate() {
        let values = entry(&BOOK, block[2 + 8 * g + k] as u32 | (block[66 + g] as u32 >> k & 1) << 8);
        let signs = block[74 + 4 * g + k / 2] as u32 >> (k % 2 * 4);
        for (i, x) in out.iter_mut().enumerate() {
            *x = scale * (1 + 2 * (values >> (4 * i) & 7)) as f32 * sign(signs, i);
        }
    }
}
