//! Integers of files whose type a device does not support, read as i32.

use crate::device::Device;
use crate::dtype::DType;
use crate::io::info::TensorInfo;

/// The dtype and the bytes of a tensor whose elements are I16 or U16, for a device without these types; `None` for every other type and device.
pub(crate) fn widened(info: &TensorInfo, bytes: &[u8], device: &Device) -> Option<(DType, Vec<u8>)> {
    let dtype = info.dtype().ok()?;
    let read: fn([u8; 2]) -> i32 = match dtype {
        DType::I16 if !device.supports(dtype) => |b| i16::from_le_bytes(b).into(),
        DType::U16 if !device.supports(dtype) => |b| u16::from_le_bytes(b).into(),
        _ => return None,
    };
    Some((DType::I32, bytes.as_chunks().0.iter().flat_map(|b| read(*b).to_le_bytes()).collect()))
}
