//! Memory of the GPU: buffers leased from a pool, shared with the host or private, and files bound where they lie.

use super::heaps::{Backed, Backing, Heaps, PRIVATE, SHARED, options};
use super::residency::Residency;
use crate::backends::Bytes;
use crate::backends::limits::MemoryInfo;
use crate::backends::lock::lock;
use crate::backends::pool::{AllocId, Allocation, Pool, PoolControl, SizeClass, size_class};
use crate::backends::progress::Progress;
use crate::error::{TensorError, TensorResult};
use crate::plan::StorageMode;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResource};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex};

/// What a buffer is used by until the copy that waits for a submit is submitted.
pub(super) const UNTIL_SUBMITTED: u64 = u64::MAX;
/// Alignment of the first byte of a file's part that is bound in place: kernels read rows of four words.
const PART_ALIGN: usize = 16;
/// The least size of staging memory.
const STAGING_BYTES: usize = 64 << 10;
/// Staging memory kept for the next copies.
const STAGING_KEPT: usize = 4;

/// A buffer of Metal.
pub(super) struct Block {
    pub raw: Retained<ProtocolObject<dyn MTLBuffer>>,
    /// What backs it, which goes after it.
    _backing: Arc<Backing>,
    /// Its first byte; `None` where the host does not see it.
    contents: Option<NonNull<u8>>,
    pub id: u64,
    pub size: usize,
    /// The last submit that names it.
    last_use: AtomicU64,
}

// SAFETY: Metal's buffers may be used by any thread; what `contents` points to is written only while no submit uses it, by whoever holds the buffer.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Notes that this submit names it.
    pub fn use_in(&self, submit: u64) {
        self.last_use.store(submit, Release);
    }
    /// Whether what was submitted may still use it.
    pub fn is_used(&self, watch: &Progress) -> bool {
        self.last_use.load(Acquire) > watch.done()
    }
    /// Writes bytes where the host sees the memory.
    ///
    /// # Safety
    /// Nothing that was submitted uses the buffer, and nobody else reads it.
    pub unsafe fn write(&self, start: usize, bytes: &[u8]) {
        let Some(contents) = self.contents.filter(|_| start + bytes.len() <= self.size) else { return };
        // SAFETY: inside of the buffer; the caller's promise.
        unsafe { contents.add(start).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    /// Its bytes, where the host sees them.
    ///
    /// # Safety
    /// Nothing that was submitted writes the buffer for as long as the slice lives.
    pub unsafe fn bytes(&self, start: usize, len: usize) -> Option<&[u8]> {
        let contents = self.contents.filter(|_| start + len <= self.size)?;
        // SAFETY: inside of the buffer; the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(contents.add(start).as_ptr(), len) })
    }
}

/// Buffers that were given up while submitted work still names them: command buffers do not retain what they use.
pub(super) struct Retired {
    watch: Arc<Progress>,
    blocks: Mutex<Vec<Arc<Block>>>,
}

impl Retired {
    /// Keeps a buffer for as long as what was submitted uses it.
    pub fn add(&self, block: Arc<Block>) {
        if block.is_used(&self.watch) {
            lock(&self.blocks).push(block);
        }
    }
    fn sweep(&self) {
        lock(&self.blocks).retain(|b| b.is_used(&self.watch));
    }
}

/// A buffer that waits in the pool for its next use.
pub(super) struct Free {
    block: Arc<Block>,
    retired: Arc<Retired>,
}

impl Allocation for Free {
    fn id(&self) -> u64 {
        self.block.id
    }
    fn free(self) {
        self.retired.add(self.block);
    }
}

/// The memory behind a handle.
pub(super) struct Suballocation {
    /// The memory that it is part of.
    pub home: Arc<Memory>,
    pub block: Arc<Block>,
    /// Where it begins in the block.
    pub offset: usize,
    /// Its bytes.
    pub size: usize,
    /// The class in the pool; `None` for memory of the caller, which must not be written or kept for reuse.
    class: Option<SizeClass>,
    asked: usize,
    pub alloc_id: AllocId,
}

impl Drop for Suballocation {
    fn drop(&mut self) {
        let retired = self.home.retired.clone();
        match self.class {
            Some(class) => self.home.pool.put(Free { block: self.block.clone(), retired }, class, self.asked, self.alloc_id),
            None => {
                retired.add(self.block.clone());
                self.home.pool.unmap(self.size, self.alloc_id);
            }
        }
    }
}

/// Memory of a GPU through Metal; clones share it. It goes back to its backend's pool when the last clone is dropped.
#[derive(Clone)]
pub struct MetalBuffer(pub(super) Arc<Suballocation>);

impl MetalBuffer {
    /// Whether this handle is the only one, and the memory may be written.
    pub fn is_unique(&self) -> bool {
        self.0.class.is_some() && Arc::strong_count(&self.0) == 1
    }
    /// Whether the host sees the memory too.
    pub fn is_shared(&self) -> bool {
        self.0.block.contents.is_some()
    }
    /// Whether both are the same memory.
    pub fn same(&self, other: &MetalBuffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A copy that waits for a submit, from a byte of one buffer to one of another.
pub(super) struct Copy {
    pub from: (Arc<Block>, usize),
    pub to: (Arc<Block>, usize),
    pub len: usize,
}

/// The memory of one GPU.
pub(super) struct Memory {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    pub pool: Pool<Free>,
    pub retired: Arc<Retired>,
    pub heaps: Heaps,
    /// The kind of memory of buffers that tensors hold.
    pub kind: AtomicU8,
    /// The most bytes of one buffer.
    pub max_bytes: usize,
    /// The number of the next buffer; 0 names no buffer.
    next_id: AtomicU64,
    staging: Mutex<Vec<Arc<Block>>>,
}

impl Memory {
    pub fn new(device: Retained<ProtocolObject<dyn MTLDevice>>, watch: Arc<Progress>, residency: Arc<Residency>, labels: bool) -> Memory {
        let max_bytes = device.maxBufferLength();
        let asked = device.clone();
        let room = move || {
            let (total, taken) = (asked.recommendedMaxWorkingSetSize() as usize, asked.currentAllocatedSize());
            (total > 0).then(|| MemoryInfo { total, free: Some(total.saturating_sub(taken)) })
        };
        Memory {
            pool: Pool::new(watch.device.clone(), room, move |bytes| Some(size_class(bytes, max_bytes as u64 & !15) as usize)),
            heaps: Heaps::new(device.clone(), residency, labels),
            device,
            retired: Arc::new(Retired { watch, blocks: Mutex::default() }),
            kind: AtomicU8::new(SHARED),
            max_bytes,
            next_id: AtomicU64::new(1),
            staging: Mutex::default(),
        }
    }

    /// The physical size of a buffer for `bytes`; `None` where none can be as large.
    pub fn class_of(&self, bytes: usize) -> Option<usize> {
        Some(size_class(bytes, self.max_bytes as u64 & !15) as usize).filter(|size| *size <= self.max_bytes)
    }
    /// The error of so many bytes that there is no room for.
    pub fn full(&self, asked: usize, limit: Option<usize>, help: &'static str) -> TensorError {
        TensorError::OutOfMemory { device: self.retired.watch.device.clone(), asked, in_use: self.pool.memory().in_use, limit, help }
    }

    /// A buffer of at least `bytes`, by preference the one with id `prefer`; its content is arbitrary. `settle` waits for running work, after which
    /// buffers that were given up are free.
    pub fn lease(
        self: &Arc<Memory>,
        bytes: usize,
        kind: u8,
        prefer: u64,
        settle: impl Fn() -> TensorResult<()>,
    ) -> TensorResult<MetalBuffer> {
        self.retired.sweep();
        if self.class_of(bytes).is_none() {
            let help = "no single tensor can be larger on this device: split it, or use the cpu";
            return Err(self.full(bytes, Some(self.max_bytes), help));
        }
        let (free, class, alloc_id) = self.pool.lease(bytes, kind, prefer, |class, attempt| {
            if attempt > 0 {
                settle()?;
                self.retired.sweep();
            }
            Ok(self.create(class.bytes, class.kind).map(|block| Free { block, retired: self.retired.clone() }))
        })?;
        let size = free.block.size;
        let piece = Suballocation { home: self.clone(), block: free.block, offset: 0, size, class: Some(class), asked: bytes, alloc_id };
        Ok(MetalBuffer(Arc::new(piece)))
    }

    /// Gives free buffers back, with `staging` those for copies too; heaps without a buffer go with them. Nothing that was submitted is running.
    pub fn trim(&self, staging: bool) {
        self.pool.shrink(0);
        if staging {
            lock(&self.staging).clear();
        }
        self.retired.sweep();
    }

    /// A new buffer; `None` where there is no room for it.
    pub fn create(&self, bytes: usize, kind: u8) -> Option<Arc<Block>> {
        self.heaps.buffer(bytes, kind).map(|backed| self.block(backed, bytes, kind))
    }

    fn block(&self, (raw, backing): Backed, size: usize, kind: u8) -> Arc<Block> {
        let (contents, id) = ((kind != PRIVATE).then(|| raw.contents().cast()), self.next_id.fetch_add(1, Relaxed));
        if self.heaps.labels {
            let kind = if kind == PRIVATE { "private" } else { "shared" };
            raw.setLabel(Some(&NSString::from_str(&format!("{kind} buffer {id}, {size} bytes"))));
        }
        Arc::new(Block { raw, _backing: backing, contents, id, size, last_use: AtomicU64::new(0) })
    }

    /// Shared memory for a copy of `bytes`, which nothing uses.
    ///
    /// # Errors
    /// `TensorError::OutOfMemory`.
    pub fn staging(&self, bytes: usize) -> TensorResult<Arc<Block>> {
        let mut kept = lock(&self.staging);
        let fits = |b: &Arc<Block>| b.size >= bytes && Arc::strong_count(b) == 1 && !b.is_used(&self.retired.watch);
        if let Some(found) = kept.iter().find(|b| fits(b)) {
            return Ok(found.clone());
        }
        let size = bytes.next_power_of_two().max(STAGING_BYTES);
        let block = self.create(size, SHARED).ok_or_else(|| self.full(size, None, "out of memory for a copy to the GPU"))?;
        kept.push(block.clone());
        if kept.len() > STAGING_KEPT {
            self.retired.add(kept.remove(0));
        }
        Ok(block)
    }

    /// The bytes of a mapped file, or of a vector that fills pages, as a buffer over the same memory. `TL_METAL_NO_COPY=0` turns it off.
    pub fn import(self: &Arc<Memory>, bytes: &Bytes) -> Option<MetalBuffer> {
        let Bytes::Shared(owner, start, len) = bytes else { return None };
        if *len == 0 || std::env::var("TL_METAL_NO_COPY").is_ok_and(|v| v == "0") {
            return None;
        }
        // SAFETY: asks for a constant of the system.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|p| *p > 0)?;
        let offset = start % page;
        let size = (offset + len).next_multiple_of(page);
        let first = NonNull::new(owner.as_ptr().cast_mut())?;
        // Whole pages are mapped, so that rounding both ends to pages stays inside where the owner begins on one.
        if !first.addr().get().is_multiple_of(page) || offset % PART_ALIGN != 0 || size > self.max_bytes {
            return None;
        }
        let keep = owner.clone();
        // Held by the block, and so by the Metal buffer: the map lives until the GPU is done with it.
        let free = block2::RcBlock::new(move |_: NonNull<c_void>, _: usize| {
            let _ = &keep;
        });
        // SAFETY: the pages are mapped for as long as the block holds `keep`; kernels only read the buffer, as it is never given out as unique.
        let raw = unsafe {
            let from = first.add(start - offset).cast();
            self.device.newBufferWithBytesNoCopy_length_options_deallocator(from, size, options(SHARED), Some(&free))?
        };
        let backing = self.heaps.backing(ProtocolObject::from_ref(&*raw), None, size, SHARED);
        let (block, alloc_id) = (self.block((raw, backing), size, SHARED), self.pool.map(*len));
        Some(MetalBuffer(Arc::new(Suballocation { home: self.clone(), block, offset, size: *len, class: None, asked: *len, alloc_id })))
    }
}

/// The kind of memory for a mode: on Apple's GPUs managed memory is private.
pub(super) fn kind_of(mode: StorageMode) -> u8 {
    if mode == StorageMode::Shared { SHARED } else { PRIVATE }
}
