//! IQ4_NL: 32 values in 18 bytes. `x = d·t[q]`, q of 4 bits, t a table of 16 levels.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..18   q: byte 2+i holds q[i] in its low half and q[i+16] in its high half
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, LEVELS, Packed, Table, half};
use super::pack_codes;

/// The values and their factors.
const TABLE: Table = Table { values: &LEVELS, at: 2, factor };

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "iq4_nl",
    gguf: Some(GgufType { number: 20, name: "IQ4_NL", file_type: 25 }),
    values: Values::Coded(Coded {
        len: 32,
        bytes: 18,
        factor: Factor::Half(0),
        item,
        table: Some(TABLE),
        book: None,
        parts: 1,
        shifted: false,
        packed: Packed::Signed,
        wgsl: ("quant/iq4_nl.wgsl", include_str!("iq4_nl.wgsl")),
        item_rows: 2,
    }),
    substitute: None,
    pack: Some(|values, block| pack_codes::levels_block(&LEVELS, values, block)),
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    TABLE.item(block, g, out);
}

fn factor(block: &[u8], _: usize) -> f32 {
    half(block, 0)
}
