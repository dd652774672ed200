//! Values of a GPU's tensors that lie in host memory: small ones, until something on the device needs them.

use super::Buffer;
use super::cpu::CpuBuffer;
use crate::error::{TensorError, TensorResult};
use std::sync::{Arc, OnceLock};

/// Uploads below this size wait until the device needs them, and then go together: one piece of staging memory holds many of them.
pub const DEFERRED_UPLOAD_MAX_BYTES: usize = 64 << 10;

/// A value in host memory with, once it was needed there, a copy on the device. Neither is ever written; clones share both.
#[derive(Clone)]
pub struct HostBuffer(Arc<Both>);

struct Both {
    host: CpuBuffer,
    device: OnceLock<Buffer>,
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
    pub fn device(&self) -> Option<&Buffer> {
        self.0.device.get()
    }
    /// Notes that this is the copy on the device, unless there is one already.
    #[allow(dead_code)] // without a GPU no value has a copy
    pub(super) fn set_device(&self, copy: Buffer) {
        let _ = self.0.device.set(copy);
    }
    /// Whether both are the same memory.
    pub fn same(&self, other: &HostBuffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Its bytes.
    #[allow(dead_code)] // as above
    pub(super) fn bytes(&self) -> &[u8] {
        let b = &self.0.host;
        // SAFETY: `host` keeps the memory alive for as long as it is borrowed, and no one writes it: `Buffer::is_unique` denies it for values like this.
        unsafe { std::slice::from_raw_parts(b.as_ptr(), b.len()) }
    }
    /// Bytes `start..start + len`.
    ///
    /// # Errors
    /// `TensorError::Internal` where the value is shorter.
    #[allow(dead_code)] // as above
    pub(super) fn part(&self, start: usize, len: usize) -> TensorResult<&[u8]> {
        let range = start..start.saturating_add(len);
        let short = || TensorError::Internal(format!("a read of {len} bytes from {start} of a buffer of {}", self.bytes().len()));
        self.bytes().get(range).ok_or_else(short)
    }
}
