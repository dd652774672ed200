//! Q1_0: 128 values in 18 bytes. `x = d` where q = 1, else `−d`, q of 1 bit.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..18   q: value i in bit i % 8 of byte 2 + i / 8
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, Packed, half, sign, word};
use super::pack_codes;

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q1_0",
    gguf: Some(GgufType { number: 41, name: "Q1_0", file_type: 40 }),
    values: Values::Coded(Coded {
        len: 128,
        bytes: 18,
        factor: Factor::Half(0),
        item,
        table: None,
        book: None,
        parts: 1,
        shifted: false,
        packed: Packed::Above(1),
        wgsl: ("quant/q1_0.wgsl", include_str!("q1_0.wgsl")),
        item_rows: 1,
    }),
    substitute: None,
    pack: Some(pack_codes::signs),
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    let (d, bits) = (half(block, 0), !word(block, 2 + 4 * g));
    for (i, x) in out.iter_mut().enumerate() {
        *x = d * sign(bits, i);
    }
}
