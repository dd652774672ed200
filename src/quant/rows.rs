//! Rows of values from and to block formats and plain floats.

use super::{LINEAR, with_format};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use half::{bf16, f16};

/// Decodes rows of a block format, f16, bf16 or f32 into `out`, whose length must be theirs.
///
/// # Errors
/// If `bytes` does not hold as many values, or the dtype has no floats.
///
/// ```
/// use tensorlogic::{DType, quant};
///
/// // A block of Q8_0: its scale, 0.5 in f16, and 32 integers.
/// let block: Vec<u8> = [0x00, 0x38].into_iter().chain(0..32).collect();
/// let mut out = [0.0; 32];
/// quant::dequantize(DType::Q8_0, &block, &mut out)?;
/// assert_eq!(out[..4], [0.0, 0.5, 1.0, 1.5]);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
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
        _ => with_format!(dtype, N => {
            // A function for each format, as fewer loops of one for all become vectors.
            #[inline(never)]
            fn of_format(bytes: &[u8], out: &mut [f32]) {
                LINEAR[N].decode::<{ LINEAR[N].bytes() }, { LINEAR[N].len }>(bytes, out);
            }
            of_format(bytes, out);
        }, _ => match dtype.coded() {
            Some(coded) => coded.decode(bytes, out),
            None => return Err(TensorError::Unsupported(format!("dequantize from {dtype}"))),
        }),
    }
    Ok(())
}

/// `count` values of a block format that look random, of about the size of ±`scale`, the same every time: encoded noise, or, where a format is only
/// read, random codes. For tests and measurements.
///
/// # Errors
/// If `count` is not whole blocks, or the dtype is no block format.
///
/// ```
/// use tensorlogic::{DType, quant};
///
/// let blocks = quant::random_blocks(DType::Q4_0, 64, 1.0, 7)?;
/// assert_eq!(blocks.len(), 2 * 18); // two blocks of 32 values
/// assert_eq!(blocks, quant::random_blocks(DType::Q4_0, 64, 1.0, 7)?);
/// assert!(quant::random_blocks(DType::Q4_0, 33, 1.0, 7).is_err());
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn random_blocks(dtype: DType, count: usize, scale: f32, seed: u64) -> TensorResult<Vec<u8>> {
    let (Some(format), Some(len)) = (dtype.format(), dtype.bytes(count)) else {
        return Err(TensorError::Value(format!("random_blocks: {count} values are not whole blocks of {dtype}")));
    };
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 40
    };
    if format.is_encoded() {
        let values: Vec<f32> = (0..count).map(|_| (next() as f32 / (1u64 << 23) as f32 - 1.0) * scale).collect();
        return quantize(dtype, &values);
    }
    let mut bytes: Vec<u8> = (0..len).map(|_| next() as u8).collect();
    let mut values = vec![0.0; format.block_len()];
    for block in bytes.chunks_exact_mut(format.bytes()) {
        format.set_factor(block, 1.0);
        dequantize(dtype, block, &mut values)?;
        let most = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        format.set_factor(block, scale / most.max(1e-3));
    }
    Ok(bytes)
}

/// Encodes rows in a block format, f16, bf16 or f32.
///
/// # Errors
/// If `values` is not whole blocks, or the dtype has no floats or is only read ([`BlockFormat::is_encoded`](super::BlockFormat::is_encoded)).
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
            let pack = format.pack.ok_or_else(|| TensorError::Unsupported(format!("quantize to {dtype}, a format that is only read")))?;
            let mut bytes = vec![0; len];
            for (values, block) in values.chunks_exact(format.block_len()).zip(bytes.chunks_exact_mut(format.bytes())) {
                pack(values, block);
            }
            bytes
        }
        (DType::F32, _) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        (DType::F16, _) => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        (DType::BF16, _) => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        _ => return Err(TensorError::Unsupported(format!("quantize to {dtype}"))),
    })
}
