//! One run of a plan: its steps, one after the other, each on as many threads as it is worth.

use super::memory::HostPool;
use super::prepared::PreparedStep;
use super::span::StridedView;
use super::task::{BoundStep, Common, CpuTask, Local, NoScratch};
use super::thread_count::{AdaptiveThreadCount, running_time};
use super::thread_pool::{Barrier, ThreadPool};
use crate::backends::lock::lock;
use crate::error::{TensorError, TensorResult};
use crate::plan::Plan;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The threads of a backend, and what they share.
pub(super) struct Threads {
    pool: ThreadPool,
    common: Common,
    /// Where all threads of the pool meet between steps.
    between: Barrier,
    /// Scratch of each thread; a thread only locks its own.
    locals: Vec<Mutex<Local>>,
}

impl Threads {
    pub(super) fn new(count: usize) -> Threads {
        let pool = ThreadPool::new(count);
        let locals = (0..pool.threads()).map(|_| Mutex::default()).collect();
        Threads { pool, common: Common::default(), between: Barrier::default(), locals }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.pool.threads()
    }

    /// The first bad index since the last call.
    pub(super) fn take_failure(&self) -> Option<TensorError> {
        lock(&self.common.failure).take()
    }

    /// The error of a run in which a kernel panicked.
    pub(super) fn outcome(&self, failure: Failure, memory: &HostPool) -> TensorResult<()> {
        if !failure.panicked.into_inner() {
            return Ok(());
        }
        self.common.barrier.mend();
        let bytes = failure.no_scratch.into_inner() as usize;
        Err(if bytes > 0 {
            TensorError::OutOfMemory {
                device: "cpu".into(),
                asked: bytes,
                in_use: memory.memory().in_use,
                limit: None,
                help: "use a smaller batch, a shorter context or a smaller dtype",
            }
        } else {
            TensorError::Internal("a kernel panicked; its results are not usable".into())
        })
    }
}

/// Whether a kernel panicked, and how much scratch it asked for where that was the reason.
#[derive(Default)]
pub(super) struct Failure {
    panicked: AtomicBool,
    no_scratch: AtomicU64,
}

/// A plan with the memory of one run.
pub(super) struct PlanRun<'a> {
    plan: &'a Plan,
    prepared: &'a [PreparedStep],
    /// The operands of all steps.
    views: &'a [StridedView<'a>],
    params: &'a [f64],
    timed: bool,
    /// When each step began, as the calling thread sees it; where the run is timed.
    pub(super) marks: Mutex<Vec<Instant>>,
    pub(super) failure: Failure,
}

impl<'a> PlanRun<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        prepared: &'a [PreparedStep],
        views: &'a [StridedView<'a>],
        params: &'a [f64],
        timed: bool,
    ) -> PlanRun<'a> {
        let marks = Mutex::new(Vec::with_capacity(if timed { plan.steps.len() } else { 0 }));
        PlanRun { plan, prepared, views, params, timed, marks, failure: Failure::default() }
    }

    /// Runs all steps, on as many threads as lose little time to other programs.
    pub(super) fn go(&self, threads: &Threads, width: &mut AdaptiveThreadCount) {
        if threads.count() == 1 || self.prepared.iter().all(|p| p.threads == 1) {
            return self.run_steps(threads, 0, 1);
        }
        let begun = Instant::now();
        let count = width.at(begun);
        let lost = AtomicU64::new(0);
        threads.pool.run(count, &|thread| {
            let before = running_time();
            self.run_steps(threads, thread, count);
            if let Some(ran) = running_time().zip(before).map(|(after, before)| after - before) {
                lost.fetch_add(begun.elapsed().saturating_sub(ran).as_nanos() as u64, Ordering::Relaxed);
            }
        });
        let now = Instant::now();
        width.ran(count, now - begun, Duration::from_nanos(lost.into_inner()), now);
    }

    /// The share of all steps of thread `thread` of `all`.
    fn run_steps(&self, threads: &Threads, thread: usize, all: usize) {
        let mut local = lock(&threads.locals[thread]);
        let mut marks = (self.timed && thread == 0).then(|| lock(&self.marks));
        let mut before = 1;
        let mut rest = self.views;
        for (n, (step, prepared)) in self.plan.steps.iter().zip(self.prepared).enumerate() {
            let views;
            (views, rest) = rest.split_at(prepared.operands.len());
            let sharing = prepared.threads.min(all);
            // Steps that only thread 0 runs are in order without a meeting, and nothing comes before the first.
            if n > 0 && (sharing > 1 || before > 1) {
                threads.between.wait(all);
            }
            before = sharing;
            if let Some(marks) = &mut marks {
                marks.push(Instant::now());
            }
            if thread >= sharing {
                continue;
            }
            let bound = BoundStep { step, prepared, views, params: self.params };
            let work = AssertUnwindSafe(|| CpuTask::new(bound, [thread, sharing], &threads.common, &mut local).run());
            if let Err(panic) = catch_unwind(work) {
                if let Some(NoScratch(bytes)) = panic.downcast_ref() {
                    self.failure.no_scratch.store(*bytes as u64, Ordering::Relaxed);
                }
                self.failure.panicked.store(true, Ordering::SeqCst);
                threads.common.barrier.break_up();
            }
        }
    }
}
