//! Tells command buffers that failed from those that are done.

use super::buffer::Shared;
use crate::backends::gpu::driver::Driver;
use crate::error::TensorResult;
use objc2_metal::{MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandQueue};
use std::sync::atomic::{AtomicU32, Ordering};
use wgpu::hal::api::Metal;

/// Whether command buffers did their work. To wgpu a Metal command buffer that failed looks like one that is done, and its own handle cannot
/// be had, so each leaves a number as its last act, in memory that the host sees.
pub(in crate::backends::gpu) struct Watch {
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
    /// Fails where commands that were waited for did not do their work.
    pub fn check(&self, driver: &Driver) -> TensorResult<()> {
        match self.failed(driver) {
            true => Err(driver.lose(format!("a command buffer failed: {}", reason(&driver.queue)))),
            false => Ok(()),
        }
    }
    /// Whether some commands ended without their last act. Called after a wait; waits for all where the last wait was not for them.
    fn failed(&self, driver: &Driver) -> bool {
        let want = self.submitted.load(Ordering::Acquire);
        let missing = || (self.done.word().wrapping_sub(want) as i32) < 0;
        let all = wgpu::PollType::Wait { submission_index: None, timeout: Some(driver.timeout) };
        missing() && driver.device.poll(all).is_ok() && missing()
    }
}

/// What the driver says about commands given to it now: after a fault it refuses them and tells why.
fn reason(queue: &wgpu::Queue) -> String {
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
