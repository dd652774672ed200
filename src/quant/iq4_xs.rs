//! IQ4_XS: 256 values in 136 bytes, in 8 groups of 32. `x = d·(s − 32)·t[q]`, q of 4 bits, s of 6 bits per group, t the table of IQ4_NL.
//!
//! ```text
//! byte 0..2     d, f16
//! byte 2..4     bits 4..6 of s: bits 2g.. of the two bytes
//! byte 4..8     bits 0..4 of s: group g in byte 4 + g / 2, low half where g is even
//! byte 8..136   q: value l < 16 of group g in the low half of byte 8 + 16·g + l, value l + 16 in the high half
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, LEVELS, Packed, Table, half, short};
use super::{iq4_nl, pack_codes};

/// The values and their factors.
const TABLE: Table = Table { values: &LEVELS, at: 8, factor };

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "iq4_xs",
    gguf: Some(GgufType { number: 23, name: "IQ4_XS", file_type: 30 }),
    values: Values::Coded(Coded {
        len: 256,
        bytes: 136,
        factor: Factor::Half(0),
        item,
        table: Some(TABLE),
        book: None,
        parts: 1,
        shifted: false,
        packed: Packed::Signed,
        wgsl: ("quant/iq4_xs.wgsl", include_str!("iq4_xs.wgsl")),
        item_rows: 2,
    }),
    substitute: Some(&iq4_nl::FORMAT),
    pack: Some(|values, block| pack_codes::levels_groups(&LEVELS, values, block)),
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    TABLE.item(block, g, out);
}

fn factor(block: &[u8], g: usize) -> f32 {
    let s = block[4 + g / 2] as u32 >> (4 * (g & 1)) & 15 | (short(block, 2) >> (2 * g) & 3) << 4;
    half(block, 0) * (s as i32 - 32) as f32
}
