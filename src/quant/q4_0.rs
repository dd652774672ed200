//! Q4_0: 32 values in 18 bytes. `x = d·(q − 8)`, q of 4 bits.
//!
//! ```text
//! byte 0..2    d, f16
//! byte 2..18   q: byte 2+i holds q[i] in its low half and q[i+16] in its high half
//! ```

use super::block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
use super::pack;

/// The fields.
const FIELDS: Linear = Linear {
    len: 32,
    d: 0,
    dmin: None,
    quants: Numbers { low: BitField { at: 2, width: 4, lanes: 16 }, high: None, bias: 8, signed: false },
    scales: Scales::Whole,
};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "q4_0",
    gguf: Some(GgufType { number: 2, name: "Q4_0", file_type: 2 }),
    values: Values::Linear(FIELDS),
    substitute: None,
    pack: Some(|values, block| pack::symmetric_block(&FIELDS, values, block)),
};
