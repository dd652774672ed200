//! GGML block formats: one file each = layout, unpack, pack. The plain versions, which fast kernels are tested against.
// A layout is a formula of the value's number, so loops run over numbers.
#![allow(clippy::needless_range_loop)]

mod fit;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use half::{bf16, f16};

/// A format that stores [`DType::block`] values in [`DType::block_bytes`] bytes.
///
/// Both methods take exactly one block and panic on other lengths; [`dequantize`] and [`quantize`] check and take rows.
pub trait BlockFormat: Sync {
    /// The dtype of tensors in this format.
    fn dtype(&self) -> DType;
    /// Decodes one block.
    fn unpack(&self, block: &[u8], out: &mut [f32]);
    /// Encodes one block: the nearest values that a plain search finds.
    fn pack(&self, values: &[f32], block: &mut [u8]);
}

/// Every block format.
pub static FORMATS: [&dyn BlockFormat; 10] =
    [&q4_0::Q4_0, &q4_1::Q4_1, &q5_0::Q5_0, &q5_1::Q5_1, &q8_0::Q8_0, &q2_k::Q2_K, &q3_k::Q3_K, &q4_k::Q4_K, &q5_k::Q5_K, &q6_k::Q6_K];

/// The format of a dtype; `None` for plain dtypes.
pub fn format(dtype: DType) -> Option<&'static dyn BlockFormat> {
    FORMATS.into_iter().find(|f| f.dtype() == dtype)
}

/// Decodes rows of a block format, f16, bf16 or f32 into `out`, whose length must be theirs.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> TensorResult<()> {
    if dtype.bytes(out.len()) != Some(bytes.len()) {
        return Err(TensorError::Value(format!("dequantize: {} bytes of {dtype} do not hold {} values", bytes.len(), out.len())));
    }
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
        for (o, b) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
            *o = value(*b);
        }
    }
    match (dtype, format(dtype)) {
        (_, Some(format)) => {
            for (block, out) in bytes.chunks_exact(dtype.block_bytes()).zip(out.chunks_exact_mut(dtype.block())) {
                format.unpack(block, out);
            }
        }
        (DType::F32, _) => each(bytes, out, f32::from_le_bytes),
        (DType::F16, _) => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        (DType::BF16, _) => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        _ => return Err(TensorError::Unsupported(format!("dequantize from {dtype}"))),
    }
    Ok(())
}

/// Encodes rows in a block format, f16, bf16 or f32. A row, and so `values`, must be whole blocks.
pub fn quantize(dtype: DType, values: &[f32]) -> TensorResult<Vec<u8>> {
    let Some(len) = dtype.bytes(values.len()) else {
        return Err(TensorError::Value(format!(
            "quantize: {} values are not whole blocks of {dtype}, which have {}",
            values.len(),
            dtype.block()
        )));
    };
    Ok(match (dtype, format(dtype)) {
        (_, Some(format)) => {
            let mut bytes = vec![0; len];
            for (values, block) in values.chunks_exact(dtype.block()).zip(bytes.chunks_exact_mut(dtype.block_bytes())) {
                format.pack(values, block);
            }
            bytes
        }
        (DType::F32, _) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        (DType::F16, _) => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        (DType::BF16, _) => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        _ => return Err(TensorError::Unsupported(format!("quantize to {dtype}"))),
    })
}

/// The f16 at byte `at`.
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Stores `x` as f16 at byte `at`; returns the rounded value.
fn put_f16(block: &mut [u8], at: usize, x: f32) -> f32 {
    let x = f16::from_f32(x);
    block[at..at + 2].copy_from_slice(&x.to_le_bytes());
    x.to_f32()
}

/// `1 / x`, and 0 for 0.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The value of largest magnitude, with its sign; the first of equals.
fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, &x| if x.abs() > most.abs() { x } else { most })
}

/// The smallest and the largest value.
fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &x| (lo.min(x), hi.max(x)))
}
