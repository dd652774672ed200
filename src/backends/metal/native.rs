//! The backend itself: what `Backend` asks for, done by the other files of this folder.

use super::compile::compile;
use super::device::{Gpu, MAX_BINDINGS};
use super::encode::{Runner, Timer, run_alone};
use super::heaps::{PRIVATE, SHARED};
use super::memory::{MetalBuffer, kind_of};
use super::transfer::Part;
use crate::backends::codegen::DriverQuirks;
use crate::backends::codegen::msl_kernel::translate;
use crate::backends::fragmentation::DriverMemory;
use crate::backends::host::{DEFERRED_UPLOAD_MAX_BYTES, HostBuffer};
use crate::backends::kept;
use crate::backends::lock::lock;
use crate::backends::pool::PoolControl;
use crate::backends::probe_kernels::Features;
use crate::backends::{Backend, Buffer, Bytes, PendingRead, Repeat, Submitted, TunedAdapter, captures, cpu, probes};
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::events;
use crate::plan::{AdapterInfo, Capabilities, MemoryStats, PipelineStats, Plan, QueueStats, RunTimes, StorageMode, Timing, TransferStats};
use crate::tuning::Tuning;
use objc2_metal::MTLDevice;
use smallvec::SmallVec;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Poll;

/// Bindings beyond which longer programs cost more registers than they save bandwidth.
const MAX_PLAN_BUFFERS: usize = 16;

/// One of Apple's GPUs, which runs plans through Metal.
pub struct NativeMetal {
    gpu: Arc<Gpu>,
    runner: Mutex<Runner>,
    /// Submits of plan work.
    submits: AtomicU64,
}

impl NativeMetal {
    /// Opens the system's GPU.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] where there is none of Apple's, [`TensorError::Config`] where `TL_TUNING` is invalid, and whatever goes
    /// wrong when it is tried out.
    pub fn open() -> TensorResult<Arc<NativeMetal>> {
        NativeMetal::of(Gpu::open(None)?)
    }

    /// As [`NativeMetal::open`] with this tuning table, whatever is kept for the GPU.
    ///
    /// # Errors
    /// Those of [`Tuning::check`] and of [`NativeMetal::open`].
    pub fn open_with(tuning: Tuning) -> TensorResult<Arc<NativeMetal>> {
        tuning.check()?;
        NativeMetal::of(Gpu::open(Some(tuning))?)
    }

    fn of(mut gpu: Gpu) -> TensorResult<Arc<NativeMetal>> {
        find_features(&mut gpu)?;
        let m = NativeMetal { gpu: Arc::new(gpu), runner: Mutex::default(), submits: AtomicU64::new(0) };
        let find = || probes::sound_quirks(&|plan, values, tried| m.probe(plan, values, tried));
        let quirks = kept::remembered(&m.gpu.adapter.key, "quirks", find)?;
        *lock(&m.gpu.quirks) = quirks;
        lock(&m.runner).forget();
        m.submits.store(0, Relaxed);
        events::device_tuned(&m.gpu.watch.device, &m.gpu.adapter.info.tuning.name);
        Ok(Arc::new(m))
    }

    /// What kernels may ask about this GPU.
    pub fn info(&self) -> &AdapterInfo {
        &self.gpu.adapter.info
    }

    /// Whether the system has a GPU that can be opened. Does not open it.
    pub fn is_available() -> bool {
        Gpu::find().is_ok()
    }

    /// The most threads that a threadgroup may have along x, y and z.
    pub fn max_workgroup_size(&self) -> [usize; 3] {
        let size = self.gpu.device.maxThreadsPerThreadgroup();
        [size.width, size.height, size.depth]
    }

    /// Makes a plan ready to run: its kernels are written and compiled. Gives what the pipeline of its first step says: how many threads run in
    /// lockstep, and how many a threadgroup may have.
    ///
    /// # Errors
    /// When a step cannot be done here, or Metal's compiler refuses its kernel.
    pub fn prepare(&self, plan: &Arc<Plan>) -> TensorResult<Option<[usize; 2]>> {
        self.gpu.watch.check()?;
        lock(&self.runner).limits(&self.gpu, plan)
    }

    /// Room for `bytes` in memory of this kind; the GPU's own for [`StorageMode::Managed`]. The content is arbitrary.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`].
    pub fn alloc_as(&self, bytes: usize, mode: StorageMode) -> TensorResult<Buffer> {
        self.gpu.watch.check()?;
        Ok(Buffer::Metal(self.gpu.lease(bytes, kind_of(mode))?))
    }

    /// Overwrites the bytes of a buffer from `start` on, after the work that was submitted.
    ///
    /// # Errors
    /// If the buffer is shorter or another backend's.
    pub fn write(&self, buffer: &Buffer, start: usize, bytes: &[u8]) -> TensorResult<()> {
        self.gpu.watch.check()?;
        self.gpu.write(self.own(buffer)?, start, bytes)
    }

    /// Runs a plan of one input and one output.
    fn probe(&self, plan: &Arc<Plan>, values: &[f32], quirks: DriverQuirks) -> TensorResult<Vec<half::f16>> {
        *lock(&self.gpu.quirks) = quirks;
        let input = self.gpu.upload(bytemuck::cast_slice(values), SHARED)?;
        let output = self.gpu.lease(2 * values.len(), SHARED)?;
        lock(&self.runner).run(&self.gpu, plan, &[&input], &[&output], &[], None)?;
        let mut got = vec![half::f16::ZERO; values.len()];
        self.gpu.read(&output, 0, bytemuck::cast_slice_mut(&mut got))?;
        Ok(got)
    }

    /// Sees to it that these values in host memory are on the device.
    fn bring(&self, values: &[Buffer]) -> TensorResult<()> {
        for v in values.iter().filter_map(Buffer::pending_upload).filter(|v| v.device().is_none()) {
            v.set_device(Buffer::Metal(self.gpu.upload(v.bytes(), self.kind())?));
        }
        Ok(())
    }

    fn run_as(&self, plan: &Arc<Plan>, io: [&[Buffer]; 2], params: &[f64], repeated: Option<Repeat<'_>>) -> TensorResult<()> {
        self.bring(io[0])?;
        let inputs = io[0].iter().map(|b| self.own(b)).collect::<TensorResult<SmallVec<[_; 16]>>>()?;
        let outputs = io[1].iter().map(|b| self.own(b)).collect::<TensorResult<SmallVec<[_; 16]>>>()?;
        let submits = lock(&self.runner).run(&self.gpu, plan, &inputs, &outputs, params, repeated)?;
        self.submits.fetch_add(submits, Relaxed);
        Ok(())
    }

    /// The kind of memory of buffers that tensors hold.
    fn kind(&self) -> u8 {
        self.gpu.memory.kind.load(Relaxed)
    }

    fn own<'a>(&self, b: &'a Buffer) -> TensorResult<&'a MetalBuffer> {
        b.on_metal()
            .filter(|b| Arc::ptr_eq(&b.0.home, &self.gpu.memory))
            .ok_or_else(|| TensorError::UnsupportedDevice(format!("{} was given a tensor of another device", self.gpu.watch.device)))
    }
}

/// Takes away from what kernels may use what the GPU does not do right.
fn find_features(gpu: &mut Gpu) -> TensorResult<()> {
    let run = |name: &'static str, wgsl: &str, input: &[u8], count: usize| {
        let compiled = translate(wgsl, 2).and_then(|kernel| compile(gpu, None, &kernel, name)).map(Arc::new);
        let Ok(pipeline) = &compiled else { return Ok(compiled.map(|_| vec![])) };
        let mut out = vec![0.0f32; count];
        let (x, y) = (gpu.upload(input, SHARED)?, gpu.upload(bytemuck::cast_slice(&out), SHARED)?);
        run_alone(gpu, pipeline, &[&x, &y], name)?;
        gpu.read(&y, 0, bytemuck::cast_slice_mut(&mut out))?;
        Ok(Ok(out))
    };
    Features::of(&gpu.adapter.key, &run)?.limit(&mut gpu.adapter);
    Ok(())
}

impl Drop for NativeMetal {
    fn drop(&mut self) {
        // What was submitted names buffers that go with the backend, also where the device is lost. An error has nobody left to be told.
        let _ = self.gpu.flush();
        let _hangs = (!self.gpu.watch.settle()).then(|| std::mem::ManuallyDrop::new(self.gpu.clone()));
    }
}

impl Backend for NativeMetal {
    fn name(&self) -> String {
        self.gpu.watch.device.clone()
    }
    fn supports(&self, dtype: DType) -> bool {
        !dtype.is_cpu_only()
    }
    fn size_class(&self, bytes: usize) -> Option<usize> {
        self.gpu.memory.class_of(bytes)
    }
    fn alloc(&self, bytes: usize) -> TensorResult<Buffer> {
        self.alloc_as(bytes, self.default_mode())
    }
    fn upload(&self, bytes: Bytes) -> TensorResult<Buffer> {
        self.gpu.watch.check()?;
        if let Some(b) = self.gpu.memory.import(&bytes) {
            return Ok(Buffer::Metal(b));
        }
        if bytes.len() < DEFERRED_UPLOAD_MAX_BYTES {
            return Ok(Buffer::Host(HostBuffer::new(cpu::to_host(bytes)?)));
        }
        Ok(Buffer::Metal(self.gpu.upload(&bytes, self.kind())?))
    }
    fn upload_as(&self, bytes: Bytes, mode: StorageMode) -> TensorResult<Buffer> {
        self.gpu.watch.check()?;
        match mode {
            StorageMode::Managed => Ok(Buffer::Host(HostBuffer::new(cpu::to_host(bytes)?))),
            mode => Ok(Buffer::Metal(self.gpu.upload(&bytes, kind_of(mode))?)),
        }
    }
    fn mode(&self, buffer: &Buffer) -> StorageMode {
        match buffer {
            Buffer::Host(_) => StorageMode::Managed,
            Buffer::Metal(b) if b.is_shared() => StorageMode::Shared,
            _ => StorageMode::Private,
        }
    }
    fn default_mode(&self) -> StorageMode {
        if self.kind() == PRIVATE { StorageMode::Private } else { StorageMode::Shared }
    }
    fn set_default_mode(&self, mode: StorageMode) {
        self.gpu.memory.kind.store(kind_of(mode), Relaxed);
    }
    fn overwrite(&self, buffer: &Buffer, bytes: &[u8]) -> TensorResult<()> {
        let own = self.own(buffer)?;
        if !buffer.is_unique() || bytes.len() > own.0.size {
            return Err(TensorError::Internal("a write to memory that others read, or beyond its end".into()));
        }
        self.gpu.write(own, 0, bytes)
    }
    fn run(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()> {
        self.run_as(plan, [inputs, outputs], params, None)
    }
    fn run_repeated(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64], by: Repeat<'_>) -> TensorResult<()> {
        self.run_as(plan, [inputs, outputs], params, Some(by))
    }
    fn start_capture(&self, path: &Path) -> TensorResult<()> {
        self.synchronize()?;
        captures::start(&self.gpu.queue, &self.gpu.watch.device, path)
    }
    fn stop_capture(&self) {
        captures::stop();
    }
    fn start_timing(&self, detail: Timing) -> TensorResult<()> {
        let timer = &mut lock(&self.runner).timer;
        if timer.is_some() {
            return Err(TensorError::State(format!("{} is being timed already", self.gpu.watch.device)));
        }
        *timer = Some(Timer { detail, runs: vec![], marks: vec![] });
        events::timing_started();
        Ok(())
    }
    fn finish_timing(&self) -> TensorResult<Vec<RunTimes>> {
        let timer = lock(&self.runner).timer.take();
        let runs = timer.map_or(Ok(vec![]), |t| t.finish(&self.gpu))?;
        events::timing_finished(runs.len());
        Ok(runs)
    }
    fn read(&self, buffer: &Buffer, start: usize, out: &mut [u8]) -> TensorResult<()> {
        self.gpu.watch.check()?;
        if let Buffer::Host(h) = buffer {
            out.copy_from_slice(h.part(start, out.len())?);
            return Ok(());
        }
        self.gpu.read(self.own(buffer)?, start, out)
    }
    fn view(&self, buffer: &Buffer, start: usize, len: usize, show: &mut dyn FnMut(&[u8])) -> TensorResult<()> {
        self.gpu.watch.check()?;
        if let Buffer::Host(h) = buffer {
            show(h.part(start, len)?);
            return Ok(());
        }
        self.gpu.show(Part { buffer: self.own(buffer)?, start, len }, usize::MAX, show)
    }
    fn start_reads(&self, parts: &[(&Buffer, usize, usize)]) -> TensorResult<PendingRead> {
        if parts.iter().any(|p| p.2 == 0 || matches!(p.0, Buffer::Host(_))) {
            return self.read_all(parts).map(PendingRead::done);
        }
        let own = parts.iter().map(|&(buffer, start, len)| Ok(Part { buffer: self.own(buffer)?, start, len }));
        self.gpu.start_read(&own.collect::<TensorResult<Vec<_>>>()?)
    }
    fn transfers(&self) -> TransferStats {
        self.gpu.transfers.stats()
    }
    fn done(&self) -> Submitted {
        // Copies that cannot be submitted are reported by whoever reads next.
        let _ = self.gpu.flush();
        let (watch, number) = (self.gpu.watch.clone(), self.gpu.watch.submitted());
        Box::pin(std::future::poll_fn(move |cx| if watch.poll(number, cx.waker()) { Poll::Ready(()) } else { Poll::Pending }))
    }
    fn synchronize(&self) -> TensorResult<()> {
        self.gpu.watch.check()?;
        self.gpu.flush()?;
        self.gpu.wait()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { max_tensor_bytes: self.gpu.memory.max_bytes & !15, ..Capabilities::GPU }
    }
    fn max_buffers(&self) -> usize {
        MAX_BINDINGS.min(MAX_PLAN_BUFFERS)
    }
    fn adapter(&self) -> Option<&TunedAdapter> {
        Some(&self.gpu.adapter)
    }
    fn lose_after(&self, submits: u64) {
        self.gpu.watch.left.start(submits);
    }
    fn is_lost(&self) -> bool {
        self.gpu.watch.is_lost()
    }
    fn barriers(&self, plan: &Arc<Plan>) -> Option<usize> {
        lock(&self.runner).barriers(&self.gpu, plan).ok()
    }
    fn memory(&self) -> MemoryStats {
        self.gpu.memory.pool.memory()
    }
    fn pool(&self) -> &dyn PoolControl {
        &self.gpu.memory.pool
    }
    fn driver_memory(&self) -> Option<DriverMemory> {
        Some(self.gpu.memory.heaps.memory())
    }
    fn defragment(&self, passes: usize) -> TensorResult<u64> {
        if passes > 0 {
            self.synchronize()?;
            self.gpu.memory.trim(passes > 1);
        }
        Ok(0)
    }
    fn label(&self, buffer: &Buffer, op: &'static str, at: At) {
        if let Buffer::Host(h) = buffer {
            h.host().label(op, at);
        }
        if let Some(b) = buffer.on_metal() {
            self.gpu.memory.pool.label(b.0.alloc_id, op, at);
        }
    }
    fn pipeline_stats(&self) -> PipelineStats {
        lock(&self.runner).pipelines.stats()
    }
    fn submits(&self) -> u64 {
        self.submits.load(Relaxed)
    }
    fn queue_stats(&self) -> QueueStats {
        let ((waits, time), kernels) = (self.gpu.watch.waits.totals(), self.gpu.kernels.load(Relaxed));
        QueueStats { submits: self.submits(), waits, wait_seconds: time.as_secs_f64(), synchronizations: 0, kernels }
    }
    fn is_busy(&self) -> bool {
        self.gpu.watch.is_busy()
    }
}
