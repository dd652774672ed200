//! MXFP4: 32 values in 17 bytes. `x = 2^(e − 127)·q`, q a float of 4 bits, E2M1: the microscaling format of the Open Compute Project.
//!
//! ```text
//! byte 0       e
//! byte 1..17   q: byte 1+i holds q[i] in its low half and q[i+16] in its high half; a sign, two bits of exponent, one of mantissa
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, E2M1, Factor, Packed, Table, power_of_two};
use super::pack_codes;

/// The values and their factors.
const TABLE: Table = Table { values: &E2M1, at: 1, factor };

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "mxfp4",
    gguf: Some(GgufType { number: 39, name: "MXFP4", file_type: 38 }),
    values: Values::Coded(Coded {
        len: 32,
        bytes: 17,
        factor: Factor::PowerOfTwo(0),
        item,
        table: Some(TABLE),
        book: None,
        parts: 1,
        shifted: false,
        packed: Packed::Above(12),
        wgsl: ("quant/mxfp4.wgsl", include_str!("mxfp4.wgsl")),
        item_rows: 2,
    }),
    substitute: None,
    pack: Some(|values, block| pack_codes::powers_of_two(&E2M1, values, block)),
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    TABLE.item(block, g, out);
}

fn factor(block: &[u8], _: usize) -> f32 {
    power_of_two(block[0])
}
