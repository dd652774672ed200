//! Low-level backends: the trait, the implementations for Metal and for any GPU, and their shared state.

use super::buffer::{BufferHandle, MTLResourceOptions, StorageBuffer};
use super::pipeline::{AdapterDevice, ComputePipeline, MTLSize, one_dimension, two_dimensions};
#[cfg(feature = "gpu")]
use crate::backends::gpu::adapters;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
use crate::backends::metal::NativeMetal;
use crate::backends::open::{Served, serve};
use crate::backends::{Backend, Buffer};
use crate::dtype::Element;
use crate::error::{TensorError, TensorResult};
use crate::plan::{MemoryStats, Plan, StorageMode};
use std::collections::HashMap;
#[cfg(feature = "gpu")]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A GPU for callers who manage buffers and dispatch kernels themselves.
///
/// An implementation chooses the adapters that it accepts; everything else is shared.
///
/// ```
/// use tensorlogic::metal::{MTLResourceOptions, RawBackend, RawGpuBackend};
/// # if RawGpuBackend::initialize().is_err() { return Ok(()); } // there is no GPU
/// let backend = RawGpuBackend::initialize()?;
/// let handle = backend.allocate(16)?; // by handle, until it is freed
/// backend.copy_host_to_buffer(&[1.0f32, 2.0], &backend.buffer(handle)?)?;
/// let mut values = [0.0f32; 2];
/// backend.copy_buffer_to_host(&backend.buffer(handle)?, &mut values)?;
/// assert_eq!(values, [1.0, 2.0]);
/// backend.deallocate(handle, 16)?;
///
/// let shared = MTLResourceOptions::StorageModeShared;
/// let _scratch = backend.create_buffer(64, shared)?; // by value, until it is dropped
/// let twos = backend.create_buffer_with_data(&[2.0f32; 2], shared)?;
/// backend.synchronize()?;
/// backend.copy_buffer_to_host(&twos, &mut values)?;
/// assert_eq!(values, [2.0, 2.0]);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub trait RawBackend: Send + Sync + Sized + 'static {
    /// Whether this machine has such a GPU. Does not open it, and never panics.
    fn is_available() -> bool;

    /// Opens the first such GPU.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] if there is none; the message lists the available GPUs.
    fn initialize() -> TensorResult<Self>;

    /// The opened GPU.
    fn opened(&self) -> &Opened;

    /// Reserves `bytes` of GPU memory. The backend holds it until [`RawBackend::deallocate`], or until it is dropped.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`], also if `bytes` exceeds the GPU's largest buffer.
    fn allocate(&self, bytes: usize) -> TensorResult<BufferHandle> {
        let buffer = self.opened().create(bytes, MTLResourceOptions::default())?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        lock(&self.opened().held).insert(number, buffer);
        Ok(BufferHandle { owner: self.opened().number, number })
    }

    /// Frees memory. `bytes` must equal the requested size.
    ///
    /// # Errors
    /// [`TensorError::State`] for a freed handle or one of another backend, [`TensorError::Value`] for a different size; then nothing is freed.
    fn deallocate(&self, handle: BufferHandle, bytes: usize) -> TensorResult<()> {
        let buffer = self.buffer(handle)?;
        if buffer.bytes != bytes {
            return Err(TensorError::Value(format!("deallocate: the allocation has {} bytes, not {bytes}", buffer.bytes)));
        }
        lock(&self.opened().held).remove(&handle.number);
        Ok(())
    }

    /// The buffer of a handle. It stays valid while it is referenced, even after the handle is freed.
    ///
    /// # Errors
    /// [`TensorError::State`] for a freed handle, or one of another backend.
    fn buffer(&self, handle: BufferHandle) -> TensorResult<StorageBuffer> {
        if handle.owner != self.opened().number {
            return Err(TensorError::State("the handle belongs to another backend".into()));
        }
        let held = lock(&self.opened().held);
        held.get(&handle.number).cloned().ok_or_else(|| TensorError::State("the handle was already freed".into()))
    }

    /// A buffer of `bytes`; its content is arbitrary.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`], also if `bytes` exceeds the GPU's largest buffer.
    fn create_buffer(&self, bytes: usize, options: MTLResourceOptions) -> TensorResult<StorageBuffer> {
        self.opened().create(bytes, options)
    }

    /// A buffer with these values.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`], also if `bytes` exceeds the GPU's largest buffer.
    fn create_buffer_with_data<T: Element>(&self, data: &[T], options: MTLResourceOptions) -> TensorResult<StorageBuffer> {
        let mut buffer = self.opened().create(size_of_val(data), options)?;
        buffer.dtype = Some(T::DTYPE);
        self.copy_host_to_buffer(data, &buffer)?;
        Ok(buffer)
    }

    /// Waits for all dispatched kernels and copies the first `out.len()` elements.
    ///
    /// # Errors
    /// [`TensorError::Value`] when the buffer is shorter than `out`, [`TensorError::State`] when it is another backend's, and errors of the GPU.
    fn copy_buffer_to_host<T: Element>(&self, buffer: &StorageBuffer, out: &mut [T]) -> TensorResult<()> {
        self.opened().check("copy_buffer_to_host", buffer, size_of_val(out))?;
        self.opened().backend.read(&buffer.memory, 0, bytemuck::cast_slice_mut(out))
    }

    /// Overwrites the first `data.len()` elements of a buffer, after all dispatched kernels.
    ///
    /// # Errors
    /// [`TensorError::Value`] when the buffer is shorter than `data`, [`TensorError::State`] when it is another backend's.
    fn copy_host_to_buffer<T: Element>(&self, data: &[T], buffer: &StorageBuffer) -> TensorResult<()> {
        self.opened().check("copy_host_to_buffer", buffer, size_of_val(data))?;
        let (opened, bytes): (_, &[u8]) = (self.opened(), bytemuck::cast_slice(data));
        let (whole, rest) = bytes.split_at(bytes.len() & !3);
        opened.write(&buffer.memory, 0, whole)?;
        if !rest.is_empty() {
            // Words are written whole: the bytes behind the last one stay what they are.
            let mut word = [0u8; 4];
            opened.backend.read(&buffer.memory, whole.len(), &mut word)?;
            word[..rest.len()].copy_from_slice(rest);
            opened.write(&buffer.memory, whole.len(), &word)?;
        }
        Ok(())
    }

    /// Waits for all dispatched kernels.
    ///
    /// # Errors
    /// Errors of the GPU since the last call.
    fn synchronize(&self) -> TensorResult<()> {
        self.opened().backend.synchronize()
    }

    /// A compiled kernel by its name, such as `add_kernel`; `None` for one that was not compiled. [`MetalOps::new`](super::MetalOps::new)
    /// compiles its five.
    fn get_compute_pipeline(&self, name: &str) -> Option<ComputePipeline> {
        lock(&self.opened().pipelines).get(name).cloned()
    }

    /// Threads of a one-dimensional group for a kernel: whole SIMD groups, 256 threads if the adapter supports it.
    fn optimal_thread_group_size(&self, pipeline: &ComputePipeline) -> MTLSize {
        one_dimension(&self.opened().device, pipeline)
    }

    /// These threads as a rectangle, at least one SIMD group wide.
    fn optimal_thread_group_size_2d(&self, pipeline: &ComputePipeline) -> MTLSize {
        two_dimensions(&self.opened().device, pipeline)
    }

    /// The adapter.
    fn metal_device(&self) -> &AdapterDevice {
        &self.opened().device
    }

    /// Statistics of the backend's memory and pool.
    fn memory(&self) -> MemoryStats {
        self.opened().backend.memory()
    }

    /// Kernels that the driver has compiled since the backend was opened.
    fn pipeline_count(&self) -> usize {
        self.opened().backend.pipeline_stats().pipelines
    }
}

/// Ids of backends and handles, unique within a process.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An opened GPU with the pipelines and the memory that a backend holds on it.
pub struct Opened {
    served: Served,
    backend: Arc<dyn Backend>,
    number: u64,
    device: AdapterDevice,
    pipelines: Mutex<HashMap<&'static str, ComputePipeline>>,
    held: Mutex<HashMap<u64, StorageBuffer>>,
}

impl Opened {
    /// Opens a GPU by name, as [`Device::open`](crate::Device::open) does: `gpu`, `vulkan`, `metal`, `metal-wgpu` or `dx12`, each with an optional
    /// `:index`. Every call opens it again, with separate memory.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] if there is no such GPU.
    ///
    /// ```
    /// use tensorlogic::TensorResult;
    /// use tensorlogic::metal::{Opened, RawBackend, RawGpuBackend};
    /// struct Vulkan(Opened);
    /// impl RawBackend for Vulkan {
    ///     fn is_available() -> bool {
    ///         RawGpuBackend::is_available()
    ///     }
    ///     fn initialize() -> TensorResult<Vulkan> {
    ///         Opened::open("vulkan").map(Vulkan)
    ///     }
    ///     fn opened(&self) -> &Opened {
    ///         &self.0
    ///     }
    /// }
    /// # if Vulkan::initialize().is_err() { return Ok(()); } // without a driver
    /// assert!(Vulkan::initialize()?.metal_device().name().ends_with("(vulkan)"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open(selector: &str) -> TensorResult<Opened> {
        let (served, _) = serve(selector, None)?;
        Ok(Opened {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            device: AdapterDevice::of(&served),
            pipelines: Mutex::default(),
            held: Mutex::default(),
            backend: served.backend(),
            served,
        })
    }

    fn create(&self, bytes: usize, options: MTLResourceOptions) -> TensorResult<StorageBuffer> {
        if bytes > isize::MAX as usize {
            return Err(TensorError::Value(format!("a buffer of {bytes} bytes")));
        }
        let mode = StorageMode::from(options);
        let memory = match self.served {
            #[cfg(feature = "gpu")]
            Served::Wgpu(ref b) => b.alloc_as(bytes, mode)?,
            #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
            Served::Native(ref b) => b.alloc_as(bytes, mode)?,
        };
        Ok(StorageBuffer { memory, bytes, options, dtype: None, owner: self.number })
    }

    /// Fails unless the buffer is this backend's and has this many bytes.
    pub(super) fn check(&self, what: &'static str, buffer: &StorageBuffer, bytes: usize) -> TensorResult<()> {
        if buffer.owner != self.number {
            return Err(TensorError::State(format!("{what}: the buffer belongs to another backend")));
        }
        if buffer.bytes < bytes {
            return Err(TensorError::Value(format!("{what}: {bytes} bytes of a buffer of {}", buffer.bytes)));
        }
        Ok(())
    }

    /// Overwrites bytes from `start` on, after all dispatched kernels.
    fn write(&self, memory: &Buffer, start: usize, bytes: &[u8]) -> TensorResult<()> {
        match self.served {
            #[cfg(feature = "gpu")]
            Served::Wgpu(ref b) => b.write(memory, start, bytes),
            #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
            Served::Native(ref b) => b.write(memory, start, bytes),
        }
    }

    /// Has the driver compile a plan's kernel, and remembers it by its name, with what the pipeline says of itself where the interface tells.
    pub(super) fn compile(&self, plan: &Arc<Plan>, pipeline: ComputePipeline) -> TensorResult<()> {
        let pipeline = match self.served {
            #[cfg(feature = "gpu")]
            Served::Wgpu(ref b) => b.prepare(plan).map(|()| pipeline)?,
            #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
            Served::Native(ref b) => match b.prepare(plan)? {
                Some([execution_width, max_threads]) => ComputePipeline { execution_width, max_threads, ..pipeline },
                None => pipeline,
            },
        };
        lock(&self.pipelines).insert(pipeline.name, pipeline);
        Ok(())
    }

    /// Dispatches a plan over these buffers. Returns when it is submitted.
    pub(super) fn run(&self, plan: &Arc<Plan>, buffers: &[Buffer]) -> TensorResult<()> {
        self.backend.run(plan, buffers, &[], &[])
    }
}

/// Whether wgpu has such an adapter. A driver that panics when queried counts as none.
#[cfg(feature = "gpu")]
fn any(like: impl Fn(&str) -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(|| adapters().iter().any(|a| like(a.backend)))).unwrap_or(false)
}

/// Without wgpu there is none.
#[cfg(not(feature = "gpu"))]
fn any(_: impl Fn(&str) -> bool) -> bool {
    false
}

/// Whether the native Metal backend has a GPU.
fn native() -> bool {
    #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
    {
        NativeMetal::is_available()
    }
    #[cfg(not(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal))))]
    {
        false
    }
}

/// A GPU through Apple's Metal, by the library's own backend, or by wgpu where that cannot be opened. On other systems [`RawBackend::is_available`] is false.
pub struct MetalBackend(Opened);

impl RawBackend for MetalBackend {
    fn is_available() -> bool {
        native() || any(|backend| backend == "metal")
    }
    fn initialize() -> TensorResult<MetalBackend> {
        Opened::open("metal").map(MetalBackend).map_err(|e| match e {
            TensorError::UnsupportedDevice(m) => {
                TensorError::UnsupportedDevice(format!("{m}; RawGpuBackend does the same on Vulkan and DX12"))
            }
            e => e,
        })
    }
    fn opened(&self) -> &Opened {
        &self.0
    }
}

/// A GPU through any available API: Metal, Vulkan or DX12. Hardware GPUs are preferred to software drivers.
pub struct RawGpuBackend(Opened);

impl RawGpuBackend {
    /// Opens a GPU by name: `gpu`, `vulkan`, `metal`, `metal-wgpu` or `dx12`, each with an optional `:index`.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] if there is no such GPU.
    ///
    /// ```
    /// use tensorlogic::metal::{RawBackend, RawGpuBackend};
    /// # if RawGpuBackend::open("vulkan").is_err() { return Ok(()); } // without a driver
    /// let backend = RawGpuBackend::open("vulkan")?;
    /// let handle = backend.allocate(16)?;
    /// assert_eq!(backend.buffer(handle)?.length(), 16);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open(selector: &str) -> TensorResult<RawGpuBackend> {
        Opened::open(selector).map(RawGpuBackend)
    }
}

impl RawBackend for RawGpuBackend {
    fn is_available() -> bool {
        native() || any(|_| true)
    }
    fn initialize() -> TensorResult<RawGpuBackend> {
        let real = Opened::open("gpu");
        let software = || ["vulkan", "metal", "dx12"].iter().find_map(|api| Opened::open(api).ok());
        real.or_else(|e| software().ok_or(e)).map(RawGpuBackend)
    }
    fn opened(&self) -> &Opened {
        &self.0
    }
}
