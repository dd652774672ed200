//! The CPU machine: plans run by one team of threads over host memory.

pub mod columns;
pub mod dot;
pub mod gemm;
mod lanes;
mod map;
pub mod math;
mod memory;
pub mod operand;
pub mod path;
mod span;
mod task;
mod team;
#[cfg(test)]
mod tests;
mod transpose;
pub mod vector;

pub use memory::CpuBuffer;
pub use task::share;
pub use transpose::transpose;

use crate::backends::{Buffer, Bytes, Machine};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::plan::{Buf, Load, MemoryStats, Plan, Source, Step, Work};
use map::Code;
use memory::Pool;
use smallvec::SmallVec;
use span::Span;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use task::{Bound, Common, CpuTask, Local, NoScratch, Prepared};
use team::{Barrier, Team};

/// Bytes kept for reuse at most.
const POOL: usize = 2 << 30;
/// Bytes moved that are worth a thread.
const BYTES: usize = 32 << 10;
/// Floating-point operations that are worth a thread.
const OPS: u64 = 250_000;
/// Prepared plans that may pile up before dead ones are looked for.
const PLANS: usize = 64;

type Plans = HashMap<usize, (Weak<Plan>, Arc<[Prepared]>)>;

/// The processor as a device.
pub struct CpuMachine {
    team: Team,
    pool: Arc<Pool>,
    common: Common,
    /// Where all threads of the team meet between steps.
    between: Barrier,
    /// Scratch of each thread; a thread only locks its own.
    locals: Vec<Mutex<Local>>,
    plans: Mutex<Plans>,
    /// Held while a plan runs.
    running: Mutex<()>,
    submits: AtomicU64,
}

/// As many threads as `TL_NUM_THREADS` says, else as there are cores for this process.
pub fn threads() -> usize {
    let asked = std::env::var("TL_NUM_THREADS").ok().and_then(|v| v.trim().parse().ok()).filter(|&n: &usize| n > 0);
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get())).min(1024)
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address and the size of a bound buffer.
#[derive(Clone, Copy)]
struct Place(*mut u8, usize);

impl CpuMachine {
    /// A machine with [`threads`] threads.
    pub fn open() -> Arc<CpuMachine> {
        CpuMachine::with_threads(threads())
    }

    /// A machine with this many threads.
    pub fn with_threads(threads: usize) -> Arc<CpuMachine> {
        let team = Team::new(threads.max(1));
        let locals = (0..team.threads()).map(|_| Mutex::default()).collect();
        Arc::new(CpuMachine {
            team,
            pool: Pool::new(POOL),
            common: Common::default(),
            between: Barrier::default(),
            locals,
            plans: Mutex::default(),
            running: Mutex::default(),
            submits: AtomicU64::new(0),
        })
    }

    /// What a plan's steps need, found once per plan.
    fn prepared(&self, plan: &Arc<Plan>) -> Arc<[Prepared]> {
        let key = Arc::as_ptr(plan) as usize;
        let mut plans = lock(&self.plans);
        if let Some((known, prepared)) = plans.get(&key)
            && known.strong_count() > 0
        {
            return prepared.clone();
        }
        if plans.len() >= PLANS {
            plans.retain(|_, (plan, _)| plan.strong_count() > 0);
        }
        let prepared: Arc<[Prepared]> = plan.steps.iter().map(prepare).collect();
        plans.insert(key, (Arc::downgrade(plan), prepared.clone()));
        prepared
    }

    fn take_failure(&self) -> TensorResult<()> {
        match lock(&self.common.failure).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

fn prepare(step: &Step) -> Prepared {
    let loads: Vec<Code> = step.loads.iter().map(Code::of_load).collect();
    let stored: usize = step.stores.iter().map(|s| s.shape.count() * s.target.dtype.block_bytes()).sum();
    let bytes_of = |source: &Source| source.layout.shape.count() / source.dtype.block() * source.dtype.block_bytes();
    match &step.work {
        Work::Map => {
            let (code, sources) = Code::of_map(step);
            let read: usize = sources.iter().map(|&(s, k)| bytes_of(&step.stores[s].sources[k])).sum();
            let count = step.stores.first().map_or(0, |s| s.shape.count());
            let units = ((stored + read) / BYTES).max(count * code.cost() / (8 * BYTES));
            let registers = code.scratch();
            Prepared { loads, stores: Vec::new(), map: Some((code, sources)), threads: units.max(1), registers }
        }
        Work::Kernel(kernel) => {
            let stores: Vec<Code> = step.stores.iter().map(Code::of_store).collect();
            let ops = kernel.ops(step);
            // A gather's table is mostly left alone: no more is read than the operations could use.
            let read = |l: &Load| l.sources.iter().map(bytes_of).sum::<usize>() as u64;
            let read: u64 = step.loads.iter().map(|l| read(l).min(ops.saturating_mul(8))).sum();
            let units = (ops / OPS).max((stored as u64 + read) / BYTES as u64);
            let registers = loads.iter().chain(&stores).map(Code::scratch).max().unwrap_or(0);
            Prepared { loads, stores, map: None, threads: usize::try_from(units).unwrap_or(usize::MAX).max(1), registers }
        }
    }
}

/// Binds a step's operands to memory and checks that they lie within it.
fn bind(step: &Step, prepared: &Prepared, place: &dyn Fn(Buf) -> Option<Place>, params: &[f64]) -> TensorResult<Bound> {
    let span = |source: &Source| -> TensorResult<Span> {
        let outside = || TensorError::Index {
            op: step.name,
            message: format!("a window of {} at an offset of {} does not lie within its buffer", source.layout.shape, source.layout.offset),
            at: step.at,
        };
        let start = match source.offset {
            None => 0.0,
            Some(p) => params.get(p as usize).copied().ok_or_else(outside)?,
        };
        let Place(base, bytes) = place(source.buf).ok_or_else(outside)?;
        Span::new(base, bytes, source.dtype, &source.layout, start).ok_or_else(outside)
    };
    let spans = |sources: &[Source]| sources.iter().map(&span).collect::<TensorResult<SmallVec<[Span; 2]>>>();
    let mut bound = Bound { loads: SmallVec::new(), extras: SmallVec::new(), targets: SmallVec::new(), apart: SmallVec::new() };
    match &prepared.map {
        Some((_, sources)) => {
            let spans = sources.iter().map(|&(s, k)| span(&step.stores[s].sources[k])).collect::<TensorResult<_>>()?;
            bound.loads.push(spans);
        }
        None => {
            for load in &step.loads {
                bound.loads.push(spans(&load.sources)?);
            }
            for store in &step.stores {
                bound.extras.push(spans(&store.sources)?);
            }
        }
    }
    for store in &step.stores {
        bound.targets.push(span(&store.target)?);
    }
    for t in &bound.targets {
        bound.apart.push(!bound.loads.iter().chain(&bound.extras).flatten().any(|s| s.may_overlap(t)));
    }
    Ok(bound)
}

impl Machine for CpuMachine {
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
        if let Bytes::Shared(owner, start, len) = &bytes
            // Elements of every dtype are read at their natural alignment.
            && (bytes.as_ptr() as usize).is_multiple_of(8)
        {
            return Ok(Buffer::Cpu(self.pool.share(owner.clone(), *start, *len)));
        }
        let buffer = self.pool.alloc(bytes.len())?;
        // SAFETY: the buffer is new, so nobody else knows it, and as long as the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.as_ptr(), bytes.len()) };
        Ok(Buffer::Cpu(buffer))
    }

    fn run(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()> {
        self.submits.fetch_add(1, Ordering::Relaxed);
        let prepared = self.prepared(plan);
        let slots = plan.slots.iter().map(|&bytes| self.pool.alloc(bytes)).collect::<TensorResult<SmallVec<[CpuBuffer; 8]>>>()?;
        let place_of = |b: &CpuBuffer| Place(b.as_ptr(), b.len());
        #[allow(clippy::unnecessary_wraps, irrefutable_let_patterns)]
        let host = |b: &Buffer| if let Buffer::Cpu(b) = b { Some(place_of(b)) } else { None };
        if params.len() < plan.params || inputs.len() < plan.inputs.len() || outputs.len() < plan.outputs.len() {
            return Err(TensorError::Invalid("a plan was run with fewer buffers or parameters than it has".into()));
        }
        let read_only = |b: &Buffer| matches!(b, Buffer::Cpu(b) if !b.writable());
        if plan.inputs.iter().zip(inputs).any(|(i, b)| i.written && read_only(b)) || outputs.iter().any(read_only) {
            return Err(TensorError::Invalid("a plan was run with a read-only buffer where it writes".into()));
        }
        let place = |buf: Buf| match buf {
            Buf::Input(n) => inputs.get(n as usize).and_then(host),
            Buf::Output(n) => outputs.get(n as usize).and_then(host),
            Buf::Slot(n) => slots.get(n as usize).map(place_of),
            Buf::Iota => Some(Place(std::ptr::null_mut(), 0)),
        };
        let mut bound = Vec::with_capacity(plan.steps.len());
        for (step, prepared) in plan.steps.iter().zip(prepared.iter()) {
            bound.push(bind(step, prepared, &place, params)?);
        }
        let _running = lock(&self.running);
        let team = self.team.threads();
        let panicked = AtomicBool::new(false);
        let no_scratch = AtomicU64::new(0);
        let walk = |thread: usize, all: usize| {
            let mut local = lock(&self.locals[thread]);
            let mut before = 1;
            for ((step, prepared), bound) in plan.steps.iter().zip(prepared.iter()).zip(&bound) {
                let threads = prepared.threads.min(all);
                // Steps that only thread 0 runs are in order without a meeting.
                if threads > 1 || before > 1 {
                    self.between.wait(all);
                }
                before = threads;
                if thread >= threads {
                    continue;
                }
                let work =
                    AssertUnwindSafe(|| CpuTask::new(step, prepared, bound, params, thread, threads, &self.common, &mut local).run());
                if let Err(panic) = catch_unwind(work) {
                    if let Some(NoScratch(bytes)) = panic.downcast_ref() {
                        no_scratch.store(*bytes as u64, Ordering::Relaxed);
                    }
                    panicked.store(true, Ordering::SeqCst);
                    self.common.barrier.break_up();
                }
            }
        };
        if team == 1 || prepared.iter().all(|p| p.threads == 1) {
            walk(0, 1);
        } else {
            self.team.run(&|thread| walk(thread, team));
        }
        if panicked.load(Ordering::SeqCst) {
            self.common.barrier.mend();
            let bytes = no_scratch.load(Ordering::Relaxed) as usize;
            return Err(if bytes > 0 {
                TensorError::OutOfMemory {
                    device: "cpu".into(),
                    asked: bytes,
                    in_use: self.pool.stats().in_use,
                    limit: None,
                    help: "use a smaller batch, a shorter context or a smaller dtype",
                }
            } else {
                TensorError::Invalid("a kernel panicked; its results are not usable".into())
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
        if start.checked_add(out.len()).is_none_or(|end| end > buffer.len()) {
            return Err(TensorError::Invalid(format!("{} bytes from {start} were read from a buffer of {}", out.len(), buffer.len())));
        }
        // SAFETY: the range was checked, and runs are over when `run` returns.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr().add(start), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn synchronize(&self) -> TensorResult<()> {
        Ok(())
    }
    fn memory(&self) -> MemoryStats {
        self.pool.stats()
    }
    fn empty_cache(&self) {
        self.pool.clear();
    }
    fn submits(&self) -> u64 {
        self.submits.load(Ordering::Relaxed)
    }
}
