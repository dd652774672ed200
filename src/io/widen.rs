//! Integers of files whose type a device does not support, read as other ones.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::info::{TensorInfo, clip};

/// The dtype and the bytes of a tensor whose elements are I16, U16 (both as i32) or U64 (as i64), for a device without these types; `None` for every other type
/// and device.
///
/// # Errors
/// [`TensorError::Value`] where an element is 2⁶³ or above.
pub(crate) fn widened(info: &TensorInfo, bytes: &[u8], device: &Device) -> TensorResult<Option<(DType, Vec<u8>)>> {
    if info.dtype().is_ok_and(|dtype| device.supports(dtype)) {
        return Ok(None);
    }
    let short = |read: fn([u8; 2]) -> i32| bytes.as_chunks().0.iter().flat_map(|b| read(*b).to_le_bytes()).collect();
    Ok(Some(match info.type_name() {
        "I16" => (DType::I32, short(|b| i16::from_le_bytes(b).into())),
        "U16" => (DType::I32, short(|b| u16::from_le_bytes(b).into())),
        "U64" => {
            let wide: Vec<u64> = bytes.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
            if let Some(v) = wide.iter().find(|v| i64::try_from(**v).is_err()) {
                return Err(TensorError::Value(format!(
                    "tensor `{}` is stored as U64 and read as i64, which {v} does not fit",
                    clip(&info.name)
                )));
            }
            (DType::I64, wide.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
        _ => return Ok(None),
    }))
}
