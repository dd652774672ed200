//! Opens a GPU through Metal and asks it what it can do.

use super::heaps::SHARED;
use super::memory::{Block, Copy, Memory};
use super::residency::Residency;
use crate::backends::bad_indices::{BadIndices, ERROR_RECORDS, RECORD_BYTES};
use crate::backends::codegen::DriverQuirks;
use crate::backends::progress::Progress;
use crate::backends::signposts::{Interval, Signpost};
use crate::backends::transfer_counts::TransferCounts;
use crate::backends::tuned_adapter::{NativeFacts, TunedAdapter};
use crate::backends::tuning_file;
use crate::error::{TensorError, TensorResult};
use crate::plan::{AdapterInfo, RawLanguage, SCRATCH_COUNTERS, SCRATCH_WORDS, SubgroupSync};
use crate::tuning::{AdapterClass, Tuning, TuningSource};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLCommandBuffer, MTLCommandBufferDescriptor, MTLCommandBufferErrorOption, MTLCommandQueue, MTLCreateSystemDefaultDevice, MTLDevice,
    MTLFence, MTLGPUFamily, MTLSharedEvent,
};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Apple's number among vendors of PCI devices, by which a tuning table is chosen.
const APPLE: u32 = 0x106b;
/// Buffers that a kernel may bind, besides its numbers.
pub(super) const MAX_BINDINGS: usize = 30;

/// An open GPU and everything that has its lifetime.
pub(super) struct Gpu {
    pub device: Retained<ProtocolObject<dyn MTLDevice>>,
    pub queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    /// Orders the encoders of the queue: Metal does not track what buffers are used for.
    pub fence: Retained<ProtocolObject<dyn MTLFence>>,
    pub watch: Arc<Progress>,
    /// Set to the number of each submit when the GPU is through with it.
    pub event: Retained<ProtocolObject<dyn MTLSharedEvent>>,
    pub memory: Arc<Memory>,
    /// The steps that report bad indices, and the memory in which they do.
    pub bad_indices: BadIndices,
    pub records: Arc<Block>,
    /// Counters and partial results of kernels whose workgroups work on one result; counters are zero between dispatches.
    pub scratch: Arc<Block>,
    /// The codebooks of block formats.
    pub codebooks: Arc<Block>,
    pub transfers: TransferCounts,
    /// How many kernels were compiled.
    pub kernels: AtomicU64,
    /// What the driver was found to do otherwise than most, which new shaders take into account.
    pub quirks: Mutex<DriverQuirks>,
    pub adapter: TunedAdapter,
    /// Whether captures show what the queue, command buffers and buffers are called, and each dispatch with its step's label.
    pub labels: bool,
    /// Whether each step has an encoder of its own, so that one that fails is told alone.
    pub checked: bool,
    /// Copies that the next submit takes along.
    pub copies: Mutex<Vec<Copy>>,
    /// Held while commands are encoded and committed, so that submits have the order of their numbers.
    pub submit_lock: Mutex<()>,
}

fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|v| v == "1")
}

fn refused(what: &str) -> TensorError {
    TensorError::UnsupportedDevice(format!("Metal gives no {what}"))
}

impl Gpu {
    /// The system's GPU, if it is one of Apple's: others have memory of their own, and differ where concurrent encoders are concerned.
    pub fn find() -> TensorResult<Retained<ProtocolObject<dyn MTLDevice>>> {
        let device = MTLCreateSystemDefaultDevice().ok_or_else(|| refused("device"))?;
        match device.hasUnifiedMemory() {
            true => Ok(device),
            false => Err(TensorError::UnsupportedDevice(format!("{} is not an Apple GPU", device.name()))),
        }
    }

    /// Opens the system's GPU, with this tuning table or the one in force for it.
    pub fn open(table: Option<Tuning>) -> TensorResult<Gpu> {
        autoreleasepool(|_| {
            let device = Gpu::find()?;
            let queue = device.newCommandQueue().ok_or_else(|| refused("command queue"))?;
            let event = device.newSharedEvent().ok_or_else(|| refused("shared event"))?;
            let fence = device.newFence().ok_or_else(|| refused("fence"))?;
            let name = format!("{} (metal)", device.name());
            let watch = Arc::new(Progress::new(name.clone()));
            let residency = Arc::new(Residency::new(device.clone(), queue.clone()));
            let labels = is_set("TL_LABELS") || is_set("MTL_CAPTURE_ENABLED");
            if labels {
                queue.setLabel(Some(&NSString::from_str("tensorlogic")));
            }
            let memory = Arc::new(Memory::new(device.clone(), watch.clone(), residency, labels));
            let buffer = |bytes| memory.create(bytes, SHARED).ok_or_else(|| refused("memory"));
            let books: Vec<u8> = crate::quant::codebooks().iter().flat_map(|word| word.to_le_bytes()).collect();
            let (records, scratch) = (buffer(ERROR_RECORDS * RECORD_BYTES as usize)?, buffer(4 * SCRATCH_WORDS)?);
            let codebooks = buffer(books.len())?;
            // SAFETY: all are new.
            unsafe {
                records.write(0, &[0; ERROR_RECORDS * RECORD_BYTES as usize]);
                scratch.write(0, &[0; 4 * SCRATCH_COUNTERS]);
                codebooks.write(0, &books);
            }
            let key = format!("native {name}");
            let class = AdapterClass { vendor: APPLE, metal: true, software: false };
            let (tuning, tuning_source) = match table {
                Some(table) => (table, TuningSource::Given),
                None => tuning_file::choose(&key, class)?,
            };
            let threads = device.maxThreadsPerThreadgroup();
            let limits =
                [device.maxBufferLength() as u64, device.recommendedMaxWorkingSetSize(), device.maxThreadgroupMemoryLength() as u64];
            let info = AdapterInfo {
                subgroup: 32,
                f16: true,
                workgroup_bytes: device.maxThreadgroupMemoryLength() as u32,
                workgroup_threads: threads.width.min(threads.width * threads.height * threads.depth) as u32,
                coop: 8,
                coop_vectors: false,
                subgroup_sync: SubgroupSync::Barrier,
                coherent: false,
                byte_dots: false,
                elements: None,
                metal_bodies: false,
                tensor_ops: false,
                raw: Some(RawLanguage::Msl),
                tuning: Arc::new(tuning),
            };
            let mut adapter = TunedAdapter::new(info, tuning_source, class, key);
            adapter.native = NativeFacts::new(|family| device.supportsFamily(MTLGPUFamily(family)), limits, threads.width as u64);
            Ok(Gpu {
                device,
                queue,
                fence,
                watch,
                event,
                memory,
                bad_indices: BadIndices::default(),
                records,
                scratch,
                codebooks,
                transfers: TransferCounts::default(),
                kernels: AtomicU64::new(0),
                quirks: Mutex::default(),
                adapter,
                labels,
                checked: is_set("TL_GPU_CHECKED"),
                copies: Mutex::default(),
                submit_lock: Mutex::new(()),
            })
        })
    }

    /// A command buffer that retains nothing; where steps are checked it tells which encoder failed.
    pub fn commands(&self) -> TensorResult<Retained<ProtocolObject<dyn MTLCommandBuffer>>> {
        self.memory.heaps.residency.commit();
        let descriptor = MTLCommandBufferDescriptor::new();
        descriptor.setRetainedReferences(false);
        if self.checked {
            descriptor.setErrorOptions(MTLCommandBufferErrorOption::EncoderExecutionStatus);
        }
        let made = self.queue.commandBufferWithDescriptor(&descriptor);
        made.ok_or_else(|| TensorError::DeviceLost(format!("{} gives no command buffer", self.watch.device)))
    }
    /// Waits for everything that was submitted.
    pub fn wait(&self) -> TensorResult<()> {
        self.wait_for(self.watch.submitted(), self.adapter.pacing(|p| p.awake))
    }
    /// Waits until the GPU is through with this submit; `awake` is how long the host asks without sleep, at least.
    pub fn wait_for(&self, number: u64, awake: Duration) -> TensorResult<()> {
        let _interval = (self.watch.done() < number).then(|| Signpost::begin(Interval::Wait));
        // The event comes before the handlers, which alone tell how a command buffer ended.
        self.watch.wait(number, awake, || self.event.signaledValue() >= number)
    }
}
