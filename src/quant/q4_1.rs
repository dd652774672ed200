//! Q4_1: 32 values in 20 bytes. `x = d·q + m`, q of 4 bits.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..4    m, f16
//! byte 4..20   q: byte 4+i holds q[i] in its low half and q[i+16] in its high half
//! ```

use super::block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
use super::pack;

/// The fields.
const FIELDS: Linear = Linear {
    len: 32,
    d: 0,
    dmin: Some(2),
    quants: Numbers { low: BitField { at: 4, width: 4, lanes: 16 }, high: None, bias: 0, signed: false },
    scales: Scales::Whole,
};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q4_1",
    gguf: Some(GgufType { number: 3, name: "Q4_1", file_type: 3 }),
    values: Values::Linear(FIELDS),
    substitute: None,
    pack: Some(|values, block| pack::affine_block(&FIELDS, values, block)),
};
