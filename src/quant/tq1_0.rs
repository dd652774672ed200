//! TQ1_0: 256 values in 54 bytes. `x = d·(q − 1)`, q a digit of base 3, for weights that are −1, 0 and 1.
//!
//! ```text
//! byte 0..32    value 32·k + l, k < 5, is digit k of byte l
//! byte 32..48   value 160 + 16·k + l, k < 5, is digit k of byte 32 + l
//! byte 48..52   value 240 + 4·k + l, k < 4, is digit k of byte 48 + l
//! byte 52..54   d, f16
//! digit k of byte b: ⌊3·(3^k·b mod 256) / 256⌋, as b is ⌈256/243 · the number with those five digits⌉
//! ```

use super::block::{BlockFormat, GgufType, Values};
use super::coded::{Coded, Factor, Packed, half};
use super::pack_codes;

/// The powers of 3.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "tq1_0",
    gguf: Some(GgufType { number: 34, name: "TQ1_0", file_type: 36 }),
    values: Values::Coded(Coded {
        len: 256,
        bytes: 54,
        factor: Factor::Half(52),
        item,
        table: None,
        book: None,
        parts: 1,
        shifted: false,
        packed: Packed::Above(1),
        wgsl: ("quant/tq1_0.wgsl", include_str!("tq1_0.wgsl")),
        item_rows: 1,
    }),
    substitute: None,
    pack: Some(|values, block| pack_codes::digits(place, values, block)),
};

/// Values `32·g ..` of a block.
fn item(block: &[u8], g: usize, out: &mut [f32; 32]) {
    let d = half(block, 52);
    for (i, x) in (32 * g..).zip(out) {
        let (byte, k) = place(i);
        let digit = (POWERS[k].wrapping_mul(block[byte]) as u32 * 3) >> 8;
        *x = d * (digit as f32 - 1.0);
    }
}

/// The byte and the digit of value `i`.
#[inline(always)]
const fn place(i: usize) -> (usize, usize) {
    match i {
        0..160 => (i % 32, i / 32),
        160..240 => (32 + i % 16, (i - 160) / 16),
        _ => (48 + i % 4, (i - 240) / 4),
    }
}
