//! Q8_0: 32 values in 34 bytes. `x = d·q`, q a signed byte.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..34   q, i8
//! ```

use super::block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
use super::pack;

/// The fields.
const FIELDS: Linear = Linear {
    len: 32,
    d: 0,
    dmin: None,
    quants: Numbers { low: BitField { at: 2, width: 8, lanes: 32 }, high: None, bias: 0, signed: true },
    scales: Scales::Whole,
};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q8_0",
    gguf: Some(GgufType { number: 8, name: "Q8_0", file_type: 7 }),
    values: Values::Linear(FIELDS),
    substitute: None,
    pack: Some(|values, block| pack::signed_bytes(&FIELDS, values, block)),
};
