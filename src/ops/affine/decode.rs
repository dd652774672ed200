//! Integers of quantized tensors as they are stored: eight bits as i8, four bits as two in a byte, the first in the low half, in two's
//! complement.

use super::weights::AffineWeights;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::ops::Lit;
use crate::ops::pad::PadMode;
use crate::quant::Bits;
use crate::tensor::Tensor;

/// The integer in the low (0) or high (1) half of a byte.
pub(super) fn nibble(byte: i32, half: usize) -> i32 {
    ((byte >> (4 * half) & 15) ^ 8) - 8
}

/// Integers of four bits, i32 `[…, N]`, in bytes `[…, ⌈N/2⌉]`.
pub(super) fn pack(q: &Tensor) -> TensorResult<Tensor> {
    let mut even = q.clone();
    let mut shape = q.dims().to_vec();
    let last = shape.len() - 1;
    if shape[last] % 2 == 1 {
        let mut margins = vec![(0, 0); shape.len()];
        margins[last].1 = 1;
        even = q.pad(&margins, PadMode::Constant(0.0))?;
        shape[last] += 1;
    }
    shape[last] /= 2;
    shape.push(2);
    let pairs = even.reshape(&shape)?.bitwise_and(Lit(15.0))?;
    let half = |n: usize| pairs.select(-1, n);
    half(0)?.add(&half(1)?.mul(Lit(16.0))?)?.cast(DType::U8)
}

/// Bytes `[…, N]` as integers of four bits, i32 `[…, 2N]`.
pub(super) fn unpack(bytes: &Tensor) -> TensorResult<Tensor> {
    let mut shape = bytes.dims().to_vec();
    if let Some(last) = shape.last_mut() {
        *last *= 2;
    }
    let wide = bytes.cast(DType::I32)?;
    let half = |shift: f64| wide.bitwise_right_shift(Lit(shift))?.bitwise_and(Lit(15.0))?.bitwise_xor(Lit(8.0))?.sub(Lit(8.0));
    Tensor::stack(&[half(0.0)?, half(4.0)?], -1)?.reshape(&shape)
}

/// scale · (q − zero point) of integers `[…, groups, n]`, scales and zero points `[…, groups]`.
pub(super) fn scaled(q: &Tensor, scale: &Tensor, zero_point: &Tensor) -> TensorResult<Tensor> {
    q.cast(DType::I32)?.sub(zero_point)?.cast(DType::F32)?.mul(scale)
}

/// Weights `[n, k]` decoded.
pub(super) fn weights(w: &AffineWeights, q: &Tensor, scale: &Tensor, zero_point: &Tensor) -> TensorResult<Tensor> {
    let q = q.reshape(&[w.n, w.row_bytes])?;
    let q = if w.bits == Bits::Four { unpack(&q)? } else { q };
    if w.row_groups > 1 {
        let each = |t: &Tensor| t.reshape(&[w.n, w.row_groups, 1]);
        let blocks = q.narrow(1, 0, w.row_groups * w.group)?.reshape(&[w.n, w.row_groups, w.group])?;
        return scaled(&blocks, &each(scale)?, &each(zero_point)?)?.reshape(&[w.n, w.row_groups * w.group])?.narrow(1, 0, w.k);
    }
    let shape = if w.group == 1 && w.row_groups == 0 { [1, w.k] } else { [scale.numel(), 1] };
    scaled(&q.narrow(1, 0, w.k)?, &scale.reshape(&shape)?, &zero_point.reshape(&shape)?)
}
