//! Memory of the GPU: buffers leased from a pool, shared with the host or private, and files bound where they lie.

use super::residency::Residency;
use crate::backends::Bytes;
use crate::backends::limits::MemoryInfo;
use crate::backends::lock::lock;
use crate::backends::pool::{AllocId, Allocation, Pool, SizeClass, size_class};
use crate::backends::progress::Progress;
use crate::error::{TensorError, TensorResult};
use crate::plan::StorageMode;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};
use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex};

/// Memory that only the GPU sees.
pub(super) const PRIVATE: u8 = 0;
/// Memory that the host sees too.
pub(super) const SHARED: u8 = 1;
/// What a buffer is used by until the copy that waits for a submit is submitted.
const UNTIL_SUBMITTED: u64 = u64::MAX;
/// Alignment of the first byte of a file's part that is bound in place: kernels read rows of four words.
const PART_ALIGN: usize = 16;
/// The least size of staging memory.
const STAGING_BYTES: usize = 64 << 10;
/// Staging memory kept for the next copies.
const STAGING_KEPT: usize = 4;

/// A buffer of Metal.
pub(super) struct Block {
    raw: Retained<ProtocolObject<dyn MTLBuffer>>,
    /// Its first byte; `None` where the host does not see it.
    contents: Option<NonNull<u8>>,
    id: u64,
    pub size: usize,
    /// The last submit that names it.
    last_use: AtomicU64,
    /// The residency set that has it.
    resident: Option<(Arc<Residency>, usize)>,
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some((sets, number)) = &self.resident {
            sets.remove(*number, &self.raw, self.size);
        }
    }
}

// SAFETY: Metal's buffers may be used by any thread; what `contents` points to is written only while no submit uses it, by whoever holds the buffer.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub fn raw(&self) -> &ProtocolObject<dyn MTLBuffer> {
        &self.raw
    }
    pub fn id(&self) -> u64 {
        self.id
    }
    /// Notes that this submit names it.
    pub fn use_in(&self, submit: u64) {
        self.last_use.store(submit, Release);
    }
    /// Notes that a copy names it which is not submitted yet.
    pub fn use_soon(&self) {
        self.use_in(UNTIL_SUBMITTED);
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
    /// Whether the host sees it.
    pub fn is_shared(&self) -> bool {
        self.contents.is_some()
    }
}

/// Buffers that were given up while submitted work still names them: command buffers do not retain what they use.
struct Retired {
    watch: Arc<Progress>,
    blocks: Mutex<Vec<Arc<Block>>>,
}

impl Retired {
    fn add(&self, block: Arc<Block>) {
        if block.is_used(&self.watch) {
            lock(&self.blocks).push(block);
        }
    }
    fn sweep(&self) {
        let mut blocks = lock(&self.blocks);
        if !blocks.is_empty() {
            blocks.retain(|b| b.is_used(&self.watch));
        }
    }
}

/// Shared memory that a plan holds. Like buffers that are given up, it is kept until what was submitted is done with it.
pub(super) struct Held {
    block: Arc<Block>,
    retired: Arc<Retired>,
}

impl Deref for Held {
    type Target = Block;
    fn deref(&self) -> &Block {
        &self.block
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.retired.add(self.block.clone());
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
pub(super) struct Piece {
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
    pub ticket: AllocId,
}

impl Drop for Piece {
    fn drop(&mut self) {
        let retired = self.home.retired.clone();
        match self.class {
            Some(class) => self.home.pool.put(Free { block: self.block.clone(), retired }, class, self.asked, self.ticket),
            None => {
                retired.add(self.block.clone());
                self.home.pool.unmap(self.size, self.ticket);
            }
        }
    }
}

/// Memory of a GPU through Metal; clones share it. It goes back to its backend's pool when the last clone is dropped.
#[derive(Clone)]
pub struct MetalBuffer(pub(super) Arc<Piece>);

impl MetalBuffer {
    /// Whether this handle is the only one, and the memory may be written.
    pub fn is_unique(&self) -> bool {
        self.0.class.is_some() && Arc::strong_count(&self.0) == 1
    }
    /// Whether the host sees the memory too.
    pub fn is_shared(&self) -> bool {
        self.0.block.is_shared()
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
    name: String,
    pub pool: Pool<Free>,
    retired: Arc<Retired>,
    residency: Arc<Residency>,
    /// The kind of memory of buffers that tensors hold.
    kind: AtomicU8,
    /// The most bytes of one buffer.
    pub max_bytes: usize,
    /// The number of the next buffer; 0 names no buffer.
    next_id: AtomicU64,
    staging: Mutex<Vec<Arc<Block>>>,
}

impl Memory {
    pub fn new(device: Retained<ProtocolObject<dyn MTLDevice>>, name: String, watch: Arc<Progress>, residency: Arc<Residency>) -> Memory {
        let max_bytes = device.maxBufferLength();
        let asked = device.clone();
        let room = move || {
            let (total, taken) = (asked.recommendedMaxWorkingSetSize() as usize, asked.currentAllocatedSize());
            (total > 0).then(|| MemoryInfo { total, free: Some(total.saturating_sub(taken)) })
        };
        Memory {
            pool: Pool::new(name.clone(), room, move |bytes| Some(size_class(bytes, max_bytes as u64 & !15) as usize)),
            device,
            name,
            retired: Arc::new(Retired { watch, blocks: Mutex::default() }),
            residency,
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
        TensorError::OutOfMemory { device: self.name.clone(), asked, in_use: self.pool.memory().in_use, limit, help }
    }
    /// The kind of memory of buffers that tensors hold.
    pub fn default_kind(&self) -> u8 {
        self.kind.load(Relaxed)
    }
    /// Changes it.
    pub fn set_default_mode(&self, mode: StorageMode) {
        self.kind.store(kind_of(mode), Relaxed);
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
        let (free, class, ticket) = self.pool.lease(bytes, kind, prefer, |class, attempt| {
            if attempt > 0 {
                settle()?;
                self.retired.sweep();
            }
            Ok(self.create(class.bytes, class.kind).map(|block| Free { block, retired: self.retired.clone() }))
        })?;
        let size = free.block.size;
        let piece = Piece { home: self.clone(), block: free.block, offset: 0, size, class: Some(class), asked: bytes, ticket };
        Ok(MetalBuffer(Arc::new(piece)))
    }

    /// Memory for a plan to hold; `None` where there is no room for it.
    pub fn hold(&self, bytes: usize) -> Option<Held> {
        self.retired.sweep();
        self.create(bytes, SHARED).map(|block| Held { block, retired: self.retired.clone() })
    }
    /// Keeps a buffer for as long as what was submitted uses it.
    pub fn keep(&self, block: Arc<Block>) {
        self.retired.add(block);
    }

    /// A new buffer; `None` where there is no room for it.
    pub fn create(&self, bytes: usize, kind: u8) -> Option<Arc<Block>> {
        let storage = if kind == PRIVATE { MTLResourceOptions::StorageModePrivate } else { MTLResourceOptions::StorageModeShared };
        let raw = self.device.newBufferWithLength_options(bytes, storage | MTLResourceOptions::HazardTrackingModeUntracked)?;
        Some(self.block(raw, bytes, kind))
    }

    fn block(&self, raw: Retained<ProtocolObject<dyn MTLBuffer>>, size: usize, kind: u8) -> Arc<Block> {
        let contents = (kind != PRIVATE).then(|| raw.contents().cast());
        let resident = self.residency.add(&raw, size).map(|number| (self.residency.clone(), number));
        Arc::new(Block { raw, contents, id: self.next_id.fetch_add(1, Relaxed), size, last_use: AtomicU64::new(0), resident })
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
            let oldest = kept.remove(0);
            self.retired.add(oldest);
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
            let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
            let from = first.add(start - offset).cast();
            self.device.newBufferWithBytesNoCopy_length_options_deallocator(from, size, options, Some(&free))?
        };
        let (block, ticket) = (self.block(raw, size, SHARED), self.pool.map(*len));
        Some(MetalBuffer(Arc::new(Piece { home: self.clone(), block, offset, size: *len, class: None, asked: *len, ticket })))
    }
}

/// The kind of memory for a mode: on Apple's GPUs managed memory is private.
pub(super) fn kind_of(mode: StorageMode) -> u8 {
    if mode == StorageMode::Shared { SHARED } else { PRIVATE }
}
