//! Q5_K: 256 values in 176 bytes, in 8 groups of 32. `x = d·s·q − dmin·m`, q of 5 bits, s and m of 6 bits per group.
//!
//! ```text
//! byte 0..2      d, f16
//! byte 2..4      dmin, f16
//! byte 4..16     s and m, as in Q4_K
//! byte 16..48    bit 4 of q: value l of group g is at bit g of byte 16 + l
//! byte 48..176   bits 0..4 of q: value l of group g is in byte 48 + 32·(g / 2) + l, low half where g is even
//! ```

use super::block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
use super::{pack, q5_1};

/// The fields.
const FIELDS: Linear = Linear {
    len: 256,
    d: 0,
    dmin: Some(2),
    quants: Numbers { low: BitField { at: 48, width: 4, lanes: 32 }, high: Some(BitField { at: 16, width: 1, lanes: 32 }), bias: 0, signed: false },
    scales: Scales::SixBits32 { at: 4 },
};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q5_K",
    gguf: Some(GgufType { number: 13, name: "Q5_K", file_type: 16 }),
    values: Values::Linear(FIELDS),
    substitute: Some(&q5_1::FORMAT),
    pack: Some(|values, block| pack::affine_groups(&FIELDS, values, block)),
};
