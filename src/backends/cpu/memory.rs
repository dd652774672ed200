//! Host memory: aligned blocks, and the buffers that tensors hold.

use crate::backends::Bytes;
use crate::backends::limits::host_memory_info;
use crate::backends::pool::{self, AllocId, Allocation, SizeClass};
use crate::error::{At, TensorResult};
use std::alloc::{Layout, alloc, dealloc};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Alignment of small blocks: a cache line, and the widest vector.
const LINE: usize = 64;
/// From this size on, blocks are aligned to huge pages and ask for them.
const HUGE_PAGE: usize = 2 << 20;

/// An aligned block of owned memory.
pub(crate) struct HostBlock {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block owns its memory as a `Vec<u8>` does; who may touch it is decided by its holder.
unsafe impl Send for HostBlock {}
// SAFETY: as above; a shared reference only gives out the address.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    /// A block of at least `bytes`, with arbitrary content.
    pub(crate) fn new(bytes: usize) -> Option<HostBlock> {
        let align = if bytes >= 2 * HUGE_PAGE { HUGE_PAGE } else { LINE };
        let layout = Layout::from_size_align(bytes.max(LINE), align).ok()?;
        // SAFETY: the size is not zero.
        let ptr = NonNull::new(unsafe { alloc(layout) })?;
        #[cfg(target_os = "linux")]
        if align == HUGE_PAGE {
            // SAFETY: the range was just allocated and starts on a page; the call is a hint and its failure harmless.
            unsafe { libc::madvise(ptr.as_ptr().cast(), layout.size() / HUGE_PAGE * HUGE_PAGE, libc::MADV_HUGEPAGE) };
        }
        Some(HostBlock { ptr, layout })
    }
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout and freed once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

/// Whether bytes become a buffer where they lie: they have an owner and are aligned for elements of every dtype.
pub(super) fn reads_in_place(bytes: &Bytes) -> bool {
    matches!(bytes, Bytes::Shared(..)) && (bytes.as_ptr() as usize).is_multiple_of(8)
}

/// The size that a request is rounded up to: four classes per power of two.
pub(super) fn class(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(LINE);
    let step = (bytes.checked_next_power_of_two()? / 8).max(LINE);
    bytes.checked_next_multiple_of(step).filter(|&b| b <= isize::MAX as usize)
}

impl Allocation for HostBlock {
    fn id(&self) -> u64 {
        self.ptr.as_ptr() as u64
    }
    fn free(self) {}
}

/// The pool of host memory.
pub(crate) type HostPool = pool::Pool<HostBlock>;

impl HostPool {
    /// A pool bounded by what the system has.
    pub(crate) fn of_host() -> Arc<HostPool> {
        Arc::new(HostPool::new("cpu".into(), host_memory_info, class))
    }

    /// The pool of the device `cpu`, which also holds what lies in host memory for GPUs.
    pub(crate) fn common() -> Arc<HostPool> {
        static COMMON: OnceLock<Arc<HostPool>> = OnceLock::new();
        COMMON.get_or_init(HostPool::of_host).clone()
    }

    /// A buffer with this content, in place where the bytes are shared and aligned.
    pub(crate) fn upload(self: &Arc<HostPool>, bytes: Bytes) -> TensorResult<CpuBuffer> {
        if let Bytes::Shared(owner, start, len) = &bytes
            && reads_in_place(&bytes)
        {
            return Ok(self.share(owner.clone(), *start, *len));
        }
        let buffer = self.alloc(bytes.len())?;
        // SAFETY: the buffer is new, so nobody else knows it, and as long as the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.as_ptr(), bytes.len()) };
        Ok(buffer)
    }

    /// A buffer of `bytes` with arbitrary content.
    pub(crate) fn alloc(self: &Arc<HostPool>, bytes: usize) -> TensorResult<CpuBuffer> {
        let (block, class, alloc_id) = self.lease(bytes, 0, 0, |class, _| Ok(HostBlock::new(class.bytes)))?;
        let held = Held::Owned(Some(block), class);
        let ptr = if let Held::Owned(Some(b), _) = &held { b.ptr() } else { std::ptr::null_mut() };
        Ok(CpuBuffer(Arc::new(HostMemory { ptr, len: bytes, held, pool: self.clone(), alloc_id })))
    }

    /// A buffer that reads `len` bytes of `owner` from `start` in place.
    pub(crate) fn share(self: &Arc<HostPool>, owner: Arc<dyn Deref<Target = [u8]> + Send + Sync>, start: usize, len: usize) -> CpuBuffer {
        let ptr = owner[start..start + len].as_ptr().cast_mut();
        let alloc_id = self.map(len);
        CpuBuffer(Arc::new(HostMemory { ptr, len, held: Held::Shared(owner), pool: self.clone(), alloc_id }))
    }
}

/// A value in the memory of the device `cpu`.
///
/// # Errors
/// `TensorError::OutOfMemory` where the bytes have to be copied and there is no room.
///
/// ```
/// use tensorlogic::backends::{Bytes, cpu::to_host};
/// let small = to_host(Bytes::of_vec(vec![1u8, 2, 3]))?;
/// assert_eq!((small.len(), small.writable()), (3, true)); // a copy in the device's own memory
/// let large = to_host(Bytes::of_vec(vec![0f64; 1 << 16]))?;
/// assert_eq!((large.len(), large.writable()), (8 << 16, false)); // the vector itself
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
#[cfg(feature = "shaders")]
pub fn to_host(bytes: Bytes) -> TensorResult<CpuBuffer> {
    HostPool::common().upload(bytes)
}

enum Held {
    Owned(Option<HostBlock>, SizeClass),
    /// Kept alive, read through `HostMemory::ptr`.
    #[allow(dead_code)]
    Shared(Arc<dyn Deref<Target = [u8]> + Send + Sync>),
}

struct HostMemory {
    ptr: *mut u8,
    len: usize,
    held: Held,
    pool: Arc<HostPool>,
    alloc_id: AllocId,
}

// SAFETY: the memory is owned or kept alive by `held`; one plan runs at a time and decides who writes where.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl Drop for HostMemory {
    fn drop(&mut self) {
        match &mut self.held {
            Held::Owned(block, class) => {
                if let Some(block) = block.take() {
                    self.pool.put(block, *class, self.len, self.alloc_id);
                }
            }
            Held::Shared(_) => self.pool.unmap(self.len, self.alloc_id),
        }
    }
}

/// Host memory; clones share it. Either owned, 64-byte aligned and pooled, or a read-only part of something shared.
#[derive(Clone)]
pub struct CpuBuffer(Arc<HostMemory>);

impl CpuBuffer {
    /// Whether this handle is the only one and the memory may be written.
    pub fn is_unique(&self) -> bool {
        self.writable() && Arc::strong_count(&self.0) == 1
    }
    /// Whether both are the same memory.
    pub fn same(&self, other: &CpuBuffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// The first byte. Only a writable buffer may be written through it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.ptr
    }
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }
    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }
    /// Tells a memory recording what the buffer is for.
    #[allow(dead_code)] // without a GPU nobody else holds host memory
    pub(crate) fn label(&self, op: &'static str, at: At) {
        self.0.pool.label(self.0.alloc_id, op, at);
    }
    pub(crate) fn alloc_id(&self) -> AllocId {
        self.0.alloc_id
    }
    /// Whether the memory is the pool's own rather than a file's or the caller's.
    pub fn writable(&self) -> bool {
        matches!(self.0.held, Held::Owned(..))
    }
}
