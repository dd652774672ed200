//! Faults that tests plant, and counts of what was done: for all devices of the process.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// What goes wrong when it is asked to, for all devices of the process.
pub struct Faults {
    /// Command buffers from now on until one ends with an error of code `fail_code`; negative for never.
    pub fail_after: AtomicI64,
    pub fail_code: AtomicI64,
    /// Milliseconds between the signals of a command buffer and its handlers; where it is not 0, one that failed signals too.
    pub late_handlers: AtomicU64,
    /// Whether command buffers tell that they are done before they run; what fails then is in [`UNTOLD`].
    pub early_handlers: AtomicBool,
    /// Which encoder of it fails.
    pub fail_encoder: AtomicUsize,
    /// Command buffers that a queue gives until it gives none once; negative for never.
    pub no_commands: AtomicI64,
    /// Encoders that command buffers give until one gives none; negative for never.
    pub no_encoder: AtomicI64,
    /// Whether a device gives no queue, fence or event: the method's name.
    pub without: Mutex<&'static str>,
    /// Whether new buffers and heaps are refused.
    pub refuse_memory: AtomicBool,
    /// Whether new heaps are.
    pub refuse_heaps: AtomicBool,
    /// Whether there is no device.
    pub no_device: AtomicBool,
    /// Whether the system is one before macOS 15, which has neither math modes of compile options nor residency sets.
    pub old_system: AtomicBool,
    /// Barriers from now on until one is passed over; negative for never.
    pub skip_barrier: AtomicI64,
    /// Whether it is found out of each barrier if leaving out that one would be found, see `barriers.rs`.
    pub judge_barriers: AtomicBool,
    /// Whether a barrier stands before every dispatch.
    pub extra_barriers: AtomicBool,
    /// Whether kernels with barriers run in three orders of threads when they first run.
    pub three_orders: AtomicBool,
    /// Whether updates of fences are passed over.
    pub skip_fences: AtomicBool,
    /// While a test has it, no command buffer is run.
    pub hold: Mutex<()>,
}
/// The faults that are asked for.
pub static FAULTS: Faults = Faults {
    fail_after: AtomicI64::new(-1),
    fail_code: AtomicI64::new(2),
    late_handlers: AtomicU64::new(0),
    early_handlers: AtomicBool::new(false),
    fail_encoder: AtomicUsize::new(0),
    no_commands: AtomicI64::new(-1),
    no_encoder: AtomicI64::new(-1),
    without: Mutex::new(""),
    refuse_memory: AtomicBool::new(false),
    refuse_heaps: AtomicBool::new(false),
    no_device: AtomicBool::new(false),
    old_system: AtomicBool::new(false),
    skip_barrier: AtomicI64::new(-1),
    judge_barriers: AtomicBool::new(false),
    extra_barriers: AtomicBool::new(false),
    three_orders: AtomicBool::new(false),
    skip_fences: AtomicBool::new(false),
    hold: Mutex::new(()),
};

/// What went wrong with command buffers that had told before that they were done.
pub static UNTOLD: Mutex<Vec<String>> = Mutex::new(vec![]);

/// What was done, by all devices of the process.
pub struct Counts {
    pub command_buffers: AtomicU64,
    pub encoders: AtomicU64,
    pub dispatches: AtomicU64,
    pub barriers: AtomicU64,
    /// Kernels that ran in three orders of threads.
    pub ordered_kernels: AtomicU64,
    /// Buffers that were made, and the parts of them with memory of the device's own and of heaps.
    pub buffers: AtomicU64,
    pub device_buffers: AtomicU64,
    pub heap_buffers: AtomicU64,
    pub heaps: AtomicU64,
    pub heaps_released: AtomicU64,
    pub debug_groups: AtomicU64,
    /// Bound buffers that no committed residency set of the queue has.
    pub not_resident: AtomicU64,
    pub residency_sets: AtomicU64,
    /// What was added to sets: buffers and heaps.
    pub made_resident: AtomicU64,
    /// Pipelines that came from an archive.
    pub from_archives: AtomicU64,
}
/// What was done so far.
pub static COUNTS: Counts = Counts {
    command_buffers: AtomicU64::new(0),
    encoders: AtomicU64::new(0),
    dispatches: AtomicU64::new(0),
    barriers: AtomicU64::new(0),
    ordered_kernels: AtomicU64::new(0),
    buffers: AtomicU64::new(0),
    device_buffers: AtomicU64::new(0),
    heap_buffers: AtomicU64::new(0),
    heaps: AtomicU64::new(0),
    heaps_released: AtomicU64::new(0),
    debug_groups: AtomicU64::new(0),
    not_resident: AtomicU64::new(0),
    residency_sets: AtomicU64::new(0),
    made_resident: AtomicU64::new(0),
    from_archives: AtomicU64::new(0),
};

/// Whether devices are to give nothing where this method is called.
pub fn is_without(method: &str) -> bool {
    *FAULTS.without.lock().unwrap() == method
}

/// Counts towards something that is to happen once; whether it is now.
pub fn is_due(left: &AtomicI64) -> bool {
    left.load(SeqCst) >= 0 && left.fetch_sub(1, SeqCst) == 0
}
