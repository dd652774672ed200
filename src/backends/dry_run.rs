//! A backend that computes nothing: plans are made and memory is counted as on another one, to know what work needs before it runs.

use super::pool::{AllocId, Allocation, Pool, PoolControl, SizeClass};
use super::{Backend, Buffer, Bytes, FusedGemvLimits};
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::plan::{Capabilities, MemoryStats, Plan, RunTimes, Timing};
use crate::tuning::{SharedTuning, Tuning, TuningSource};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A piece of no memory.
struct Nothing;

impl Allocation for Nothing {
    fn id(&self) -> u64 {
        0
    }
    fn free(self) {}
}

/// How a buffer is counted.
enum Held {
    /// As allocated, in this class.
    Leased(SizeClass),
    /// As mapped.
    Mapped,
}

struct Counted {
    pool: Arc<Pool<Nothing>>,
    bytes: usize,
    held: Held,
    alloc_id: AllocId,
}

impl Drop for Counted {
    fn drop(&mut self) {
        match self.held {
            Held::Leased(class) => self.pool.put(Nothing, class, self.bytes, self.alloc_id),
            Held::Mapped => self.pool.unmap(self.bytes, self.alloc_id),
        }
    }
}

/// A buffer without content, which is counted; clones share it.
#[derive(Clone)]
pub struct CountedBuffer(Arc<Counted>);

impl CountedBuffer {
    /// Whether this handle is the only one, and the memory could be written.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && matches!(self.0.held, Held::Leased(_))
    }
    /// Whether both are the same buffer.
    pub fn same(&self, other: &CountedBuffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Counts the memory that a backend would take.
pub struct DryRun {
    like: Arc<dyn Backend>,
    pool: Arc<Pool<Nothing>>,
    runs: AtomicU64,
}

impl DryRun {
    /// A backend that plans as `like` does. It has no limit of memory.
    pub fn of(like: Arc<dyn Backend>) -> DryRun {
        let classes = like.clone();
        let pool = Arc::new(Pool::new(like.name(), || None, move |bytes| classes.size_class(bytes)));
        pool.change(&mut |limits| limits.in_use = Some(usize::MAX));
        DryRun { like, pool, runs: AtomicU64::new(0) }
    }

    fn lease(&self, bytes: usize) -> TensorResult<CountedBuffer> {
        let (_, class, alloc_id) = self.pool.lease(bytes, 0, 0, |_, _| Ok(Some(Nothing)))?;
        Ok(CountedBuffer(Arc::new(Counted { pool: self.pool.clone(), bytes, held: Held::Leased(class), alloc_id })))
    }

    fn own<'a>(&self, buffer: &'a Buffer) -> TensorResult<&'a Counted> {
        match buffer {
            Buffer::Counted(b) if Arc::ptr_eq(&b.0.pool, &self.pool) => Ok(&b.0),
            _ => Err(TensorError::UnsupportedDevice(format!("a dry run on {} was given a tensor of another device", self.name()))),
        }
    }
}

impl Backend for DryRun {
    fn name(&self) -> String {
        self.like.name()
    }
    fn supports(&self, dtype: DType) -> bool {
        self.like.supports(dtype)
    }
    fn size_class(&self, bytes: usize) -> Option<usize> {
        self.like.size_class(bytes)
    }
    fn alloc(&self, bytes: usize) -> TensorResult<Buffer> {
        self.lease(bytes).map(Buffer::Counted)
    }
    fn upload(&self, bytes: Bytes) -> TensorResult<Buffer> {
        if self.like.reads_in_place(&bytes) {
            let (bytes, alloc_id) = (bytes.len(), self.pool.map(bytes.len()));
            return Ok(Buffer::Counted(CountedBuffer(Arc::new(Counted { pool: self.pool.clone(), bytes, held: Held::Mapped, alloc_id }))));
        }
        self.alloc(bytes.len())
    }
    fn run(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], _params: &[f64]) -> TensorResult<()> {
        inputs.iter().chain(outputs).try_for_each(|b| self.own(b).map(drop))?;
        let _slots = plan.slots.iter().map(|&bytes| self.lease(bytes)).collect::<TensorResult<Vec<_>>>()?;
        self.runs.fetch_add(1, Relaxed);
        Ok(())
    }
    fn start_timing(&self, _detail: Timing) -> TensorResult<()> {
        Err(TensorError::State("a dry run takes no time that could be measured".into()))
    }
    fn finish_timing(&self) -> TensorResult<Vec<RunTimes>> {
        Ok(Vec::new())
    }
    /// Zeros.
    fn read(&self, buffer: &Buffer, start: usize, out: &mut [u8]) -> TensorResult<()> {
        let own = self.own(buffer)?;
        if start.checked_add(out.len()).is_none_or(|end| end > own.bytes) {
            return Err(TensorError::Internal(format!("{} bytes from {start} were read from a buffer of {}", out.len(), own.bytes)));
        }
        out.fill(0);
        Ok(())
    }
    fn view(&self, buffer: &Buffer, start: usize, len: usize, show: &mut dyn FnMut(&[u8])) -> TensorResult<()> {
        let mut zeros = vec![0; len];
        self.read(buffer, start, &mut zeros)?;
        show(&zeros);
        Ok(())
    }
    fn overwrite(&self, buffer: &Buffer, _bytes: &[u8]) -> TensorResult<()> {
        self.own(buffer).map(drop)
    }
    fn synchronize(&self) -> TensorResult<()> {
        Ok(())
    }
    fn max_buffers(&self) -> usize {
        self.like.max_buffers()
    }
    fn capabilities(&self) -> Capabilities {
        self.like.capabilities()
    }
    fn fused_gemv_limits(&self) -> Option<FusedGemvLimits> {
        self.like.fused_gemv_limits()
    }
    fn tuning(&self) -> Option<&Tuning> {
        self.like.tuning()
    }
    fn tuning_in_force(&self) -> Option<SharedTuning> {
        self.like.tuning_in_force()
    }
    fn tuning_source(&self) -> Option<&TuningSource> {
        self.like.tuning_source()
    }
    fn matrices(&self) -> bool {
        self.like.matrices()
    }
    fn memory(&self) -> MemoryStats {
        self.pool.memory()
    }
    fn pool(&self) -> &dyn PoolControl {
        &*self.pool
    }
    fn label(&self, buffer: &Buffer, op: &'static str, at: At) {
        if let Buffer::Counted(b) = buffer {
            self.pool.label(b.0.alloc_id, op, at);
        }
    }
    fn is_busy(&self) -> bool {
        false
    }
    fn submits(&self) -> u64 {
        self.runs.load(Relaxed)
    }
}
