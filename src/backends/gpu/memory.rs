//! GPU memory: buffers by size class, leased from the pool and given back to it.

use super::driver::Driver;
use crate::backends::limits::MemoryQuery;
use crate::backends::lock::lock;
use crate::backends::pool::{AllocId, Allocation, Pool, SizeClass, size_class};
use crate::error::{TensorError, TensorResult};
use crate::plan::StorageMode;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, Weak};

/// Memory that only the device sees.
pub const PRIVATE: u8 = 0;
/// Memory that the host sees too.
pub const SHARED: u8 = 1;

/// Memory of small results, which the host reads in place.
pub const RESULT: u8 = 2;
/// The most bytes of such a result.
pub const RESULT_BYTES: usize = 1024;

/// Values beyond twice those of the last sweep before it is looked for those that are gone.
const SWEEP_VALUES: usize = 1024;

/// A physical buffer.
pub(super) struct DeviceMemory {
    /// The memory that it is part of.
    pub home: Arc<Memory>,
    /// The driver's buffer; a defragmentation puts another one here.
    raw: Mutex<wgpu::Buffer>,
    /// Distinguishes buffers in caches of bind groups.
    id: AtomicU64,
    /// Physical bytes.
    pub size: u64,
    pub(super) class: SizeClass,
    /// The bytes that were asked for.
    asked: usize,
    pub alloc_id: AllocId,
    /// Whether the memory is the caller's, which must not be written or kept for reuse.
    #[cfg(target_vendor = "apple")]
    imported: bool,
}

impl DeviceMemory {
    /// The driver's buffer.
    pub fn raw(&self) -> wgpu::Buffer {
        lock(&self.raw).clone()
    }
    /// What distinguishes it in caches of bind groups. Read it before `raw`: then a new id never goes with the old buffer.
    pub fn id(&self) -> u64 {
        self.id.load(Acquire)
    }
    /// Puts another buffer of the same class here, which has the same content; gives the old one.
    pub fn replace(&self, new: Free) -> wgpu::Buffer {
        let old = std::mem::replace(&mut *lock(&self.raw), new.raw);
        self.id.store(new.id, Release);
        old
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        #[cfg(target_vendor = "apple")]
        if self.imported {
            return self.home.pool.unmap(self.size as usize, self.alloc_id);
        }
        self.home.pool.put(Free { raw: self.raw(), id: self.id(), size: self.size }, self.class, self.asked, self.alloc_id);
    }
}

/// GPU memory; clones share it. It goes back to its backend's pool when the last clone is dropped.
#[derive(Clone)]
pub struct GpuBuffer(pub(super) Arc<DeviceMemory>);

impl GpuBuffer {
    /// Whether this handle is the only one.
    pub fn is_unique(&self) -> bool {
        #[cfg(target_vendor = "apple")]
        if self.0.imported {
            return false;
        }
        Arc::strong_count(&self.0) == 1
    }
    /// Whether the host sees the memory too.
    pub fn is_shared(&self) -> bool {
        self.0.class.kind != PRIVATE
    }
    /// Whether both are the same memory.
    pub fn same(&self, other: &GpuBuffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A buffer that waits in the pool for its next use.
pub(super) struct Free {
    pub raw: wgpu::Buffer,
    pub id: u64,
    pub size: u64,
}

impl Allocation for Free {
    fn id(&self) -> u64 {
        self.id
    }
    /// Frees it even though cached bind groups still name it; the driver keeps it until running work is done.
    fn free(self) {
        self.raw.destroy();
    }
}

/// The memory of one GPU: its pool, its kinds, and the limit of one buffer.
pub(super) struct Memory {
    driver: Arc<Driver>,
    pub pool: Pool<Free>,
    /// What makes a buffer visible to the host; empty where the adapter cannot share buffers that kernels use.
    shared_usage: wgpu::BufferUsages,
    /// The kind of memory of buffers that tensors hold.
    kind: AtomicU8,
    /// The most bytes that one binding, and so one buffer, may have.
    pub max_binding: u64,
    /// The number of the next buffer; 0 names no buffer.
    next_id: AtomicU64,
    /// Values of tensors, which a defragmentation may move.
    values: Mutex<Vec<Weak<DeviceMemory>>>,
    /// How many of them there were when those that are gone were last dropped.
    swept: AtomicUsize,
    /// In tests, the bytes that the driver's blocks may have; `u64::MAX` for no limit.
    pub(super) reserve_at_most: AtomicU64,
}

/// The name of the buffer with this number.
pub(super) fn buffer_name(id: u64) -> String {
    format!("memory {id}")
}

impl Memory {
    /// Memory of which nothing is leased yet; `unified` where the device's memory is the host's.
    pub fn new(driver: Arc<Driver>, room: MemoryQuery, shared_usage: wgpu::BufferUsages, unified: bool) -> Memory {
        let limits = driver.device.limits();
        let max_binding = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let most = max_binding & !15;
        Memory {
            pool: Pool::new(driver.name.clone(), room, move |bytes| Some(size_class(bytes, most) as usize)),
            driver,
            shared_usage,
            kind: AtomicU8::new(if unified && !shared_usage.is_empty() { SHARED } else { PRIVATE }),
            max_binding,
            next_id: AtomicU64::new(1),
            values: Mutex::default(),
            swept: AtomicUsize::new(0),
            reserve_at_most: AtomicU64::new(u64::MAX),
        }
    }

    /// The physical size of a buffer for `bytes`; `None` where none can be as large.
    pub fn class_of(&self, bytes: usize) -> Option<usize> {
        Some(size_class(bytes, self.max_binding & !15)).filter(|size| *size <= self.max_binding).map(|size| size as usize)
    }

    /// Notes that a buffer is a tensor's value. Nothing may write it any more except under the evaluator's lock.
    pub fn note_value(&self, buffer: &GpuBuffer) {
        let mut values = lock(&self.values);
        values.push(Arc::downgrade(&buffer.0));
        if values.len() > 2 * self.swept.load(Relaxed) + SWEEP_VALUES {
            values.retain(|v| v.strong_count() > 0);
            self.swept.store(values.len(), Relaxed);
        }
    }

    /// The values that one handle holds each, and that are of the pool.
    pub fn values(&self) -> Vec<GpuBuffer> {
        let all: Vec<GpuBuffer> = lock(&self.values).iter().filter_map(Weak::upgrade).map(GpuBuffer).collect();
        // The handle here is the second one.
        all.into_iter().filter(|b| Arc::strong_count(&b.0) == 2).collect()
    }

    fn fits_budget(&self) -> bool {
        let most = self.reserve_at_most.load(Relaxed);
        most == u64::MAX || self.driver.device.generate_allocator_report().is_none_or(|r| r.total_reserved_bytes <= most)
    }

    /// The kind of memory of buffers that tensors hold.
    pub fn default_kind(&self) -> u8 {
        self.kind.load(Relaxed)
    }

    /// Changes it.
    pub fn set_default_mode(&self, mode: StorageMode) {
        self.kind.store(self.kind_of(mode), Relaxed);
    }

    /// The kind of memory for a mode: the GPU's own where the host cannot see it.
    pub fn kind_of(&self, mode: StorageMode) -> u8 {
        if mode == StorageMode::Shared && self.can_share() { SHARED } else { PRIVATE }
    }

    /// Whether the host can see buffers that kernels use.
    pub fn can_share(&self) -> bool {
        !self.shared_usage.is_empty()
    }

    /// A buffer of at least `bytes`, by preference the one with id `prefer`; its content is arbitrary. `kind` is a wish. `settle` waits for
    /// running work, after which buffers that were destroyed are free.
    pub fn lease(
        self: &Arc<Memory>,
        bytes: usize,
        kind: u8,
        prefer: u64,
        settle: impl Fn() -> TensorResult<()>,
    ) -> TensorResult<GpuBuffer> {
        if size_class(bytes, self.max_binding & !15) > self.max_binding {
            return Err(TensorError::OutOfMemory {
                device: self.driver.name.clone(),
                asked: bytes,
                in_use: self.pool.memory().in_use,
                limit: Some(self.max_binding as usize),
                help: "no single tensor can be larger on this device: split it, or use the cpu",
            });
        }
        let kind = if self.can_share() { kind } else { PRIVATE };
        let (free, class, alloc_id) = self.pool.lease(bytes, kind, prefer, |class, attempt| {
            if attempt > 0 {
                settle()?;
            }
            self.create(class)
        })?;
        Ok(GpuBuffer(Arc::new(DeviceMemory {
            home: self.clone(),
            raw: Mutex::new(free.raw),
            id: AtomicU64::new(free.id),
            size: free.size,
            class,
            asked: bytes,
            alloc_id,
            #[cfg(target_vendor = "apple")]
            imported: false,
        })))
    }

    /// A buffer over memory that is not the pool's.
    #[cfg(target_vendor = "apple")]
    pub fn imported(self: &Arc<Memory>, raw: wgpu::Buffer, size: u64) -> GpuBuffer {
        let (id, alloc_id) = (self.next_id.fetch_add(1, Relaxed), self.pool.map(size as usize));
        let class = SizeClass { bytes: size as usize, kind: PRIVATE };
        GpuBuffer(Arc::new(DeviceMemory {
            home: self.clone(),
            raw: Mutex::new(raw),
            id: AtomicU64::new(id),
            size,
            class,
            asked: size as usize,
            alloc_id,
            imported: true,
        }))
    }

    /// A new buffer; `None` where the driver has no room for it.
    pub(super) fn create(&self, class: SizeClass) -> TensorResult<Option<Free>> {
        let size = class.bytes as u64;
        let mut usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        match class.kind {
            SHARED => usage |= self.shared_usage,
            // Without the right to write, drivers choose memory that the host reads through its caches.
            RESULT => usage |= wgpu::BufferUsages::MAP_READ,
            _ => {}
        }
        // The name is what the allocator's report tells buffers by.
        let id = self.next_id.fetch_add(1, Relaxed);
        let name = buffer_name(id);
        let descriptor = wgpu::BufferDescriptor { label: Some(&name), size, usage, mapped_at_creation: false };
        match self.driver.guarded(|| self.driver.device.create_buffer(&descriptor)) {
            Ok(raw) if self.fits_budget() => Ok(Some(Free { raw, id, size })),
            made => {
                made.into_iter().for_each(|raw| raw.destroy());
                let _ = self.driver.device.poll(wgpu::PollType::Poll);
                self.driver.check()?;
                Ok(None)
            }
        }
    }
}
