//! Devices: how to choose one, and what memory it holds.

mod capture;
mod fallback;
mod memory;
#[cfg(test)]
pub(crate) mod under_test;

pub use crate::backends::fragmentation::{Defragmentation, DriverMemory, Fragmentation};
pub use crate::backends::limits::MemoryInfo;
pub use crate::backends::pool::BufferPoolStats;
pub use crate::backends::report::{Holder, MemoryReport};
pub use crate::plan::StorageMode;
pub use fallback::FallbackNote;
pub use memory::{BufferPool, GpuDevice, MemoryProfile, MetalDevice};

use crate::backends::open::OpenedGpu;
use crate::backends::{Backend, Buffer, Bytes, NativeFacts, cpu::CpuBackend, dry_run::DryRun};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::events;
use crate::plan::{Capabilities, FallbackModel, MatrixElements, MemoryStats, PipelineStats, QueueStats, TransferStats};
use crate::strategy::{Pacing, PipelineStrategy, in_force};
use crate::tuning::{Tuning, TuningSource};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// A CPU or GPU that tensors live on. Clones are the same device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    cpu: bool,
    /// The evaluator's state per device; its lock serialises evaluations.
    evaluator: Mutex<Option<Box<dyn Any + Send>>>,
    /// Whether the CPU may take over small work whose inputs are in host memory.
    adaptive: AtomicBool,
    /// The measured crossover between CPU and GPU, and the lock of its measurement.
    crossover: Mutex<Option<FallbackModel>>,
    /// The strategy, by its place in `PipelineStrategy::ALL`.
    strategy: AtomicU8,
    /// Generations that run.
    generations: AtomicUsize,
    /// The names of the devices to go on with where this one is lost or full.
    fallback: Mutex<Vec<String>>,
    opened: Instant,
    /// Whether `auto` means this device because there is no hardware GPU.
    stands_in: AtomicBool,
    /// Why another backend serves it than the one that its name stands for.
    stands_in_for: Mutex<Option<String>>,
    /// Tokens that models generated here.
    tokens: AtomicU64,
    /// How often the program waited for all submitted work.
    synchronizations: AtomicU64,
    /// How often work came here from a device that was lost or full.
    fallbacks: AtomicU64,
    /// Whether its name stands for another device from now on.
    given_up: AtomicBool,
}

impl Device {
    /// The CPU. Always the same device.
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| Device::of(CpuBackend::open(), true)).clone()
    }

    /// The first hardware GPU. A software adapter is never chosen here: the CPU backend is faster than an emulated GPU.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] if there is none, or if the library was built without the feature `gpu`.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let device = Device::gpu().unwrap_or_else(|_| Device::cpu());
    /// assert_eq!(Tensor::new(&[1.0, 2.0], &device)?.sum_all()?.to_vec()?, [3.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn gpu() -> TensorResult<Device> {
        Device::open("gpu")
    }

    /// The device named by `TL_DEVICE` (see [`Device::open`]). If it is unset or empty, a hardware GPU if there is one, else the CPU.
    ///
    /// # Errors
    /// Those of [`Device::open`] for the name in `TL_DEVICE`; never where it is unset or empty.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::auto()?)?;
    /// assert_eq!(x.to_vec()?, [1.0, 2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn auto() -> TensorResult<Device> {
        Device::open(&std::env::var("TL_DEVICE").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "auto".into()))
    }

    /// A device by name: `auto`, `cpu`, `gpu`, `vulkan`, `metal` or `dx12`; the last four may have an index, as in `vulkan:1`. `metal` is the library's
    /// own backend on Apple's GPUs, or wgpu's where that cannot be opened ([`Device::stands_in`] says why); `metal-wgpu` is wgpu's.
    /// Opening a name again returns the same device, unless that was lost.
    ///
    /// A list such as `metal,vulkan,cpu` opens the first device that this machine has; sessions and `tl` go on with the next ones where that
    /// is lost or full, see [`Device::fallback`]. The list given last for a device counts.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] for an unknown name, or if this machine has no such device; `Config` if `TL_TUNING` is invalid.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// assert!(Device::open("cpu")?.name().starts_with("cpu"));
    /// assert!(Device::open("toaster").is_err());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn open(name: &str) -> TensorResult<Device> {
        match name {
            "cpu" => Ok(Device::cpu()),
            "auto" => Ok(match Device::open_gpu("auto") {
                Ok(gpu) => {
                    gpu.set_fallback(vec!["cpu".into()]);
                    gpu
                }
                Err(e) => Device::fall_back(e),
            }),
            list if list.contains(',') => Device::open_list(list),
            _ => Device::open_gpu(name),
        }
    }

    fn open_gpu(name: &str) -> TensorResult<Device> {
        static OPEN: Mutex<Vec<(String, Device)>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
        open.retain(|(_, device)| !device.is_lost() && !device.0.given_up.load(Relaxed));
        if let Some((_, d)) = open.iter().find(|(n, _)| n == name) {
            return Ok(d.clone());
        }
        let device = Device::of_opened(crate::backends::open::open(name, None)?);
        open.push((name.to_string(), device.clone()));
        Ok(device)
    }
    /// Has [`Device::open`] open another device by this one's name from now on, as it does where this one is lost: for a device that hangs. Nothing else
    /// changes, and nothing does for the CPU, which is always the same device.
    pub fn give_up(&self) {
        self.0.given_up.store(true, Relaxed);
    }

    /// A device on a GPU that was opened for it alone.
    pub(crate) fn of_opened(opened: OpenedGpu) -> Device {
        // A software adapter is opened to test the GPU's own way.
        let adaptive = std::env::var("TL_ADAPTIVE").map_or(!opened.software, |v| v != "0");
        let device = Device::of(opened.backend, false);
        device.set_adaptive(adaptive);
        *device.0.stands_in_for.lock().unwrap_or_else(|e| e.into_inner()) = opened.stands_in;
        // For tests of what commands do where a GPU is full.
        if let Some(bytes) = std::env::var("TL_TEST_GPU_MEM_LIMIT").ok().and_then(|v| v.parse::<usize>().ok()) {
            device.set_memory_limit(bytes);
        }
        device
    }

    /// Why another backend serves this device than the one that its name stands for: `metal` goes through wgpu where the native backend cannot
    /// be opened. `None` where none stands in.
    pub fn stands_in(&self) -> Option<String> {
        self.0.stands_in_for.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Why kernels of a Metal device leave out what is written in Metal's language and have its WGSL form instead: `TL_GPU_WITHOUT="metal bodies"`, or
    /// a probe that failed when the device was opened. `None` where they have it, and for other devices.
    ///
    /// ```
    /// assert_eq!(tensorlogic::Device::cpu().lacks_metal_bodies(), None);
    /// ```
    pub fn lacks_metal_bodies(&self) -> Option<String> {
        self.0.backend.adapter()?.lacks_metal_bodies.clone()
    }

    /// Why products of a Metal device leave out Metal 4's tensor operations: `TL_GPU_WITHOUT="tensor operations"`, a system without Metal 4, or a probe that
    /// failed when the device was opened. `None` where they have them, and for other devices.
    ///
    /// ```
    /// assert_eq!(tensorlogic::Device::cpu().lacks_tensor_ops(), None);
    /// ```
    pub fn lacks_tensor_ops(&self) -> Option<String> {
        self.0.backend.adapter()?.lacks_tensor_ops.clone()
    }

    /// What probes found a Metal device to lack of what its kernels could use, each with the reason: a compiler's message, or results that are wrong.
    ///
    /// ```
    /// assert!(tensorlogic::Device::cpu().failed_probes().is_empty());
    /// ```
    pub fn failed_probes(&self) -> Vec<String> {
        self.0.backend.adapter().map_or(vec![], |a| a.failed_probes.clone())
    }

    /// The families of a Metal device that the native backend serves, and its limits, as Metal tells them; empty for other devices.
    ///
    /// ```
    /// assert!(tensorlogic::Device::cpu().native_facts().families.is_empty());
    /// ```
    pub fn native_facts(&self) -> NativeFacts {
        self.0.backend.adapter().map_or_else(NativeFacts::default, |a| a.native.clone())
    }

    /// Which elements of a cooperative matrix a lane of a subgroup holds, where kernels can name them: attention of many queries then keeps its scores in
    /// them. `None` on the CPU, without matrix units, and where a probe found no order that kernels can use.
    ///
    /// ```
    /// assert_eq!(tensorlogic::Device::cpu().matrix_elements(), None);
    /// ```
    pub fn matrix_elements(&self) -> Option<Arc<MatrixElements>> {
        self.0.backend.adapter()?.info.matrix_elements()
    }

    /// A GPU by name, as for [`Device::open`], with this tuning table instead of the one in force for it. Results are right with every table
    /// that [`Tuning::check`] passes; sums may be split otherwise, and so round otherwise. Opening it again gives another device.
    ///
    /// # Errors
    /// Those of [`Tuning::check`], and [`TensorError::UnsupportedDevice`] for an unknown name, or where this machine has no such GPU.
    ///
    /// ```
    /// use tensorlogic::{Device, tuning::Tuning};
    /// if let Ok(gpu) = Device::open_with_tuning("gpu", Tuning::generic()) {
    ///     assert_eq!(gpu.tuning().unwrap().name, "generic");
    /// }
    /// ```
    pub fn open_with_tuning(name: &str, tuning: Tuning) -> TensorResult<Device> {
        crate::backends::open::open(name, Some(tuning)).map(Device::of_opened)
    }

    /// The tuning table in force on this device; `None` on the CPU, which has none.
    pub fn tuning(&self) -> Option<&Tuning> {
        self.0.backend.tuning()
    }

    /// Where that table comes from.
    pub fn tuning_source(&self) -> Option<&TuningSource> {
        self.0.backend.tuning_source()
    }

    /// A device on a backend of the caller's own, such as a driver that is being tested. Every call gives another device.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::backends::cpu::CpuBackend;
    /// let device = Device::from_backend(CpuBackend::with_threads(1));
    /// assert!(device.name().starts_with("cpu (1 thread") && !device.is_cpu());
    /// ```
    pub fn from_backend(backend: Arc<dyn Backend>) -> Device {
        Device::of(backend, false)
    }

    fn of(backend: Arc<dyn Backend>, cpu: bool) -> Device {
        events::device_opened(&backend.name());
        let device = Device(Arc::new(Inner {
            backend,
            cpu,
            evaluator: Mutex::new(None),
            adaptive: AtomicBool::new(false),
            crossover: Mutex::new(None),
            strategy: AtomicU8::new(0),
            generations: AtomicUsize::new(0),
            fallback: Mutex::default(),
            opened: Instant::now(),
            stands_in: AtomicBool::new(false),
            stands_in_for: Mutex::default(),
            tokens: AtomicU64::new(0),
            synchronizations: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
        }));
        // A value that is none is reported by `tl`.
        device.set_strategy(PipelineStrategy::from_env().ok().flatten().unwrap_or_default());
        device
    }

    /// A device that computes nothing: on it the same plans are made as on this one and memory is counted as here, so that [`Device::memory`] tells
    /// what work needs before it runs. No memory is taken, no file is read besides its header, and every value that is read back is zero. Work whose
    /// course depends on such values may take another one. There is no limit of memory.
    ///
    /// ```
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu().dry_run();
    /// let x = Tensor::zeros(&[1 << 20, 1 << 12], DType::F32, &device)?; // 16 GiB
    /// let y = x.sum(&[-1], false)?;
    /// y.eval()?;
    /// assert_eq!(device.memory().peak, 4 << 20);
    /// x.eval()?;
    /// assert_eq!(device.memory().peak, (16 << 30) + (4 << 20));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn dry_run(&self) -> Device {
        Device::of(Arc::new(DryRun::of(self.0.backend.clone())), self.0.cpu)
    }

    /// The CPU, since there is no hardware GPU.
    fn fall_back(reason: TensorError) -> Device {
        events::device_fallback(&reason.to_string());
        let cpu = Device::cpu();
        cpu.0.stands_in.store(true, Relaxed);
        cpu
    }

    /// Whether `auto` chose this device because there is no hardware GPU.
    pub fn is_fallback(&self) -> bool {
        self.0.stands_in.load(Relaxed)
    }

    /// Submits, waits and kernels so far.
    pub(crate) fn queue_stats(&self) -> QueueStats {
        QueueStats { synchronizations: self.0.synchronizations.load(Relaxed), ..self.0.backend.queue_stats() }
    }

    /// When it was opened.
    pub(crate) fn opened(&self) -> Instant {
        self.0.opened
    }

    /// Counts a generated token, for [`Device::metrics`].
    pub fn count_token(&self, id: u32) {
        events::token(id);
        self.0.tokens.fetch_add(1, Relaxed);
    }

    /// Tokens that were counted.
    pub(crate) fn tokens(&self) -> u64 {
        self.0.tokens.load(Relaxed)
    }

    /// Whether this is the CPU.
    pub fn is_cpu(&self) -> bool {
        self.0.cpu
    }
    /// What suits the device where there are several ways to a result.
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.0.backend.capabilities()
    }
    /// A human-readable name of the device.
    pub fn name(&self) -> String {
        self.0.backend.name()
    }
    /// Whether the device supports tensors of `dtype`: f64, i64, u64, i16 and u16 exist on the CPU only.
    pub fn supports(&self, dtype: DType) -> bool {
        self.0.backend.supports(dtype)
    }
    /// The default dtype of models: f32 on the CPU, f16 on a GPU that supports it.
    pub fn default_float(&self) -> DType {
        if !self.is_cpu() && self.supports(DType::F16) { DType::F16 } else { DType::F32 }
    }
    /// Statistics of compiled kernels, and of the file that caches them between processes.
    ///
    /// For Vulkan drivers and the native Metal backend only; others have their own cache. `TL_PIPELINE_CACHE=0` disables the file, `TL_CACHE_DIR` sets the folder.
    pub fn pipeline_stats(&self) -> PipelineStats {
        self.0.backend.pipeline_stats()
    }
    /// Memory that the engine holds on the device.
    pub fn memory(&self) -> MemoryStats {
        self.0.backend.memory()
    }
    /// Waits for all submitted work.
    ///
    /// # Errors
    /// `TensorError::DeviceLost` where the device is gone, and what its driver reported.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// Tensor::new(&[1.0, 2.0], &device)?.add(1.0)?.eval()?;
    /// device.synchronize()?; // the addition has run
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn synchronize(&self) -> TensorResult<()> {
        events::device_synchronized();
        self.0.synchronizations.fetch_add(1, Relaxed);
        self.0.backend.synchronize()
    }
    /// Allows or forbids small computations of a GPU to run on the CPU while all their inputs are in host memory (like `TL_ADAPTIVE`).
    ///
    /// On by default, except for software adapters. Values smaller than 64 KiB stay in host memory until something on the device needs them.
    /// A computation over such values only runs on the CPU if that is faster than the round trip to the GPU, which is measured once per
    /// machine (see [`Device::crossover`]). Values on the device are never fetched for this.
    pub fn set_adaptive(&self, on: bool) {
        self.0.adaptive.store(on && !self.0.cpu, Relaxed);
        events::adaptive_changed(self.adaptive());
    }
    /// Whether small computations may run on the CPU. See [`Device::set_adaptive`].
    pub fn adaptive(&self) -> bool {
        self.0.adaptive.load(Relaxed)
    }
    /// How work on this device is paced, unless a session or an inference has a strategy of its own (like `TL_STRATEGY`). Results do not
    /// depend on it, except that a session's [`PipelineStrategy::Optimized`] may round sums otherwise.
    ///
    /// ```
    /// use tensorlogic::{Device, PipelineStrategy};
    /// let device = Device::cpu();
    /// device.set_strategy(PipelineStrategy::HighThroughput);
    /// assert_eq!(device.strategy(), PipelineStrategy::HighThroughput);
    /// # device.set_strategy(PipelineStrategy::Standard);
    /// ```
    pub fn set_strategy(&self, strategy: PipelineStrategy) {
        self.0.strategy.store(strategy as u8, Relaxed);
        self.0.backend.set_strategy(strategy);
    }
    /// The strategy of this device. See [`Device::set_strategy`].
    pub fn strategy(&self) -> PipelineStrategy {
        PipelineStrategy::ALL[usize::from(self.0.strategy.load(Relaxed))]
    }
    /// What of the strategy in force on this thread plans depend on.
    pub(crate) fn plan_key(&self) -> u64 {
        if self.capabilities().queue { in_force(self.strategy(), Pacing::plan_key) } else { 0 }
    }
    /// Counts a generation, until what is returned is dropped.
    pub(crate) fn begin_generation(&self) -> RunningGeneration {
        self.0.generations.fetch_add(1, Relaxed);
        RunningGeneration(self.clone())
    }
    /// Generations that run.
    pub(crate) fn generations(&self) -> usize {
        self.0.generations.load(Relaxed)
    }
    /// Transfers between host and device memory. All zero on the CPU.
    pub fn transfers(&self) -> TransferStats {
        self.0.backend.transfers()
    }
    /// The storage mode of results and uploads.
    pub fn storage_mode(&self) -> StorageMode {
        self.0.backend.default_mode()
    }
    /// Sets the storage mode of results and uploads if the device has several; [`StorageMode::Managed`] means `Private` here.
    pub fn set_storage_mode(&self, mode: StorageMode) {
        self.0.backend.set_default_mode(mode)
    }
    pub(crate) fn measured(&self) -> std::sync::MutexGuard<'_, Option<FallbackModel>> {
        self.0.crossover.lock().unwrap_or_else(|e| e.into_inner())
    }
    /// Number of submits since the device was opened.
    pub fn submits(&self) -> u64 {
        self.0.backend.submits()
    }
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }
    pub(crate) fn evaluator(&self) -> &Mutex<Option<Box<dyn Any + Send>>> {
        &self.0.evaluator
    }
    pub(crate) fn upload(&self, bytes: Bytes) -> TensorResult<Buffer> {
        self.0.backend.upload(bytes)
    }
    pub(crate) fn require(&self, dtype: DType) -> TensorResult<()> {
        if self.supports(dtype) {
            return Ok(());
        }
        Err(TensorError::UnsupportedDevice(format!("{} has no {dtype}; cast to f32 or i32 first, or use the CPU", self.name())))
    }
}

/// A generation that runs on a device.
pub(crate) struct RunningGeneration(Device);
impl Drop for RunningGeneration {
    fn drop(&mut self) {
        self.0.0.generations.fetch_sub(1, Relaxed);
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Device {}
impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.name())
    }
}
