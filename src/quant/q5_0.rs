//! Q5_0: 32 values in 22 bytes. `x = d·(q − 16)`, q of 5 bits.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..6    h, u32: bit i is bit 4 of q[i]
//! byte 6..22   bits 0..4 of q: byte 6+i holds those of q[i] in its low half and of q[i+16] in its high half
//! ```

use super::block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
use super::pack;

/// The fields.
const FIELDS: Linear = Linear {
    len: 32,
    d: 0,
    dmin: None,
    quants: Numbers { low: BitField { at: 6, width: 4, lanes: 16 }, high: Some(BitField { at: 2, width: 1, lanes: 1 }), bias: 16, signed: false },
    scales: Scales::Whole,
};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q5_0",
    gguf: Some(GgufType { number: 6, name: "Q5_0", file_type: 8 }),
    values: Values::Linear(FIELDS),
    substitute: None,
    pack: Some(|values, block| pack::symmetric_block(&FIELDS, values, block)),
};
