//! IQ2_XS: 256 values in 74 bytes, in 16 groups of 16. `x = d·(2·s + 1)/8·±q`, q from a codebook of 512 entries of 8 values each, s of 4 bits per group.
//!
//! ```text
//! byte 0..2     d, f16
//! byte 2..66    two bytes each 8 values: in bits 0..9 the entry, in bits 9..16 seven signs, the eighth so that an even number is negative
//! byte 66..74   s: group g in byte 66 + g / 2, low half where g is even
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, Packed, entry, even_signs, half, of_three, short, sign, words};

/// The codebook.
const BOOK: [u32; 256] = words(include_str!("codebooks/iq2_xs.txt"));

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "iq2_xs",
    gguf: Some(GgufType { number: 17, name: "IQ2_XS", file_type: 20 }),
    values: Values::Coded(Coded {
        len: 256,
        bytes: 74,
        factor: Factor::Half(0),
        item,
        table: None,
        book: Some(&BOOK),
        parts: 2,
        shifted: false,
        packed: Packed::Signed,
        wgsl: ("quant/iq2_xs.wgsl", include_str!("iq2_xs.wgsl")),
        item_rows: 1,
    }),
    substitute: None,
    pack: None,
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    let (d, s) = (half(block, 0), block[66 + g]);
    for (k, out) in out.chunks_exact_mut(8).enumerate() {
        let bits = short(block, 2 + 8 * g + 2 * k);
        let scale = d * (0.5 + (s >> (k / 2 * 4) & 15) as f32) * 0.25;
        let (values, signs) = (entry(&BOOK, bits & 511), even_signs(bits >> 9));
        for (i, x) in out.iter_mut().enumerate() {
            *x = scale * of_three(values, i) * sign(signs, i);
        }
    }
}
