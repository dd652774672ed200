//! Buffers owned by the caller, and handles of buffers owned by the backend.

use crate::backends::Buffer;
use crate::dtype::DType;
use crate::plan::StorageMode;

/// Where a buffer's memory lies, by the names of Apple's `metal` crate. [`StorageMode`] says what each is on each interface; where the
/// adapter has no memory of the kind asked for, [`StorageBuffer::storage_mode`] tells what it got.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MTLResourceOptions {
    /// For data accessed by both host and GPU.
    #[default]
    StorageModeShared,
    /// For data accessed by kernels only.
    StorageModePrivate,
    /// For data with a copy on each side (Intel Macs).
    StorageModeManaged,
}

impl From<MTLResourceOptions> for StorageMode {
    fn from(options: MTLResourceOptions) -> StorageMode {
        match options {
            MTLResourceOptions::StorageModeShared => StorageMode::Shared,
            MTLResourceOptions::StorageModePrivate => StorageMode::Private,
            MTLResourceOptions::StorageModeManaged => StorageMode::Managed,
        }
    }
}

/// GPU memory. Clones share it; it returns to the backend's pool when the last clone is dropped.
///
/// Its content is arbitrary until it is written.
#[derive(Clone)]
pub struct StorageBuffer {
    pub(super) memory: Buffer,
    pub(super) bytes: usize,
    pub(super) options: MTLResourceOptions,
    /// What it was made from, where it was made from typed data.
    pub(super) dtype: Option<DType>,
    /// The backend's number.
    pub(super) owner: u64,
}

impl StorageBuffer {
    /// Its requested size in bytes.
    pub fn length(&self) -> usize {
        self.bytes
    }
    /// The requested storage mode.
    pub fn resource_options(&self) -> MTLResourceOptions {
        self.options
    }
    /// The actual storage mode.
    pub fn storage_mode(&self) -> StorageMode {
        match &self.memory {
            #[cfg(feature = "gpu")]
            Buffer::Gpu(b) if b.is_shared() => StorageMode::Shared,
            #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
            Buffer::Metal(b) if b.is_shared() => StorageMode::Shared,
            _ => StorageMode::Private,
        }
    }
    /// Whether both share the same memory.
    pub fn same(&self, other: &StorageBuffer) -> bool {
        self.memory.same(&other.memory)
    }
}

impl std::fmt::Debug for StorageBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StorageBuffer({} bytes, {:?})", self.bytes, self.options)
    }
}

/// A handle of memory owned by a backend: like a raw pointer, but checked at each use.
///
/// Handles are never reused, so a freed one stays invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BufferHandle {
    pub(super) owner: u64,
    pub(super) number: u64,
}
