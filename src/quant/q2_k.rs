//! Q2_K: 256 values in 84 bytes, in 16 groups of 16. `x = d·s·q − dmin·m`, q of 2 bits, s and m of 4 bits per group.
//!
//! ```text
//! byte 0..16    group g: s in the low half of byte g, m in the high half
//! byte 16..80   q: value 128·h + 32·k + l is at bits 2k.. of byte 16 + 32·h + l     (h < 2, k < 4, l < 32)
//! byte 80..82   d, f16
//! byte 82..84   dmin, f16
//! ```

use super::block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
use super::{pack, q4_0};

/// The fields.
const FIELDS: Linear = Linear {
    len: 256,
    d: 80,
    dmin: Some(82),
    quants: Numbers { low: BitField { at: 16, width: 2, lanes: 32 }, high: None, bias: 0, signed: false },
    scales: Scales::Nibbles16 { at: 0 },
};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q2_K",
    gguf: Some(GgufType { number: 10, name: "Q2_K", file_type: 10 }),
    values: Values::Linear(FIELDS),
    substitute: Some(&q4_0::FORMAT),
    pack: Some(|values, block| pack::affine_groups(&FIELDS, values, block)),
};
