//! The backends that run plans. A backend knows steps, buffers and kernels; no op and no graph.

#[cfg(feature = "shaders")]
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod bad_indices;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod captures;
#[cfg(feature = "shaders")]
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
pub(crate) mod codegen;
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod countdown;
pub mod cpu;
pub(crate) mod dry_run;
pub(crate) mod files;
pub mod fragmentation;
#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(feature = "shaders")]
pub mod host;
#[cfg(feature = "shaders")]
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod kept;
#[cfg(feature = "shaders")]
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod kernels_by_source;
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
pub(crate) mod large_copy;
pub mod limits;
pub(crate) mod lock;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
pub mod metal;
pub(crate) mod open;
#[cfg(feature = "shaders")]
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod plan_uniforms;
pub(crate) mod pool;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod probe_kernels;
#[cfg(feature = "shaders")]
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod probes;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod progress;
#[cfg(feature = "shaders")]
#[cfg_attr(not(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal))), allow(dead_code))]
mod refused_bodies;
pub(crate) mod report;
#[cfg(feature = "shaders")]
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod run_memory;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod signposts;
pub(crate) mod stages;
#[cfg(feature = "shaders")]
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod threads;
#[cfg(feature = "shaders")]
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod transfer_counts;
mod tuned_adapter;
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod tuning_file;
#[cfg(feature = "shaders")]
#[cfg_attr(not(any(feature = "gpu", target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
mod waits;

pub use self::pool::PoolControl;
pub use self::tuned_adapter::{FusedGemvLimits, NativeFacts, TunedAdapter};
#[cfg(all(feature = "gpu", not(any(target_vendor = "apple", tensorlogic_fake_metal))))]
pub use crate::metal;
#[cfg(any(feature = "gpu", all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal))))]
pub use crate::metal::RawBackend;

use self::fragmentation::DriverMemory;
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::plan::{Capabilities, MemoryStats, PipelineStats, Plan, QueueStats, RunTimes, StorageMode, Timing, TransferStats};
use crate::strategy::PipelineStrategy;
use crate::tuning::{SharedTuning, Tuning, TuningSource};
use std::ops::Deref;
use std::sync::Arc;

/// Bytes that a tensor starts from: owned, or a part of something shared such as a mapped file.
#[derive(Clone)]
pub enum Bytes {
    /// Owned by the tensor.
    Owned(Arc<Vec<u8>>),
    /// `start..start + len` of a shared mapping.
    Shared(Arc<dyn Deref<Target = [u8]> + Send + Sync>, usize, usize),
}

/// From this size on, a caller's vector becomes the tensor's memory on the CPU; below, a copy into pooled memory costs less.
pub(crate) const ADOPT_MIN_BYTES: usize = 64 << 10;

/// A vector seen as bytes.
#[derive(Clone)]
pub(crate) struct Elements<T>(pub Vec<T>);
impl<T: crate::dtype::Element> Deref for Elements<T> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Bytes {
    /// The bytes of a vector, without a copy where it is large.
    pub fn of_vec<T: crate::dtype::Element>(v: Vec<T>) -> Bytes {
        let len = size_of_val(&v[..]);
        if len < ADOPT_MIN_BYTES {
            return Bytes::Owned(Arc::new(bytemuck::cast_slice(&v).to_vec()));
        }
        Bytes::Shared(Arc::new(Elements(v)), 0, len)
    }

    /// `len` of these bytes from `start` on, without a copy.
    pub(crate) fn range(&self, start: usize, len: usize) -> Bytes {
        match self {
            Bytes::Owned(v) => Bytes::Shared(v.clone(), start, len),
            Bytes::Shared(m, first, _) => Bytes::Shared(m.clone(), first + start, len),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Owned(v) => v,
            Bytes::Shared(m, start, len) => &m[*start..*start + *len],
        }
    }
}

/// Device memory; clones share it. It goes back to its pool when the last clone is dropped.
#[derive(Clone)]
pub enum Buffer {
    /// Host memory.
    Cpu(cpu::CpuBuffer),
    /// No memory, but counted: a dry run's.
    Counted(dry_run::CountedBuffer),
    /// Memory of a GPU.
    #[cfg(feature = "gpu")]
    Gpu(gpu::GpuBuffer),
    /// Memory of one of Apple's GPUs.
    #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
    Metal(metal::MetalBuffer),
    /// A value of a GPU's tensor in host memory.
    #[cfg(feature = "shaders")]
    Host(host::HostBuffer),
}

impl Buffer {
    /// The host memory of a value that no device holds alone.
    pub fn on_host(&self) -> Option<&cpu::CpuBuffer> {
        match self {
            Buffer::Cpu(b) => Some(b),
            Buffer::Counted(_) => None,
            #[cfg(feature = "gpu")]
            Buffer::Gpu(_) => None,
            #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
            Buffer::Metal(_) => None,
            #[cfg(feature = "shaders")]
            Buffer::Host(h) => Some(h.host()),
        }
    }
    /// Whether it is a value of host memory with a copy on a device.
    pub fn is_resident(&self) -> bool {
        match self {
            #[cfg(feature = "shaders")]
            Buffer::Host(h) => h.device().is_some(),
            _ => false,
        }
    }
    /// A value in host memory that belongs to a GPU's tensor.
    #[cfg(feature = "shaders")]
    pub fn pending_upload(&self) -> Option<&host::HostBuffer> {
        if let Buffer::Host(h) = self { Some(h) } else { None }
    }
    /// Memory of a GPU behind wgpu.
    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&gpu::GpuBuffer> {
        if let Buffer::Gpu(b) = self { Some(b) } else { None }
    }
    /// Memory of one of Apple's GPUs, also where it is the copy of a value in host memory.
    #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
    fn on_metal(&self) -> Option<&metal::MetalBuffer> {
        match self {
            Buffer::Metal(b) => Some(b),
            Buffer::Host(h) => h.device().and_then(Buffer::on_metal),
            _ => None,
        }
    }
    /// Whether this handle is the only one, and the memory may be written.
    pub fn is_unique(&self) -> bool {
        match self {
            Buffer::Cpu(b) => b.is_unique(),
            Buffer::Counted(b) => b.is_unique(),
            #[cfg(feature = "gpu")]
            Buffer::Gpu(b) => b.is_unique(),
            #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
            Buffer::Metal(b) => b.is_unique(),
            #[cfg(feature = "shaders")]
            Buffer::Host(_) => false,
        }
    }
    /// Whether both are the same memory.
    pub fn same(&self, other: &Buffer) -> bool {
        match (self, other) {
            (Buffer::Cpu(a), Buffer::Cpu(b)) => a.same(b),
            (Buffer::Counted(a), Buffer::Counted(b)) => a.same(b),
            #[cfg(feature = "gpu")]
            (Buffer::Gpu(a), Buffer::Gpu(b)) => a.same(b),
            #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
            (Buffer::Metal(a), Buffer::Metal(b)) => a.same(b),
            #[cfg(feature = "shaders")]
            (Buffer::Host(a), Buffer::Host(b)) => a.same(b),
            _ => false,
        }
    }
}

/// What writes values from a place on, at most [`FILLED_BLOCK`] at a time, on several threads.
pub type FillsValues<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

/// Values that are written at a time; each time's place is a multiple.
pub const FILLED_BLOCK: usize = 4096;

/// What copies bytes into memory.
pub type CopiesBytes = Box<dyn FnOnce(&mut [u8]) -> TensorResult<()> + Send>;

/// A read that was submitted.
pub struct PendingRead {
    /// How many bytes it gives.
    pub len: usize,
    /// Whether the bytes have arrived; does not wait.
    pub ready: Box<dyn Fn() -> bool + Send>,
    /// Waits and copies the bytes into memory of that length.
    pub wait: CopiesBytes,
}

impl PendingRead {
    /// Bytes that are here already.
    pub fn done(bytes: Vec<u8>) -> PendingRead {
        let len = bytes.len();
        let wait = move |out: &mut [u8]| {
            out.copy_from_slice(&bytes);
            Ok(())
        };
        PendingRead { len, ready: Box::new(|| true), wait: Box::new(wait) }
    }
}

/// How runs of a plan with one output follow each other.
#[derive(Clone, Copy)]
pub struct Repeat<'a> {
    /// The input that is the output of the run before.
    pub fed: usize,
    /// What is added to each run-time parameter from run to run.
    pub growth: &'a [f64],
}

impl Repeat<'_> {
    /// Inputs and parameters of the run behind the one that wrote `out`.
    pub fn advance<B: Clone>(&self, inputs: &mut [B], out: &B, params: &mut [f64]) {
        inputs[self.fed] = out.clone();
        params.iter_mut().zip(self.growth).for_each(|(p, g)| *p += g);
    }
}

/// Ready when submitted work is done.
pub type Submitted = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where the energy that a device takes is counted.
#[derive(Clone, Copy, Debug)]
pub enum EnergyCounter<'a> {
    /// By the processor's packages.
    Packages,
    /// By the board with this address on the PCI bus: `0000:01:00.0`.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    Board(&'a str),
}

impl FusedGemvLimits {
    /// The most rows of this dtype, times weights of that one.
    pub fn most(&self, rows: DType, weights: DType) -> usize {
        if rows == DType::F16 && weights == DType::F16 { self.halves } else { self.any }
    }
}

/// Runs plans. All methods may be called from any thread; `eval` sees to it that one plan runs at a time.
///
/// ```
/// use tensorlogic::backends::cpu::CpuBackend;
/// use tensorlogic::backends::{Backend, Bytes};
/// use tensorlogic::plan::{StorageMode, Timing};
/// use tensorlogic::{DType, TensorError};
///
/// let backend = CpuBackend::with_threads(1);
/// let mut bytes = backend.upload(Bytes::of_vec(vec![0u8; 4]))?;
/// backend.overwrite(&bytes, &[1, 2, 3, 4])?;
/// let mut middle = [0; 2];
/// backend.read(&bytes, 1, &mut middle)?;
/// assert_eq!(middle, [2, 3]);
/// backend.view(&bytes, 2, 2, &mut |shown| assert_eq!(shown, [3, 4]))?;
///
/// // Values that are written where they are needed, and reads that are waited for later.
/// let zeros = backend.upload_filled(1, &|_, values| values.fill(0.0))?;
/// assert_eq!(backend.read_all(&[(&bytes, 3, 1), (&zeros, 0, 4)])?, [4, 0, 0, 0, 0]);
/// let (one, both) = (backend.start_read(&bytes, 0, 1)?, backend.start_reads(&[(&bytes, 0, 1), (&zeros, 0, 1)])?);
/// (one.wait)(&mut middle[..1])?;
/// (both.wait)(&mut middle)?;
/// assert_eq!(middle, [1, 0]);
///
/// // Room for results, and what only some devices have.
/// let room = [backend.alloc(64)?, backend.alloc_result(64, DType::F32)?];
/// assert!(room.iter().all(|buffer| buffer.is_unique()));
/// bytes = backend.upload_as(Bytes::of_vec(vec![1u8; 4]), StorageMode::Private)?;
/// assert_eq!(backend.mode(&bytes), StorageMode::Shared);
/// assert!(matches!(backend.start_capture("step.gputrace".as_ref()), Err(TensorError::Unsupported(_))));
/// assert_eq!((backend.staging_seconds(64, true)?, backend.defragment(3)?), (None, 0));
/// backend.start_timing(Timing::Runs)?;
/// assert!(backend.finish_timing()?.is_empty()); // nothing ran
/// backend.synchronize()?;
/// # Ok::<(), TensorError>(())
/// ```
pub trait Backend: Send + Sync {
    /// The device as people know it, e.g. `cpu (2 threads, avx512)` or `NVIDIA H100 (vulkan)`.
    fn name(&self) -> String;
    /// Whether tensors of this dtype can live here.
    fn supports(&self, dtype: DType) -> bool;
    /// The physical size of memory for `bytes`; `None` where no buffer can be as large.
    fn size_class(&self, bytes: usize) -> Option<usize>;
    /// Whether [`Backend::upload`] takes these bytes where they lie.
    fn reads_in_place(&self, _bytes: &Bytes) -> bool {
        false
    }
    /// Room for `bytes`; the content is arbitrary.
    ///
    /// # Errors
    /// `TensorError::OutOfMemory` where there is no room, `TensorError::DeviceLost` where the device is gone.
    fn alloc(&self, bytes: usize) -> TensorResult<Buffer>;
    /// As [`Backend::alloc`], for a result that the host reads next.
    ///
    /// # Errors
    /// Those of [`Backend::alloc`].
    fn alloc_result(&self, bytes: usize, _dtype: DType) -> TensorResult<Buffer> {
        self.alloc(bytes)
    }
    /// Memory with this content; without a copy where the backend can read the bytes in place.
    ///
    /// # Errors
    /// `TensorError::OutOfMemory` where there is no room, `TensorError::DeviceLost` where the device is gone.
    fn upload(&self, bytes: Bytes) -> TensorResult<Buffer>;
    /// Memory for `len` values, which `fill` writes: in memory that the device copies from, where the backend has some to be written.
    ///
    /// # Errors
    /// Those of [`Backend::upload`].
    fn upload_filled(&self, len: usize, fill: FillsValues<'_>) -> TensorResult<Buffer> {
        self.upload(large_copy::filled(len, fill))
    }
    /// Runs the plan; returns when it is submitted. `params` are the plan's run-time parameters.
    ///
    /// # Errors
    /// When buffers or parameters do not match the plan, there is no room for what it needs besides them, a kernel cannot be compiled or run
    /// here, or the device is lost.
    fn run(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()>;
    /// Runs the plan once for each of `outputs`, each time on the result of the run before; where it can, as one submission.
    ///
    /// # Errors
    /// Those of [`Backend::run`].
    fn run_repeated(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64], by: Repeat<'_>) -> TensorResult<()> {
        let (mut inputs, mut params) = (inputs.to_vec(), params.to_vec());
        for out in outputs {
            self.run(plan, &inputs, std::slice::from_ref(out), &params)?;
            by.advance(&mut inputs, out, &mut params);
        }
        Ok(())
    }
    /// The next run may be submitted together with the read that follows it.
    fn defer_submit(&self) {}
    /// From now on runs are timed, until [`Backend::finish_timing`].
    ///
    /// # Errors
    /// When they are timed already.
    fn start_timing(&self, detail: Timing) -> TensorResult<()>;
    /// From now on the system records what the device is given, as a document at this path for its developer tools, until
    /// [`Backend::stop_capture`].
    ///
    /// # Errors
    /// `TensorError::Unsupported` where there is no such record, `TensorError::State` where one is going on, and why the system refuses it.
    fn start_capture(&self, _path: &std::path::Path) -> TensorResult<()> {
        Err(TensorError::Unsupported(format!("a frame capture on {}: the device `metal` has them", self.name())))
    }
    /// Ends the record.
    fn stop_capture(&self) {}
    /// Ends timing and gives the times of the runs since it began, in order; waits for them.
    ///
    /// # Errors
    /// The device's, such as `TensorError::DeviceLost`.
    fn finish_timing(&self) -> TensorResult<Vec<RunTimes>>;
    /// Waits for what was submitted and copies `out.len()` bytes from byte `start`. Gives the error of any bad index met since the last read.
    ///
    /// # Errors
    /// `TensorError::Index` for a bad index, `TensorError::Internal` for a range outside the buffer,
    /// `TensorError::UnsupportedDevice` for a buffer of another device, `TensorError::DeviceLost` where the device is gone.
    fn read(&self, buffer: &Buffer, start: usize, out: &mut [u8]) -> TensorResult<()>;
    /// As [`Backend::read`] for several buffers, of each its start and length: the bytes come one behind the other.
    ///
    /// # Errors
    /// Those of [`Backend::read`].
    fn read_all(&self, parts: &[(&Buffer, usize, usize)]) -> TensorResult<Vec<u8>> {
        let mut out = vec![0; parts.iter().map(|p| p.2).sum()];
        let mut rest = &mut out[..];
        for (buffer, start, len) in parts {
            let (part, behind) = rest.split_at_mut(*len);
            self.read(buffer, *start, part)?;
            rest = behind;
        }
        Ok(out)
    }
    /// As [`Backend::read`], but only submits the copy: the returned call waits for it and gives the bytes. What is submitted in between
    /// is not waited for.
    ///
    /// # Errors
    /// Those of [`Backend::read`]; a bad index may be reported by the returned call instead.
    fn start_read(&self, buffer: &Buffer, start: usize, len: usize) -> TensorResult<PendingRead> {
        self.start_reads(&[(buffer, start, len)])
    }
    /// The same of several buffers, of each its start and length: the bytes come one behind the other.
    ///
    /// # Errors
    /// Those of [`Backend::start_read`].
    fn start_reads(&self, parts: &[(&Buffer, usize, usize)]) -> TensorResult<PendingRead> {
        self.read_all(parts).map(PendingRead::done)
    }
    /// As [`Backend::read`], but shows the bytes where they lie, without a copy where host and backend share the memory.
    ///
    /// # Errors
    /// Those of [`Backend::read`].
    fn view(&self, buffer: &Buffer, start: usize, len: usize, show: &mut dyn FnMut(&[u8])) -> TensorResult<()>;
    /// Writes the first bytes of a buffer that nobody else holds, after what was submitted before.
    ///
    /// # Errors
    /// `TensorError::Internal` where somebody else holds the buffer or the bytes do not fit; the device's.
    fn overwrite(&self, buffer: &Buffer, bytes: &[u8]) -> TensorResult<()>;
    /// As [`Backend::upload`], into memory of this kind where the backend has it.
    ///
    /// # Errors
    /// Those of [`Backend::upload`].
    fn upload_as(&self, bytes: Bytes, _mode: StorageMode) -> TensorResult<Buffer> {
        self.upload(bytes)
    }
    /// Who sees a buffer's memory.
    fn mode(&self, _buffer: &Buffer) -> StorageMode {
        StorageMode::Shared
    }
    /// The kind of memory of results and uploads.
    fn default_mode(&self) -> StorageMode {
        StorageMode::Shared
    }
    /// Changes the kind of memory of results and uploads, where the backend has several.
    fn set_default_mode(&self, _mode: StorageMode) {}
    /// What was moved between host and device.
    fn transfers(&self) -> TransferStats {
        TransferStats::default()
    }
    /// Ready when what was submitted so far is done: [`Backend::synchronize`] for threads that must not block.
    fn done(&self) -> Submitted {
        Box::pin(std::future::ready(()))
    }
    /// Waits for what was submitted.
    ///
    /// # Errors
    /// `TensorError::DeviceLost` where the device is gone, and what its driver reported.
    fn synchronize(&self) -> TensorResult<()>;
    /// Distinct buffers that one step may bind.
    fn max_buffers(&self) -> usize {
        8
    }
    /// What suits the backend where there are several ways.
    fn capabilities(&self) -> Capabilities;
    /// Whether a product of `rows` rows of f16 with a weight in blocks is faster when the `elements` of the weight are unpacked first.
    fn unpacks(&self, rows: usize, elements: usize) -> bool {
        self.tuning_in_force().is_some_and(|t| t.unpack.pays(rows, elements, self.matrices()))
    }
    /// Among how many products the sum over `rows` rows of a weight's gradient of `results` elements is shared; `None` where the product's
    /// kernel shares its work itself.
    fn gradient_parts(&self, rows: usize, results: usize) -> Option<usize> {
        self.tuning_in_force().map(|t| t.gemm.gradient_parts(rows, results))
    }
    /// Rows of activations up to which they are multiplied as int8 with weights in block formats, where that is asked for; 0 where nothing is gained.
    fn int8_rows(&self) -> usize {
        0
    }
    /// The GPU behind the backend, and the numbers by which its work is paced; `None` on the CPU.
    fn adapter(&self) -> Option<&TunedAdapter> {
        None
    }
    /// How many rows products that share their left side may have to run faster in one step; `None` where they never do.
    fn fused_gemv_limits(&self) -> Option<FusedGemvLimits> {
        self.adapter().map(TunedAdapter::fused_gemv_limits)
    }
    /// The numbers fitted to this class of GPU; `None` on the CPU.
    fn tuning(&self) -> Option<&Tuning> {
        self.adapter().map(|a| &*a.info.tuning)
    }
    /// Those that serve work of this thread: a strategy may bring its own.
    fn tuning_in_force(&self) -> Option<SharedTuning> {
        self.adapter().map(TunedAdapter::tuning_in_force)
    }
    /// The numbers that were measured here for a model with this key, where they are kept and nobody chose others.
    fn model_tuning(&self, model: &str) -> Option<Tuning> {
        self.adapter()?.model_tuning(model)
    }
    /// How work is paced where its thread says nothing else.
    fn set_strategy(&self, strategy: PipelineStrategy) {
        self.adapter().into_iter().for_each(|a| a.set_strategy(strategy));
    }
    /// The device is to be lost at its `submits`-th submit from now on; for backends that can be.
    fn lose_after(&self, _submits: u64) {}
    /// Whether the device is gone: every call gives `TensorError::DeviceLost`.
    fn is_lost(&self) -> bool {
        false
    }
    /// Where they come from.
    fn tuning_source(&self) -> Option<&TuningSource> {
        self.adapter().map(|a| &a.tuning_source)
    }
    /// Which counter counts the energy that the device takes; `None` where none is known.
    fn energy_counter(&self) -> Option<EnergyCounter<'_>> {
        None
    }
    /// Seconds of a raw copy of so many bytes through staging memory, to the device or from it: of its slower part, the host's or the
    /// device's; of the host's where the device's memory is the host's. `None` where the interface has no such copies.
    ///
    /// # Errors
    /// Where there is no room, and those of a lost device.
    fn staging_seconds(&self, _bytes: usize, _to_device: bool) -> TensorResult<Option<f64>> {
        Ok(None)
    }
    /// Whether products of f16 go by matrix units.
    fn matrices(&self) -> bool {
        self.adapter().is_some_and(TunedAdapter::matrices)
    }
    /// The edge of matrices that matrix units multiply, and the threads that do so together; `None` where there are no such units.
    fn matrix_unit(&self) -> Option<[u32; 2]> {
        self.adapter()?.matrix_unit()
    }
    /// Barriers between the steps of a run of this plan, where the backend sets them itself.
    fn barriers(&self, _plan: &Arc<Plan>) -> Option<usize> {
        None
    }
    /// Memory as the backend counts it.
    fn memory(&self) -> MemoryStats;
    /// The pool, to be looked at and bounded.
    fn pool(&self) -> &dyn PoolControl;
    /// The driver's blocks, where it reports them.
    fn driver_memory(&self) -> Option<DriverMemory> {
        None
    }
    /// Gives memory back to the system in up to three passes: free buffers; what the backend itself keeps; and blocks of the driver, which
    /// are emptied by copying values elsewhere. Gives the bytes copied. Called under the evaluator's lock, so that nobody writes a value
    /// meanwhile.
    ///
    /// # Errors
    /// `TensorError::DeviceLost` where the device is gone, and what its driver reported.
    fn defragment(&self, passes: usize) -> TensorResult<u64> {
        if passes > 0 {
            self.pool().shrink(0);
        }
        Ok(0)
    }
    /// Tells a memory recording what a buffer is for. Called only while one is on.
    fn label(&self, buffer: &Buffer, op: &'static str, at: At);
    /// Kernels that were compiled, and where they are kept.
    fn pipeline_stats(&self) -> PipelineStats {
        PipelineStats::default()
    }
    /// Submits since the backend was opened, for tests and `--stats`.
    fn submits(&self) -> u64;
    /// Submits, waits and kernels, as far as the backend has such.
    fn queue_stats(&self) -> QueueStats {
        QueueStats { submits: self.submits(), ..QueueStats::default() }
    }
    /// Whether it computes right now. Does not wait.
    fn is_busy(&self) -> bool;
}
