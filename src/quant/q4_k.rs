//! Q4_K: 256 values in 144 bytes, in 8 groups of 32. `x = d·s·q − dmin·m`, q of 4 bits, s and m of 6 bits per group.
//!
//! ```text
//! byte 0..2      d, f16
//! byte 2..4      dmin, f16
//! byte 4..16     s and m: group g < 4 has s in bits 0..6 of byte 4 + g and m in bits 0..6 of byte 8 + g;
//!                group g ≥ 4 has bits 0..4 of s and m in the low and high half of byte 8 + g,
//!                bits 4..6 of s in bits 6..8 of byte g and those of m in bits 6..8 of byte 4 + g
//! byte 16..144   q: value l of group g is in byte 16 + 32·(g / 2) + l, low half where g is even
//! ```

use super::block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
use super::{pack, q5_0};

/// The fields.
const FIELDS: Linear = Linear {
    len: 256,
    d: 0,
    dmin: Some(2),
    quants: Numbers { low: BitField { at: 16, width: 4, lanes: 32 }, high: None, bias: 0, signed: false },
    scales: Scales::SixBits32 { at: 4 },
};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q4_K",
    gguf: Some(GgufType { number: 12, name: "Q4_K", file_type: 14 }),
    values: Values::Linear(FIELDS),
    substitute: Some(&q5_0::FORMAT),
    pack: Some(|values, block| pack::affine_groups(&FIELDS, values, block)),
};
