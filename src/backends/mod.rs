//! The machines that run plans. A machine knows steps, buffers and kernels; no op and no graph.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod limits;
pub mod pool;
pub mod report;

#[cfg(feature = "gpu")]
pub use crate::metal::{self, Backend};

use self::pool::PoolControl;
use crate::dtype::DType;
use crate::error::{At, TensorResult};
use crate::plan::{MemoryStats, Plan, RunTimes, Timing};
use std::ops::Deref;
use std::sync::Arc;

/// Bytes that a tensor starts from: owned, or a part of something shared such as a mapped file.
#[derive(Clone)]
pub enum Bytes {
    /// Owned by the tensor.
    Owned(Arc<Vec<u8>>),
    /// `start..start + len` of a shared mapping.
    Shared(Arc<dyn Deref<Target = [u8]> + Send + Sync>, usize, usize),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Owned(v) => v,
            Bytes::Shared(m, start, len) => &m[*start..*start + *len],
        }
    }
}

/// Device memory; clones share it. It goes back to its pool when the last clone is dropped.
#[derive(Clone)]
pub enum Buffer {
    /// Host memory.
    Cpu(cpu::CpuBuffer),
    /// Memory of a GPU.
    #[cfg(feature = "gpu")]
    Gpu(gpu::GpuBuffer),
}

impl Buffer {
    /// Whether this handle is the only one.
    pub fn is_unique(&self) -> bool {
        match self {
            Buffer::Cpu(b) => b.is_unique(),
            #[cfg(feature = "gpu")]
            Buffer::Gpu(b) => b.is_unique(),
        }
    }
    /// Whether both are the same memory.
    pub fn same(&self, other: &Buffer) -> bool {
        match (self, other) {
            (Buffer::Cpu(a), Buffer::Cpu(b)) => a.same(b),
            #[cfg(feature = "gpu")]
            (Buffer::Gpu(a), Buffer::Gpu(b)) => a.same(b),
            #[cfg(feature = "gpu")]
            _ => false,
        }
    }
}

/// Ready when submitted work is done.
pub type Submitted = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// A read that was submitted: calling it waits and gives the bytes.
pub type PendingRead = Box<dyn FnOnce() -> TensorResult<Vec<u8>> + Send>;

/// Runs plans. All methods may be called from any thread; `eval.rs` sees to it that one plan runs at a time.
pub trait Machine: Send + Sync {
    /// The device as people know it, e.g. `cpu (2 threads, avx512)` or `NVIDIA H100 (vulkan)`.
    fn name(&self) -> String;
    /// Whether tensors of this dtype can live here.
    fn supports(&self, dtype: DType) -> bool;
    /// Room for `bytes`; the content is arbitrary.
    fn alloc(&self, bytes: usize) -> TensorResult<Buffer>;
    /// Memory with this content; without a copy where the machine can read the bytes in place.
    fn upload(&self, bytes: Bytes) -> TensorResult<Buffer>;
    /// Runs the plan; returns when it is submitted. `params` are the plan's run-time numbers.
    fn run(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()>;
    /// From now on runs are timed, until [`Machine::finish_timing`].
    ///
    /// # Errors
    /// When they are timed already.
    fn start_timing(&self, detail: Timing) -> TensorResult<()>;
    /// Ends timing and gives the times of the runs since it began, in order; waits for them.
    fn finish_timing(&self) -> TensorResult<Vec<RunTimes>>;
    /// Waits for what was submitted and copies `out.len()` bytes from byte `start`. Gives the error of any bad index met since the last read.
    fn read(&self, buffer: &Buffer, start: usize, out: &mut [u8]) -> TensorResult<()>;
    /// As [`Machine::read`], but only submits the copy: the returned call waits for it and gives the bytes. What is submitted in between
    /// is not waited for.
    fn start_read(&self, buffer: &Buffer, start: usize, len: usize) -> TensorResult<PendingRead> {
        let mut out = vec![0; len];
        self.read(buffer, start, &mut out)?;
        Ok(Box::new(|| Ok(out)))
    }
    /// Ready when what was submitted so far is done: [`Machine::synchronize`] for threads that must not block.
    fn done(&self) -> Submitted {
        Box::pin(std::future::ready(()))
    }
    /// Waits for what was submitted.
    fn synchronize(&self) -> TensorResult<()>;
    /// Distinct buffers that one step may bind.
    fn max_buffers(&self) -> usize {
        8
    }
    /// Memory as the machine counts it.
    fn memory(&self) -> MemoryStats;
    /// The pool, to be looked at and bounded.
    fn pool(&self) -> &dyn PoolControl;
    /// Tells a memory recording what a buffer is for. Called only while one is on.
    fn label(&self, buffer: &Buffer, op: &'static str, at: At);
    /// Submits since the machine was opened, for tests and `--stats`.
    fn submits(&self) -> u64;
}
