//! Host memory: aligned blocks, a pool of them bounded in bytes, and the buffers that tensors hold.

use crate::error::{TensorError, TensorResult};
use crate::plan::MemoryStats;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of small blocks: a cache line, and the widest vector.
const LINE: usize = 64;
/// From this size on, blocks are aligned to huge pages and ask for them.
const HUGE: usize = 2 << 20;

/// An aligned block of owned memory.
pub(crate) struct Block {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block owns its memory as a `Vec<u8>` does; who may touch it is decided by its holder.
unsafe impl Send for Block {}
// SAFETY: as above; a shared reference only gives out the address.
unsafe impl Sync for Block {}

impl Block {
    /// A block of at least `bytes`, with arbitrary content.
    pub(crate) fn new(bytes: usize) -> Option<Block> {
        let align = if bytes >= 2 * HUGE { HUGE } else { LINE };
        let layout = Layout::from_size_align(bytes.max(LINE), align).ok()?;
        // SAFETY: the size is not zero.
        let ptr = NonNull::new(unsafe { alloc(layout) })?;
        #[cfg(target_os = "linux")]
        if align == HUGE {
            // SAFETY: the range was just allocated and starts on a page; the call is a hint and its failure harmless.
            unsafe { libc::madvise(ptr.as_ptr().cast(), layout.size() / HUGE * HUGE, libc::MADV_HUGEPAGE) };
        }
        Some(Block { ptr, layout })
    }
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout and freed once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

/// The size that a request is rounded up to: four classes per power of two.
fn class(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(LINE);
    let step = (bytes.checked_next_power_of_two()? / 8).max(LINE);
    bytes.checked_next_multiple_of(step)
}

#[derive(Default)]
struct Free {
    /// Blocks by class, the latest freed last, with the time they were freed.
    blocks: BTreeMap<usize, Vec<(u64, Block)>>,
    clock: u64,
    stats: MemoryStats,
}

/// Freed blocks kept for reuse, and the count of what is in use.
pub(crate) struct Pool {
    free: Mutex<Free>,
    limit: usize,
}

impl Pool {
    /// A pool that keeps at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Arc<Pool> {
        Arc::new(Pool { free: Mutex::default(), limit })
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `bytes` with arbitrary content.
    pub(crate) fn alloc(self: &Arc<Pool>, bytes: usize) -> TensorResult<CpuBuffer> {
        let out_of_memory = |in_use| TensorError::OutOfMemory {
            device: "cpu".into(),
            asked: bytes,
            in_use,
            limit: None,
            help: "use a smaller batch, a shorter context or a smaller dtype",
        };
        let mut free = self.lock();
        let Some(size) = class(bytes) else { return Err(out_of_memory(free.stats.in_use)) };
        free.stats.requests += 1;
        let block = match free.blocks.get_mut(&size).and_then(Vec::pop) {
            Some((_, block)) => {
                free.stats.reused += 1;
                free.stats.pooled -= size;
                block
            }
            None => match Block::new(size) {
                Some(block) => block,
                None => {
                    free.blocks.clear();
                    free.stats.pooled = 0;
                    Block::new(size).ok_or_else(|| out_of_memory(free.stats.in_use))?
                }
            },
        };
        free.stats.in_use += size;
        free.stats.peak = free.stats.peak.max(free.stats.in_use);
        drop(free);
        Ok(CpuBuffer(Arc::new(Memory { ptr: block.ptr(), len: bytes, held: Held::Owned(Some(block)), pool: self.clone() })))
    }

    /// A buffer that reads `len` bytes of `owner` from `start` in place.
    pub(crate) fn share(self: &Arc<Pool>, owner: Arc<dyn Deref<Target = [u8]> + Send + Sync>, start: usize, len: usize) -> CpuBuffer {
        let ptr = owner[start..start + len].as_ptr().cast_mut();
        let mut free = self.lock();
        free.stats.in_use += len;
        free.stats.peak = free.stats.peak.max(free.stats.in_use);
        drop(free);
        CpuBuffer(Arc::new(Memory { ptr, len, held: Held::Shared(owner), pool: self.clone() }))
    }

    fn give_back(&self, block: Block) {
        let size = block.len();
        let mut evicted = Vec::new();
        let mut free = self.lock();
        free.stats.in_use -= size;
        if size > self.limit {
            drop(free);
            return;
        }
        while free.stats.pooled + size > self.limit {
            let oldest = free.blocks.iter().filter_map(|(&c, v)| v.first().map(|b| (b.0, c))).min();
            let Some((_, class)) = oldest else { break };
            evicted.extend(free.blocks.get_mut(&class).map(|v| v.remove(0)));
            free.stats.pooled -= class;
        }
        free.clock += 1;
        free.stats.pooled += size;
        let now = free.clock;
        free.blocks.entry(size).or_default().push((now, block));
        drop(free);
        drop(evicted);
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.lock().stats
    }

    /// Frees what is kept for reuse.
    pub(crate) fn clear(&self) {
        let mut free = self.lock();
        free.stats.pooled = 0;
        let blocks = std::mem::take(&mut free.blocks);
        drop(free);
        drop(blocks);
    }
}

enum Held {
    Owned(Option<Block>),
    /// Kept alive, read through `Memory::ptr`.
    #[allow(dead_code)]
    Shared(Arc<dyn Deref<Target = [u8]> + Send + Sync>),
}

struct Memory {
    ptr: *mut u8,
    len: usize,
    held: Held,
    pool: Arc<Pool>,
}

// SAFETY: the memory is owned or kept alive by `held`; one plan runs at a time and decides who writes where.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        match &mut self.held {
            Held::Owned(block) => {
                if let Some(block) = block.take() {
                    self.pool.give_back(block);
                }
            }
            Held::Shared(_) => self.pool.lock().stats.in_use -= self.len,
        }
    }
}

/// Host memory; clones share it. Either owned, 64-byte aligned and pooled, or a read-only part of something shared.
#[derive(Clone)]
pub struct CpuBuffer(Arc<Memory>);

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
    /// Whether the memory is the machine's own rather than a part of something shared.
    pub fn writable(&self) -> bool {
        matches!(self.0.held, Held::Owned(_))
    }
}
