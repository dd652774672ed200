//! NVFP4: 64 values in 36 bytes, in 4 groups of 16. `x = s·q`, q a float of 4 bits, E2M1, s one of 8 bits per group, E4M3 without a sign.
//!
//! ```text
//! byte 0..4    s
//! byte 4..36   q: value l < 8 of group g in the low half of byte 4 + 8·g + l, value l + 8 in the high half
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, E2M1, Factor, Packed, nibbles, small_float};
use super::pack_codes;

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "nvfp4",
    gguf: Some(GgufType { number: 40, name: "NVFP4", file_type: 39 }),
    values: Values::Coded(Coded {
        len: 64,
        bytes: 36,
        factor: Factor::SmallFloats,
        item,
        table: None,
        book: None,
        parts: 2,
        shifted: false,
        packed: Packed::Above(12),
        wgsl: ("quant/nvfp4.wgsl", include_str!("nvfp4.wgsl")),
        item_rows: 2,
    }),
    substitute: None,
    pack: Some(|values, block| pack_codes::small_floats(&E2M1, values, block)),
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    for (g, out) in (2 * g..).zip(out.chunks_exact_mut(16)) {
        nibbles(&block[4 + 8 * g..][..8], &E2M1, 0.5 * small_float(block[g]), out);
    }
}
