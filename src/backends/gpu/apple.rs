//! What wgpu does not do on Apple's systems: memory of our own that the host sees, files bound in place, and a look at whether commands failed.
//!
//! Type-checked from Linux (`cargo xtask check-targets`, in `.ci/run`), never executed.

use super::core::Core;
use super::pool::GpuBuffer;
use crate::backends::Bytes;
use crate::error::TensorResult;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandQueue, MTLDevice, MTLResourceOptions};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wgpu::hal::api::Metal;

/// Wraps a Metal buffer for wgpu.
///
/// # Safety
/// The buffer is of this device, has `bytes` bytes, and its memory is initialized.
unsafe fn adopt(
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
struct Shared {
    buffer: wgpu::Buffer,
    contents: NonNull<c_void>,
}

// SAFETY: the address stays valid for as long as `buffer`, and is only used for atomic access.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(device: &wgpu::Device, bytes: u64) -> Option<Shared> {
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
    fn word(&self) -> u32 {
        // SAFETY: the memory lives as long as `self`, is aligned to a page, and the GPU writes whole words.
        unsafe { AtomicU32::from_ptr(self.contents.cast().as_ptr()) }.load(Ordering::Acquire)
    }
}

/// Whether command buffers did their work. To wgpu a Metal command buffer that failed looks like one that is done, and its own handle cannot
/// be had, so each leaves a number as its last act, in memory that the host sees.
pub(super) struct Watch {
    source: wgpu::Buffer,
    done: Shared,
    marked: AtomicU32,
    submitted: AtomicU32,
}

impl Watch {
    /// `None` where the device is not Metal's, or has no room.
    pub fn new(device: &wgpu::Device) -> Option<Watch> {
        let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let source = wgpu::BufferDescriptor { label: Some("marks"), size: 4, usage, mapped_at_creation: false };
        let done = Shared::new(device, 4)?;
        Some(Watch { source: device.create_buffer(&source), done, marked: AtomicU32::new(0), submitted: AtomicU32::new(0) })
    }
    /// Makes the next number the last act of these commands. One thread at a time marks and submits.
    pub fn mark(&self, queue: &wgpu::Queue, encoder: &mut wgpu::CommandEncoder) {
        let n = self.marked.load(Ordering::Relaxed).wrapping_add(1);
        self.marked.store(n, Ordering::Relaxed);
        queue.write_buffer(&self.source, 0, &n.to_le_bytes());
        encoder.copy_buffer_to_buffer(&self.source, 0, &self.done.buffer, 0, 4);
    }
    /// The marked commands are with the driver.
    pub fn submitted(&self) {
        self.submitted.store(self.marked.load(Ordering::Relaxed), Ordering::Release);
    }
    /// Whether some commands ended without their last act. Called after a wait; waits for all where the last wait was not for them.
    pub fn failed(&self, device: &wgpu::Device) -> bool {
        let want = self.submitted.load(Ordering::Acquire);
        let missing = || (self.done.word().wrapping_sub(want) as i32) < 0;
        let all = wgpu::PollType::Wait { submission_index: None, timeout: Some(super::core::DEVICE_LOST_TIMEOUT) };
        missing() && device.poll(all).is_ok() && missing()
    }
}

/// What the driver says about commands given to it now: after a fault it refuses them and tells why.
pub(super) fn reason(queue: &wgpu::Queue) -> String {
    // SAFETY: the queue's handle is only used to submit an empty command buffer of our own.
    let described = unsafe {
        queue.as_hal::<Metal>().and_then(|q| {
            let commands = q.as_raw().commandBuffer()?;
            commands.commit();
            commands.waitUntilCompleted();
            let error = commands.error().filter(|_| commands.status() == MTLCommandBufferStatus::Error)?;
            Some(error.localizedDescription().to_string())
        })
    };
    described.unwrap_or_else(|| "the driver reports no reason, and accepts new commands".into())
}

impl Core {
    /// Fails where commands that were waited for did not do their work.
    pub fn look(&self) -> TensorResult<()> {
        match &self.watch {
            Some(w) if w.failed(&self.device) => Err(self.lose(format!("a command buffer failed: {}", reason(&self.queue)))),
            _ => Ok(()),
        }
    }

    /// The bytes of a mapped file as a buffer over the same memory, where they begin on a page. Off unless `TL_METAL_NO_COPY=1`.
    pub fn import(self: &Arc<Core>, bytes: &Bytes) -> Option<GpuBuffer> {
        if !std::env::var("TL_METAL_NO_COPY").is_ok_and(|v| v == "1") || bytes.is_empty() || !matches!(bytes, Bytes::Shared(..)) {
            return None;
        }
        // SAFETY: asks for a constant of the system.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|p| *p > 0)?;
        let size = bytes.len().checked_next_multiple_of(page)?;
        let start = NonNull::new(bytes.as_ptr().cast_mut())?;
        if !start.addr().get().is_multiple_of(page) || size as u64 > self.max_binding {
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
            let device = self.device.as_hal::<Metal>()?;
            let options = MTLResourceOptions::StorageModeShared;
            device.raw_device().newBufferWithBytesNoCopy_length_options_deallocator(start.cast(), size, options, Some(&free))?
        };
        // SAFETY: made above on this device with this size, over memory that is initialized.
        let raw = unsafe { adopt(&self.device, raw, size as u64, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC) };
        Some(self.imported(raw, size as u64))
    }
}
