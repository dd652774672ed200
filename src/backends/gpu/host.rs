//! Values of a GPU's tensors that lie in host memory: small ones, until something on the device needs them.

use super::core::Core;
use super::memory::GpuBuffer;
use crate::backends::cpu::CpuBuffer;
use crate::error::TensorResult;
use std::sync::{Arc, OnceLock};

/// Uploads below this size wait until the device needs them, and then go together: one piece of staging memory holds many of them.
pub const DEFERRED_UPLOAD_MAX_BYTES: usize = 64 << 10;

/// A value in host memory with, once it was needed there, a copy on the device. Neither is ever written; clones share both.
#[derive(Clone)]
pub struct HostBuffer(Arc<Both>);

struct Both {
    host: CpuBuffer,
    device: OnceLock<GpuBuffer>,
}

impl HostBuffer {
    /// A value that so far is in host memory only.
    pub fn new(host: CpuBuffer) -> HostBuffer {
        HostBuffer(Arc::new(Both { host, device: OnceLock::new() }))
    }
    /// The value in host memory.
    pub fn host(&self) -> &CpuBuffer {
        &self.0.host
    }
    /// The copy on the device, where there is one.
    pub fn device(&self) -> Option<&GpuBuffer> {
        self.0.device.get()
    }
    /// Whether both are the same memory.
    pub fn same(&self, other: &HostBuffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Its bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        let b = &self.0.host;
        // SAFETY: `host` keeps the memory alive for as long as it is borrowed, and no one writes it: `Buffer::is_unique` denies it for values like this.
        unsafe { std::slice::from_raw_parts(b.as_ptr(), b.len()) }
    }
}

impl Core {
    /// Sees to it that all of these are on the device for what is submitted next.
    pub fn bring(self: &Arc<Core>, values: &[&HostBuffer]) -> TensorResult<()> {
        let mut missing: Vec<(&HostBuffer, GpuBuffer)> = Vec::new();
        for v in values {
            if v.device().is_none() && !missing.iter().any(|m| m.0.same(v)) {
                missing.push((v, self.lease(v.0.host.len(), self.memory.default_kind(), 0)?));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let pieces: Vec<(&GpuBuffer, &[u8])> = missing.iter().map(|(v, b)| (b, v.bytes())).collect();
        self.upload_many(&pieces)?;
        for (v, b) in missing {
            let _ = v.0.device.set(b);
        }
        Ok(())
    }
}
