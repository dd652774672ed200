//! MXFP4 as gpt-oss and compressed-tensors store it: value 2i in the low half of byte i, value 2i + 1 in its high half.

use super::part::{Parts, blocks};
use super::{Blocks, bad};
use crate::dtype::DType;
use crate::error::TensorResult;

/// A block of a scale and 16 bytes of such values.
pub(super) fn block(scale: u8, values: &[u8], block: &mut [u8]) {
    block[0] = scale;
    halves(values, &mut block[1..]);
}

/// Puts the first half of the values into the low halves of bytes, and the second into the high ones.
pub(super) fn halves(values: &[u8], out: &mut [u8]) {
    let value = |i: usize| values[i / 2] >> (4 * (i % 2)) & 15;
    let half = out.len();
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = value(i) | value(half + i) << 4;
    }
}

/// The weight of a layer: `_blocks` `[…,out,in / 32,16]` and `_scales` `[…,out,in / 32]`, or `weight_packed` `[…,out,in / 2]` and `weight_scale`.
pub(super) fn weight(all: &Parts<'_>, layer: &str) -> TensorResult<Blocks> {
    let values = all.any(layer, &["_blocks", ".weight_packed"])?;
    let scales = all.any(layer, &["_scales", ".weight_scale"])?;
    let (lead, rows, per_row) = scales.matrix(&["U8", "F8_E8M0"])?;
    let groups = [lead, &[rows, per_row]].concat();
    let joined = [lead, &[rows, 16 * per_row]].concat();
    if values.kind() != "U8" || values.shape() != [&groups[..], &[16]].concat() && values.shape() != joined {
        return Err(bad(layer, format!("numbers {} {:?} and scales {groups:?} do not fit together", values.kind(), values.shape())));
    }
    let shape = [lead, &[rows, 32 * per_row]].concat();
    blocks(DType::MXFP4, shape, layer, |r, b, out| {
        let at = r * per_row + b;
        block(scales.bytes[at], &values.bytes[16 * at..][..16], out);
    })
}
