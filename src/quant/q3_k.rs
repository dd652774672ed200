//! Q3_K: 256 values in 110 bytes, in 16 groups of 16. `x = d·(s − 32)·(q − 4)`, q of 3 bits, s of 6 bits per group.
//!
//! ```text
//! value 128·h + 32·k + l                                                            (h < 2, k < 4, l < 32)
//! byte 0..32      bit 2 of q: bit 4h + k of byte l
//! byte 32..96     bits 0..2 of q: bits 2k.. of byte 32 + 32·h + l
//! byte 96..104    bits 0..4 of s: group g < 8 in the low half of byte 96 + g, group g ≥ 8 in the high half of byte 88 + g
//! byte 104..108   bits 4..6 of s: bits 2(g / 4).. of byte 104 + g % 4
//! byte 108..110   d, f16
//! ```

use super::block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
use super::{pack, q4_0};

/// The fields.
const FIELDS: Linear = Linear {
    len: 256,
    d: 108,
    dmin: None,
    quants: Numbers { low: BitField { at: 32, width: 2, lanes: 32 }, high: Some(BitField { at: 0, width: 1, lanes: 32 }), bias: 4, signed: false },
    scales: Scales::Each16(Numbers { low: BitField { at: 96, width: 4, lanes: 8 }, high: Some(BitField { at: 104, width: 2, lanes: 4 }), bias: 32, signed: false }),
};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q3_K",
    gguf: Some(GgufType { number: 11, name: "Q3_K", file_type: 12 }),
    values: Values::Linear(FIELDS),
    substitute: Some(&q4_0::FORMAT),
    pack: Some(|values, block| pack::symmetric_groups(&FIELDS, values, block)),
};
