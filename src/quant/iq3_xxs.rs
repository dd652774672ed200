//! IQ3_XXS: 256 values in 98 bytes, in 8 groups of 32. `x = d·(2·s + 1)/4·±q`, q from a codebook of 256 entries of 4 values each, s of 4 bits per group.
//!
//! ```text
//! byte 0..2     d, f16
//! byte 2..66    the entries, one each 4 values
//! byte 66..98   four bytes each group: in bits 7k..7k+7 the signs of 8 values, the eighth so that an even number is negative, in bits 28..32 s
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, Packed, entry, even_signs, half, sign, word, words};

/// The codebook.
const BOOK: [u32; 128] = words(include_str!("codebooks/iq3_xxs.txt"));

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "iq3_xxs",
    gguf: Some(GgufType { number: 18, name: "IQ3_XXS", file_type: 23 }),
    values: Values::Coded(Coded {
        len: 256,
        bytes: 98,
        factor: Factor::Half(0),
        item,
        table: None,
        book: Some(&BOOK),
        parts: 1,
        shifted: false,
        packed: Packed::Signed,
        wgsl: ("quant/iq3_xxs.wgsl", include_str!("iq3_xxs.wgsl")),
        item_rows: 1,
    }),
    substitute: None,
    pack: None,
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    let bits = word(block, 66 + 4 * g);
    let scale = half(block, 0) * (0.5 + (bits >> 28) as f32) * 0.5;
    for (k, out) in out.chunks_exact_mut(4).enumerate() {
        let (values, signs) = (entry(&BOOK, block[2 + 8 * g + k].into()), even_signs(bits >> (k / 2 * 7) & 127) >> (k % 2 * 4));
        for (i, x) in out.iter_mut().enumerate() {
            let code = values >> (4 * i) & 7;
            // 4, 12, 20, 28, 36, 44, 52 and 62.
            *x = scale * (4 + 8 * code + (code / 7) * 2) as f32 * sign(signs, i);
        }
    }
}
