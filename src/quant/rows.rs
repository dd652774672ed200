//! Rows of values from and to block formats and plain floats.

use super::{FORMATS, with_format};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use half::{bf16, f16};

/// Decodes rows of a block format, f16, bf16 or f32 into `out`, whose length must be theirs.
///
/// # Errors
/// If `bytes` does not hold as many values, or the dtype has no floats.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> TensorResult<()> {
    if dtype.bytes(out.len()) != Some(bytes.len()) {
        return Err(TensorError::Value(format!("dequantize: {} bytes of {dtype} do not hold {} values", bytes.len(), out.len())));
    }
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
        for (o, b) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
            *o = value(*b);
        }
    }
    match dtype {
        DType::F32 => each(bytes, out, f32::from_le_bytes),
        DType::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        DType::BF16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        _ => with_format!(dtype, N => FORMATS[N].decode::<{ FORMATS[N].bytes() }, { FORMATS[N].len }>(bytes, out), _ => {
            return Err(TensorError::Unsupported(format!("dequantize from {dtype}")));
        }),
    }
    Ok(())
}

/// Encodes rows in a block format, f16, bf16 or f32.
///
/// # Errors
/// If `values` is not whole blocks, or the dtype has no floats.
///
/// ```
/// use tensorlogic::{DType, quant};
///
/// let values: Vec<f32> = (0..64).map(|i| i as f32 - 31.5).collect();
/// let blocks = quant::quantize(DType::Q8_0, &values)?;
/// assert_eq!(blocks.len(), 2 * 34);
/// let mut back = vec![0.0; 64];
/// quant::dequantize(DType::Q8_0, &blocks, &mut back)?;
/// assert!(values.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.15));
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn quantize(dtype: DType, values: &[f32]) -> TensorResult<Vec<u8>> {
    let Some(len) = dtype.bytes(values.len()) else {
        return Err(TensorError::Value(format!(
            "quantize: {} values are not whole blocks of {dtype}, which have {}",
            values.len(),
            dtype.block()
        )));
    };
    Ok(match (dtype, dtype.format()) {
        (_, Some(format)) => {
            let mut bytes = vec![0; len];
            for (values, block) in values.chunks_exact(format.len).zip(bytes.chunks_exact_mut(format.bytes())) {
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
