//! Buffers by size class: what is returned waits here for the next request, up to a bound in bytes.

use super::core::Core;
use crate::error::{TensorError, TensorResult};
use crate::plan::MemoryStats;
use std::collections::HashMap;
use std::sync::Arc;

/// A physical buffer.
pub(super) struct Memory {
    pub core: Arc<Core>,
    pub raw: wgpu::Buffer,
    /// Distinguishes buffers in caches of bind groups.
    pub id: u64,
    /// Physical bytes.
    pub size: u64,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.core.give_back(Free { raw: self.raw.clone(), id: self.id, size: self.size });
    }
}

/// GPU memory; clones share it. It goes back to its machine's pool when the last clone is dropped.
#[derive(Clone)]
pub struct GpuBuffer(pub(super) Arc<Memory>);

impl GpuBuffer {
    /// Whether this handle is the only one.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
    /// Whether both are the same memory.
    pub fn same(&self, other: &GpuBuffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

pub(super) struct Free {
    pub raw: wgpu::Buffer,
    pub id: u64,
    pub size: u64,
}

/// Unused buffers and the count of all.
pub(super) struct Pool {
    free: HashMap<u64, Vec<Free>>,
    stats: MemoryStats,
    next_id: u64,
    /// Bytes kept at most.
    pub limit: usize,
}

/// The physical size for a request: a few classes per power of two, so that sizes meet again; always a multiple of 256.
pub(super) fn size_class(bytes: usize, most: u64) -> u64 {
    let bytes = (bytes as u64).max(256);
    let step = if bytes >= 16 << 20 { 2 << 20 } else { (bytes.next_power_of_two() / 16).max(256) };
    bytes.next_multiple_of(step).min(most.max(bytes.next_multiple_of(16)))
}

impl Pool {
    pub fn new(limit: usize) -> Pool {
        Pool { free: HashMap::new(), stats: MemoryStats::default(), next_id: 1, limit }
    }

    pub fn stats(&self) -> MemoryStats {
        self.stats
    }

    fn use_bytes(&mut self, size: u64) {
        self.stats.in_use += size as usize;
        self.stats.peak = self.stats.peak.max(self.stats.in_use);
    }

    /// A free buffer of this class, by preference the one with this id.
    fn take(&mut self, size: u64, prefer: u64) -> Option<Free> {
        self.stats.requests += 1;
        let list = self.free.get_mut(&size)?;
        let at = list.iter().rposition(|f| f.id == prefer).or(list.len().checked_sub(1))?;
        let f = list.remove(at);
        self.stats.pooled -= size as usize;
        self.stats.reused += 1;
        self.use_bytes(size);
        Some(f)
    }

    /// Takes a buffer back; what exceeds the bound is returned for destruction.
    fn put(&mut self, f: Free) -> Vec<Free> {
        let size = f.size as usize;
        self.stats.in_use -= size;
        let mut out = Vec::new();
        if size > self.limit {
            out.push(f);
            return out;
        }
        // Large classes go first: few of them make room.
        while self.stats.pooled + size > self.limit {
            let Some(class) = self.free.iter().filter(|(_, l)| !l.is_empty()).map(|(c, _)| *c).max() else { break };
            if let Some(list) = self.free.get_mut(&class) {
                out.push(list.remove(0));
                self.stats.pooled -= class as usize;
            }
        }
        self.stats.pooled += size;
        self.free.entry(f.size).or_default().push(f);
        out
    }

    fn clear(&mut self) -> Vec<Free> {
        self.stats.pooled = 0;
        self.free.drain().flat_map(|(_, l)| l).collect()
    }
}

impl Core {
    /// A buffer of at least `bytes`, by preference the one with id `prefer`; its content is arbitrary.
    pub fn lease(self: &Arc<Core>, bytes: usize, prefer: u64) -> TensorResult<GpuBuffer> {
        let most = self.max_binding & !15;
        let size = size_class(bytes, most);
        let reused = self.pool().take(size, prefer);
        let free = match reused {
            Some(f) => f,
            None => {
                let raw = self.create(bytes, size)?;
                let mut pool = self.pool();
                pool.use_bytes(size);
                pool.next_id += 1;
                Free { raw, id: pool.next_id, size }
            }
        };
        Ok(GpuBuffer(Arc::new(Memory { core: self.clone(), raw: free.raw, id: free.id, size: free.size })))
    }

    fn create(&self, bytes: usize, size: u64) -> TensorResult<wgpu::Buffer> {
        let out_of_memory = |limit, help| TensorError::OutOfMemory {
            device: self.name.clone(),
            asked: bytes,
            in_use: self.pool().stats.in_use,
            limit,
            help,
        };
        if size > self.max_binding {
            return Err(out_of_memory(
                Some(self.max_binding as usize),
                "no single tensor can be larger on this device: split it, or use the cpu",
            ));
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let create =
            || self.guarded(|| self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false }));
        match create() {
            Ok(b) => Ok(b),
            Err(_) => {
                let _ = self.device.poll(wgpu::PollType::Poll);
                self.check()?;
                self.empty_pool();
                self.wait()?;
                create().map_err(|_| {
                    out_of_memory(self.memory.map(|m| m as usize), "use a smaller batch or context, or a smaller or quantized model")
                })
            }
        }
    }

    fn give_back(&self, f: Free) {
        let surplus = self.pool().put(f);
        destroy(surplus);
    }

    /// Gives pooled memory back to the system.
    pub fn empty_pool(&self) {
        let all = self.pool().clear();
        destroy(all);
    }
}

/// Frees buffers even though cached bind groups still name them; the driver keeps them until running work is done.
fn destroy(buffers: Vec<Free>) {
    for f in buffers {
        f.raw.destroy();
    }
}
