//! Metal for tests: devices, queues, command buffers and encoders that compute on the CPU, written against the protocols of `objc2-metal`.
//!
//! What a real Metal leaves undefined is an error here, see `schedule.rs`; so are a buffer that was freed while commands name it, one that is not bound,
//! and a source without a stated version of the language and kind of arithmetic. Errors of commands are those of their command buffer.

#![allow(non_snake_case)]
use crate::compiler::{self, Compiled, Math};
use crate::errors::{give, ns_error};
use crate::events::{FakeEvent, FakeFence};
pub use crate::faults::{COUNTS, FAULTS};
use crate::faults::{UNTOLD, is_due, is_without};
use crate::memory::{self, ALLOCATED, FakeBuffer, bind};
use crate::objc;
use crate::residency::{FakeSet, is_resident};
use crate::schedule::{Act, Bind, Copy, Dispatch, History, Pass};
use crate::tools::labelled;
use block2::{DynBlock, RcBlock};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyObject, NSObject, NSObjectProtocol, ProtocolObject, Sel};
use objc2::{AnyThread, DefinedClass, Message, define_class, msg_send, sel};
use objc2_foundation::{NSArray, NSError, NSString, NSURL};
use objc2_metal::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

// ---- sources ----
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeLibrary"]
    #[ivars = (String, Math)]
    pub struct FakeLibrary;
    unsafe impl NSObjectProtocol for FakeLibrary {}
    unsafe impl MTLLibrary for FakeLibrary {
        #[unsafe(method(setLabel:))]
        fn setLabel(&self, _: Option<&NSString>) {}
        #[unsafe(method_id(newFunctionWithName:))]
        fn newFunctionWithName(&self, name: &NSString) -> Option<Retained<ProtocolObject<dyn MTLFunction>>> {
            let (source, math) = self.ivars();
            compiler::compile(source, &name.to_string(), *math).ok().map(|compiled| {
                let this = FakeFunction::alloc().set_ivars(compiled);
                // SAFETY: `init` of NSObject.
                let this: Retained<FakeFunction> = unsafe { msg_send![super(this), init] };
                ProtocolObject::from_retained(this)
            })
        }
    }
);
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeFunction"]
    #[ivars = Compiled]
    pub struct FakeFunction;
    unsafe impl NSObjectProtocol for FakeFunction {}
    unsafe impl MTLFunction for FakeFunction {}
);
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakePipeline"]
    #[ivars = Compiled]
    pub struct FakePipeline;
    unsafe impl NSObjectProtocol for FakePipeline {}
    unsafe impl MTLAllocation for FakePipeline {}
    unsafe impl MTLComputePipelineState for FakePipeline {
        #[unsafe(method(maxTotalThreadsPerThreadgroup))]
        fn maxTotalThreadsPerThreadgroup(&self) -> usize {
            self.ivars().max_threads.unwrap_or(1024) as usize
        }
        #[unsafe(method(threadExecutionWidth))]
        fn threadExecutionWidth(&self) -> usize {
            32
        }
    }
);

// ---- the device ----
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeDevice"]
    #[ivars = ()]
    pub struct FakeDevice;
    unsafe impl NSObjectProtocol for FakeDevice {}
    unsafe impl MTLDevice for FakeDevice {
        #[unsafe(method_id(name))]
        fn name(&self) -> Retained<NSString> {
            NSString::from_str("Fake M1")
        }
        #[unsafe(method(hasUnifiedMemory))]
        fn hasUnifiedMemory(&self) -> bool {
            true
        }
        #[unsafe(method(maxThreadsPerThreadgroup))]
        fn maxThreadsPerThreadgroup(&self) -> MTLSize {
            MTLSize { width: 1024, height: 1024, depth: 1024 }
        }
        #[unsafe(method(maxThreadgroupMemoryLength))]
        fn maxThreadgroupMemoryLength(&self) -> usize {
            32 << 10
        }
        #[unsafe(method(maxBufferLength))]
        fn maxBufferLength(&self) -> usize {
            4 << 30
        }
        #[unsafe(method(recommendedMaxWorkingSetSize))]
        fn recommendedMaxWorkingSetSize(&self) -> u64 {
            8 << 30
        }
        /// Those of an M1: Apple1 to Apple7, Common1 to Common3, Metal3.
        #[unsafe(method(supportsFamily:))]
        fn supportsFamily(&self, family: MTLGPUFamily) -> bool {
            matches!(family.0, 1001..=1007 | 3001..=3003 | 5001)
        }
        #[unsafe(method(currentAllocatedSize))]
        fn currentAllocatedSize(&self) -> usize {
            ALLOCATED.load(SeqCst)
        }
        #[unsafe(method_id(newFence))]
        fn newFence(&self) -> Option<Retained<ProtocolObject<dyn MTLFence>>> {
            (!is_without("newFence")).then(|| {
                let this = FakeFence::alloc().set_ivars(());
                // SAFETY: `init` of NSObject.
                let this: Retained<FakeFence> = unsafe { msg_send![super(this), init] };
                ProtocolObject::from_retained(this)
            })
        }
        #[unsafe(method_id(newSharedEvent))]
        fn newSharedEvent(&self) -> Option<Retained<ProtocolObject<dyn MTLSharedEvent>>> {
            (!is_without("newSharedEvent")).then(|| {
                let this = FakeEvent::alloc().set_ivars(AtomicU64::new(0));
                // SAFETY: `init` of NSObject.
                let this: Retained<FakeEvent> = unsafe { msg_send![super(this), init] };
                ProtocolObject::from_retained(this)
            })
        }
        #[unsafe(method_id(newCommandQueue))]
        fn newCommandQueue(&self) -> Option<Retained<ProtocolObject<dyn MTLCommandQueue>>> {
            (!is_without("newCommandQueue")).then(|| {
                let (work, todo) = channel();
                std::thread::spawn(move || serve(todo));
                let this = FakeQueue::alloc().set_ivars(Queue { work, sets: Arc::default() });
                // SAFETY: `init` of NSObject.
                let this: Retained<FakeQueue> = unsafe { msg_send![super(this), init] };
                ProtocolObject::from_retained(this)
            })
        }
        #[unsafe(method_id(newBufferWithLength:options:))]
        fn newBufferWithLength_options(
            &self,
            length: usize,
            options: MTLResourceOptions,
        ) -> Option<Retained<ProtocolObject<dyn MTLBuffer>>> {
            FakeBuffer::of_device(length, options)
        }
        #[unsafe(method(heapBufferSizeAndAlignWithLength:options:))]
        fn heapBufferSizeAndAlignWithLength_options(&self, length: usize, _: MTLResourceOptions) -> MTLSizeAndAlign {
            memory::heap_size(length)
        }
        #[unsafe(method_id(newHeapWithDescriptor:))]
        fn newHeapWithDescriptor(&self, descriptor: &MTLHeapDescriptor) -> Option<Retained<ProtocolObject<dyn MTLHeap>>> {
            memory::heap(descriptor)
        }
        #[unsafe(method_id(newBufferWithBytesNoCopy:length:options:deallocator:))]
        fn newBufferWithBytesNoCopy(
            &self,
            pointer: NonNull<c_void>,
            length: usize,
            _: MTLResourceOptions,
            deallocator: Option<&DynBlock<dyn Fn(NonNull<c_void>, usize)>>,
        ) -> Option<Retained<ProtocolObject<dyn MTLBuffer>>> {
            FakeBuffer::of_caller(pointer, length, deallocator.map(|d| d.copy()))
        }
        #[unsafe(method_id(newLibraryWithSource:options:error:))]
        fn newLibraryWithSource(
            &self,
            source: &NSString,
            options: Option<&MTLCompileOptions>,
            error: *mut *mut NSError,
        ) -> Option<Retained<ProtocolObject<dyn MTLLibrary>>> {
            let source = compiler::changed(source.to_string());
            let (version, math) = options.map_or((0, None), |o| objc::compile_options(std::ptr::from_ref(o).cast_mut().cast()));
            let eager = |math| compiler::kernels(&source).find_map(|name| compiler::compile(&source, name, math).err());
            let made = match compiler::refused_version(&source, version) {
                Some(e) => Err(e),
                None => compiler::math(&source, math).and_then(|math| match compiler::EAGER.load(SeqCst).then(|| eager(math)).flatten() {
                    Some(e) => Err(e),
                    None => Ok(math),
                }),
            };
            match made {
                Err(e) => {
                    give(error, ns_error(3, &e));
                    None
                }
                Ok(math) => {
                    let this = FakeLibrary::alloc().set_ivars((source, math));
                    // SAFETY: `init` of NSObject.
                    let this: Retained<FakeLibrary> = unsafe { msg_send![super(this), init] };
                    Some(ProtocolObject::from_retained(this))
                }
            }
        }
        #[unsafe(method_id(newResidencySetWithDescriptor:error:))]
        fn newResidencySet(
            &self,
            _: &MTLResidencySetDescriptor,
            _: *mut *mut NSError,
        ) -> Option<Retained<ProtocolObject<dyn MTLResidencySet>>> {
            assert!(!FAULTS.old_system.load(SeqCst), "a residency set of a system before macOS 15");
            COUNTS.residency_sets.fetch_add(1, SeqCst);
            let this = FakeSet::alloc().set_ivars(Mutex::default());
            // SAFETY: `init` of NSObject.
            let this: Retained<FakeSet> = unsafe { msg_send![super(this), init] };
            Some(ProtocolObject::from_retained(this))
        }
        #[unsafe(method_id(newBinaryArchiveWithDescriptor:error:))]
        fn newBinaryArchive(
            &self,
            descriptor: &MTLBinaryArchiveDescriptor,
            error: *mut *mut NSError,
        ) -> Option<Retained<ProtocolObject<dyn MTLBinaryArchive>>> {
            let file = descriptor.url().map(|u| std::fs::read_to_string(u.path().unwrap().to_string()).unwrap_or_default());
            let keys = file.as_ref().map_or(Some(""), |f| f.strip_prefix(ARCHIVE_MAGIC));
            match keys {
                Some(keys) => {
                    let this = FakeArchive::alloc().set_ivars(Mutex::new(keys.lines().map(str::to_string).collect()));
                    // SAFETY: `init` of NSObject.
                    let this: Retained<FakeArchive> = unsafe { msg_send![super(this), init] };
                    Some(ProtocolObject::from_retained(this))
                }
                None => {
                    give(error, ns_error(1, "the file is not an archive"));
                    None
                }
            }
        }
        #[unsafe(method_id(newComputePipelineStateWithDescriptor:options:reflection:error:))]
        fn newComputePipelineStateWithDescriptor(
            &self,
            descriptor: &MTLComputePipelineDescriptor,
            options: MTLPipelineOption,
            _: *mut *mut AnyObject,
            error: *mut *mut NSError,
        ) -> Option<Retained<ProtocolObject<dyn MTLComputePipelineState>>> {
            let function = descriptor.computeFunction().expect("a pipeline without a function");
            let only_archives = options.contains(MTLPipelineOption::FailOnBinaryArchiveMiss);
            let archives = descriptor.binaryArchives().filter(|_| only_archives);
            let has = |n| archives.iter().any(|a| archive(&a.objectAtIndex(n)).lock().unwrap().contains(&compiled(&function).key));
            match only_archives && !(0..archives.as_ref().expect("no archive is asked").count()).any(has) {
                true => {
                    give(error, ns_error(2, "no archive has it"));
                    None
                }
                false => {
                    COUNTS.from_archives.fetch_add(only_archives.into(), SeqCst);
                    Some(pipeline(&function))
                }
            }
        }
        #[unsafe(method_id(newComputePipelineStateWithFunction:error:))]
        fn newComputePipelineStateWithFunction(
            &self,
            function: &ProtocolObject<dyn MTLFunction>,
            _: *mut *mut NSError,
        ) -> Option<Retained<ProtocolObject<dyn MTLComputePipelineState>>> {
            Some(pipeline(function))
        }
    }
    impl FakeDevice {
        /// A system with Metal 4 makes tensors, one since macOS 15 residency sets.
        #[unsafe(method(respondsToSelector:))]
        fn responds(&self, selector: Sel) -> bool {
            let unknown = FAULTS.old_system.load(SeqCst) && selector == sel!(newResidencySetWithDescriptor:error:);
            match selector == sel!(newTensorWithDescriptor:error:) {
                true => compiler::METAL_4.load(SeqCst),
                // SAFETY: that of NSObject.
                false => !unknown && unsafe { msg_send![super(self), respondsToSelector: selector] },
            }
        }
    }
);
fn compiled(function: &ProtocolObject<dyn MTLFunction>) -> &Compiled {
    // SAFETY: functions are made by `FakeLibrary` only.
    let f: &FakeFunction = unsafe { &*std::ptr::from_ref(function).cast() };
    f.ivars()
}

fn pipeline(function: &ProtocolObject<dyn MTLFunction>) -> Retained<ProtocolObject<dyn MTLComputePipelineState>> {
    let this = FakePipeline::alloc().set_ivars(compiled(function).clone());
    // SAFETY: `init` of NSObject.
    let this: Retained<FakePipeline> = unsafe { msg_send![super(this), init] };
    ProtocolObject::from_retained(this)
}

// ---- archives ----
/// The first line of an archive's file.
const ARCHIVE_MAGIC: &str = "a fake archive\n";
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeArchive"]
    #[ivars = Mutex<BTreeSet<String>>]
    pub struct FakeArchive;
    unsafe impl NSObjectProtocol for FakeArchive {}
    unsafe impl MTLBinaryArchive for FakeArchive {
        #[unsafe(method(addComputePipelineFunctionsWithDescriptor:error:))]
        fn add(&self, descriptor: &MTLComputePipelineDescriptor, _: *mut *mut NSError) -> bool {
            let function = descriptor.computeFunction().expect("a pipeline without a function");
            self.ivars().lock().unwrap().insert(compiled(&function).key.clone());
            true
        }
        #[unsafe(method(serializeToURL:error:))]
        fn serialize(&self, url: &NSURL, error: *mut *mut NSError) -> bool {
            let keys: String = self.ivars().lock().unwrap().iter().map(|k| format!("{k}\n")).collect();
            match std::fs::write(url.path().unwrap().to_string(), format!("{ARCHIVE_MAGIC}{keys}")) {
                Ok(()) => true,
                Err(e) => {
                    give(error, ns_error(4, &e.to_string()));
                    false
                }
            }
        }
    }
);
fn archive(a: &ProtocolObject<dyn MTLBinaryArchive>) -> &Mutex<BTreeSet<String>> {
    // SAFETY: archives are made by `FakeDevice` only.
    let a: &FakeArchive = unsafe { &*std::ptr::from_ref(a).cast() };
    a.ivars()
}

macro_rules! shared { ($($t:ty)*) => { $(
    // SAFETY: what is behind these is immutable or locked.
    unsafe impl Send for $t {}
    // SAFETY: as above.
    unsafe impl Sync for $t {}
)* } }
shared! { FakeArchive FakeSet FakeDevice FakeLibrary FakeFunction FakePipeline FakeQueue FakeFence FakeEvent }

/// What a program links to as Metal's own.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> *mut AnyObject {
    if FAULTS.no_device.load(SeqCst) {
        return std::ptr::null_mut();
    }
    let this = FakeDevice::alloc().set_ivars(());
    // SAFETY: `init` of NSObject.
    let this: Retained<FakeDevice> = unsafe { msg_send![super(this), init] };
    Retained::into_raw(this).cast()
}

// ---- commands ----
/// A command buffer on its way to the thread of its queue.
pub struct Committed(Retained<FakeCommands>);
// SAFETY: after `commit` only the queue's thread changes it, behind locks.
unsafe impl Send for Committed {}

/// The thread of a queue: runs command buffers in order.
fn serve(todo: Receiver<Committed>) {
    let mut history = History::default();
    for Committed(commands) in todo {
        autoreleasepool(|_| {
            let (c, early) = (commands.ivars(), FAULTS.early_handlers.load(SeqCst));
            if early {
                c.passes.lock().unwrap().iter().for_each(Part::signal);
                commands.end_with(Ok(()));
            }
            drop(FAULTS.hold.lock());
            let start = c.begun.elapsed().as_secs_f64();
            let (result, late) = (c.run(&mut history), FAULTS.late_handlers.load(SeqCst));
            std::thread::sleep(std::time::Duration::from_millis(late));
            // SAFETY: set before the status says so.
            *c.times.lock().unwrap() = [start, c.begun.elapsed().as_secs_f64()];
            match early {
                true => UNTOLD.lock().unwrap().extend(result.err().map(|(_, why)| why)),
                false => commands.end_with(result),
            }
            c.kept.borrow_mut().clear();
            c.done.notify_all();
        });
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeQueue"]
    #[ivars = Queue]
    pub struct FakeQueue;
    unsafe impl NSObjectProtocol for FakeQueue {}
    unsafe impl MTLCommandQueue for FakeQueue {
        #[unsafe(method(setLabel:))]
        fn setLabel(&self, label: Option<&NSString>) {
            labelled("queue", label);
        }
        #[unsafe(method_id(commandBuffer))]
        fn commandBuffer(&self) -> Option<Retained<ProtocolObject<dyn MTLCommandBuffer>>> {
            (!is_due(&FAULTS.no_commands)).then(|| FakeCommands::new(self.ivars(), true, false))
        }
        #[unsafe(method_id(commandBufferWithUnretainedReferences))]
        fn commandBufferWithUnretainedReferences(&self) -> Option<Retained<ProtocolObject<dyn MTLCommandBuffer>>> {
            (!is_due(&FAULTS.no_commands)).then(|| FakeCommands::new(self.ivars(), false, false))
        }
        #[unsafe(method_id(commandBufferWithDescriptor:))]
        fn commandBufferWithDescriptor(&self, d: &MTLCommandBufferDescriptor) -> Option<Retained<ProtocolObject<dyn MTLCommandBuffer>>> {
            let tells = d.errorOptions().contains(MTLCommandBufferErrorOption::EncoderExecutionStatus);
            (!is_due(&FAULTS.no_commands)).then(|| FakeCommands::new(self.ivars(), d.retainedReferences(), tells))
        }
        #[unsafe(method(addResidencySet:))]
        fn addResidencySet(&self, set: &ProtocolObject<dyn MTLResidencySet>) {
            // SAFETY: sets are made by `FakeDevice` only.
            let set: &FakeSet = unsafe { &*std::ptr::from_ref(set).cast() };
            self.ivars().sets.lock().unwrap().push(set.retain());
        }
    }
);

/// What a queue has: the way to its thread, and its residency sets.
pub struct Queue {
    work: Sender<Committed>,
    sets: Sets,
}
type Sets = Arc<Mutex<Vec<Retained<FakeSet>>>>;

/// What became of an encoder.
pub struct EncoderInfo {
    label: String,
    state: MTLCommandEncoderErrorState,
}
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeEncoderInfo"]
    #[ivars = EncoderInfo]
    pub struct FakeEncoderInfo;
    unsafe impl NSObjectProtocol for FakeEncoderInfo {}
    unsafe impl MTLCommandBufferEncoderInfo for FakeEncoderInfo {
        #[unsafe(method_id(label))]
        fn label(&self) -> Retained<NSString> {
            NSString::from_str(&self.ivars().label)
        }
        #[unsafe(method(errorState))]
        fn errorState(&self) -> MTLCommandEncoderErrorState {
            self.ivars().state
        }
    }
);

/// A part of a command buffer.
pub enum Part {
    Pass(Pass),
    Signal(Retained<FakeEvent>, u64),
}
impl Part {
    fn signal(&self) {
        if let Part::Signal(event, value) = self {
            event.ivars().store(*value, SeqCst);
        }
    }
}
/// A code and what it means.
type Failure = (isize, String);
type Handler = RcBlock<dyn Fn(NonNull<ProtocolObject<dyn MTLCommandBuffer>>)>;
pub struct Commands {
    queue: Sender<Committed>,
    sets: Sets,
    retains: bool,
    /// Whether its error tells what became of each encoder.
    tells: bool,
    states: Mutex<Vec<EncoderInfo>>,
    kept: RefCell<Vec<Retained<AnyObject>>>,
    passes: Mutex<Vec<Part>>,
    handlers: RefCell<Vec<Handler>>,
    status: Mutex<(MTLCommandBufferStatus, Option<Failure>)>,
    done: Condvar,
    begun: Instant,
    times: Mutex<[f64; 2]>,
}
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeCommands"]
    #[ivars = Commands]
    pub struct FakeCommands;
    impl FakeCommands {
        #[unsafe(method(GPUStartTime))]
        fn gpu_start(&self) -> f64 {
            self.ivars().times.lock().unwrap()[0]
        }
        #[unsafe(method(GPUEndTime))]
        fn gpu_end(&self) -> f64 {
            self.ivars().times.lock().unwrap()[1]
        }
    }
    unsafe impl NSObjectProtocol for FakeCommands {}
    unsafe impl MTLCommandBuffer for FakeCommands {
        #[unsafe(method(setLabel:))]
        fn setLabel(&self, label: Option<&NSString>) {
            labelled("commands", label);
        }
        #[unsafe(method_id(computeCommandEncoderWithDispatchType:))]
        fn computeCommandEncoderWithDispatchType(&self, kind: MTLDispatchType) -> Option<Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>> {
            (!is_due(&FAULTS.no_encoder)).then(|| {
                COUNTS.encoders.fetch_add(1, SeqCst);
                let pass = Pass { concurrent: kind == MTLDispatchType::Concurrent, ..Pass::default() };
                let e = Encoder {
                    of: self.retain(),
                    pass: RefCell::new(Some(pass)),
                    pipeline: RefCell::new(None),
                    binds: RefCell::new(vec![None; 31]),
                    groups: Cell::new(0),
                };
                let this = FakeEncoder::alloc().set_ivars(e);
                // SAFETY: `init` of NSObject.
                let this: Retained<FakeEncoder> = unsafe { msg_send![super(this), init] };
                ProtocolObject::from_retained(this)
            })
        }
        #[unsafe(method_id(blitCommandEncoder))]
        fn blitCommandEncoder(&self) -> Option<Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>> {
            (!is_due(&FAULTS.no_encoder)).then(|| {
                COUNTS.encoders.fetch_add(1, SeqCst);
                let this = FakeBlit::alloc().set_ivars((self.retain(), RefCell::new(Some(Pass::default()))));
                // SAFETY: `init` of NSObject.
                let this: Retained<FakeBlit> = unsafe { msg_send![super(this), init] };
                ProtocolObject::from_retained(this)
            })
        }
        #[unsafe(method(encodeSignalEvent:value:))]
        fn encodeSignalEvent(&self, event: &ProtocolObject<dyn MTLEvent>, value: u64) {
            // SAFETY: events are made by `FakeDevice` only.
            let event: &FakeEvent = unsafe { &*std::ptr::from_ref(event).cast() };
            self.ivars().passes.lock().unwrap().push(Part::Signal(event.retain(), value));
        }
        #[unsafe(method(addCompletedHandler:))]
        fn addCompletedHandler(&self, block: MTLCommandBufferHandler) {
            // SAFETY: a block by contract.
            self.ivars().handlers.borrow_mut().push(unsafe { RcBlock::copy(block) }.unwrap());
        }
        #[unsafe(method(commit))]
        fn commit(&self) {
            COUNTS.command_buffers.fetch_add(1, SeqCst);
            self.ivars().status.lock().unwrap().0 = MTLCommandBufferStatus::Committed;
            self.ivars().queue.send(Committed(self.retain())).expect("the queue's thread has ended");
        }
        #[unsafe(method(waitUntilCompleted))]
        fn waitUntilCompleted(&self) {
            let mut status = self.ivars().status.lock().unwrap();
            while !matches!(status.0, MTLCommandBufferStatus::Completed | MTLCommandBufferStatus::Error) {
                status = self.ivars().done.wait(status).unwrap();
            }
        }
        #[unsafe(method(status))]
        fn status(&self) -> MTLCommandBufferStatus {
            self.ivars().status.lock().unwrap().0
        }
        #[unsafe(method_id(error))]
        fn error(&self) -> Option<Retained<NSError>> {
            self.ivars().error()
        }
    }
);
impl Commands {
    /// Runs what it holds.
    fn run(&self, history: &mut History) -> Result<(), Failure> {
        let passes = std::mem::take(&mut *self.passes.lock().unwrap());
        let (failed, code) = (is_due(&FAULTS.fail_after), FAULTS.fail_code.load(SeqCst) as isize);
        let (mut result, mut states, late) = (Ok(()), vec![], FAULTS.late_handlers.load(SeqCst));
        for part in &passes {
            let Part::Pass(p) = part else {
                if result.is_ok() || late > 0 {
                    part.signal();
                }
                continue;
            };
            let was_right = result.is_ok();
            let now = failed && states.len() == FAULTS.fail_encoder.load(SeqCst);
            result = result.and_then(|()| if now { Err((code, "as asked".to_string())) } else { history.run(p).map_err(|e| (1, e)) });
            let state = match (was_right, &result) {
                (false, _) => MTLCommandEncoderErrorState::Pending,
                (_, Ok(())) => MTLCommandEncoderErrorState::Completed,
                (_, Err(_)) => MTLCommandEncoderErrorState::Faulted,
            };
            states.push(EncoderInfo { label: p.label.clone(), state });
        }
        *self.states.lock().unwrap() = states;
        result
    }
    fn error(&self) -> Option<Retained<NSError>> {
        let status = self.status.lock().unwrap();
        let (code, why) = status.1.as_ref()?;
        if !self.tells {
            return Some(ns_error(*code, why));
        }
        let info = |i: EncoderInfo| -> Retained<FakeEncoderInfo> {
            let this = FakeEncoderInfo::alloc().set_ivars(i);
            // SAFETY: `init` of NSObject.
            unsafe { msg_send![super(this), init] }
        };
        let all: Vec<_> = std::mem::take(&mut *self.states.lock().unwrap()).into_iter().map(info).collect();
        let all = NSArray::from_retained_slice(&all);
        let told = objc::dictionary(objc::encoder_info_key(), Retained::as_ptr(&all).cast_mut().cast());
        // SAFETY: an object of this class with a count of one.
        unsafe { Retained::from_raw(objc::error(*code, why, told).cast()) }
    }
}
impl FakeCommands {
    fn new(queue: &Queue, retains: bool, tells: bool) -> Retained<ProtocolObject<dyn MTLCommandBuffer>> {
        let c = Commands {
            queue: queue.work.clone(),
            sets: queue.sets.clone(),
            retains,
            tells,
            states: Mutex::default(),
            kept: RefCell::default(),
            passes: Mutex::default(),
            handlers: RefCell::default(),
            status: Mutex::new((MTLCommandBufferStatus::NotEnqueued, None)),
            done: Condvar::new(),
            begun: Instant::now(),
            times: Mutex::default(),
        };
        let this = Self::alloc().set_ivars(c);
        // SAFETY: `init` of NSObject.
        let this: Retained<FakeCommands> = unsafe { msg_send![super(this), init] };
        ProtocolObject::from_retained(this)
    }
    /// Tells how it ended, also its handlers.
    fn end_with(&self, result: Result<(), Failure>) {
        let c = self.ivars();
        let status = if result.is_ok() { MTLCommandBufferStatus::Completed } else { MTLCommandBufferStatus::Error };
        *c.status.lock().unwrap() = (status, result.err());
        let this = ProtocolObject::<dyn MTLCommandBuffer>::from_ref(self);
        for h in std::mem::take(&mut *c.handlers.borrow_mut()) {
            h.call((NonNull::from(this),));
        }
    }
    fn end(&self, pass: Pass) {
        self.ivars().passes.lock().unwrap().push(Part::Pass(pass));
    }
}
fn fence(f: &ProtocolObject<dyn MTLFence>) -> usize {
    std::ptr::from_ref(f).cast::<u8>() as usize
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeBlit"]
    #[ivars = (Retained<FakeCommands>, RefCell<Option<Pass>>)]
    pub struct FakeBlit;
    unsafe impl NSObjectProtocol for FakeBlit {}
    unsafe impl MTLCommandEncoder for FakeBlit {
        #[unsafe(method(endEncoding))]
        fn endEncoding(&self) {
            self.ivars().0.end(self.ivars().1.take().expect("endEncoding twice"));
        }
    }
    unsafe impl MTLBlitCommandEncoder for FakeBlit {
        #[unsafe(method(waitForFence:))]
        fn waitForFence(&self, f: &ProtocolObject<dyn MTLFence>) {
            self.ivars().1.borrow_mut().as_mut().expect("after endEncoding").waits.push(fence(f));
        }
        #[unsafe(method(updateFence:))]
        fn updateFence(&self, f: &ProtocolObject<dyn MTLFence>) {
            if !FAULTS.skip_fences.load(SeqCst) {
                self.ivars().1.borrow_mut().as_mut().expect("after endEncoding").updates.push(fence(f));
            }
        }
        #[unsafe(method(copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:))]
        fn copyFromBuffer(
            &self,
            source: &ProtocolObject<dyn MTLBuffer>,
            source_offset: usize,
            destination: &ProtocolObject<dyn MTLBuffer>,
            destination_offset: usize,
            len: usize,
        ) {
            let copy = Copy { from: bind(source, source_offset), to: bind(destination, destination_offset), len };
            self.ivars().1.borrow_mut().as_mut().expect("after endEncoding").copies.push(copy);
        }
    }
);

pub struct Encoder {
    of: Retained<FakeCommands>,
    pass: RefCell<Option<Pass>>,
    pipeline: RefCell<Option<Compiled>>,
    binds: RefCell<Vec<Option<Bind>>>,
    groups: Cell<usize>,
}
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeEncoder"]
    #[ivars = Encoder]
    pub struct FakeEncoder;
    unsafe impl NSObjectProtocol for FakeEncoder {}
    unsafe impl MTLCommandEncoder for FakeEncoder {
        #[unsafe(method(endEncoding))]
        fn endEncoding(&self) {
            assert_eq!(self.ivars().groups.get(), 0, "a group is open");
            let pass = self.ivars().pass.take().expect("endEncoding twice");
            self.ivars().of.end(pass);
        }
        #[unsafe(method(setLabel:))]
        fn setLabel(&self, label: Option<&NSString>) {
            self.ivars().pass.borrow_mut().as_mut().expect("after endEncoding").label = label.map(|l| l.to_string()).unwrap_or_default();
        }
        #[unsafe(method(pushDebugGroup:))]
        fn pushDebugGroup(&self, label: &NSString) {
            assert!(label.to_string().contains(".rs:"), "a group says where its op stands: {label}");
            COUNTS.debug_groups.fetch_add(1, SeqCst);
            self.ivars().groups.set(self.ivars().groups.get() + 1);
        }
        #[unsafe(method(popDebugGroup))]
        fn popDebugGroup(&self) {
            assert!(self.ivars().groups.get() > 0, "no group is open");
            self.ivars().groups.set(self.ivars().groups.get() - 1);
        }
    }
    unsafe impl MTLComputeCommandEncoder for FakeEncoder {
        #[unsafe(method(setComputePipelineState:))]
        fn setComputePipelineState(&self, state: &ProtocolObject<dyn MTLComputePipelineState>) {
            // SAFETY: states are made by `FakeDevice` only.
            let p: &FakePipeline = unsafe { &*std::ptr::from_ref(state).cast() };
            *self.ivars().pipeline.borrow_mut() = Some(p.ivars().clone());
        }
        #[unsafe(method(setBuffer:offset:atIndex:))]
        fn setBuffer(&self, buffer: Option<&ProtocolObject<dyn MTLBuffer>>, offset: usize, index: usize) {
            let of = self.ivars().of.ivars();
            self.ivars().binds.borrow_mut()[index] = buffer.map(|b| {
                if of.retains {
                    // SAFETY: an object.
                    let object: &AnyObject = unsafe { &*std::ptr::from_ref(b).cast() };
                    of.kept.borrow_mut().push(object.retain());
                }
                bind(b, offset)
            });
        }
        #[unsafe(method(setBufferOffset:atIndex:))]
        fn setBufferOffset(&self, to: usize, index: usize) {
            match &mut self.ivars().binds.borrow_mut()[index] {
                Some(Bind::Buffer { offset, .. }) => *offset = to,
                _ => panic!("an offset of no buffer"),
            }
        }
        #[unsafe(method(memoryBarrierWithScope:))]
        fn memoryBarrierWithScope(&self, _: MTLBarrierScope) {
            COUNTS.barriers.fetch_add(1, SeqCst);
            if !is_due(&FAULTS.skip_barrier) {
                self.ivars().pass.borrow_mut().as_mut().expect("after endEncoding").acts.push(Act::Barrier);
            }
        }
        #[unsafe(method(waitForFence:))]
        fn waitForFence(&self, f: &ProtocolObject<dyn MTLFence>) {
            self.ivars().pass.borrow_mut().as_mut().expect("after endEncoding").waits.push(fence(f));
        }
        #[unsafe(method(updateFence:))]
        fn updateFence(&self, f: &ProtocolObject<dyn MTLFence>) {
            if !FAULTS.skip_fences.load(SeqCst) {
                self.ivars().pass.borrow_mut().as_mut().expect("after endEncoding").updates.push(fence(f));
            }
        }
        #[unsafe(method(dispatchThreadgroups:threadsPerThreadgroup:))]
        fn dispatchThreadgroups(&self, groups: MTLSize, threads: MTLSize) {
            COUNTS.dispatches.fetch_add(1, SeqCst);
            let e = self.ivars();
            let of = e.pipeline.borrow().clone().expect("a dispatch without a pipeline");
            let sets = e.of.ivars().sets.lock().unwrap();
            let is_missing = |b: &&Bind| match b {
                Bind::Buffer { object, heap, .. } => !is_resident(&sets, heap.unwrap_or(*object)),
                Bind::Bytes(_) => false,
            };
            COUNTS.not_resident.fetch_add(e.binds.borrow().iter().flatten().filter(is_missing).count() as u64, SeqCst);
            let size = |s: MTLSize| [s.width as u32, s.height as u32, s.depth as u32];
            let (groups, threads) = (size(groups), size(threads));
            let d = Dispatch { of, groups, threads, binds: e.binds.borrow().clone() };
            let mut pass = e.pass.borrow_mut();
            let acts = &mut pass.as_mut().expect("after endEncoding").acts;
            if FAULTS.extra_barriers.load(SeqCst) && matches!(acts.last(), Some(Act::Dispatch(_))) {
                acts.push(Act::Barrier);
            }
            acts.push(Act::Dispatch(d));
        }
    }
);
