//! Submits commands in order, and waits for them.

#[cfg(target_vendor = "apple")]
use super::apple::watch::Watch;
use super::driver::Driver;
#[cfg(target_os = "linux")]
use super::irq_affinity::Interrupts;
use super::memory::GpuBuffer;
use super::pending::Pending;
use crate::backends::countdown::Countdown;
use crate::backends::lock::lock;
use crate::backends::stages::{Stage, enter};
use crate::backends::waits::{WaitGuard, Waits};
use crate::error::TensorResult;
use crate::events;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The queue of submits.
pub(super) struct Queue {
    driver: Arc<Driver>,
    /// What the next submit takes along.
    pub pending: Pending,
    /// Held while a buffer is mapped, and by every submit: a submit that names a mapped buffer would be refused.
    submit_lock: Mutex<()>,
    /// Submits of plan work.
    submits: AtomicU64,
    /// Submits of any kind until the device is destroyed, to try out a loss.
    left: Countdown,
    waits: Waits,
    #[cfg(target_os = "linux")]
    interrupts: Interrupts,
    /// Tells commands that failed from commands that are done.
    #[cfg(target_vendor = "apple")]
    watch: Option<Watch>,
}

impl Queue {
    /// The queue of a device; `address` is the one on the PCI bus.
    pub fn new(driver: Arc<Driver>, #[cfg(target_os = "linux")] address: &str) -> Queue {
        Queue {
            #[cfg(target_vendor = "apple")]
            watch: Watch::new(&driver.device),
            driver,
            pending: Pending::default(),
            submit_lock: Mutex::new(()),
            submits: AtomicU64::new(0),
            left: Countdown::default(),
            waits: Waits::default(),
            #[cfg(target_os = "linux")]
            interrupts: Interrupts::of(address),
        }
    }

    /// Keeps submits away while the caller has a buffer mapped. Whoever has the lock knows that nothing taken from `pending` is still to be
    /// submitted.
    pub fn submit_lock(&self) -> MutexGuard<'_, ()> {
        lock(&self.submit_lock)
    }

    /// Counts what follows as a wait, until the result is dropped. A wait inside of another counts with that one.
    pub fn waiting(&self) -> WaitGuard<'_> {
        self.waits.begin()
    }

    /// How often and how long the host waited.
    pub fn waits(&self) -> (u64, Duration) {
        self.waits.totals()
    }

    /// Whether submitted work is unfinished.
    pub fn is_busy(&self) -> bool {
        self.driver.device.poll(wgpu::PollType::Poll).is_ok_and(|status| !status.is_queue_empty())
    }

    /// How many submits of plan work there were.
    pub fn submits(&self) -> u64 {
        self.submits.load(Relaxed)
    }

    /// Destroys the device at the `submits`-th submit from now on.
    pub fn lose_after(&self, submits: u64) {
        self.left.start(submits);
    }

    /// Begins to count anew.
    pub fn reset_submits(&self) {
        self.submits.store(0, Relaxed);
    }

    /// Keeps a run, with the memory that it uses, for the read that follows it.
    pub fn defer(&self, run: wgpu::CommandEncoder, used: Vec<GpuBuffer>) {
        self.pending.defer(run, used);
        events::run_deferred();
        self.submits.fetch_add(1, Relaxed);
    }

    /// Submits the commands of a run.
    #[cfg_attr(not(target_vendor = "apple"), allow(unused_mut))]
    pub fn submit(&self, mut run: wgpu::CommandEncoder) {
        #[cfg(target_vendor = "apple")]
        self.watch.iter().for_each(|w| w.mark(&self.driver.queue, &mut run));
        self.submits.fetch_add(1, Relaxed);
        self.send(Some(run.finish()));
        #[cfg(target_vendor = "apple")]
        self.watch.iter().for_each(Watch::submitted);
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
        if self.left.is_due() {
            self.driver.device.destroy();
        }
        // The memory of what was submitted is given back after the lock.
        let (index, _copied, _used) = {
            let _submit_lock = self.submit_lock();
            let waiting = self.pending.take();
            let (copies, copied): (Vec<_>, Vec<_>) = waiting.copies.into_iter().unzip();
            let (mut run, used) = waiting.run.unzip();
            if let Some(add) = add {
                add(run.get_or_insert_with(|| self.driver.encoder()));
            }
            let all = copies.into_iter().chain(run.map(wgpu::CommandEncoder::finish)).chain(commands);
            let _stage = enter(Stage::Submit);
            events::submitted();
            (self.driver.queue.submit(all), copied, used)
        };
        index
    }

    /// Submits a run that waits for the read that follows it; afterwards none waits, nor is about to be submitted.
    pub fn flush_deferred(&self) {
        if self.pending.has_deferred_run() {
            self.send(None);
        } else {
            drop(self.submit_lock());
        }
    }

    /// Submits what waits, and the writes in staging memory: the driver's answer to a request to map a buffer does not wait for them.
    /// Gives the submission, if there is one.
    pub fn flush(&self) -> Option<wgpu::SubmissionIndex> {
        (!self.pending.is_empty()).then(|| self.send(None))
    }

    /// Waits for what was submitted and what waits for a submit.
    pub fn wait(&self) -> TensorResult<()> {
        self.flush();
        self.wait_for(None)
    }

    /// Waits for one submission, or for all, first by spinning for a moment: a thread that the driver puts to sleep takes longer to wake than
    /// a short run takes.
    pub fn wait_awake(&self, submission_index: Option<wgpu::SubmissionIndex>, awake: Duration) -> TensorResult<()> {
        let _waiting = self.waiting();
        let start = Instant::now();
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        self.driver.queue.on_submitted_work_done(move || flag.store(true, Relaxed));
        #[cfg(target_os = "linux")]
        self.interrupts.leave_irq_cores();
        while start.elapsed() < awake {
            let _ = self.driver.device.poll(wgpu::PollType::Poll);
            if done.load(Relaxed) {
                return self.check();
            }
            std::hint::spin_loop();
        }
        self.wait_for(submission_index)
    }

    /// Waits for one submission, or for all.
    pub fn wait_for(&self, submission_index: Option<wgpu::SubmissionIndex>) -> TensorResult<()> {
        let _waiting = self.waiting();
        match self.driver.device.poll(wgpu::PollType::Wait { submission_index, timeout: Some(self.driver.timeout) }) {
            Ok(_) => self.check(),
            Err(e) => {
                self.driver.check()?;
                Err(self.driver.lose(format!("no answer within {} s ({e})", self.driver.timeout.as_secs())))
            }
        }
    }

    /// The error of commands that were waited for, and of anything else that went wrong.
    pub fn check(&self) -> TensorResult<()> {
        #[cfg(target_vendor = "apple")]
        self.watch.as_ref().map_or(Ok(()), |w| w.check(&self.driver))?;
        self.driver.check()
    }
}
