//! What all parts of the backend share: the device, its pool, and what went wrong.

use super::adapter::Opened;
use super::pool::{GpuBuffer, PRIVATE, Pool, SHARED, size_class};
use crate::error::{At, TensorError, TensorResult};
use crate::plan::{AdapterInfo, SCRATCH_WORDS, TransferStats};
use crate::tuning::{AdapterClass, TuningSource};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a wait may take before the device counts as lost.
pub(super) const DEVICE_LOST_TIMEOUT: Duration = Duration::from_secs(120);

/// Commands that wait for the next submit, each with the memory that it uses.
#[derive(Default)]
pub(super) struct Pending {
    /// Copies from staging memory.
    pub copies: Vec<(wgpu::CommandBuffer, Vec<GpuBuffer>)>,
    /// A run that a read follows, still open: the read adds its copy to the same commands.
    pub run: Option<(wgpu::CommandEncoder, Vec<GpuBuffer>)>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.run.is_none()
    }
}

/// How long a read is waited for without sleep.
pub(super) const SPIN_WAIT: Duration = Duration::from_micros(200);

/// What went wrong outside of any call.
#[derive(Default)]
struct DeviceError {
    lost: Option<String>,
    error: Option<String>,
}

/// Error records.
pub(super) const ERROR_RECORDS: usize = 8;

/// The device and everything that has its lifetime.
pub(super) struct Core {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub info: AdapterInfo,
    /// Where `info.tuning` comes from.
    pub tuning_source: TuningSource,
    /// What kind of adapter this is.
    pub class: AdapterClass,
    pub name: String,
    /// Adapter and driver, for what is kept between processes.
    pub key: String,
    /// Where compiled kernels are kept.
    pub kept_in: Option<PathBuf>,
    pub software: bool,
    pub memory: Option<u64>,
    /// The most bytes that one binding, and so one buffer, may have.
    pub max_binding: u64,
    /// How many buffers one step may bind.
    pub max_bindings: usize,
    /// Whether kernels are compiled with bounds checks.
    pub checked: bool,
    /// Whether f16 is packed by integer arithmetic, since the device's own packing does not round to nearest even.
    pub soft_f16: AtomicBool,
    /// Whether kernels may rely on comparisons with NaN being false.
    pub ordered: AtomicBool,
    /// Whether kernels may rely on NaN and infinities in exp and divisions.
    pub infinite: AtomicBool,
    pub submits: AtomicU64,
    /// Four words each: a flag, the step's tag, the index. Steps of a plan take turns, so that none waits for another because of them.
    pub error_records: [wgpu::Buffer; ERROR_RECORDS],
    /// Counters and partial results of kernels whose workgroups work on one result; counters are zero between dispatches.
    pub scratch: wgpu::Buffer,
    /// The records, by bit, that a step could report an index to since they were last read.
    pub may_fail: AtomicU32,
    /// The steps that can report an index, by tag.
    pub tags: Mutex<Vec<(&'static str, At)>>,
    pub pool: Pool,
    /// What makes a buffer visible to the host; empty where the adapter cannot share buffers that kernels use.
    pub shared_usage: wgpu::BufferUsages,
    /// The kind of memory of buffers that tensors hold.
    pub kind: AtomicU8,
    pub transfers: Transfers,
    /// Commands for the next submit.
    pub pending: Mutex<Pending>,
    /// Whether the next run may wait for the read that follows it.
    pub hold: AtomicBool,
    /// Whether such a run waits.
    pub held: AtomicBool,
    /// Whether writes wait in the driver's staging memory for the next submit.
    pub staged: AtomicBool,
    /// Held while a buffer is mapped, and by every submit: a submit that names a mapped buffer would be refused.
    pub submit_lock: Mutex<()>,
    /// Numbers of buffers; 0 is no buffer.
    pub next_id: AtomicU64,
    device_error: Arc<Mutex<DeviceError>>,
    #[cfg(target_os = "linux")]
    interrupts: super::irq_affinity::Interrupts,
    /// Tells commands that failed from commands that are done.
    #[cfg(target_vendor = "apple")]
    pub watch: Option<super::apple::Watch>,
}

/// A lock whose content stays usable after a panic elsewhere.
pub(super) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn one_line(s: String) -> String {
    s.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Core {
    pub fn new(o: Opened) -> Arc<Core> {
        let device_error = Arc::new(Mutex::new(DeviceError::default()));
        let t = device_error.clone();
        o.device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            let mut t = lock(&t);
            t.error.get_or_insert(one_line(e.to_string()));
        }));
        let t = device_error.clone();
        o.device.set_device_lost_callback(move |reason, message| {
            let mut t = lock(&t);
            t.lost.get_or_insert(one_line(format!("{reason:?} {message}")));
        });
        let limits = o.device.limits();
        let max_binding = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let error_records = std::array::from_fn(|_| {
            o.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("errors"),
                size: 16,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        let most = max_binding & !15;
        let pool = Pool::new(o.name.clone(), o.room, move |bytes| Some(size_class(bytes, most) as usize));
        let scratch = o.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("scratch"),
            size: 4 * SCRATCH_WORDS as u64,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        Arc::new(Core {
            #[cfg(target_vendor = "apple")]
            watch: super::apple::Watch::new(&o.device),
            device: o.device,
            queue: o.queue,
            info: o.info,
            tuning_source: o.tuning_source,
            class: o.class,
            name: o.name,
            key: o.key,
            kept_in: super::compiled::folder(o.software),
            software: o.software,
            memory: o.memory,
            max_binding,
            max_bindings: limits.max_storage_buffers_per_shader_stage as usize,
            checked: std::env::var("TL_GPU_CHECKED").is_ok_and(|v| v == "1"),
            soft_f16: AtomicBool::new(false),
            ordered: AtomicBool::new(false),
            infinite: AtomicBool::new(false),
            submits: AtomicU64::new(0),
            error_records,
            scratch,
            may_fail: AtomicU32::new(0),
            tags: Mutex::new(Vec::new()),
            pool,
            shared_usage: o.shared_usage,
            kind: AtomicU8::new(if o.unified && !o.shared_usage.is_empty() { SHARED } else { PRIVATE }),
            transfers: Transfers::default(),
            pending: Mutex::default(),
            hold: AtomicBool::new(false),
            held: AtomicBool::new(false),
            staged: AtomicBool::new(false),
            submit_lock: Mutex::new(()),
            next_id: AtomicU64::new(1),
            device_error,
            #[cfg(target_os = "linux")]
            interrupts: super::irq_affinity::Interrupts::of(&o.address),
        })
    }

    /// The error of anything that went wrong since the last call.
    pub fn check(&self) -> TensorResult<()> {
        if SHOWING.get() == std::ptr::from_ref(self) as usize {
            return Err(TensorError::State(format!("{} cannot be used from inside of with_slice: return what is needed first", self.name)));
        }
        let message = {
            let mut t = lock(&self.device_error);
            if let Some(m) = &t.lost {
                return Err(TensorError::DeviceLost(m.clone()));
            }
            t.error.take()
        };
        message.map_or(Ok(()), |m| Err(self.refused(m)))
    }

    /// The error for a command that was refused: the loss of the device, where that is the reason.
    pub fn refused(&self, message: String) -> TensorError {
        // A loss is reported through a callback, which polling runs.
        let _ = self.device.poll(wgpu::PollType::Poll);
        match &lock(&self.device_error).lost {
            Some(m) => TensorError::DeviceLost(m.clone()),
            None => TensorError::Internal(format!("{} refused a command: {message}", self.name)),
        }
    }

    /// Records that the device does not answer any more.
    pub(super) fn lose(&self, message: String) -> TensorError {
        let mut t = lock(&self.device_error);
        TensorError::DeviceLost(t.lost.get_or_insert(message).clone())
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

    /// Waits for what was submitted.
    pub fn wait(&self) -> TensorResult<()> {
        self.flush();
        self.wait_for(None)
    }

    /// Waits for one submission, or for all, for a moment without sleep: a thread that the driver puts to sleep takes longer to wake than
    /// a short run takes.
    pub fn wait_awake(&self, submission_index: Option<wgpu::SubmissionIndex>) -> TensorResult<()> {
        let start = Instant::now();
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        self.queue.on_submitted_work_done(move || flag.store(true, Ordering::Relaxed));
        #[cfg(target_os = "linux")]
        self.interrupts.leave();
        while start.elapsed() < SPIN_WAIT {
            let _ = self.device.poll(wgpu::PollType::Poll);
            if done.load(Ordering::Relaxed) {
                #[cfg(target_vendor = "apple")]
                self.look()?;
                return self.check();
            }
            std::hint::spin_loop();
        }
        self.wait_for(submission_index)
    }

    /// Waits for one submission, or for all.
    pub fn wait_for(&self, submission_index: Option<wgpu::SubmissionIndex>) -> TensorResult<()> {
        match self.device.poll(wgpu::PollType::Wait { submission_index, timeout: Some(DEVICE_LOST_TIMEOUT) }) {
            Ok(_) => {
                #[cfg(target_vendor = "apple")]
                self.look()?;
                self.check()
            }
            Err(e) => {
                self.check()?;
                Err(self.lose(format!("no answer within {} s ({e})", DEVICE_LOST_TIMEOUT.as_secs())))
            }
        }
    }

    /// The error that a step reported through the error record.
    pub fn index_error(&self, record: [u32; 4]) -> TensorError {
        let (op, at) = lock(&self.tags).get(record[1] as usize).copied().unwrap_or(("gpu", std::panic::Location::caller()));
        TensorError::Index { op, message: format!("index {} lies outside its dimension", record[2] as i32), at }
    }

    /// Counts one submit of plan work.
    pub fn submit(&self, commands: wgpu::CommandBuffer) -> wgpu::SubmissionIndex {
        self.submits.fetch_add(1, Ordering::Relaxed);
        self.send(Some(commands))
    }

    /// Submits commands, and before them those that wait for a submit.
    pub fn send(&self, commands: Option<wgpu::CommandBuffer>) -> wgpu::SubmissionIndex {
        self.send_all(None, commands)
    }

    /// Submits what `add` records, behind what waits for a submit: as the end of the run that waits, where there is one.
    pub fn send_with(&self, mut add: impl FnMut(&mut wgpu::CommandEncoder)) -> wgpu::SubmissionIndex {
        self.send_all(Some(&mut add), None)
    }

    fn send_all(
        &self,
        add: Option<&mut dyn FnMut(&mut wgpu::CommandEncoder)>,
        commands: Option<wgpu::CommandBuffer>,
    ) -> wgpu::SubmissionIndex {
        let (index, _copied, _used) = {
            // Whoever has this turn knows that nothing taken from `waiting` is still to be submitted.
            let _turn = lock(&self.submit_lock);
            let waiting = {
                let mut waiting = lock(&self.pending);
                self.held.store(false, Ordering::Relaxed);
                std::mem::take(&mut *waiting)
            };
            let (copies, copied): (Vec<_>, Vec<_>) = waiting.copies.into_iter().unzip();
            let (mut run, used) = waiting.run.unzip();
            if let Some(add) = add {
                add(run.get_or_insert_with(|| self.device.create_command_encoder(&Default::default())));
            }
            self.staged.store(false, Ordering::Relaxed);
            (self.queue.submit(copies.into_iter().chain(run.map(wgpu::CommandEncoder::finish)).chain(commands)), copied, used)
        };
        index
    }

    /// Submits a run that waits for the read that follows it; afterwards none waits, nor is about to be submitted.
    pub fn flush_held(&self) {
        if self.held.load(Ordering::Relaxed) {
            self.send(None);
        } else {
            drop(lock(&self.submit_lock));
        }
    }

    /// Submits what waits, and the writes in staging memory: the driver's answer to a request to map a buffer does not wait for them.
    /// Gives the submission, if there is one.
    pub fn flush(&self) -> Option<wgpu::SubmissionIndex> {
        let some = self.staged.load(Ordering::Relaxed) || !lock(&self.pending).is_empty();
        some.then(|| self.send(None))
    }

    /// The kind of memory of buffers that tensors hold.
    pub fn default_kind(&self) -> u8 {
        self.kind.load(Ordering::Relaxed)
    }
}

thread_local! {
    /// The core whose memory this thread is looking at.
    static SHOWING: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Marks that the caller's code looks at mapped memory: any use of the device by this thread would wait for itself.
pub(super) struct Showing(usize);
impl Showing {
    pub fn on(core: &Core) -> Showing {
        Showing(SHOWING.replace(std::ptr::from_ref(core) as usize))
    }
}
impl Drop for Showing {
    fn drop(&mut self) {
        SHOWING.set(self.0);
    }
}

/// What was moved between host and device.
#[derive(Default)]
pub(super) struct Transfers {
    pub uploads: AtomicU64,
    pub uploaded_bytes: AtomicU64,
    pub staging_writes: AtomicU64,
    pub in_place_writes: AtomicU64,
    pub downloads: AtomicU64,
    pub downloaded_bytes: AtomicU64,
    pub in_place_reads: AtomicU64,
}

impl Transfers {
    pub fn stats(&self) -> TransferStats {
        let n = |a: &AtomicU64| a.load(Ordering::Relaxed);
        TransferStats {
            uploads: n(&self.uploads),
            uploaded_bytes: n(&self.uploaded_bytes),
            staging_writes: n(&self.staging_writes),
            in_place_writes: n(&self.in_place_writes),
            downloads: n(&self.downloads),
            downloaded_bytes: n(&self.downloaded_bytes),
            in_place_reads: n(&self.in_place_reads),
        }
    }
}
