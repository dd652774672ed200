//! The CPU backend: plans run by one thread pool over host memory.

#[cfg(any(target_os = "macos", test))]
mod accelerate;
mod chain;
#[cfg(target_arch = "aarch64")]
mod chain_neon;
pub(crate) mod columns;
mod compile;
pub(crate) mod dot;
pub(crate) mod gemm;
mod lanes;
mod map;
pub(crate) mod math;
#[cfg(target_arch = "x86_64")]
mod math512;
mod matrix;
mod memory;
pub(crate) mod operand;
pub(crate) mod path;
mod plan_run;
mod prepared;
pub(crate) mod probe;
#[cfg(target_arch = "x86_64")]
pub(crate) mod product;
#[cfg(target_arch = "aarch64")]
pub(crate) mod product_bf16;
mod span;
mod task;
#[cfg(test)]
mod tests;
mod thread_count;
mod thread_pool;
mod tile_instr;
mod timing;
mod transpose;
pub(crate) mod vector;

pub use memory::CpuBuffer;
#[cfg(feature = "shaders")]
pub use memory::to_host;
pub use task::share;
pub use transpose::transpose;

use crate::backends::lock::lock;
use crate::backends::pool::PoolControl;
use crate::backends::stages::{Stage, enter};
use crate::backends::{Backend, Buffer, Bytes, EnergyCounter};
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::events;
use crate::plan::{Buf, Capabilities, MemoryStats, Plan, RunTimes, Timing, WINDOW_UNIT};
use memory::HostPool;
use plan_run::{PlanRun, Threads};
use prepared::{Place, PreparedPlans, bind};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use thread_count::AdaptiveThreadCount;
use timing::RunTimer;

/// The processor as a device.
pub struct CpuBackend {
    threads: Threads,
    pool: Arc<HostPool>,
    /// Held while a plan runs.
    running: Mutex<Running>,
    submits: AtomicU64,
    timer: RunTimer,
}

/// How many threads a plan gets, and what the steps of plans need.
struct Running {
    width: AdaptiveThreadCount,
    plans: PreparedPlans,
}

/// As many threads as `TL_NUM_THREADS` says, else as there are cores for this process.
pub fn threads() -> usize {
    let asked = std::env::var("TL_NUM_THREADS").ok().and_then(|v| v.trim().parse().ok()).filter(|&n: &usize| n > 0);
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get())).min(1024)
}

/// The family of vector instructions that kernels use here: `plain`, or the name of a faster one, such as `avx512` or `dotprod`.
///
/// # Errors
/// When `TL_CPU` names none that works on this processor.
///
/// ```
/// let name = tensorlogic::backends::cpu::instructions()?;
/// assert!(tensorlogic::Device::cpu().name().ends_with(&format!("{name})"))); // as in `cpu (2 threads, avx512)`
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn instructions() -> TensorResult<&'static str> {
    Ok(path::Path::get()?.name())
}

impl CpuBackend {
    /// A backend with [`threads`] threads.
    pub fn open() -> Arc<CpuBackend> {
        CpuBackend::with_pool(threads(), HostPool::common())
    }

    /// A backend with this many threads and a pool of its own.
    pub fn with_threads(threads: usize) -> Arc<CpuBackend> {
        CpuBackend::with_pool(threads, HostPool::of_host())
    }

    fn with_pool(threads: usize, pool: Arc<HostPool>) -> Arc<CpuBackend> {
        let threads = Threads::new(threads.max(1));
        let running = Running { width: AdaptiveThreadCount::of(threads.count()), plans: PreparedPlans::default() };
        Arc::new(CpuBackend { running: Mutex::new(running), threads, pool, submits: AtomicU64::new(0), timer: RunTimer::default() })
    }

    /// Memory for the slots of a plan.
    fn slots(&self, plan: &Plan) -> TensorResult<SmallVec<[CpuBuffer; 8]>> {
        let slots = plan.slots.iter().map(|&bytes| self.pool.alloc(bytes)).collect::<TensorResult<SmallVec<[CpuBuffer; 8]>>>()?;
        if self.pool.recording() {
            for (n, slot) in slots.iter().enumerate() {
                if let Some(step) = plan.slot_writer(n) {
                    self.pool.label(slot.alloc_id(), step.name, step.at);
                }
            }
        }
        Ok(slots)
    }

    fn take_failure(&self) -> TensorResult<()> {
        self.threads.take_failure().map_or(Ok(()), Err)
    }
}

/// Refuses buffers that a plan cannot run with.
fn check_buffers(plan: &Plan, inputs: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()> {
    if params.len() < plan.params || inputs.len() < plan.inputs.len() || outputs.len() < plan.outputs.len() {
        return Err(TensorError::Internal("a plan was run with fewer buffers or parameters than it has".into()));
    }
    let read_only = |b: &Buffer| matches!(b, Buffer::Cpu(b) if !b.writable());
    if plan.inputs.iter().zip(inputs).any(|(i, b)| i.written && read_only(b)) || outputs.iter().any(read_only) {
        return Err(TensorError::Internal("a plan was run with a read-only buffer where it writes".into()));
    }
    Ok(())
}

/// Bytes `start..start + len` of a buffer that no plan is writing: runs are over when `run` returns.
fn part(buffer: &CpuBuffer, start: usize, len: usize) -> TensorResult<&[u8]> {
    if start.checked_add(len).is_none_or(|end| end > buffer.len()) {
        return Err(TensorError::Internal(format!("{len} bytes from {start} were read from a buffer of {}", buffer.len())));
    }
    // SAFETY: the range was checked and the buffer keeps the memory; a stored value is written only by who holds it alone.
    Ok(unsafe { std::slice::from_raw_parts(buffer.as_ptr().add(start), len) })
}

impl Backend for CpuBackend {
    fn name(&self) -> String {
        let n = self.threads.count();
        format!("cpu ({n} thread{}, {})", if n == 1 { "" } else { "s" }, path::current().name())
    }

    fn energy_counter(&self) -> Option<EnergyCounter<'_>> {
        Some(EnergyCounter::Packages)
    }

    fn supports(&self, _dtype: DType) -> bool {
        true
    }

    fn int8_rows(&self) -> usize {
        dot::MAX_ROWS
    }

    fn size_class(&self, bytes: usize) -> Option<usize> {
        memory::class(bytes)
    }

    fn reads_in_place(&self, bytes: &Bytes) -> bool {
        memory::reads_in_place(bytes)
    }

    fn alloc(&self, bytes: usize) -> TensorResult<Buffer> {
        self.pool.alloc(bytes).map(Buffer::Cpu)
    }

    fn upload(&self, bytes: Bytes) -> TensorResult<Buffer> {
        self.pool.upload(bytes).map(Buffer::Cpu)
    }

    fn overwrite(&self, buffer: &Buffer, bytes: &[u8]) -> TensorResult<()> {
        match buffer {
            Buffer::Cpu(b) if b.is_unique() && bytes.len() <= b.len() => {
                // SAFETY: nobody else holds the buffer, runs are over when `run` returns, and the bytes fit.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), b.as_ptr(), bytes.len()) };
                Ok(())
            }
            _ => Err(TensorError::Internal("a write to shared memory, or past the end of a buffer".into())),
        }
    }

    fn run(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()> {
        let _stage = enter(Stage::Encode);
        let start = self.timer.begin_run();
        let mut running = lock(&self.running);
        let Running { width, plans } = &mut *running;
        // Only changed under this lock.
        self.submits.store(self.submits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let prepared = plans.of(plan)?;
        let slots = self.slots(plan)?;
        check_buffers(plan, inputs, outputs, params)?;
        let place_of = |b: &CpuBuffer| Place(b.as_ptr(), b.len());
        #[allow(clippy::unnecessary_wraps, irrefutable_let_patterns)]
        let host = |b: &Buffer| if let Buffer::Cpu(b) = b { Some(place_of(b)) } else { None };
        let place = |buf: Buf| match buf {
            Buf::Input(n) => inputs.get(n as usize).and_then(host),
            Buf::Output(n) => outputs.get(n as usize).and_then(host),
            Buf::Slot(n) => slots.get(n as usize).map(place_of),
            Buf::Window { slot, units, .. } => {
                slots.get(slot as usize).and_then(|b| place_of(b).part(buf.start(), units as usize * WINDOW_UNIT))
            }
            Buf::Iota => Some(Place(std::ptr::null_mut(), 0)),
        };
        let views = bind(plan, prepared, &place, params)?;
        let run = PlanRun::new(plan, prepared, &views, params, start.is_some());
        {
            let _stage = enter(Stage::Execute);
            run.go(&self.threads, width);
        }
        if let Some(start) = start {
            self.timer.end_run(start, plan, &lock(&run.marks));
        }
        self.threads.outcome(run.failure, &self.pool)
    }

    fn read(&self, buffer: &Buffer, start: usize, out: &mut [u8]) -> TensorResult<()> {
        self.take_failure()?;
        #[allow(irrefutable_let_patterns)]
        let Buffer::Cpu(buffer) = buffer else {
            return Err(TensorError::UnsupportedDevice("the cpu was asked to read memory of another device".into()));
        };
        let bytes = part(buffer, start, out.len())?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn view(&self, buffer: &Buffer, start: usize, len: usize, show: &mut dyn FnMut(&[u8])) -> TensorResult<()> {
        self.take_failure()?;
        let buffer =
            buffer.on_host().ok_or_else(|| TensorError::UnsupportedDevice("the cpu was asked to read memory of another device".into()))?;
        show(part(buffer, start, len)?);
        Ok(())
    }

    fn start_timing(&self, detail: Timing) -> TensorResult<()> {
        self.timer.start(detail)?;
        events::timing_started();
        Ok(())
    }
    fn finish_timing(&self) -> TensorResult<Vec<RunTimes>> {
        let runs = self.timer.finish();
        events::timing_finished(runs.len());
        Ok(runs)
    }

    fn synchronize(&self) -> TensorResult<()> {
        Ok(())
    }
    fn memory(&self) -> MemoryStats {
        self.pool.memory()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::HOST
    }
    fn max_buffers(&self) -> usize {
        16
    }
    fn pool(&self) -> &dyn PoolControl {
        &*self.pool
    }
    fn label(&self, buffer: &Buffer, op: &'static str, at: At) {
        #[allow(irrefutable_let_patterns)]
        if let Buffer::Cpu(b) = buffer {
            self.pool.label(b.alloc_id(), op, at);
        }
    }
    fn submits(&self) -> u64 {
        self.submits.load(Ordering::Relaxed)
    }
    fn is_busy(&self) -> bool {
        matches!(self.running.try_lock(), Err(std::sync::TryLockError::WouldBlock))
    }
}
