//! IQ2_XXS: 256 values in 66 bytes, in 8 groups of 32. `x = d·(2·s + 1)/8·±q`, q from a codebook of 256 entries of 8 values each, s of 4 bits per group.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..66   group g, in byte 2 + 8·g and up: 4 bytes, the entries of 8 values each; 4 bytes, in bits 7k..7k+7 the signs of entry k, the
//!              eighth so that an even number is negative, in bits 28..32 s
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, Packed, entry, even_signs, half, of_three, sign, word, words};

/// The codebook.
const BOOK: [u32; 128] = words(include_str!("codebooks/iq2_xxs.txt"));

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "iq2_xxs",
    gguf: Some(GgufType { number: 16, name: "IQ2_XXS", file_type: 19 }),
    values: Values::Coded(Coded {
        len: 256,
        bytes: 66,
        factor: Factor::Half(0),
        item,
        table: None,
        book: Some(&BOOK),
        parts: 1,
        shifted: false,
        packed: Packed::Signed,
        wgsl: ("quant/iq2_xxs.wgsl", include_str!("iq2_xxs.wgsl")),
        item_rows: 1,
    }),
    substitute: None,
    pack: None,
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    let (at, bits) = (2 + 8 * g, word(block, 6 + 8 * g));
    let scale = half(block, 0) * (0.5 + (bits >> 28) as f32) * 0.25;
    for (k, out) in out.chunks_exact_mut(8).enumerate() {
        let (values, signs) = (entry(&BOOK, block[at + k].into()), even_signs(bits >> (7 * k) & 127));
        for (i, x) in out.iter_mut().enumerate() {
            *x = scale * of_three(values, i) * sign(signs, i);
        }
    }
}
