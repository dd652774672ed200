//! The thread pool that runs plans: handing a plan over, and meeting between its steps.

use crate::backends::lock::lock;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker that waits for the next plan spins before it sleeps.
const SPIN_BEFORE_SLEEP: Duration = Duration::from_micros(50);
/// The bits of an epoch that say how many threads it is for.
const THREADS_MASK: u64 = 0xffff;
/// Turns of a waiting loop before it offers its core to others.
const SPINS_BEFORE_YIELD: u32 = 4096;

/// Where threads wait for each other.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Barrier {
    arrived: AtomicUsize,
    generation: AtomicUsize,
    broken: AtomicBool,
}

impl Barrier {
    /// Waits until `n` threads are here, or one of them failed.
    #[inline]
    pub(crate) fn wait(&self, n: usize) {
        if n <= 1 {
            return;
        }
        let generation = self.generation.load(Ordering::Relaxed);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == n {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut turns = 0u32;
        while self.generation.load(Ordering::Acquire) == generation && !self.broken.load(Ordering::Relaxed) {
            turns += 1;
            if turns < SPINS_BEFORE_YIELD {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Lets every thread through from now on: one that they would wait for has failed.
    pub(crate) fn break_up(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Resets the barrier after a failure; no thread may be waiting.
    pub(crate) fn mend(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
    }
}

type Job = dyn Fn(usize) + Sync + 'static;

/// A value on cache lines of its own, so that writes to its neighbours do not invalidate them.
#[derive(Default)]
#[repr(align(128))]
struct CachePadded<T>(T);

/// What workers wait for.
#[derive(Default)]
struct JobSlot {
    /// A number that grows, above the number of threads that the job is for.
    epoch: AtomicU64,
    /// The job of the epoch, valid until every worker is done with it.
    job: UnsafeCell<Option<&'static Job>>,
    stop: AtomicBool,
}

// SAFETY: the job is written only while every worker that the one before was for is done with it, and read after the epoch that was stored
// behind it, by workers that this epoch is for.
unsafe impl Sync for JobSlot {}

#[derive(Default)]
struct PoolState {
    slot: CachePadded<JobSlot>,
    done: CachePadded<AtomicUsize>,
    asleep: Mutex<usize>,
    wake: Condvar,
    /// What a worker panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Threads that run one job together.
pub(crate) struct ThreadPool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
}

impl ThreadPool {
    /// A pool of `threads` threads, the caller of `run` included; fewer where the system refuses threads.
    pub(crate) fn new(threads: usize) -> ThreadPool {
        let shared = Arc::new(PoolState::default());
        let workers = (1..threads)
            .map_while(|n| {
                let shared = shared.clone();
                std::thread::Builder::new().name(format!("tensorlogic-{n}")).spawn(move || work(&shared, n)).ok()
            })
            .collect();
        ThreadPool { shared, workers }
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(n)` for the numbers n below `width`, each on a thread of its own; number 0 is the caller. One job at a time.
    pub(crate) fn run(&self, width: usize, job: &(dyn Fn(usize) + Sync)) {
        let width = width.min(self.threads());
        if width <= 1 {
            return job(0);
        }
        // SAFETY: the reference is dropped by every worker before this function returns, also when the job panics.
        let lasting: &'static Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static Job>(job) };
        let shared = &*self.shared;
        let slot = &shared.slot.0;
        // SAFETY: one job at a time: all workers that the one before was for are done with it.
        unsafe { *slot.job.get() = Some(lasting) };
        shared.done.0.store(0, Ordering::Relaxed);
        let epoch = slot.epoch.load(Ordering::Relaxed);
        slot.epoch.store((epoch & !THREADS_MASK) + THREADS_MASK + 1 + width as u64, Ordering::SeqCst);
        if *lock(&shared.asleep) > 0 {
            shared.wake.notify_all();
        }
        let result = catch_unwind(AssertUnwindSafe(|| job(0)));
        let mut turns = 0u32;
        while shared.done.0.load(Ordering::Acquire) < width - 1 {
            turns += 1;
            if turns < SPINS_BEFORE_YIELD {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        // SAFETY: all workers that it was for are done, and others do not look at it.
        unsafe { *slot.job.get() = None };
        if let Err(panic) = result {
            resume_unwind(panic);
        }
        if let Some(panic) = lock(&shared.panic).take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.slot.0.stop.store(true, Ordering::SeqCst);
        self.shared.slot.0.epoch.fetch_add(THREADS_MASK + 1, Ordering::SeqCst);
        drop(self.shared.asleep.lock());
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches its jobs' panics, so joining has nothing to report.
            let _ = worker.join();
        }
    }
}

/// What a worker does until the pool is dropped.
fn work(shared: &PoolState, n: usize) {
    let slot = &shared.slot.0;
    let mut seen = 0;
    loop {
        let started = Instant::now();
        let mut turns = 0u32;
        while slot.epoch.load(Ordering::Acquire) == seen {
            turns += 1;
            if turns % 256 != 0 || started.elapsed() < SPIN_BEFORE_SLEEP {
                std::hint::spin_loop();
                continue;
            }
            let mut asleep = lock(&shared.asleep);
            *asleep += 1;
            while slot.epoch.load(Ordering::SeqCst) == seen {
                asleep = shared.wake.wait(asleep).unwrap_or_else(PoisonError::into_inner);
            }
            *asleep -= 1;
        }
        seen = slot.epoch.load(Ordering::Acquire);
        if slot.stop.load(Ordering::SeqCst) {
            return;
        }
        if n as u64 >= seen & THREADS_MASK {
            continue;
        }
        // SAFETY: the job was stored before the epoch, and stays until this worker is done.
        let job = unsafe { *slot.job.get() };
        if let Some(job) = job
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(n)))
        {
            *lock(&shared.panic) = Some(panic);
        }
        shared.done.0.fetch_add(1, Ordering::Release);
    }
}
