//! Memory: buffers of the device's own, over the caller's pages and of heaps, and the heaps.
//!
//! A heap is not kept alive by its buffers: one that is released before them ends the process.

#![allow(non_snake_case)]
use crate::faults::{COUNTS, FAULTS};
use crate::objc;
use crate::schedule::Bind;
use crate::tools::labelled;
use block2::RcBlock;
use objc2::rc::Retained;
use objc2::runtime::{NSObject, NSObjectProtocol, ProtocolObject};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;
use objc2_metal::*;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Bytes of all that was allocated.
pub static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// Alignment of memory, and what a length without copy is a multiple of: the test machine's pages.
pub const PAGE: usize = 4096;
/// Where buffers of a heap begin.
const HEAP_ALIGN: usize = 256;
/// What memory has that nobody wrote, so that it shows.
pub const FILL: u8 = 0xA7;

/// Memory of the process, which is freed with this.
struct Pages {
    ptr: *mut u8,
    layout: Layout,
}
impl Pages {
    /// `None` where tests have it refused, or there is none.
    fn new(len: usize) -> Option<Pages> {
        let layout = Layout::from_size_align(len.max(1), PAGE).ok().filter(|_| !FAULTS.refuse_memory.load(SeqCst))?;
        ALLOCATED.fetch_add(layout.size(), SeqCst);
        // SAFETY: not empty.
        let ptr = unsafe { alloc(layout) };
        // SAFETY: just allocated.
        unsafe { ptr.write_bytes(FILL, layout.size()) };
        Some(Pages { ptr, layout })
    }
}
impl Drop for Pages {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(self.layout.size(), SeqCst);
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.ptr, self.layout) };
    }
}

/// The bytes of a heap's buffers, by where they begin.
type Parts = Arc<Mutex<BTreeMap<usize, usize>>>;
type Deallocator = RcBlock<dyn Fn(NonNull<c_void>, usize)>;
enum Source {
    Device { _pages: Pages },
    Caller { free: Option<Deallocator> },
    Heap { object: usize, start: usize, parts: Parts },
}
pub struct Memory {
    ptr: *mut u8,
    len: usize,
    private: bool,
    source: Source,
}
impl Drop for Memory {
    fn drop(&mut self) {
        match &self.source {
            Source::Device { .. } | Source::Caller { free: None } => {}
            Source::Caller { free: Some(free) } => free.call((NonNull::new(self.ptr.cast()).unwrap(), self.len)),
            Source::Heap { start, parts, .. } => drop(parts.lock().unwrap().remove(start)),
        }
    }
}
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeBuffer"]
    #[ivars = Memory]
    pub struct FakeBuffer;
    unsafe impl NSObjectProtocol for FakeBuffer {}
    unsafe impl MTLAllocation for FakeBuffer {}
    unsafe impl MTLResource for FakeBuffer {
        #[unsafe(method(setLabel:))]
        fn setLabel(&self, label: Option<&NSString>) {
            labelled("buffer", label);
        }
    }
    unsafe impl MTLBuffer for FakeBuffer {
        #[unsafe(method(length))]
        fn length(&self) -> usize {
            self.ivars().len
        }
        #[unsafe(method(contents))]
        fn contents(&self) -> NonNull<c_void> {
            assert!(!self.ivars().private, "contents of a private buffer");
            NonNull::new(self.ivars().ptr.cast()).unwrap()
        }
    }
);
impl FakeBuffer {
    fn new(m: Memory) -> Retained<ProtocolObject<dyn MTLBuffer>> {
        COUNTS.buffers.fetch_add(1, SeqCst);
        let this = Self::alloc().set_ivars(m);
        // SAFETY: `init` of NSObject.
        let this: Retained<FakeBuffer> = unsafe { msg_send![super(this), init] };
        ProtocolObject::from_retained(this)
    }
    /// One with memory of its own.
    pub fn of_device(len: usize, options: MTLResourceOptions) -> Option<Retained<ProtocolObject<dyn MTLBuffer>>> {
        assert!(options.contains(MTLResourceOptions::HazardTrackingModeUntracked), "a buffer whose hazards Metal is to track");
        let pages = Pages::new(len)?;
        let private = options.contains(MTLResourceOptions::StorageModePrivate);
        COUNTS.device_buffers.fetch_add(1, SeqCst);
        Some(FakeBuffer::new(Memory { ptr: pages.ptr, len, private, source: Source::Device { _pages: pages } }))
    }
    /// One over the caller's pages; as the real one, whole pages only.
    pub fn of_caller(at: NonNull<c_void>, len: usize, free: Option<Deallocator>) -> Option<Retained<ProtocolObject<dyn MTLBuffer>>> {
        let allowed = at.addr().get().is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && !FAULTS.refuse_memory.load(SeqCst);
        allowed.then(|| FakeBuffer::new(Memory { ptr: at.as_ptr().cast(), len, private: false, source: Source::Caller { free } }))
    }
}
/// A buffer bound from a byte on.
pub fn bind(b: &ProtocolObject<dyn MTLBuffer>, offset: usize) -> Bind {
    // SAFETY: buffers are made here only.
    let f: &FakeBuffer = unsafe { &*std::ptr::from_ref(b).cast() };
    let m = f.ivars();
    let heap = if let Source::Heap { object, .. } = m.source { Some(object) } else { None };
    Bind::Buffer { object: std::ptr::from_ref(f) as usize, heap, ptr: m.ptr as usize, len: m.len, offset }
}

// ---- heaps ----
pub struct Heap {
    pages: Pages,
    options: MTLResourceOptions,
    parts: Parts,
}
impl Drop for Heap {
    fn drop(&mut self) {
        let left = self.parts.lock().unwrap().len();
        if left > 0 {
            objc::die(&format!("a heap is released before {left} of its buffers"));
        }
        COUNTS.heaps_released.fetch_add(1, SeqCst);
    }
}
impl Heap {
    /// The free ranges that begin at multiples of `align`: where, and how long.
    fn gaps(&self, align: usize) -> Vec<(usize, usize)> {
        let parts = self.parts.lock().unwrap();
        let (mut end, mut gaps) = (0usize, vec![]);
        for (start, len) in parts.iter().map(|(s, l)| (*s, *l)).chain([(self.pages.layout.size(), 0)]) {
            let from = end.next_multiple_of(align.max(1));
            gaps.extend((from < start).then(|| (from, start - from)));
            end = start + len;
        }
        gaps
    }
    /// A buffer in the first range that has room for it; `object` is the heap's own.
    fn buffer(&self, object: usize, len: usize, options: MTLResourceOptions) -> Option<Retained<ProtocolObject<dyn MTLBuffer>>> {
        assert_eq!(options, self.options, "a buffer of another kind than its heap");
        let size = heap_size(len).size;
        let (start, _) = self.gaps(HEAP_ALIGN).into_iter().find(|g| g.1 >= size).filter(|_| !FAULTS.refuse_memory.load(SeqCst))?;
        self.parts.lock().unwrap().insert(start, size);
        COUNTS.heap_buffers.fetch_add(1, SeqCst);
        // SAFETY: inside of the heap.
        let ptr = unsafe { self.pages.ptr.add(start) };
        // SAFETY: a range that no buffer has.
        unsafe { ptr.write_bytes(FILL, size) };
        let private = options.contains(MTLResourceOptions::StorageModePrivate);
        let source = Source::Heap { object, start, parts: self.parts.clone() };
        Some(FakeBuffer::new(Memory { ptr, len, private, source }))
    }
}
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeHeap"]
    #[ivars = Heap]
    pub struct FakeHeap;
    unsafe impl NSObjectProtocol for FakeHeap {}
    unsafe impl MTLAllocation for FakeHeap {}
    unsafe impl MTLHeap for FakeHeap {
        #[unsafe(method(setLabel:))]
        fn setLabel(&self, label: Option<&NSString>) {
            labelled("heap", label);
        }
        #[unsafe(method(size))]
        fn size(&self) -> usize {
            self.ivars().pages.layout.size()
        }
        #[unsafe(method(usedSize))]
        fn usedSize(&self) -> usize {
            self.ivars().parts.lock().unwrap().values().sum()
        }
        #[unsafe(method(maxAvailableSizeWithAlignment:))]
        fn maxAvailableSizeWithAlignment(&self, align: usize) -> usize {
            self.ivars().gaps(align).iter().map(|g| g.1).max().unwrap_or(0)
        }
        #[unsafe(method_id(newBufferWithLength:options:))]
        fn newBufferWithLength_options(&self, len: usize, options: MTLResourceOptions) -> Option<Retained<ProtocolObject<dyn MTLBuffer>>> {
            self.ivars().buffer(std::ptr::from_ref(self) as usize, len, options)
        }
    }
);
/// What a buffer takes of a heap.
pub fn heap_size(len: usize) -> MTLSizeAndAlign {
    MTLSizeAndAlign { size: len.max(1).next_multiple_of(HEAP_ALIGN), align: HEAP_ALIGN }
}
/// A heap, unless tests have it refused.
pub fn heap(descriptor: &MTLHeapDescriptor) -> Option<Retained<ProtocolObject<dyn MTLHeap>>> {
    let options = descriptor.resourceOptions();
    assert!(options.contains(MTLResourceOptions::HazardTrackingModeUntracked), "a heap whose hazards Metal is to track");
    assert!(descriptor.size() > 0, "a heap of no size");
    let pages = Pages::new(descriptor.size().next_multiple_of(PAGE)).filter(|_| !FAULTS.refuse_heaps.load(SeqCst))?;
    COUNTS.heaps.fetch_add(1, SeqCst);
    let this = FakeHeap::alloc().set_ivars(Heap { pages, options, parts: Parts::default() });
    // SAFETY: `init` of NSObject.
    let this: Retained<FakeHeap> = unsafe { msg_send![super(this), init] };
    Some(ProtocolObject::from_retained(this))
}
