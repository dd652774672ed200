//! F8_E4M3: 32 floats of eight bits under an f32 factor, in 36 bytes: weights of models that are published in FP8, and MXFP8.
//!
//! ```text
//! byte 0..4     s, f32
//! byte 4..36    q: a sign, four bits of exponent (bias 7), three of mantissa; 0x7f and 0xff are NaN
//! ```

use super::block::{BlockFormat, Values};
use super::coded::{Coded, Factor, Packed, nearest_small_float, small_float, word};
use super::pack::{extreme, inverse};

/// The descriptor.
pub(super) const FORMAT: BlockFormat = BlockFormat {
    name: "f8_e4m3",
    gguf: None,
    values: Values::Coded(Coded {
        len: 32,
        bytes: 36,
        factor: Factor::Float(0),
        item,
        table: None,
        book: None,
        parts: 1,
        shifted: false,
        packed: Packed::Floats,
        wgsl: ("quant/f8_e4m3.wgsl", include_str!("f8_e4m3.wgsl")),
        item_rows: 3,
    }),
    substitute: None,
    pack: Some(pack),
};

fn item(block: &[u8], _: usize, out: &mut [f32; 32]) {
    let s = f32::from_bits(word(block, 0));
    for (x, &q) in out.iter_mut().zip(&block[4..]) {
        let magnitude = if q & 0x7f == 0x7f { f32::NAN } else { small_float(q & 0x7f) };
        *x = s * if q > 127 { -magnitude } else { magnitude };
    }
}

/// The value of largest magnitude becomes ±448.
fn pack(values: &[f32], block: &mut [u8]) {
    let s = extreme(values).abs() / 448.0;
    block[..4].copy_from_slice(&s.to_le_bytes());
    for (byte, &x) in block[4..].iter_mut().zip(values) {
        *byte = nearest_small_float(x.abs() * inverse(s)) | u8::from(x < 0.0) << 7;
    }
}
