//! What buffers are backed by: heaps, which small buffers share, and memory of their own for large ones.

use super::residency::{Residency, Resident};
use crate::backends::fragmentation::DriverMemory;
use crate::backends::lock::lock;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{MTLAllocation, MTLBuffer, MTLDevice, MTLHeap, MTLHeapDescriptor, MTLResourceOptions};
use std::sync::{Arc, Mutex, Weak};

/// Memory that only the GPU sees.
pub(super) const PRIVATE: u8 = 0;
/// Memory that the host sees too.
pub(super) const SHARED: u8 = 1;
/// The largest buffer of a heap. What the device adds to fill pages is little beside a larger one, and it takes each back by itself, while a heap
/// stays for as long as any of its buffers.
const LARGEST_IN_HEAP: usize = 1 << 20;
/// The size of a heap: at its end less than an eighth is left over.
const HEAP_BYTES: usize = 8 << 20;

type Heap = Retained<ProtocolObject<dyn MTLHeap>>;

/// Memory that the device gave in one piece. It goes back with the last buffer that it backs.
pub(super) struct Backing {
    /// The heap; `None` for the memory of one buffer.
    heap: Option<Heap>,
    kind: u8,
    bytes: usize,
    _resident: Option<Resident>,
}

// SAFETY: Metal's heaps may be used by any thread.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

/// A buffer and what backs it.
pub(super) type Backed = (Retained<ProtocolObject<dyn MTLBuffer>>, Arc<Backing>);

/// What the device gave for buffers.
pub(super) struct Heaps {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    pub residency: Arc<Residency>,
    pub labels: bool,
    /// Oldest first: these are filled first, so that later ones become empty.
    given: Mutex<Vec<Weak<Backing>>>,
}

/// How memory of a kind is made. Metal does not track what it is used for.
pub(super) fn options(kind: u8) -> MTLResourceOptions {
    let storage = if kind == PRIVATE { MTLResourceOptions::StorageModePrivate } else { MTLResourceOptions::StorageModeShared };
    storage | MTLResourceOptions::HazardTrackingModeUntracked
}

impl Heaps {
    pub fn new(device: Retained<ProtocolObject<dyn MTLDevice>>, residency: Arc<Residency>, labels: bool) -> Heaps {
        Heaps { device, residency, labels, given: Mutex::default() }
    }

    /// A new buffer: part of a heap, unless it is large or Metal refuses one. `None` where there is no room for it.
    pub fn buffer(&self, bytes: usize, kind: u8) -> Option<Backed> {
        let mut given = lock(&self.given);
        given.retain(|b| b.strong_count() > 0);
        let part = if bytes <= LARGEST_IN_HEAP { self.part(&mut given, bytes, kind) } else { None };
        part.or_else(|| {
            let raw = self.device.newBufferWithLength_options(bytes, options(kind))?;
            let backing = self.backing(ProtocolObject::from_ref(&*raw), None, bytes, kind);
            given.push(Arc::downgrade(&backing));
            Some((raw, backing))
        })
    }

    /// A part of the first heap with room for it, or of a new one.
    fn part(&self, given: &mut Vec<Weak<Backing>>, bytes: usize, kind: u8) -> Option<Backed> {
        let need = self.device.heapBufferSizeAndAlignWithLength_options(bytes, options(kind));
        let of = |b: Arc<Backing>| {
            let heap = b.heap.as_ref().filter(|h| b.kind == kind && h.maxAvailableSizeWithAlignment(need.align) >= need.size)?;
            Some((heap.newBufferWithLength_options(bytes, options(kind))?, b))
        };
        given.iter().filter_map(Weak::upgrade).find_map(of).or_else(|| {
            let descriptor = MTLHeapDescriptor::new();
            descriptor.setSize(HEAP_BYTES);
            descriptor.setResourceOptions(options(kind));
            let heap = self.device.newHeapWithDescriptor(&descriptor)?;
            if self.labels {
                heap.setLabel(Some(&NSString::from_str(if kind == PRIVATE { "private heap" } else { "shared heap" })));
            }
            let backing = self.backing(ProtocolObject::from_ref(&*heap), Some(heap.clone()), heap.size(), kind);
            given.push(Arc::downgrade(&backing));
            of(backing)
        })
    }

    /// What backs buffers by this piece of memory, a heap or a buffer.
    pub fn backing(&self, piece: &ProtocolObject<dyn MTLAllocation>, heap: Option<Heap>, bytes: usize, kind: u8) -> Arc<Backing> {
        Arc::new(Backing { heap, kind, bytes, _resident: self.residency.add(piece, bytes) })
    }

    /// What the device gave in pieces, and how much of it buffers have. Files bound in place are not counted.
    pub fn memory(&self) -> DriverMemory {
        let mut told = DriverMemory::default();
        for b in lock(&self.given).iter().filter_map(Weak::upgrade) {
            let (used, free) = b.heap.as_ref().map_or((b.bytes, 0), |h| (h.usedSize(), h.maxAvailableSizeWithAlignment(16)));
            told.blocks += 1;
            told.reserved += b.bytes as u64;
            told.allocated += used as u64;
            told.largest_free = told.largest_free.max(free as u64);
        }
        told
    }
}
