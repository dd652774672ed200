//! Residency sets, which macOS 15 has: the GPU's memory stays mapped for it between submits, so that work after a pause need not wait for that.

use crate::backends::lock::lock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::{Message, sel};
use objc2_metal::{MTLAllocation, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor};
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex};

/// A set holds at most this part of what the GPU may use: the system maps a set that changes anew as a whole.
const WORKING_SET_PARTS: u64 = 20;

struct Set {
    raw: Retained<ProtocolObject<dyn MTLResidencySet>>,
    bytes: u64,
    /// Whether something was added that is not committed.
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

    /// Adds a heap or a buffer to a set, if there are such.
    pub fn add(self: &Arc<Residency>, allocation: &ProtocolObject<dyn MTLAllocation>, bytes: usize) -> Option<Resident> {
        if !self.able {
            return None;
        }
        let (mut sets, bytes) = (lock(&self.sets), bytes as u64);
        let room = self.device.recommendedMaxWorkingSetSize() / WORKING_SET_PARTS;
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
        set.raw.addAllocation(allocation);
        set.bytes += bytes;
        set.dirty = true;
        self.dirty.store(true, Release);
        Some(Resident { of: self.clone(), number, allocation: allocation.retain(), bytes })
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

/// What is in a set, and leaves it when this is dropped.
pub(super) struct Resident {
    of: Arc<Residency>,
    number: usize,
    allocation: Retained<ProtocolObject<dyn MTLAllocation>>,
    bytes: u64,
}

impl Drop for Resident {
    fn drop(&mut self) {
        if let Some(set) = lock(&self.of.sets).get_mut(self.number) {
            set.raw.removeAllocation(&self.allocation);
            set.raw.commit();
            set.bytes -= self.bytes;
        }
    }
}
