//! Residency sets, which macOS 15 has: the GPU's memory stays mapped for it between submits, so that work after a pause need not wait for that.

use crate::backends::lock::lock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_metal::{MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

/// A set holds at most this part of what the GPU may use: the system maps a set that changes anew as a whole.
const PART: u64 = 20;

struct Set {
    raw: Retained<ProtocolObject<dyn MTLResidencySet>>,
    bytes: u64,
    /// Whether buffers were added that are not committed.
    dirty: bool,
}

// SAFETY: a set is used by one thread at a time, behind the lock of its list.
unsafe impl Send for Set {}

/// The sets of a queue; none where the system has no such sets.
pub(super) struct Residency {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    able: bool,
    sets: Mutex<Vec<Set>>,
    dirty: AtomicBool,
}

impl Residency {
    pub fn new(device: Retained<ProtocolObject<dyn MTLDevice>>, queue: Retained<ProtocolObject<dyn MTLCommandQueue>>) -> Residency {
        let able = device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:));
        Residency { device, queue, able, sets: Mutex::default(), dirty: AtomicBool::new(false) }
    }

    /// Adds a buffer; gives the number of its set, if there is one.
    pub fn add(&self, buffer: &ProtocolObject<dyn MTLBuffer>, bytes: usize) -> Option<usize> {
        if !self.able {
            return None;
        }
        let (mut sets, bytes) = (lock(&self.sets), bytes as u64);
        let room = self.device.recommendedMaxWorkingSetSize() / PART;
        let number = match sets.iter().position(|s| s.bytes + bytes <= room) {
            Some(number) => number,
            None => {
                let made = autoreleasepool(|_| self.device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()));
                let raw = made.ok()?;
                self.queue.addResidencySet(&raw);
                sets.push(Set { raw, bytes: 0, dirty: false });
                sets.len() - 1
            }
        };
        let set = &mut sets[number];
        set.raw.addAllocation(ProtocolObject::from_ref(buffer));
        set.bytes += bytes;
        set.dirty = true;
        self.dirty.store(true, Release);
        Some(number)
    }

    /// Takes a buffer out of its set, which keeps it alive until then.
    pub fn remove(&self, number: usize, buffer: &ProtocolObject<dyn MTLBuffer>, bytes: usize) {
        if let Some(set) = lock(&self.sets).get_mut(number) {
            set.raw.removeAllocation(ProtocolObject::from_ref(buffer));
            set.raw.commit();
            set.bytes = set.bytes.saturating_sub(bytes as u64);
        }
    }

    /// Before a submit: what was added is made resident.
    pub fn commit(&self) {
        if self.dirty.swap(false, Acquire) {
            for set in lock(&self.sets).iter_mut().filter(|s| s.dirty) {
                set.raw.commit();
                set.raw.requestResidency();
                set.dirty = false;
            }
        }
    }
}
