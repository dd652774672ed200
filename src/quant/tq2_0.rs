//! TQ2_0: 256 values in 66 bytes. `x = d·(q − 1)`, q of 2 bits, for weights that are −1, 0 and 1.
//!
//! ```text
//! byte 0..64    q: value 128·h + 32·k + l in bits 2k.. of byte 32·h + l   (h < 2, k < 4, l < 32)
//! byte 64..66   d, f16
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, Packed, half};
use super::pack_codes;

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "tq2_0",
    gguf: Some(GgufType { number: 35, name: "TQ2_0", file_type: 37 }),
    values: Values::Coded(Coded {
        len: 256,
        bytes: 66,
        factor: Factor::Half(64),
        item,
        table: None,
        book: None,
        parts: 1,
        shifted: false,
        packed: Packed::Above(1),
        wgsl: ("quant/tq2_0.wgsl", include_str!("tq2_0.wgsl")),
        item_rows: 1,
    }),
    substitute: None,
    pack: Some(pack_codes::crumbs),
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    let d = half(block, 64);
    for (x, &b) in out.iter_mut().zip(&block[g / 4 * 32..]) {
        *x = d * ((b >> (2 * (g & 3)) & 3) as f32 - 1.0);
    }
}
