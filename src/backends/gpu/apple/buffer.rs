//! Metal buffers of our own as wgpu's: the memory of others, and memory that the host sees without mapping it.

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use wgpu::hal::api::Metal;

/// Wraps a Metal buffer for wgpu.
///
/// # Safety
/// The buffer is of this device, has `bytes` bytes, and its memory is initialized.
pub(super) unsafe fn adopt(
    device: &wgpu::Device,
    raw: Retained<ProtocolObject<dyn MTLBuffer>>,
    bytes: u64,
    usage: wgpu::BufferUsages,
) -> wgpu::Buffer {
    let descriptor = wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
    // SAFETY: the caller's promise.
    unsafe { device.create_buffer_from_hal::<Metal>(wgpu::hal::metal::Device::buffer_from_raw(raw, bytes), &descriptor) }
}

/// A buffer in memory that the host sees without mapping it.
pub(super) struct Shared {
    pub buffer: wgpu::Buffer,
    contents: NonNull<c_void>,
}

// SAFETY: the address stays valid for as long as `buffer`, and is only used for atomic access.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn new(device: &wgpu::Device, bytes: u64) -> Option<Shared> {
        // SAFETY: the handle is only used to make a buffer, while the device is alive.
        let raw = unsafe {
            let device = device.as_hal::<Metal>()?;
            let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeTracked;
            device.raw_device().newBufferWithLength_options(bytes as usize, options)?
        };
        let contents = raw.contents();
        // SAFETY: no kernel has seen the memory yet, and it is at least `bytes` long.
        unsafe { contents.cast::<u8>().write_bytes(0, bytes as usize) };
        // SAFETY: made above on this device with this size, and filled.
        let buffer = unsafe { adopt(device, raw, bytes, wgpu::BufferUsages::COPY_DST) };
        Some(Shared { buffer, contents })
    }
    /// The first word.
    pub fn word(&self) -> u32 {
        // SAFETY: the memory lives as long as `self`, is aligned to a page, and the GPU writes whole words.
        unsafe { AtomicU32::from_ptr(self.contents.cast().as_ptr()) }.load(Ordering::Acquire)
    }
}
