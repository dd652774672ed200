//! What all parts of the backend share: the driver, the queue, the memory, and what is known about the adapter.

use super::adapter::Opened;
use super::driver::Driver;
use super::error_records::ErrorRecords;
use super::memory::{GpuBuffer, Memory};
use super::queue::Queue;
use crate::backends::codegen::DriverQuirks;
use crate::backends::lock::lock;
use crate::backends::transfer_counts::TransferCounts;
use crate::error::TensorResult;
use crate::plan::{AdapterInfo, SCRATCH_WORDS};
use crate::strategy::{Pacing, PipelineStrategy, in_force};
use crate::tuning::{AdapterClass, SharedTuning, TuningSource};
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The device and everything that has its lifetime.
pub(super) struct Core {
    pub driver: Arc<Driver>,
    pub memory: Arc<Memory>,
    pub queue: Queue,
    pub records: ErrorRecords,
    pub transfers: TransferCounts,
    /// How many kernels were compiled.
    pub kernels: AtomicU64,
    /// Counters and partial results of kernels whose workgroups work on one result; counters are zero between dispatches.
    pub scratch: wgpu::Buffer,
    /// The codebooks of block formats.
    pub codebooks: wgpu::Buffer,
    quirks: Mutex<DriverQuirks>,
    /// The strategy of work whose thread has none, by its place in `PipelineStrategy::ALL`.
    strategy: AtomicU8,
    pub info: AdapterInfo,
    /// Where `info.tuning` comes from.
    pub tuning_source: TuningSource,
    /// What kind of adapter this is.
    pub class: AdapterClass,
    /// Adapter and driver, for what is kept between processes.
    pub key: String,
    /// The address on the PCI bus; empty where there is none.
    pub address: String,
    /// The folder where compiled kernels are kept.
    pub kept_in: Option<PathBuf>,
    /// Whether the driver computes on the CPU.
    pub software: bool,
    /// Bytes of the device's own memory, where the interface tells.
    pub total_memory: Option<u64>,
    /// How many buffers one step may bind.
    pub max_bindings: usize,
    /// Whether kernels are compiled with bounds checks.
    pub checked: bool,
    /// Whether each dispatch has its step's label in captures, also where nothing is profiled.
    pub labels: bool,
}

impl Core {
    pub fn new(o: Opened) -> Arc<Core> {
        let driver = Arc::new(Driver::new(o.device, o.queue, o.name));
        let device = &driver.device;
        let scratch = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("scratch"),
            size: 4 * SCRATCH_WORDS as u64,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        let books: Vec<u8> = crate::quant::codebooks().iter().flat_map(|word| word.to_le_bytes()).collect();
        let codebooks = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("codebooks"),
            size: books.len() as u64,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        driver.queue.write_buffer(&codebooks, 0, &books);
        Arc::new(Core {
            memory: Arc::new(Memory::new(driver.clone(), o.room, o.shared_usage, o.unified)),
            queue: Queue::new(
                driver.clone(),
                #[cfg(target_os = "linux")]
                &o.address,
            ),
            records: ErrorRecords::new(device),
            transfers: TransferCounts::default(),
            kernels: AtomicU64::new(0),
            scratch,
            codebooks,
            quirks: Mutex::default(),
            strategy: AtomicU8::new(PipelineStrategy::Standard as u8),
            info: o.info,
            tuning_source: o.tuning_source,
            class: o.class,
            key: o.key,
            address: o.address,
            kept_in: super::compiled::folder(o.software),
            software: o.software,
            total_memory: o.memory,
            max_bindings: device.limits().max_storage_buffers_per_shader_stage as usize,
            checked: std::env::var("TL_GPU_CHECKED").is_ok_and(|v| v == "1"),
            labels: super::adapter::labels(),
            driver,
        })
    }

    /// The adapter's name, as errors give it.
    pub fn name(&self) -> &str {
        &self.driver.name
    }

    /// What the driver was found to do otherwise than most.
    pub fn quirks(&self) -> DriverQuirks {
        *lock(&self.quirks)
    }

    /// Changes what new shaders take into account.
    pub fn set_quirks(&self, quirks: DriverQuirks) {
        *lock(&self.quirks) = quirks;
    }

    /// The adapter with the tuning table of work of this thread: another one than `info`'s where a strategy brings it.
    pub fn info_in_force(&self) -> Cow<'_, AdapterInfo> {
        match self.pacing(|p| p.table.clone()) {
            Some(tuning) => Cow::Owned(AdapterInfo { tuning, ..self.info.clone() }),
            None => Cow::Borrowed(&self.info),
        }
    }

    /// The tuning table of work of this thread.
    pub fn tuning_in_force(&self) -> SharedTuning {
        self.pacing(|p| p.table.clone()).unwrap_or_else(|| self.info.tuning.clone())
    }

    /// What `look` finds in the values by which work of this thread is paced.
    pub fn pacing<T>(&self, look: impl FnOnce(&Pacing) -> T) -> T {
        in_force(PipelineStrategy::ALL[usize::from(self.strategy.load(Relaxed))], look)
    }

    /// Sets how work is paced whose thread says nothing else.
    pub fn set_strategy(&self, strategy: PipelineStrategy) {
        self.strategy.store(strategy as u8, Relaxed);
    }

    /// The error of anything that went wrong since the last call.
    pub fn check(&self) -> TensorResult<()> {
        self.driver.check()
    }

    /// A buffer of at least `bytes`, by preference the one with id `prefer`; its content is arbitrary. `kind` is a wish.
    pub fn lease(&self, bytes: usize, kind: u8, prefer: u64) -> TensorResult<GpuBuffer> {
        self.memory.lease(bytes, kind, prefer, || self.queue.wait())
    }
}
