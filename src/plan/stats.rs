//! What a backend reports: times, memory, transfers, compiled kernels, and the measured costs of small work.

use super::{Plan, WorkCost};
use std::sync::Arc;

/// How finely runs are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Each run as a whole: it runs as it always does.
    Runs,
    /// Every step.
    Steps,
}

/// When a run happened and its steps with it.
#[derive(Clone)]
pub struct RunTimes {
    /// What ran.
    pub plan: Arc<Plan>,
    /// When the host began to submit it and when it was done with that.
    pub host: [std::time::Instant; 2],
    /// Start and end of the run in seconds on the device's own clock; `None` where it has none.
    pub run: Option<[f64; 2]>,
    /// The same for each step; `None` where it was not measured or had nothing to do.
    pub steps: Vec<Option<[f64; 2]>>,
}

impl RunTimes {
    /// A run of a plan that the host submitted from `host` on until now; without the device's times.
    #[cfg_attr(not(feature = "shaders"), allow(dead_code))]
    pub(crate) fn since(host: std::time::Instant, plan: &Arc<Plan>) -> RunTimes {
        RunTimes { plan: plan.clone(), host: [host, std::time::Instant::now()], run: None, steps: vec![None; plan.steps.len()] }
    }

    /// Adds the time of a step, or of a part of the run.
    #[cfg_attr(not(feature = "shaders"), allow(dead_code))]
    pub(crate) fn add(&mut self, step: Option<usize>, [from, to]: [f64; 2]) {
        if let Some(step) = step {
            self.steps[step] = Some([from, to.max(from)]);
        }
        let [a, b] = self.run.unwrap_or([from, to]);
        self.run = Some([a.min(from), b.max(to)]);
    }
}

/// A device's memory as the engine counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes held by tensors, weights and running plans, mapped files included.
    pub in_use: usize,
    /// Peak of `in_use`: peak memory, mapped files included.
    pub peak: usize,
    /// Peak of allocated bytes, without mapped memory (files and the caller's memory that are read in place). `TL_MEM_LIMIT` applies to this.
    pub peak_allocated: usize,
    /// Bytes kept in the pool for reuse.
    pub pooled: usize,
    /// Buffers asked for.
    pub requests: u64,
    /// Requests that the pool served.
    pub reused: u64,
}

/// Transfers between host and device memory since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferStats {
    /// Values brought to the device.
    pub uploads: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Writes of staging memory; many small uploads share one.
    pub staging_writes: u64,
    /// Writes straight into memory that host and device share.
    pub in_place_writes: u64,
    /// Values brought to the host.
    pub downloads: u64,
    /// Their bytes.
    pub downloaded_bytes: u64,
    /// Reads straight from memory that host and device share.
    pub in_place_reads: u64,
}

/// Submits and waits since the device was opened. A CPU runs at once: nothing waits there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueStats {
    /// Submits of plans.
    pub submits: u64,
    /// How often the host waited for the device.
    pub waits: u64,
    /// For how many seconds in all.
    pub wait_seconds: f64,
    /// How often the program waited for everything: [`Device::synchronize`](crate::Device::synchronize).
    pub synchronizations: u64,
    /// Kernels that were compiled.
    pub kernels: u64,
}

/// A kernel that was compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct CompiledKernel {
    /// The operation that it is of.
    pub name: String,
    /// Seconds that compiling took; others may have been compiled beside it.
    pub seconds: f64,
    /// Whether it came from an earlier process's cache.
    pub found: bool,
}

/// Kernels that a device compiled since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineStats {
    /// The number of compiled pipelines.
    pub pipelines: usize,
    /// Seconds spent compiling.
    pub seconds: f64,
    /// How many of them came from an earlier process's cache.
    pub found: usize,
    /// The cache file for later processes; `None` if there is none.
    pub file: Option<std::path::PathBuf>,
    /// Its size in bytes.
    pub bytes: u64,
    /// Kernels whose parts in Metal's language Metal's compiler refused, each with its message: their WGSL forms run.
    pub refused_bodies: Vec<String>,
    /// The compiled pipelines, in the order in which they were made.
    pub kernels: Vec<CompiledKernel>,
}

/// Measured times in seconds of this GPU and CPU, which decide where work on values in host memory runs.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct FallbackModel {
    /// A tiny computation on the GPU, from values in host memory to the result in host memory.
    pub round_trip: f64,
    /// Submit time, without waiting for the result.
    pub submit: f64,
    /// Time on the CPU until the result is available.
    pub host: f64,
    /// One element through one scalar instruction on the CPU.
    pub host_element: f64,
    /// One floating-point operation of a matrix product on the CPU.
    pub host_op: f64,
}

impl FallbackModel {
    /// The time that the CPU would take.
    pub fn host_seconds(&self, work: &WorkCost) -> f64 {
        self.host + work.elements as f64 * self.host_element + work.ops as f64 * self.host_op
    }
    /// Elements of one elementwise operation up to which the CPU has the result sooner than the way to the GPU and back takes.
    pub fn elements(&self) -> u64 {
        ((self.round_trip - self.host) / self.host_element).max(0.0) as u64
    }
}

/// Where a tensor's memory is and who can access it. The names are Metal's; their meaning depends on the API.
///
/// | | CPU | Metal | Vulkan, DX12 |
/// |---|---|---|---|
/// | `Shared` | host memory | a buffer that both sides see (`MTLStorageModeShared`): no copy for a read | host-visible memory that kernels use directly, where the adapter offers it (`MAPPABLE_PRIMARY_BUFFERS`); else `Private` |
/// | `Private` | host memory | a buffer that only the GPU sees; transfers go through staging memory | device-local memory; transfers go through staging memory |
/// | `Managed` | host memory | as on Vulkan: Metal's own managed mode exists on Intel Macs only, and wgpu does not offer it | a copy on either side: reads are served by the host's, and the device's is made when a kernel first needs it |
///
/// The default is `Shared` where the memory is unified and the CPU reads it through its caches (Apple GPUs, software drivers), else `Private`.
/// Other integrated GPUs may map device memory uncached, where reading in place can be slower than staging: ask for `Shared` there when
/// measuring says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageMode {
    /// Host and device see the same memory.
    Shared,
    /// Only the device sees it.
    Private,
    /// A copy on either side, kept equal.
    Managed,
}
