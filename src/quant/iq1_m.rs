//! IQ1_M: 256 values in 56 bytes, in 16 groups of 16. `x = d·(2·s + 1)·(q ± 1/8)`, q as in IQ1_S, s of 3 bits per group.
//!
//! ```text
//! byte 0..32    bits 0..8 of the entries, one each 8 values
//! byte 32..48   four bits each entry e, low half of byte 32 + e / 2 where e is even: bits 8..11 of the entry, then 1 where 1/8 is taken off
//! byte 48..56   four words of two bytes: s of group g in bits 3·(g % 4).. of word g / 4; bits 4k..4k+4 of d, f16, in bits 12..16 of word k
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, Packed, entry, short, sign};
use super::f16_to_f32;
use super::iq1_s::BOOK;

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "iq1_m",
    gguf: Some(GgufType { number: 29, name: "IQ1_M", file_type: 31 }),
    values: Values::Coded(Coded {
        len: 256,
        bytes: 56,
        factor: Factor::Scattered(48),
        item,
        table: None,
        book: Some(&BOOK),
        parts: 2,
        shifted: false,
        packed: Packed::Above(16),
        wgsl: ("quant/iq1_m.wgsl", include_str!("iq1_m.wgsl")),
        item_rows: 1,
    }),
    substitute: None,
    pack: None,
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    let d = (0..4).map(|k| short(block, 48 + 2 * k) >> 12 << (4 * k)).sum::<u32>();
    let (d, s) = (f16_to_f32(d as u16), short(block, 48 + g / 2 * 2) >> (g % 2 * 6));
    for (k, out) in out.chunks_exact_mut(8).enumerate() {
        let above = block[32 + 2 * g + k / 2] as u32 >> (k % 2 * 4);
        let values = entry(&BOOK, block[4 * g + k] as u32 | (above & 7) << 8);
        let (scale, delta) = (d * (2 * (s >> (k / 2 * 3) & 7) + 1) as f32, 0.125 * sign(above, 3));
        for (i, x) in out.iter_mut().enumerate() {
            *x = scale * ((values >> (2 * i) & 3) as f32 - 1.0 + delta);
        }
    }
}
