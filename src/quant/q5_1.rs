//! Q5_1: 32 values in 24 bytes. `x = d·q + m`, q of 5 bits.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..4    m, f16
//! byte 4..8    h, u32: bit i is bit 4 of q[i]
//! byte 8..24   bits 0..4 of q: byte 8+i holds those of q[i] in its low half and of q[i+16] in its high half
//! ```

use super::block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
use super::pack;

/// The fields.
const FIELDS: Linear = Linear {
    len: 32,
    d: 0,
    dmin: Some(2),
    quants: Numbers { low: BitField { at: 8, width: 4, lanes: 16 }, high: Some(BitField { at: 4, width: 1, lanes: 1 }), bias: 0, signed: false },
    scales: Scales::Whole,
};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q5_1",
    gguf: Some(GgufType { number: 7, name: "Q5_1", file_type: 9 }),
    values: Values::Linear(FIELDS),
    substitute: None,
    pack: Some(|values, block| pack::affine_block(&FIELDS, values, block)),
};
