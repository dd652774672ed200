//! Q6_K: 256 values in 210 bytes, in 16 groups of 16. `x = d·s·(q − 32)`, q of 6 bits, s a signed byte per group.
//!
//! ```text
//! value 128·h + 32·k + l                                                            (h < 2, k < 4, l < 32)
//! byte 0..128     bits 0..4 of q: byte 64·h + 32·(k % 2) + l, low half where k < 2
//! byte 128..192   bits 4..6 of q: bits 2k.. of byte 128 + 32·h + l
//! byte 192..208   s of group g: byte 192 + g, i8
//! byte 208..210   d, f16
//! ```

use super::block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
use super::{pack, q8_0};

/// The fields.
const FIELDS: Linear = Linear {
    len: 256,
    d: 208,
    dmin: None,
    quants: Numbers { low: BitField { at: 0, width: 4, lanes: 64 }, high: Some(BitField { at: 128, width: 2, lanes: 32 }), bias: 32, signed: false },
    scales: Scales::Each16(Numbers { low: BitField { at: 192, width: 8, lanes: 16 }, high: None, bias: 0, signed: true }),
};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q6_K",
    gguf: Some(GgufType { number: 14, name: "Q6_K", file_type: 18 }),
    values: Values::Linear(FIELDS),
    substitute: Some(&q8_0::FORMAT),
    pack: Some(|values, block| pack::symmetric_groups(&FIELDS, values, block)),
};
