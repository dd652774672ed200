//! Follows what was submitted: completion handlers tell how far the GPU is, what failed and how long it took; a shared event tells it sooner.

use crate::backends::countdown::Countdown;
use crate::backends::lock::lock;
use crate::backends::signposts::{Interval, Signpost};
use crate::backends::waits::Waits;
use crate::error::{TensorError, TensorResult};
use crate::events;
use block2::RcBlock;
use objc2::msg_send;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError};
use objc2_metal::{
    MTLCommandBuffer, MTLCommandBufferEncoderInfo, MTLCommandBufferEncoderInfoErrorKey, MTLCommandBufferStatus, MTLCommandEncoderErrorState,
    MTLEvent, MTLSharedEvent,
};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long a wait may take before the device counts as lost.
const DEVICE_LOST_TIMEOUT: Duration = Duration::from_secs(120);
/// `MTLCommandBufferErrorOutOfMemory`.
const OUT_OF_MEMORY: isize = 8;

/// Where the GPU's start and end of a command buffer are left, in seconds of its own clock.
pub(super) type Times = Arc<Mutex<Option<[f64; 2]>>>;

/// The names of the steps in a command buffer, in order.
pub(super) type StepNames = Vec<&'static str>;

#[derive(Default)]
struct State {
    /// Why the device is lost, if it is.
    lost: Option<String>,
    /// The first error since the last check that leaves the device usable.
    error: Option<TensorError>,
    wakers: Vec<Waker>,
}

/// The progress of a command queue. Submits have numbers from 1 on.
pub(super) struct Watch {
    device: String,
    state: Mutex<State>,
    changed: Condvar,
    /// Set to the number of each submit when the GPU is through with it.
    event: Retained<ProtocolObject<dyn MTLSharedEvent>>,
    submitted: AtomicU64,
    done: AtomicU64,
    /// Submits until the device counts as lost, to try out a loss.
    pub left: Countdown,
    pub waits: Waits,
}

/// The label of the encoder that failed, where the command buffer was made to tell.
fn failed_encoder(error: &NSError) -> Option<String> {
    // SAFETY: a constant of the system's.
    let all = error.userInfo().objectForKey(unsafe { MTLCommandBufferEncoderInfoErrorKey })?;
    // SAFETY: the value of this key is an array of such objects.
    let all: Retained<NSArray<ProtocolObject<dyn MTLCommandBufferEncoderInfo>>> = unsafe { Retained::cast_unchecked(all) };
    let failed = (0..all.count()).map(|n| all.objectAtIndex(n)).find(|e| e.errorState() == MTLCommandEncoderErrorState::Faulted)?;
    Some(failed.label().to_string())
}

impl Watch {
    pub fn new(device: String, event: Retained<ProtocolObject<dyn MTLSharedEvent>>) -> Watch {
        Watch {
            device,
            state: Mutex::default(),
            changed: Condvar::new(),
            event,
            submitted: AtomicU64::new(0),
            done: AtomicU64::new(0),
            left: Countdown::default(),
            waits: Waits::default(),
        }
    }

    /// The number of the next submit. One thread at a time asks for it and commits.
    pub fn next(&self) -> u64 {
        self.submitted.load(Relaxed) + 1
    }

    /// The number of the last submit.
    pub fn submitted(&self) -> u64 {
        self.submitted.load(Acquire)
    }

    /// The number of the last submit that the GPU is through with.
    pub fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// Commits a command buffer whose encoders have ended, and follows it.
    pub fn commit(self: &Arc<Watch>, commands: &ProtocolObject<dyn MTLCommandBuffer>, names: StepNames, times: Option<Times>) {
        let number = self.next();
        if self.left.is_due() {
            self.lose("the loss of the device was asked for".into());
        }
        let (watch, interval) = (self.clone(), Mutex::new(Signpost::begin(Interval::Submit)));
        let handler = RcBlock::new(move |commands: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
            // SAFETY: Metal keeps the command buffer alive while its handlers run.
            let commands = unsafe { commands.as_ref() };
            if let Some(times) = &times {
                // SAFETY: both give seconds as `double`.
                *lock(times) = Some(unsafe { [msg_send![commands, GPUStartTime], msg_send![commands, GPUEndTime]] });
            }
            drop(lock(&interval).take());
            watch.completed(number, commands, &names);
        });
        let event: &ProtocolObject<dyn MTLEvent> = ProtocolObject::from_ref(&*self.event);
        commands.encodeSignalEvent_value(event, number);
        // SAFETY: a block that takes a command buffer; the command buffer retains it.
        unsafe { commands.addCompletedHandler(RcBlock::as_ptr(&handler)) };
        self.submitted.store(number, Release);
        commands.commit();
        events::submitted();
    }

    fn completed(&self, number: u64, commands: &ProtocolObject<dyn MTLCommandBuffer>, names: &[&'static str]) {
        let failed = commands.status() == MTLCommandBufferStatus::Error;
        let mut state = lock(&self.state);
        if failed {
            let (code, why, step) = autoreleasepool(|_| match commands.error() {
                Some(e) => (e.code(), e.localizedDescription().to_string(), failed_encoder(&e)),
                None => (0, "no reason is given".into(), None),
            });
            let steps = match (step, names) {
                (Some(step), _) => step,
                (_, []) => "a copy".to_string(),
                (_, [only]) => only.to_string(),
                (_, [first, .., last]) => format!("{} steps from {first} to {last}; TL_GPU_CHECKED=1 tells which", names.len()),
            };
            let message = format!("a command buffer of {} failed ({steps}): {why}", self.device);
            match code {
                OUT_OF_MEMORY => {
                    let help =
                        "the GPU had no room to run a command buffer: use a smaller batch or context, or a smaller or quantized model";
                    let error = TensorError::OutOfMemory { device: self.device.clone(), asked: 0, in_use: 0, limit: None, help };
                    state.error.get_or_insert(error);
                }
                _ => {
                    events::device_lost(&self.device, &message);
                    state.lost.get_or_insert(message);
                }
            }
        }
        self.done.fetch_max(number, Release);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
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
        let error = TensorError::DeviceLost(lock(&self.state).lost.get_or_insert(why).clone());
        self.changed.notify_all();
        error
    }

    /// Waits until the GPU is through with this submit; `awake` is how long the host asks without sleep.
    pub fn wait(&self, number: u64, awake: Duration) -> TensorResult<()> {
        if self.done() >= number {
            return self.check();
        }
        let _waiting = self.waits.begin();
        let start = Instant::now();
        while start.elapsed() < awake {
            // The event comes before the handlers: a command buffer that failed does not set it.
            if self.event.signaledValue() >= number {
                return self.check();
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

    /// Whether the GPU is through with this submit; otherwise the waker is called when it may be.
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
