//! How far a queue is: the numbers of what was submitted and what is done, who waits for them, and what failed.

use super::countdown::Countdown;
use super::lock::lock;
use super::waits::Waits;
use crate::error::{TensorError, TensorResult};
use crate::events;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long a wait may take before the device counts as lost.
const DEVICE_LOST_TIMEOUT: Duration = Duration::from_secs(120);

/// How long memory is kept for a device that does not answer; then it is never given back.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the host keeps spinning for the completion handler once the event is signalled.
const HANDLER_SPIN: Duration = Duration::from_millis(1);

#[derive(Default)]
struct State {
    /// Why the device is lost, if it is.
    lost: Option<String>,
    /// The first error since the last check that leaves the device usable.
    error: Option<TensorError>,
    wakers: Vec<Waker>,
}

/// The progress of a queue. Submits have numbers from 1 on.
pub(super) struct Progress {
    /// The device's name, as errors give it.
    pub device: String,
    state: Mutex<State>,
    changed: Condvar,
    submitted: AtomicU64,
    done: AtomicU64,
    /// Submits until the device counts as lost, to try out a loss.
    pub left: Countdown,
    pub waits: Waits,
}

impl Progress {
    /// Nothing was submitted yet.
    pub fn new(device: String) -> Progress {
        let (state, changed, left, waits) = Default::default();
        Progress { device, state, changed, submitted: AtomicU64::new(0), done: AtomicU64::new(0), left, waits }
    }

    /// The number of the next submit. One thread at a time asks for it and submits.
    pub fn next(&self) -> u64 {
        self.submitted.load(Relaxed) + 1
    }

    /// The number of the last submit.
    pub fn submitted(&self) -> u64 {
        self.submitted.load(Acquire)
    }

    /// The number of the last submit that the device is through with.
    pub fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// Notes a submit.
    pub fn submit(&self, number: u64) {
        self.submitted.store(number, Release);
        if self.left.is_due() {
            self.lose("the loss of the device was asked for".into());
        }
    }

    /// Wakes all that wait for a change of the state.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Notes that the device is through with a submit, and what went wrong with it: a loss is told by [`TensorError::DeviceLost`].
    pub fn complete(&self, number: u64, error: Option<TensorError>) {
        let mut state = lock(&self.state);
        match error {
            Some(TensorError::DeviceLost(why)) => {
                events::device_lost(&self.device, &why);
                state.lost.get_or_insert(why);
            }
            Some(error) => drop(state.error.get_or_insert(error)),
            None => {}
        }
        self.done.fetch_max(number, Release);
        self.wake(state);
    }

    /// The error of what failed since the last call.
    pub fn check(&self) -> TensorResult<()> {
        let mut state = lock(&self.state);
        if let Some(why) = &state.lost {
            return Err(TensorError::DeviceLost(why.clone()));
        }
        state.error.take().map_or(Ok(()), Err)
    }

    /// Whether the device was found to be lost.
    pub fn is_lost(&self) -> bool {
        lock(&self.state).lost.is_some()
    }

    /// Records that the device does not answer any more.
    pub fn lose(&self, why: String) -> TensorError {
        events::device_lost(&self.device, &why);
        let mut state = lock(&self.state);
        let error = TensorError::DeviceLost(state.lost.get_or_insert(why).clone());
        self.wake(state);
        error
    }

    /// Waits until the device is through with this submit. The host spins for `awake`, and up to [`HANDLER_SPIN`] longer once `is_near` holds; only
    /// [`Progress::complete`] knows how it ended.
    pub fn wait(&self, number: u64, awake: Duration, is_near: impl Fn() -> bool) -> TensorResult<()> {
        if self.done() >= number {
            return self.check();
        }
        let _waiting = self.waits.begin();
        let start = Instant::now();
        let (mut near, mut until) = (false, start + awake);
        while Instant::now() < until {
            if self.done() >= number {
                return self.check();
            }
            if !near && is_near() {
                (near, until) = (true, until.max(Instant::now() + HANDLER_SPIN));
            }
            std::hint::spin_loop();
        }
        let mut state = lock(&self.state);
        while self.done() < number && state.lost.is_none() {
            let left = DEVICE_LOST_TIMEOUT.saturating_sub(start.elapsed());
            if left.is_zero() {
                drop(state);
                return Err(self.lose(format!("no answer within {} s", DEVICE_LOST_TIMEOUT.as_secs())));
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        drop(state);
        self.check()
    }

    /// Waits until the device is through with all that was submitted, also where it is lost: command buffers that are on their way still use their memory.
    /// Gives whether it is, which one that hangs never is.
    pub fn settle(&self) -> bool {
        let (start, number) = (Instant::now(), self.submitted());
        let mut state = lock(&self.state);
        while self.done() < number {
            let left = SETTLE_TIMEOUT.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        true
    }

    /// Whether the device is through with this submit; otherwise the waker is called when it may be.
    pub fn poll(&self, number: u64, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        if self.done() >= number || state.lost.is_some() {
            return true;
        }
        state.wakers.push(waker.clone());
        false
    }

    /// Whether submitted work is unfinished.
    pub fn is_busy(&self) -> bool {
        self.done() < self.submitted()
    }
}
