//! The CPU backend: plans run by one thread pool over host memory.

mod chain;
pub(crate) mod columns;
#[doc(hidden)]
pub mod dot;
pub(crate) mod gemm;
mod lanes;
mod map;
pub(crate) mod math;
#[cfg(target_arch = "x86_64")]
mod math512;
mod memory;
pub(crate) mod operand;
pub(crate) mod path;
pub(crate) mod probe;
#[cfg(target_arch = "x86_64")]
pub(crate) mod product;
mod span;
mod task;
#[cfg(test)]
mod tests;
mod thread_count;
mod thread_pool;
mod transpose;
pub(crate) mod vector;

pub use memory::CpuBuffer;
#[cfg(feature = "gpu")]
pub use memory::to_host;
pub use task::share;
pub use transpose::transpose;

use crate::backends::pool::PoolControl;
use crate::backends::{Backend, Buffer, Bytes};
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::plan::{Buf, IdentityHasher, Load, MemoryStats, Plan, RunTimes, Source, Step, Timing, Work};
use map::Compiled;
use memory::HostPool;
use smallvec::SmallVec;
use span::{AddressRange, StridedView};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use task::{BoundOperand, Common, CpuTask, Local, NoScratch, PreparedStep, Role};
use thread_count::{AdaptiveThreadCount, running_time};
use thread_pool::{Barrier, ThreadPool};

/// Bytes moved that are worth a thread.
const BYTES_PER_THREAD: usize = 32 << 10;
/// Floating-point operations that are worth a thread.
const OPS_PER_THREAD: u64 = 250_000;
/// Prepared plans that may pile up before dead ones are looked for.
const PLANS_BEFORE_SWEEP: usize = 64;

type Plans = HashMap<usize, (Weak<Plan>, Vec<PreparedStep>), IdentityHasher>;

/// The processor as a device.
pub struct CpuBackend {
    team: ThreadPool,
    pool: Arc<HostPool>,
    common: Common,
    /// Where all threads of the pool meet between steps.
    between: Barrier,
    /// Scratch of each thread; a thread only locks its own.
    locals: Vec<Mutex<Local>>,
    /// Held while a plan runs.
    running: Mutex<Running>,
    submits: AtomicU64,
    /// Whether `times` are asked for.
    timing: AtomicBool,
    /// Times of runs, while they are asked for.
    times: Mutex<Option<Times>>,
}

/// How many threads a plan gets, and what the steps of plans need.
struct Running {
    width: AdaptiveThreadCount,
    plans: Plans,
}

/// Runs that were timed.
struct Times {
    since: Instant,
    detail: Timing,
    runs: Vec<RunTimes>,
}

/// As many threads as `TL_NUM_THREADS` says, else as there are cores for this process.
pub fn threads() -> usize {
    let asked = std::env::var("TL_NUM_THREADS").ok().and_then(|v| v.trim().parse().ok()).filter(|&n: &usize| n > 0);
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get())).min(1024)
}

/// The family of vector instructions that kernels use here: `avx512`, `avx2` or `plain`.
///
/// # Errors
/// When `TL_CPU` names none that works on this processor.
pub fn instructions() -> TensorResult<&'static str> {
    Ok(path::Path::get()?.name())
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address and the size of a bound buffer.
#[derive(Clone, Copy)]
struct Place(*mut u8, usize);

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
        let team = ThreadPool::new(threads.max(1));
        let locals = (0..team.threads()).map(|_| Mutex::default()).collect();
        Arc::new(CpuBackend {
            running: Mutex::new(Running { width: AdaptiveThreadCount::of(team.threads()), plans: Plans::default() }),
            team,
            pool,
            common: Common::default(),
            between: Barrier::default(),
            locals,
            submits: AtomicU64::new(0),
            timing: AtomicBool::new(false),
            times: Mutex::default(),
        })
    }

    fn take_failure(&self) -> TensorResult<()> {
        match lock(&self.common.failure).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// What a plan's steps need, found once per plan.
fn prepared<'a>(plans: &'a mut Plans, plan: &Arc<Plan>) -> TensorResult<&'a [PreparedStep]> {
    let key = Arc::as_ptr(plan) as usize;
    if plans.get(&key).is_none_or(|(known, _)| known.strong_count() == 0) {
        if plans.len() >= PLANS_BEFORE_SWEEP {
            plans.retain(|_, (plan, _)| plan.strong_count() > 0);
        }
        let steps = plan.steps.iter().map(prepare).collect::<TensorResult<_>>()?;
        plans.insert(key, (Arc::downgrade(plan), steps));
    }
    Ok(&plans[&key].1)
}

fn prepare(step: &Step) -> TensorResult<PreparedStep> {
    if step.stores.iter().any(|s| s.program.has(crate::scalar::Prim::SwapPair)) {
        return Err(TensorError::Unsupported(format!("{}: a step that was joined for a GPU, on the CPU", step.name)));
    }
    let loads: Vec<Compiled> = step.loads.iter().map(Compiled::of_load).collect();
    let mut groups: Vec<Vec<Role>> = Vec::new();
    let (stores, map) = match &step.work {
        Work::Map => {
            let (code, sources) = Compiled::of_map(step);
            groups.push(sources.into_iter().map(|(s, k)| Role::Store(s, k)).collect());
            (Vec::new(), Some(code))
        }
        Work::Kernel(_) => {
            groups.extend(step.loads.iter().enumerate().map(|(l, load)| (0..load.sources.len()).map(|k| Role::Load(l, k)).collect()));
            groups.extend(step.stores.iter().enumerate().map(|(s, store)| (0..store.sources.len()).map(|k| Role::Store(s, k)).collect()));
            (step.stores.iter().map(Compiled::of_store).collect(), None)
        }
    };
    groups.push((0..step.stores.len()).map(Role::Target).collect());
    let ends = groups.iter().scan(0, |end, g| {
        *end += g.len();
        Some(*end)
    });
    let ends = ends.collect();
    let operands = groups.into_iter().flatten().map(|role| {
        let reach = AddressRange::of(&role.source(step).layout).ok_or_else(|| outside(step, role))?;
        Ok(BoundOperand { role, reach })
    });
    let operands: Vec<BoundOperand> = operands.collect::<TensorResult<_>>()?;
    let threads = worth(step, map.as_ref(), &operands).max(1);
    let registers = loads.iter().chain(&stores).chain(&map).map(Compiled::scratch).max().unwrap_or(0);
    Ok(PreparedStep { loads, stores, map, threads, registers, operands, ends })
}

/// How many threads a step's size is worth.
fn worth(step: &Step, map: Option<&Compiled>, operands: &[BoundOperand]) -> usize {
    let bytes_of = |source: &Source| source.layout.shape.count() / source.dtype.block() * source.dtype.block_bytes();
    let stored: usize = step.stores.iter().map(|s| s.shape.count() * s.target.dtype.block_bytes()).sum();
    match (&step.work, map) {
        (Work::Kernel(kernel), _) => {
            let ops = kernel.ops(step);
            // A gather's table is mostly left alone: no more is read than the operations could use.
            let read = |l: &Load| (l.sources.iter().map(bytes_of).sum::<usize>() as u64).min(ops.saturating_mul(8));
            let moved = stored as u64 + step.loads.iter().map(read).sum::<u64>();
            usize::try_from((ops / OPS_PER_THREAD).max(moved / BYTES_PER_THREAD as u64)).unwrap_or(usize::MAX)
        }
        (Work::Map, map) => {
            let moved: usize = operands.iter().map(|o| bytes_of(o.role.source(step))).sum();
            let count = step.stores.first().map_or(0, |s| s.shape.count());
            (moved / BYTES_PER_THREAD).max(count * map.map_or(0, Compiled::cost) / (8 * BYTES_PER_THREAD))
        }
    }
}

fn outside(step: &Step, role: Role) -> TensorError {
    let layout = &role.source(step).layout;
    let message = format!("a window of {} at an offset of {} does not lie within its buffer", layout.shape, layout.offset);
    TensorError::Index { op: step.name, message, at: step.at }
}

/// Binds the operands of all steps to memory and checks that they lie within it.
fn bind<'a>(
    plan: &'a Plan,
    prepared: &[PreparedStep],
    place: &dyn Fn(Buf) -> Option<Place>,
    params: &[f64],
) -> TensorResult<Vec<StridedView<'a>>> {
    let mut spans: Vec<StridedView<'a>> = Vec::with_capacity(prepared.iter().map(|p| p.operands.len()).sum());
    for (step, prepared) in plan.steps.iter().zip(prepared) {
        let first = spans.len();
        for operand in &prepared.operands {
            let source = operand.role.source(step);
            let start = match source.offset {
                None => Some(0.0),
                Some(p) => params.get(p as usize).copied(),
            };
            let span = place(source.buf)
                .zip(start)
                .and_then(|(Place(base, bytes), start)| StridedView::new(base, bytes, source.dtype, &source.layout, &operand.reach, start));
            spans.push(span.ok_or_else(|| outside(step, operand.role))?);
        }
        let (read, written) = spans[first..].split_at_mut(prepared.operands.len() - step.stores.len());
        for t in written {
            t.apart = !read.iter().any(|s| s.may_overlap(t));
        }
    }
    Ok(spans)
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
        let n = self.team.threads();
        format!("cpu ({n} thread{}, {})", if n == 1 { "" } else { "s" }, path::current().name())
    }

    fn supports(&self, _dtype: DType) -> bool {
        true
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
        let timed = match self.timing.load(Ordering::Relaxed) {
            true => lock(&self.times).as_ref().map(|t| (t.detail, Instant::now())),
            false => None,
        };
        // When each step began, and when the last one ended, as the calling thread sees it.
        let marks = timed.map(|_| Mutex::new(Vec::with_capacity(plan.steps.len() + 1)));
        let mut running = lock(&self.running);
        let Running { width: widths, plans } = &mut *running;
        // Only changed under this lock.
        self.submits.store(self.submits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let prepared = prepared(plans, plan)?;
        let slots = plan.slots.iter().map(|&bytes| self.pool.alloc(bytes)).collect::<TensorResult<SmallVec<[CpuBuffer; 8]>>>()?;
        if self.pool.recording() {
            for (n, slot) in slots.iter().enumerate() {
                if let Some(step) = plan.writer(Buf::Slot(n as u16)) {
                    self.pool.label(slot.ticket(), step.name, step.at);
                }
            }
        }
        let place_of = |b: &CpuBuffer| Place(b.as_ptr(), b.len());
        #[allow(clippy::unnecessary_wraps, irrefutable_let_patterns)]
        let host = |b: &Buffer| if let Buffer::Cpu(b) = b { Some(place_of(b)) } else { None };
        if params.len() < plan.params || inputs.len() < plan.inputs.len() || outputs.len() < plan.outputs.len() {
            return Err(TensorError::Internal("a plan was run with fewer buffers or parameters than it has".into()));
        }
        let read_only = |b: &Buffer| matches!(b, Buffer::Cpu(b) if !b.writable());
        if plan.inputs.iter().zip(inputs).any(|(i, b)| i.written && read_only(b)) || outputs.iter().any(read_only) {
            return Err(TensorError::Internal("a plan was run with a read-only buffer where it writes".into()));
        }
        let place = |buf: Buf| match buf {
            Buf::Input(n) => inputs.get(n as usize).and_then(host),
            Buf::Output(n) => outputs.get(n as usize).and_then(host),
            Buf::Slot(n) => slots.get(n as usize).map(place_of),
            Buf::Iota => Some(Place(std::ptr::null_mut(), 0)),
        };
        let spans = bind(plan, prepared, &place, params)?;
        let panicked = AtomicBool::new(false);
        let no_scratch = AtomicU64::new(0);
        let run_steps = |thread: usize, all: usize| {
            let mut local = lock(&self.locals[thread]);
            let mut marks = marks.as_ref().filter(|_| thread == 0).map(lock);
            let mut before = 1;
            let mut rest = &spans[..];
            for (n, (step, prepared)) in plan.steps.iter().zip(prepared.iter()).enumerate() {
                let spans;
                (spans, rest) = rest.split_at(prepared.operands.len());
                let threads = prepared.threads.min(all);
                // Steps that only thread 0 runs are in order without a meeting, and nothing comes before the first.
                if n > 0 && (threads > 1 || before > 1) {
                    self.between.wait(all);
                }
                before = threads;
                if let Some(marks) = &mut marks {
                    marks.push(Instant::now());
                }
                if thread >= threads {
                    continue;
                }
                let work =
                    AssertUnwindSafe(|| CpuTask::new(step, prepared, spans, params, thread, threads, &self.common, &mut local).run());
                if let Err(panic) = catch_unwind(work) {
                    if let Some(NoScratch(bytes)) = panic.downcast_ref() {
                        no_scratch.store(*bytes as u64, Ordering::Relaxed);
                    }
                    panicked.store(true, Ordering::SeqCst);
                    self.common.barrier.break_up();
                }
            }
        };
        if self.team.threads() == 1 || prepared.iter().all(|p| p.threads == 1) {
            run_steps(0, 1);
        } else {
            let begun = Instant::now();
            let width = widths.at(begun);
            let lost = AtomicU64::new(0);
            self.team.run(width, &|thread| {
                let before = running_time();
                run_steps(thread, width);
                if let Some(ran) = running_time().zip(before).map(|(after, before)| after - before) {
                    lost.fetch_add(begun.elapsed().saturating_sub(ran).as_nanos() as u64, Ordering::Relaxed);
                }
            });
            let now = Instant::now();
            widths.ran(width, now - begun, Duration::from_nanos(lost.into_inner()), now);
        }
        if let (Some((detail, host)), Some(marks)) = (timed, marks)
            && let Some(times) = lock(&self.times).as_mut()
        {
            let end = Instant::now();
            let marks = marks.into_inner().unwrap_or_else(PoisonError::into_inner);
            let at = |t: Instant| t.saturating_duration_since(times.since).as_secs_f64();
            let ends = marks.iter().skip(1).chain([&end]);
            let steps = marks.iter().zip(ends).map(|(&a, &b)| (detail == Timing::Steps).then(|| [at(a), at(b)])).collect();
            let run = [at(marks.first().copied().unwrap_or(end)), at(end)];
            times.runs.push(RunTimes { plan: plan.clone(), host: [host, end], run: Some(run), steps });
        }
        if panicked.load(Ordering::SeqCst) {
            self.common.barrier.mend();
            let bytes = no_scratch.load(Ordering::Relaxed) as usize;
            return Err(if bytes > 0 {
                TensorError::OutOfMemory {
                    device: "cpu".into(),
                    asked: bytes,
                    in_use: self.pool.memory().in_use,
                    limit: None,
                    help: "use a smaller batch, a shorter context or a smaller dtype",
                }
            } else {
                TensorError::Internal("a kernel panicked; its results are not usable".into())
            });
        }
        Ok(())
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
        let mut times = lock(&self.times);
        if times.is_some() {
            return Err(TensorError::State("the cpu is being timed already".into()));
        }
        *times = Some(Times { since: Instant::now(), detail, runs: vec![] });
        self.timing.store(true, Ordering::Relaxed);
        Ok(())
    }
    fn finish_timing(&self) -> TensorResult<Vec<RunTimes>> {
        self.timing.store(false, Ordering::Relaxed);
        Ok(lock(&self.times).take().map_or(vec![], |t| t.runs))
    }

    fn synchronize(&self) -> TensorResult<()> {
        Ok(())
    }
    fn memory(&self) -> MemoryStats {
        self.pool.memory()
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
            self.pool.label(b.ticket(), op, at);
        }
    }
    fn submits(&self) -> u64 {
        self.submits.load(Ordering::Relaxed)
    }
}
