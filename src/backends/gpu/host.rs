//! Takes values in host memory to the GPU.

use super::core::Core;
use super::memory::GpuBuffer;
use crate::backends::Buffer;
pub use crate::backends::host::{DEFERRED_UPLOAD_MAX_BYTES, HostBuffer};
use crate::error::TensorResult;
use std::sync::Arc;

impl Core {
    /// Sees to it that all of these are on the device for what is submitted next.
    pub fn bring(self: &Arc<Core>, values: &[&HostBuffer]) -> TensorResult<()> {
        let mut missing: Vec<(&HostBuffer, GpuBuffer)> = Vec::new();
        for v in values {
            if v.device().is_none() && !missing.iter().any(|m| m.0.same(v)) {
                missing.push((v, self.lease(v.host().len(), self.memory.default_kind(), 0)?));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let pieces: Vec<(&GpuBuffer, &[u8])> = missing.iter().map(|(v, b)| (b, v.bytes())).collect();
        self.upload_many(&pieces)?;
        for (v, b) in missing {
            v.set_device(Buffer::Gpu(b));
        }
        Ok(())
    }
}
