//! Binds the bytes of a mapped file in place.

use super::buffer::adopt;
use crate::backends::Bytes;
use crate::backends::gpu::driver::Driver;
use crate::backends::gpu::memory::{GpuBuffer, Memory};
use objc2_metal::{MTLDevice, MTLResourceOptions};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use wgpu::hal::api::Metal;

/// The bytes of a mapped file as a buffer over the same memory, where they begin on a page. Off unless `TL_METAL_NO_COPY=1`.
pub(in crate::backends::gpu) fn import(driver: &Driver, memory: &Arc<Memory>, bytes: &Bytes) -> Option<GpuBuffer> {
    if !std::env::var("TL_METAL_NO_COPY").is_ok_and(|v| v == "1") || bytes.is_empty() || !matches!(bytes, Bytes::Shared(..)) {
        return None;
    }
    // SAFETY: asks for a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|p| *p > 0)?;
    let size = bytes.len().checked_next_multiple_of(page)?;
    let start = NonNull::new(bytes.as_ptr().cast_mut())?;
    if !start.addr().get().is_multiple_of(page) || size as u64 > memory.max_binding {
        return None;
    }
    let keep = bytes.clone();
    // Held by the block, and so by the Metal buffer: the map lives until the GPU is done with it.
    let free = block2::RcBlock::new(move |_: NonNull<c_void>, _: usize| {
        let _ = &keep;
    });
    // SAFETY: the pages are mapped for as long as the block holds `keep`; whole pages are mapped, so that rounding the length up to one
    // stays inside; kernels only read the buffer, as it is never given out as unique.
    let raw = unsafe {
        let device = driver.device.as_hal::<Metal>()?;
        let options = MTLResourceOptions::StorageModeShared;
        device.raw_device().newBufferWithBytesNoCopy_length_options_deallocator(start.cast(), size, options, Some(&free))?
    };
    // SAFETY: made above on this device with this size, over memory that is initialized.
    let raw = unsafe { adopt(&driver.device, raw, size as u64, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC) };
    Some(memory.imported(raw, size as u64))
}
