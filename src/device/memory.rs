//! What a user may ask of and say about a device's memory: the pool, limits, profiles; and the device types of one kind.

use super::Device;
use crate::backends::limits::MemoryInfo;
use crate::backends::pool::BufferPoolStats;
use crate::backends::report::MemoryReport;
use crate::error::{TensorError, TensorResult};
use std::ops::Deref;

/// A GPU opened through Metal. It is a [`Device`] and can be used wherever one is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetalDevice(Device);

/// A real GPU of any interface: Metal, Vulkan or DX12. It is a [`Device`] and can be used wherever one is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuDevice(Device);

impl MetalDevice {
    /// Opens the system's Metal device.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] where there is no Metal.
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
    /// Opens the first real GPU, as [`Device::gpu`].
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] where there is none.
    pub fn new() -> TensorResult<GpuDevice> {
        Device::gpu().map(GpuDevice)
    }

    /// Opens a GPU by name: `gpu`, `vulkan`, `metal` or `dx12`, each with an optional index as in `vulkan:1`.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedDevice`] for an unknown name, or where this machine has no such GPU.
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

/// A handle on a device's pool: the buffers that wait for reuse. Clones are the same pool.
///
/// A dropped buffer waits here for the next request of its size class. What bounds the pool is **bytes**: by default a quarter of the memory that
/// is free, asked again as the pool grows. A cap on the number of buffers per size, such as the 10 that some guides give, bounds nothing
/// that matters: ten buffers of 4 KiB are 40 KiB, ten of 1 GiB are 10 GiB, and it is the second case that makes a machine swap or an epoch
/// end in an out-of-memory error; and a training step that frees eleven equal activations would miss once each step though the memory is there.
/// A buffer that is not used again within two minutes, or that stands in the way of the limit on memory in use, goes back to the system,
/// the longest unused first. The count per size can still be capped with [`BufferPool::with_capacity`].
#[derive(Clone, Debug)]
pub struct BufferPool(Device);

impl BufferPool {
    /// The device's pool, capped at this many waiting buffers per size class; the bound in bytes stays in force.
    pub fn with_capacity(device: &Device, buffers_per_class: usize) -> BufferPool {
        let pool = device.buffer_pool();
        pool.control().change(&mut |l| l.per_class = buffers_per_class);
        pool
    }

    fn control(&self) -> &dyn crate::backends::pool::PoolControl {
        self.0.backend().pool()
    }

    /// Counts and bounds.
    pub fn stats(&self) -> BufferPoolStats {
        self.control().stats()
    }

    /// Frees waiting buffers, the longest unused first, until at most `max_bytes` wait. Gives the bytes freed.
    pub fn shrink_to_fit(&self, max_bytes: usize) -> usize {
        self.control().shrink(max_bytes)
    }

    /// Frees every waiting buffer. Buffers in use are not touched. Gives the bytes freed.
    pub fn clear(&self) -> usize {
        self.control().shrink(0)
    }

    /// Frees the buffers that wait for requests of `bytes`, which are rounded up to their size class. Gives the bytes freed.
    pub fn clear_size(&self, bytes: usize) -> usize {
        self.control().clear_size(bytes)
    }

    /// Keeps at most this many bytes waiting, as `TL_CACHE_LIMIT`; `None` follows the memory that is free.
    pub fn set_limit(&self, bytes: impl Into<Option<usize>>) {
        let bytes = bytes.into();
        self.control().change(&mut |l| l.cache = bytes);
    }

    /// Turns reuse off (every buffer goes back to the system at once) or on again.
    pub fn set_enabled(&self, on: bool) {
        self.control().change(&mut |l| l.enabled = on);
    }
}

/// A recording of who holds memory on a device. Ends when it is dropped. See [`Device::memory_profile`].
#[derive(Debug)]
pub struct MemoryProfile(Device);

impl MemoryProfile {
    /// What was found so far: the peak and its holders, what is still held and by whom, and the bytes in use over time.
    ///
    /// It prints as text, and [`MemoryReport::to_json_lines`] gives the same to programs.
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
    /// The pool's counts and bounds, and the memory in use.
    pub fn buffer_pool_stats(&self) -> BufferPoolStats {
        self.backend().pool().stats()
    }

    /// The pool, to shrink, clear, bound or turn off.
    pub fn buffer_pool(&self) -> BufferPool {
        BufferPool(self.clone())
    }

    /// Gives pooled memory back to the system.
    pub fn empty_cache(&self) {
        self.buffer_pool().clear();
    }

    /// Lets tensors and running plans hold at most this many bytes, as `TL_MEM_LIMIT`; `None` follows the memory that is free.
    ///
    /// A request beyond the limit first takes the pool's waiting buffers; if that does not suffice it fails with
    /// [`TensorError::OutOfMemory`], and everything that exists stays as it is. Files that are mapped, and so read in place, do not count: the system can
    /// drop their pages. [`MemoryStats::peak`](crate::plan::MemoryStats::peak) counts them, `peak_allocated` beside it does not.
    pub fn set_memory_limit(&self, bytes: impl Into<Option<usize>>) {
        let bytes = bytes.into();
        self.backend().pool().change(&mut |l| l.in_use = bytes);
    }

    /// As [`Device::set_memory_limit`] with a fraction of the device's memory, above 0 and at most 1.
    ///
    /// # Errors
    /// [`TensorError::Config`] for other fractions, and where the device does not tell its memory.
    pub fn set_memory_fraction(&self, fraction: f64) -> TensorResult<()> {
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(TensorError::Config(format!("a memory fraction of {fraction}; it must be above 0 and at most 1")));
        }
        let room = self
            .memory_room()
            .ok_or_else(|| TensorError::Config(format!("{} does not tell its memory; use set_memory_limit with bytes", self.name())))?;
        self.set_memory_limit((room.total as f64 * fraction) as usize);
        Ok(())
    }

    /// The device's memory as the system reports it, where it does.
    pub fn memory_room(&self) -> Option<MemoryInfo> {
        self.backend().pool().memory_info()
    }

    /// Counts the peaks of memory in use and of what is allocated from now on.
    pub fn reset_peak_memory(&self) {
        self.backend().pool().reset_peak();
    }

    /// Begins a recording of memory on this device, which ends when the returned value is dropped: for each buffer its size, the op and the
    /// user's line that asked for it; the peak; and what is still held. Costs nothing while no recording is on.
    ///
    /// ```
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
