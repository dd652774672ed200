//! What waits for the next submit: copies from staging memory, a run that a read follows, writes in the driver's staging memory.

use super::memory::GpuBuffer;
use crate::backends::lock::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Commands, each with the memory that it uses.
#[derive(Default)]
pub(super) struct Commands {
    /// Copies from staging memory.
    pub copies: Vec<(wgpu::CommandBuffer, Vec<GpuBuffer>)>,
    /// A run that a read follows, still open: the read adds its copy to the same commands.
    pub run: Option<(wgpu::CommandEncoder, Vec<GpuBuffer>)>,
}

/// What waits for the next submit.
#[derive(Default)]
pub(super) struct Pending {
    commands: Mutex<Commands>,
    /// Whether the next run may wait for the read that follows it.
    may_defer: AtomicBool,
    /// Whether such a run waits.
    deferred: AtomicBool,
    /// Whether writes wait in the driver's staging memory.
    staged: AtomicBool,
}

impl Pending {
    /// Says whether the next run may wait for the read that follows it.
    pub fn let_next_run_wait(&self, may: bool) {
        self.may_defer.store(may, Relaxed);
    }

    /// Whether this run may wait; the one after it may not.
    pub fn may_defer(&self) -> bool {
        self.may_defer.swap(false, Relaxed)
    }

    /// Keeps a run for the read that follows it.
    pub fn defer(&self, run: wgpu::CommandEncoder, used: Vec<GpuBuffer>) {
        let mut commands = lock(&self.commands);
        commands.run = Some((run, used));
        self.deferred.store(true, Relaxed);
    }

    /// Whether a run waits for the read that follows it.
    pub fn has_deferred_run(&self) -> bool {
        self.deferred.load(Relaxed)
    }

    /// Keeps a copy from staging memory.
    pub fn add_copy(&self, copy: wgpu::CommandBuffer, staging: GpuBuffer) {
        lock(&self.commands).copies.push((copy, vec![staging]));
    }

    /// Notes that a write waits in the driver's staging memory.
    pub fn add_write(&self) {
        self.staged.store(true, Relaxed);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        let none = |c: &Commands| c.copies.is_empty() && c.run.is_none();
        !self.staged.load(Relaxed) && none(&lock(&self.commands))
    }

    /// Takes everything for a submit that follows at once.
    pub fn take(&self) -> Commands {
        self.staged.store(false, Relaxed);
        let mut commands = lock(&self.commands);
        self.deferred.store(false, Relaxed);
        std::mem::take(&mut *commands)
    }
}
