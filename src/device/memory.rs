//! A device's memory API: the pool, limits and profiles; and device types of one kind.

use super::Device;
use crate::backends::fragmentation::{Defragmentation, Fragmentation};
use crate::backends::limits::MemoryInfo;
use crate::backends::pool::BufferPoolStats;
use crate::backends::report::MemoryReport;
use crate::error::{TensorError, TensorResult};
use crate::events;
use std::ops::Deref;
use std::time::Instant;

/// A GPU opened through Metal. Derefs to [`Device`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetalDevice(Device);

/// A hardware GPU of any API: Metal, Vulkan or DX12. Derefs to [`Device`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuDevice(Device);

impl MetalDevice {
    /// Opens the system's Metal device.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] if there is no Metal device.
    ///
    /// ```
    /// use tensorlogic::device::MetalDevice;
    /// match MetalDevice::new() {
    ///     Ok(metal) => assert!(!metal.is_cpu()), // it derefs to a `Device`
    ///     Err(e) => assert!(e.to_string().contains("Metal is not available here")),
    /// }
    /// ```
    pub fn new() -> TensorResult<MetalDevice> {
        match Device::open("metal") {
            Ok(d) => Ok(MetalDevice(d)),
            Err(e) => {
                let why = match e {
                    TensorError::UnsupportedDevice(why) => why,
                    e => e.to_string(),
                };
                Err(TensorError::UnsupportedDevice(format!(
                    "Metal is not available here ({why}); GpuDevice::new() opens the GPU of any interface, Device::cpu() always works"
                )))
            }
        }
    }
}

impl GpuDevice {
    /// Opens the first hardware GPU, like [`Device::gpu`].
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] if there is none.
    ///
    /// ```
    /// use tensorlogic::device::GpuDevice;
    /// use tensorlogic::prelude::*;
    /// let device = GpuDevice::new().map_or_else(|_| Device::cpu(), Device::from);
    /// assert_eq!(Tensor::new(&[1.0, 2.0], &device)?.sum_all()?.item()?, 3.0);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new() -> TensorResult<GpuDevice> {
        Device::gpu().map(GpuDevice)
    }

    /// Opens a GPU by name: `gpu`, `vulkan`, `metal` or `dx12`, each with an optional index as in `vulkan:1`.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] for an unknown name, or if this machine has no such GPU.
    ///
    /// ```
    /// use tensorlogic::device::GpuDevice;
    /// if let Ok(gpu) = GpuDevice::open("gpu") {
    ///     assert!(!gpu.is_cpu());
    /// }
    /// let error = GpuDevice::open("cpu").unwrap_err();
    /// assert!(error.to_string().contains("`cpu` is not the name of a GPU"));
    /// ```
    pub fn open(name: &str) -> TensorResult<GpuDevice> {
        match name {
            "cpu" | "auto" => {
                Err(TensorError::UnsupportedDevice(format!("`{name}` is not the name of a GPU; use Device::open(\"{name}\")")))
            }
            _ => Device::open(name).map(GpuDevice),
        }
    }
}

macro_rules! is_a_device {
    ($($t:ident)*) => { $(
        impl Deref for $t {
            type Target = Device;
            fn deref(&self) -> &Device {
                &self.0
            }
        }
        impl AsRef<Device> for $t {
            fn as_ref(&self) -> &Device {
                &self.0
            }
        }
        impl From<$t> for Device {
            fn from(d: $t) -> Device {
                d.0
            }
        }
        impl From<&$t> for Device {
            fn from(d: &$t) -> Device {
                d.0.clone()
            }
        }
    )* };
}
is_a_device!(MetalDevice GpuDevice);

/// A handle to a device's pool of free buffers. Clones refer to the same pool.
///
/// A dropped buffer stays here until the next request of its size class. The pool's limit is in **bytes**: by default a quarter of the free
/// memory, queried again as the pool grows. A limit on the number of buffers per size, such as the 10 that some guides recommend, does not
/// limit memory: ten buffers of 4 KiB are 40 KiB, ten of 1 GiB are 10 GiB. And a training step that frees eleven equal activations would
/// miss once per step although the memory is available. A buffer that is unused for two minutes, or that conflicts with the limit on memory
/// in use, is returned to the system, the longest unused first. [`BufferPool::with_capacity`] limits the count per size in addition.
#[derive(Clone, Debug)]
pub struct BufferPool(Device);

impl BufferPool {
    /// The device's pool, limited to this many free buffers per size class; the limit in bytes still applies.
    pub fn with_capacity(device: &Device, buffers_per_class: usize) -> BufferPool {
        let pool = device.buffer_pool();
        pool.control().change(&mut |l| l.per_class = buffers_per_class);
        pool
    }

    fn control(&self) -> &dyn crate::backends::pool::PoolControl {
        self.0.backend().pool()
    }

    /// Statistics and limits.
    pub fn stats(&self) -> BufferPoolStats {
        self.control().stats()
    }

    /// Releases free buffers, the longest unused first, until at most `max_bytes` remain. Returns the bytes released.
    pub fn shrink_to_fit(&self, max_bytes: usize) -> usize {
        self.control().shrink(max_bytes)
    }

    /// Releases all free buffers. Buffers in use are unaffected. Returns the bytes released.
    pub fn clear(&self) -> usize {
        self.control().shrink(0)
    }

    /// Releases the free buffers of the size class of `bytes`. Returns the bytes released.
    pub fn clear_size(&self, bytes: usize) -> usize {
        self.control().clear_size(bytes)
    }

    /// Limits the pool's free buffers to this many bytes (like `TL_CACHE_LIMIT`); `None` follows the free memory.
    pub fn set_limit(&self, bytes: impl Into<Option<usize>>) {
        let bytes = bytes.into();
        self.control().change(&mut |l| l.cache = bytes);
    }

    /// Turns reuse off (every dropped buffer is returned to the system immediately) or on.
    pub fn set_enabled(&self, on: bool) {
        self.control().change(&mut |l| l.enabled = on);
    }
}

/// A recording of memory use on a device. Ends when dropped. See [`Device::memory_profile`].
#[derive(Debug)]
pub struct MemoryProfile(Device);

impl MemoryProfile {
    /// The results so far: the peak and the allocations at that time, current allocations, and the bytes in use over time.
    ///
    /// The report prints as text; [`MemoryReport::to_json_lines`] returns it in machine-readable form.
    pub fn report(&self) -> MemoryReport {
        self.0.backend().pool().report()
    }
}

impl Drop for MemoryProfile {
    fn drop(&mut self) {
        self.0.backend().pool().record(false);
    }
}

impl Device {
    /// Statistics and limits of the pool, and the memory in use.
    pub fn buffer_pool_stats(&self) -> BufferPoolStats {
        self.backend().pool().stats()
    }

    /// The pool, to shrink, clear, limit or disable it.
    pub fn buffer_pool(&self) -> BufferPool {
        BufferPool(self.clone())
    }

    /// Returns pooled memory to the system.
    pub fn empty_cache(&self) {
        self.buffer_pool().clear();
    }

    /// What was asked for, what is held beyond it, and the driver's blocks where it reports them.
    pub fn fragmentation(&self) -> Fragmentation {
        let backend = self.backend();
        Fragmentation { driver: backend.driver_memory(), ..backend.pool().fragmentation() }
    }

    /// Gives memory back to the system, in up to three passes (more are as many as three; 0 only measures):
    /// 1. the pool's free buffers;
    /// 2. what the device itself keeps: staging memory, and buffers that only prepared plans name;
    /// 3. the driver's sparsest blocks, after the values in them were copied to free ranges of others. Only on Vulkan and DX12; with Metal a heap
    ///    goes back when no buffer of it is left.
    ///
    /// No pass makes a value's memory smaller: the pool serves a request from its own size class alone, so that no value has a larger one than it
    /// needs, and [`Fragmentation::internal`] stays as it is.
    ///
    /// Values keep their bits; tensors, views and downloads on their way stay valid. It waits for submitted work, and evaluations of this
    /// device wait for it. An evaluation that finds no memory does this by itself once before it fails.
    ///
    /// # Errors
    /// [`TensorError::DeviceLost`] where the device is gone, and what its driver reported.
    ///
    /// ```
    /// use tensorlogic::{DType, Device, Tensor};
    /// let device = Device::auto()?;
    /// let x = Tensor::ones(&[1 << 16], DType::F32, &device)?;
    /// drop(x.add(1.0)?.eval()?);
    /// let done = device.defragment(3)?;
    /// assert_eq!(done.after.waiting, 0);
    /// println!("{}\n{}\n{} bytes given back in {:.3} s", done.before, done.after, done.freed_bytes, done.seconds);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn defragment(&self, passes: usize) -> TensorResult<Defragmentation> {
        let start = Instant::now();
        // Evaluations, and all that writes to values in place, take this lock.
        let _evaluator = self.evaluator().lock().unwrap_or_else(|e| e.into_inner());
        let before = self.fragmentation();
        let moved_bytes = self.backend().defragment(passes)?;
        let after = self.fragmentation();
        let freed_bytes = match (before.driver, after.driver) {
            (Some(before), Some(after)) => before.reserved.saturating_sub(after.reserved),
            _ => before.waiting.saturating_sub(after.waiting) as u64,
        };
        events::defragmented(moved_bytes, freed_bytes);
        Ok(Defragmentation { before, after, moved_bytes, freed_bytes, seconds: start.elapsed().as_secs_f64() })
    }

    /// Limits the memory of tensors and running plans to this many bytes (like `TL_MEM_LIMIT`); `None` follows the free memory.
    ///
    /// A request beyond the limit first releases the pool's free buffers. If that does not suffice, it fails with
    /// [`TensorError::OutOfMemory`], and existing tensors stay valid. Mapped files, which are read in place, do not count: the system can drop
    /// their pages. [`MemoryStats::peak`](crate::plan::MemoryStats::peak) includes them; `peak_allocated` does not.
    pub fn set_memory_limit(&self, bytes: impl Into<Option<usize>>) {
        let bytes = bytes.into();
        self.backend().pool().change(&mut |l| l.in_use = bytes);
    }

    /// Like [`Device::set_memory_limit`], with a fraction of the device's memory: above 0 and at most 1.
    ///
    /// # Errors
    /// [`TensorError::Config`] for other fractions, and if the device does not report its memory.
    ///
    /// ```standalone_crate
    /// let device = tensorlogic::Device::cpu();
    /// assert!(device.set_memory_fraction(1.5).is_err());
    /// if let Some(memory) = device.memory_info() {
    ///     device.set_memory_fraction(0.5)?;
    ///     assert_eq!(device.buffer_pool_stats().limit, Some(memory.total / 2));
    /// }
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn set_memory_fraction(&self, fraction: f64) -> TensorResult<()> {
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(TensorError::Config(format!("a memory fraction of {fraction}; it must be above 0 and at most 1")));
        }
        let info = self
            .memory_info()
            .ok_or_else(|| TensorError::Config(format!("{} does not report its memory; use set_memory_limit with bytes", self.name())))?;
        self.set_memory_limit((info.total as f64 * fraction) as usize);
        Ok(())
    }

    /// The device's memory as reported by the system, if it is reported.
    pub fn memory_info(&self) -> Option<MemoryInfo> {
        self.backend().pool().memory_info()
    }

    /// Resets the peaks of memory in use and of allocated memory.
    pub fn reset_peak_memory(&self) {
        self.backend().pool().reset_peak();
    }

    /// Starts a recording of this device's memory, which ends when the returned value is dropped: for each buffer its size, and the op and
    /// user's line that allocated it; the peak; and what is still allocated. Without a recording there is no cost.
    ///
    /// ```standalone_crate
    /// # use tensorlogic::{Device, DType, Tensor};
    /// # fn main() -> tensorlogic::TensorResult<()> {
    /// let device = Device::cpu();
    /// let profile = device.memory_profile();
    /// let x = Tensor::from_vec(vec![1.0f32; 4096], &[64, 64], &device)?;
    /// let y = x.matmul(&x)?.relu()?;
    /// y.eval()?;
    /// println!("{}", profile.report());
    /// assert!(profile.report().held.iter().any(|h| h.op == "matmul"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_profile(&self) -> MemoryProfile {
        self.backend().pool().record(true);
        MemoryProfile(self.clone())
    }
}
