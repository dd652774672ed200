//! The GPU backend: plans become WGSL kernels, run through wgpu on Vulkan, Metal or DX12.

mod adapter;
#[cfg(target_vendor = "apple")]
mod apple;
mod compiled;
mod core;
mod defragment;
mod dispatch;
mod done;
mod driver;
mod encode;
mod error_records;
mod host;
#[cfg(target_os = "linux")]
mod irq_affinity;
mod matrix_elements;
mod memory;
mod pending;
mod pipelines;
mod prepared_plan;
mod queue;
mod staging_probe;
#[cfg(test)]
pub(crate) mod tests;
mod timer;
mod transfer;

pub use super::codegen::{
    DriverQuirks, KernelBinding, KernelBuffer, KernelDispatch, Shader, kernel_dispatches, kernel_shaders, kernel_shaders_for,
};
pub use adapter::{AdapterDescription, adapters};
pub use host::{DEFERRED_UPLOAD_MAX_BYTES, HostBuffer};
pub use memory::GpuBuffer;

use self::core::Core;
use super::fragmentation::DriverMemory;
use super::lock::lock;
use super::pool::PoolControl;
use super::{Backend, Buffer, Bytes, EnergyCounter, FillsValues, PendingRead, Repeat, Submitted, TunedAdapter, cpu, large_copy, probes};
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::events;
use crate::plan::{
    AdapterInfo, Capabilities, MemoryStats, PipelineStats, Plan, QueueStats, RawLanguage, RunTimes, StorageMode, Timing, TransferStats,
};
use crate::tuning::Tuning;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A GPU that runs plans.
pub struct GpuBackend {
    core: Arc<Core>,
    runner: Mutex<encode::Runner>,
    staging: Mutex<transfer::Staging>,
    /// Staging memory for small reads that are waited for later.
    spare: Arc<Mutex<Vec<wgpu::Buffer>>>,
}

impl GpuBackend {
    /// Opens the GPU that `selector` (`auto|gpu|vulkan|metal|dx12`, each with an optional `:index`) means.
    ///
    /// Drivers that compute on the CPU are taken only where `TL_ALLOW_SOFTWARE=1` is set or the interface is named.
    /// Its tuning table is the one that `TL_TUNING` names, else the one that `tl tune` measured here, else its class's.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] where this machine has no such GPU, [`TensorError::Config`] where `TL_TUNING` names neither a class nor a valid table.
    ///
    /// ```
    /// use tensorlogic::backends::{Backend, gpu::GpuBackend};
    /// # if GpuBackend::open("vulkan:0").is_err() { return Ok(()); } // without a driver
    /// let gpu = GpuBackend::open("vulkan:0")?;
    /// assert!(gpu.name().contains("vulkan"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open(selector: &str) -> TensorResult<Arc<GpuBackend>> {
        GpuBackend::of(adapter::open(selector, None)?)
    }

    /// As [`GpuBackend::open`] with this tuning table, whatever is kept for the GPU. Opening it again gives another backend.
    ///
    /// # Errors
    /// Those of [`Tuning::check`], and [`TensorError::UnsupportedDevice`] where this machine has no such GPU.
    ///
    /// ```
    /// use tensorlogic::{backends::gpu::GpuBackend, tuning::Tuning};
    /// # if GpuBackend::open("gpu").is_err() { return Ok(()); } // there is no GPU
    /// let gpu = GpuBackend::open_with("gpu", Tuning::generic())?;
    /// assert_eq!(gpu.info().tuning.name, "generic");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open_with(selector: &str, tuning: Tuning) -> TensorResult<Arc<GpuBackend>> {
        tuning.check()?;
        GpuBackend::of(adapter::open(selector, Some(tuning))?)
    }

    fn of(opened: adapter::Opened) -> TensorResult<Arc<GpuBackend>> {
        let core = Core::new(opened);
        let mut m = GpuBackend { core, runner: Default::default(), staging: Default::default(), spare: Default::default() };
        let quirks = probes::quirks(&|plan, values, tried| m.probe(plan, values, tried))?;
        m.core.set_quirks(quirks);
        if m.core.adapter.info.raw == Some(RawLanguage::SpirV) && !m.core.checked && !adapter::lacks(matrix_elements::MATRIX_ELEMENTS) {
            let found = matrix_elements::find(&m.core.adapter.info, &|plan, values, _| m.probe(plan, values, quirks))?;
            // Nobody else has the backend yet.
            if let Some(core) = Arc::get_mut(&mut m.core) {
                core.adapter.info.elements = found.map(Arc::new);
            }
        }
        lock(&m.runner).forget();
        if let Some(submits) = submits_until_lost() {
            m.core.queue.lose_after(submits);
        }
        events::device_tuned(m.core.name(), &m.core.adapter.info.tuning.name);
        Ok(Arc::new(m))
    }

    /// What kernels may ask about this GPU.
    pub fn info(&self) -> &AdapterInfo {
        &self.core.adapter.info
    }

    /// The most threads that a workgroup may have along x, y and z.
    pub fn max_workgroup_size(&self) -> [u32; 3] {
        let l = self.core.driver.device.limits();
        [l.max_compute_workgroup_size_x, l.max_compute_workgroup_size_y, l.max_compute_workgroup_size_z]
    }

    /// Makes a plan ready to run: its shaders are written and its pipelines compiled.
    ///
    /// # Errors
    /// When a step cannot be done here, or the driver refuses its shader.
    ///
    /// ```
    /// use tensorlogic::{DType, Device, Tensor, backends::gpu::GpuBackend, eval::plan_of};
    /// # if GpuBackend::open("gpu").is_err() { return Ok(()); } // there is no GPU
    /// let gpu = GpuBackend::open("gpu")?;
    /// let device = Device::from_backend(gpu.clone());
    /// let x = Tensor::ones(&[64, 64], DType::F32, &device)?;
    /// let y = x.matmul(&x)?;
    /// gpu.prepare(&plan_of(&[&y])?.expect("there is work to do"))?;
    /// let compiled = gpu.pipelines();
    /// y.eval()?;
    /// assert_eq!(gpu.pipelines(), compiled); // nothing was left to compile
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn prepare(&self, plan: &Arc<Plan>) -> TensorResult<()> {
        self.core.check()?;
        lock(&self.runner).ready(&self.core, plan)
    }

    /// Room for `bytes` in memory of this kind where the adapter has it; the GPU's own for [`StorageMode::Managed`]. The content is arbitrary.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`].
    ///
    /// ```
    /// use tensorlogic::{backends::Backend, backends::gpu::GpuBackend, plan::StorageMode};
    /// # if GpuBackend::open("gpu").is_err() { return Ok(()); } // there is no GPU
    /// let gpu = GpuBackend::open("gpu")?;
    /// let buffer = gpu.alloc_as(1024, StorageMode::Private)?;
    /// assert_eq!(gpu.mode(&buffer), StorageMode::Private);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn alloc_as(&self, bytes: usize, mode: StorageMode) -> TensorResult<Buffer> {
        self.core.check()?;
        Ok(Buffer::Gpu(self.core.lease(bytes, self.core.memory.kind_of(mode), 0)?))
    }

    /// Overwrites the bytes of a buffer from `start` on, which is a multiple of 4, after the work that was submitted. Up to three bytes
    /// behind the end are overwritten too.
    ///
    /// # Errors
    /// If the buffer is shorter or another backend's.
    ///
    /// ```
    /// use tensorlogic::backends::{Backend, gpu::GpuBackend};
    /// # if GpuBackend::open("gpu").is_err() { return Ok(()); } // there is no GPU
    /// let gpu = GpuBackend::open("gpu")?;
    /// let buffer = gpu.alloc(8)?;
    /// gpu.write(&buffer, 4, &7u32.to_le_bytes())?;
    /// let mut word = [0; 4];
    /// gpu.read(&buffer, 4, &mut word)?;
    /// assert_eq!(u32::from_le_bytes(word), 7);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn write(&self, buffer: &Buffer, start: usize, bytes: &[u8]) -> TensorResult<()> {
        self.core.check()?;
        self.core.write(self.own(buffer)?, start, bytes)
    }

    /// Whether this is a driver that computes on the CPU.
    pub fn is_software(&self) -> bool {
        self.core.software
    }

    /// Bytes of the GPU's own memory, where the interface tells.
    pub fn total_memory(&self) -> Option<u64> {
        self.core.total_memory
    }

    /// How many pipelines were compiled since the backend was opened.
    pub fn pipelines(&self) -> usize {
        lock(&self.runner).pipelines().pipelines
    }

    /// Runs a plan of one input and one output, both in the GPU's memory.
    fn probe(&self, plan: &Arc<Plan>, values: &[f32], quirks: DriverQuirks) -> TensorResult<Vec<half::f16>> {
        self.core.set_quirks(quirks);
        let input = self.core.upload(bytemuck::cast_slice(values), memory::PRIVATE)?;
        let output = self.core.lease(2 * values.len(), memory::PRIVATE, 0)?;
        lock(&self.runner).run(&self.core, plan, &[&input], &[&output], &[], None)?;
        let mut got = vec![half::f16::ZERO; values.len()];
        self.core.read(&self.staging, &output, 0, bytemuck::cast_slice_mut(&mut got))?;
        self.core.queue.reset_submits();
        Ok(got)
    }

    fn run_as(
        &self,
        plan: &Arc<Plan>,
        inputs: &[Buffer],
        outputs: &[Buffer],
        params: &[f64],
        repeated: Option<Repeat<'_>>,
    ) -> TensorResult<()> {
        let waiting: smallvec::SmallVec<[&HostBuffer; 8]> = inputs.iter().filter_map(Buffer::pending_upload).collect();
        self.core.bring(&waiting)?;
        let inputs = inputs.iter().map(|b| self.own(b)).collect::<TensorResult<smallvec::SmallVec<[_; 16]>>>()?;
        let outputs = outputs.iter().map(|b| self.own(b)).collect::<TensorResult<smallvec::SmallVec<[_; 16]>>>()?;
        lock(&self.runner).run(&self.core, plan, &inputs, &outputs, params, repeated)
    }

    fn own<'a>(&self, b: &'a Buffer) -> TensorResult<&'a GpuBuffer> {
        let b = match b {
            Buffer::Gpu(b) => Some(b),
            Buffer::Host(h) => h.device().and_then(Buffer::on_gpu),
            _ => None,
        };
        b.filter(|b| Arc::ptr_eq(&b.0.home, &self.core.memory))
            .ok_or_else(|| TensorError::UnsupportedDevice(format!("{} was given a tensor of another device", self.core.name())))
    }
}

/// What `TL_TEST_LOSE_DEVICE_AFTER` says, for the first device that asks.
fn submits_until_lost() -> Option<u64> {
    static ASKED: AtomicBool = AtomicBool::new(false);
    let submits = std::env::var("TL_TEST_LOSE_DEVICE_AFTER").ok()?.parse().ok()?;
    (!ASKED.swap(true, Relaxed)).then_some(submits)
}

impl Backend for GpuBackend {
    fn name(&self) -> String {
        self.core.name().to_string()
    }
    fn supports(&self, dtype: DType) -> bool {
        !dtype.is_cpu_only()
    }
    fn size_class(&self, bytes: usize) -> Option<usize> {
        self.core.memory.class_of(bytes)
    }
    fn alloc(&self, bytes: usize) -> TensorResult<Buffer> {
        self.core.check()?;
        let buffer = self.core.lease(bytes, self.core.memory.default_kind(), 0)?;
        self.core.memory.note_value(&buffer);
        Ok(Buffer::Gpu(buffer))
    }
    fn alloc_result(&self, bytes: usize, dtype: DType) -> TensorResult<Buffer> {
        // Narrower elements share words, and a kernel would read back over the bus what it writes.
        if self.core.memory.default_kind() == memory::SHARED || bytes > memory::RESULT_BYTES || dtype.block_bytes() % 4 != 0 {
            return self.alloc(bytes);
        }
        self.core.check()?;
        Ok(Buffer::Gpu(self.core.lease(bytes, memory::RESULT, 0)?))
    }
    fn upload(&self, bytes: Bytes) -> TensorResult<Buffer> {
        self.core.check()?;
        #[cfg(target_vendor = "apple")]
        if let Some(b) = apple::import::import(&self.core.driver, &self.core.memory, &bytes) {
            return Ok(Buffer::Gpu(b));
        }
        if bytes.len() < DEFERRED_UPLOAD_MAX_BYTES {
            return Ok(Buffer::Host(HostBuffer::new(cpu::to_host(bytes)?)));
        }
        let buffer = self.core.upload(&bytes, self.core.memory.default_kind())?;
        self.core.memory.note_value(&buffer);
        Ok(Buffer::Gpu(buffer))
    }
    fn upload_filled(&self, len: usize, fill: FillsValues<'_>) -> TensorResult<Buffer> {
        self.core.check()?;
        let kind = self.core.memory.default_kind();
        if len * size_of::<f32>() < DEFERRED_UPLOAD_MAX_BYTES || kind == memory::SHARED {
            return self.upload(large_copy::filled(len, fill));
        }
        let buffer = self.core.upload_filled(len, kind, fill)?;
        self.core.memory.note_value(&buffer);
        Ok(Buffer::Gpu(buffer))
    }
    fn upload_as(&self, bytes: Bytes, mode: StorageMode) -> TensorResult<Buffer> {
        self.core.check()?;
        let kind = match mode {
            StorageMode::Managed => return Ok(Buffer::Host(HostBuffer::new(cpu::to_host(bytes)?))),
            StorageMode::Shared => memory::SHARED,
            StorageMode::Private => memory::PRIVATE,
        };
        let buffer = self.core.upload(&bytes, kind)?;
        self.core.memory.note_value(&buffer);
        Ok(Buffer::Gpu(buffer))
    }
    fn mode(&self, buffer: &Buffer) -> StorageMode {
        match buffer {
            Buffer::Host(_) => StorageMode::Managed,
            Buffer::Gpu(b) if b.is_shared() => StorageMode::Shared,
            _ => StorageMode::Private,
        }
    }
    fn default_mode(&self) -> StorageMode {
        if self.core.memory.default_kind() == memory::SHARED { StorageMode::Shared } else { StorageMode::Private }
    }
    fn set_default_mode(&self, mode: StorageMode) {
        self.core.memory.set_default_mode(mode);
    }
    fn overwrite(&self, buffer: &Buffer, bytes: &[u8]) -> TensorResult<()> {
        let own = self.own(buffer)?;
        if !buffer.is_unique() || bytes.len() > own.0.size as usize {
            return Err(TensorError::Internal("a write to memory that others read, or beyond its end".into()));
        }
        self.core.write(own, 0, bytes)
    }
    fn run(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()> {
        self.run_as(plan, inputs, outputs, params, None)
    }
    fn run_repeated(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64], by: Repeat<'_>) -> TensorResult<()> {
        self.run_as(plan, inputs, outputs, params, Some(by))
    }
    fn defer_submit(&self) {
        // Apple's watch over submits counts each.
        self.core.queue.pending.let_next_run_wait(cfg!(not(target_vendor = "apple")));
    }
    fn start_timing(&self, detail: Timing) -> TensorResult<()> {
        let timer = &mut lock(&self.runner).timer;
        if timer.is_some() {
            return Err(TensorError::State(format!("{} is being timed already", self.core.name())));
        }
        *timer = Some(timer::Timer::new(&self.core, detail));
        events::timing_started();
        Ok(())
    }
    fn finish_timing(&self) -> TensorResult<Vec<RunTimes>> {
        let timer = lock(&self.runner).timer.take();
        let runs = timer.map_or(Ok(vec![]), |t| t.finish(&self.core))?;
        events::timing_finished(runs.len());
        Ok(runs)
    }
    fn read(&self, buffer: &Buffer, start: usize, out: &mut [u8]) -> TensorResult<()> {
        self.core.check()?;
        if let Buffer::Host(h) = buffer {
            out.copy_from_slice(h.part(start, out.len())?);
            return Ok(());
        }
        self.core.read(&self.staging, self.own(buffer)?, start, out)
    }
    fn view(&self, buffer: &Buffer, start: usize, len: usize, show: &mut dyn FnMut(&[u8])) -> TensorResult<()> {
        self.core.check()?;
        if let Buffer::Host(h) = buffer {
            show(h.part(start, len)?);
            return Ok(());
        }
        if len == 0 {
            show(&[]);
        }
        self.core.view(&self.staging, self.own(buffer)?, start, len, len.max(1), show)
    }
    fn start_reads(&self, parts: &[(&Buffer, usize, usize)]) -> TensorResult<PendingRead> {
        if parts.iter().any(|p| p.2 == 0 || matches!(p.0, Buffer::Host(_))) {
            return self.read_all(parts).map(PendingRead::done);
        }
        let own = parts.iter().map(|&(buffer, start, len)| Ok(transfer::Part { buffer: self.own(buffer)?, start, len }));
        self.core.start_read(&self.spare, &own.collect::<TensorResult<Vec<_>>>()?)
    }
    fn transfers(&self) -> TransferStats {
        self.core.transfers.stats()
    }
    fn done(&self) -> Submitted {
        Box::pin(done::Done::new(&self.core.driver))
    }
    fn synchronize(&self) -> TensorResult<()> {
        self.core.check()?;
        self.core.queue.wait()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { max_tensor_bytes: usize::try_from(self.core.memory.max_binding & !15).unwrap_or(usize::MAX), ..Capabilities::GPU }
    }
    fn max_buffers(&self) -> usize {
        // Beyond this, longer programs cost more registers than they save bandwidth.
        (self.core.max_bindings).clamp(4, 16)
    }
    fn adapter(&self) -> Option<&TunedAdapter> {
        Some(&self.core.adapter)
    }
    fn energy_counter(&self) -> Option<EnergyCounter<'_>> {
        Some(self.core.address.as_str()).filter(|a| !a.is_empty()).map(EnergyCounter::Board)
    }
    fn staging_seconds(&self, bytes: usize, to_device: bool) -> TensorResult<Option<f64>> {
        self.core.check()?;
        self.core.staging_seconds(bytes, to_device).map(Some)
    }
    fn lose_after(&self, submits: u64) {
        self.core.queue.lose_after(submits);
    }
    fn is_lost(&self) -> bool {
        self.core.driver.is_lost()
    }
    fn memory(&self) -> MemoryStats {
        self.core.memory.pool.memory()
    }
    fn pool(&self) -> &dyn PoolControl {
        &self.core.memory.pool
    }
    fn driver_memory(&self) -> Option<DriverMemory> {
        defragment::driver_memory(&self.core)
    }
    fn defragment(&self, passes: usize) -> TensorResult<u64> {
        self.defragment_in(passes)
    }
    fn label(&self, buffer: &Buffer, op: &'static str, at: At) {
        match buffer {
            Buffer::Gpu(b) => self.core.memory.pool.label(b.0.alloc_id, op, at),
            Buffer::Host(h) => {
                h.host().label(op, at);
                if let Some(b) = h.device().and_then(Buffer::on_gpu) {
                    self.core.memory.pool.label(b.0.alloc_id, op, at);
                }
            }
            _ => {}
        }
    }
    fn pipeline_stats(&self) -> PipelineStats {
        lock(&self.runner).pipelines()
    }
    fn submits(&self) -> u64 {
        self.core.queue.submits()
    }
    fn queue_stats(&self) -> QueueStats {
        let (waits, time) = self.core.queue.waits();
        QueueStats {
            submits: self.core.queue.submits(),
            waits,
            wait_seconds: time.as_secs_f64(),
            synchronizations: 0,
            kernels: self.core.kernels.load(Relaxed),
        }
    }
    fn is_busy(&self) -> bool {
        self.core.queue.is_busy()
    }
}
