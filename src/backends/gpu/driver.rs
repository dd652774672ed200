//! The driver's device and queue, and what went wrong there outside of any call.

use crate::backends::lock::lock;
use crate::error::{TensorError, TensorResult};
use crate::events;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a wait may take before the device counts as lost.
const DEVICE_LOST_TIMEOUT: Duration = Duration::from_secs(120);
/// The same of drivers that compute on the CPU. They compile kernels when these first run, which is a part of the wait: half a minute for some of
/// those with matrices, and minutes where other programs use the processor.
const SOFTWARE_LOST_TIMEOUT: Duration = Duration::from_secs(1200);

/// How long the reason of a refused command is waited for: a loss is told when running work has ended.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(2);

/// What the driver reported through its callbacks.
#[derive(Default)]
struct Reported {
    /// Why the device is lost, if it is.
    lost: Option<String>,
    /// The first error since the last check.
    error: Option<String>,
}

/// An open device with its queue.
pub(super) struct Driver {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    /// The adapter's name, as errors give it.
    pub name: String,
    /// How long a wait may take before the device counts as lost.
    pub timeout: Duration,
    reported: Arc<Mutex<Reported>>,
}

fn one_line(s: String) -> String {
    s.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Driver {
    /// Listens to the device's errors from now on. `software`: whether the driver computes on the CPU.
    pub fn new(device: wgpu::Device, queue: wgpu::Queue, name: String, software: bool) -> Driver {
        let reported = Arc::new(Mutex::new(Reported::default()));
        let r = reported.clone();
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            lock(&r).error.get_or_insert(one_line(e.to_string()));
        }));
        let (r, own) = (reported.clone(), name.clone());
        device.set_device_lost_callback(move |reason, message| {
            let why = one_line(format!("{reason:?} {message}"));
            events::device_lost(&own, &why);
            lock(&r).lost.get_or_insert(why);
        });
        let timeout = if software { SOFTWARE_LOST_TIMEOUT } else { DEVICE_LOST_TIMEOUT };
        Driver { device, queue, name, timeout, reported }
    }

    /// The error of anything that went wrong since the last call.
    pub fn check(&self) -> TensorResult<()> {
        if SHOWING.get() == std::ptr::from_ref(self) as usize {
            return Err(TensorError::State(format!("{} cannot be used from inside of with_slice: return what is needed first", self.name)));
        }
        let message = {
            let mut reported = lock(&self.reported);
            if let Some(m) = &reported.lost {
                return Err(TensorError::DeviceLost(m.clone()));
            }
            reported.error.take()
        };
        message.map_or(Ok(()), |m| Err(self.refused(m)))
    }

    /// The error for a command that was refused: the loss of the device, where that is the reason.
    pub fn refused(&self, message: String) -> TensorError {
        // A loss is reported through a callback, which polling runs once the device has nothing left to do.
        let _ = self.device.poll(wgpu::PollType::Poll);
        if !self.is_lost() {
            let _ = self.device.poll(wgpu::PollType::Wait { submission_index: None, timeout: Some(REFUSED_TIMEOUT) });
        }
        match &lock(&self.reported).lost {
            Some(m) => TensorError::DeviceLost(m.clone()),
            None => {
                events::device_refused(&self.name, &message);
                TensorError::Internal(format!("{} refused a command: {message}", self.name))
            }
        }
    }

    /// Whether the device was found to be lost.
    pub fn is_lost(&self) -> bool {
        lock(&self.reported).lost.is_some()
    }

    /// Records that the device does not answer any more.
    pub fn lose(&self, message: String) -> TensorError {
        events::device_lost(&self.name, &message);
        TensorError::DeviceLost(lock(&self.reported).lost.get_or_insert(message).clone())
    }

    /// Runs wgpu calls whose errors belong to the caller; a panic inside (the shader compiler has some) is an error too.
    pub fn guarded<T>(&self, f: impl FnOnce() -> T) -> Result<T, String> {
        let scopes = [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal]
            .map(|f| self.device.push_error_scope(f));
        let r = catch_unwind(AssertUnwindSafe(f));
        let mut error = None;
        for s in scopes.into_iter().rev() {
            if let Some(e) = pollster::block_on(s.pop()) {
                error.get_or_insert(one_line(e.to_string()));
            }
        }
        match (r, error) {
            (Ok(v), None) => Ok(v),
            (_, Some(e)) => Err(e),
            (Err(_), None) => Err("the shader compiler panicked".into()),
        }
    }

    /// Makes a buffer.
    ///
    /// # Errors
    /// Where the driver refuses it, most often for lack of memory.
    pub fn buffer(&self, label: &'static str, size: u64, usage: wgpu::BufferUsages) -> TensorResult<wgpu::Buffer> {
        let descriptor = wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        self.guarded(|| self.device.create_buffer(&descriptor)).map_err(|e| self.refused(e))
    }

    /// An encoder for new commands.
    pub fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&Default::default())
    }
}

thread_local! {
    /// The driver whose mapped memory this thread reads, as an address.
    static SHOWING: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Marks that the caller's code reads mapped memory: any use of the device by this thread would wait for itself.
pub(super) struct Showing(usize);
impl Showing {
    pub fn on(driver: &Driver) -> Showing {
        Showing(SHOWING.replace(std::ptr::from_ref(driver) as usize))
    }
}
impl Drop for Showing {
    fn drop(&mut self) {
        SHOWING.set(self.0);
    }
}
