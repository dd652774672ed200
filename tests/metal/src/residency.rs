//! Residency sets: which buffers and heaps the GPU may use without being told of each.

#![allow(non_snake_case)]
use crate::faults::COUNTS;
use objc2::rc::Retained;
use objc2::runtime::{AnyObject, NSObject, NSObjectProtocol, ProtocolObject};
use objc2::{DefinedClass, Message, define_class};
use objc2_metal::*;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;

/// What is in a set: those that are committed, and what changes at the next commit.
#[derive(Default)]
pub struct Residents {
    committed: Vec<Retained<AnyObject>>,
    added: Vec<Retained<AnyObject>>,
    removed: Vec<usize>,
    resident: bool,
}
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeSet"]
    #[ivars = Mutex<Residents>]
    pub struct FakeSet;
    unsafe impl NSObjectProtocol for FakeSet {}
    unsafe impl MTLResidencySet for FakeSet {
        #[unsafe(method(addAllocation:))]
        fn addAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
            COUNTS.made_resident.fetch_add(1, SeqCst);
            // SAFETY: an object.
            let object: &AnyObject = unsafe { &*std::ptr::from_ref(allocation).cast() };
            self.ivars().lock().unwrap().added.push(object.retain());
        }
        #[unsafe(method(removeAllocation:))]
        fn removeAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
            self.ivars().lock().unwrap().removed.push(std::ptr::from_ref(allocation).cast::<u8>() as usize);
        }
        #[unsafe(method(commit))]
        fn commit(&self) {
            let mut all = self.ivars().lock().unwrap();
            let (added, removed) = (std::mem::take(&mut all.added), std::mem::take(&mut all.removed));
            all.committed.extend(added);
            for gone in removed {
                let at = all.committed.iter().position(|b| Retained::as_ptr(b) as usize == gone);
                all.committed.swap_remove(at.expect("what is to leave is not in the set"));
            }
        }
        #[unsafe(method(requestResidency))]
        fn requestResidency(&self) {
            self.ivars().lock().unwrap().resident = true;
        }
    }
);
/// Whether one of these sets has committed this buffer or heap.
pub fn is_resident(sets: &[Retained<FakeSet>], object: usize) -> bool {
    sets.iter().any(|s| {
        let all = s.ivars().lock().unwrap();
        all.resident && all.committed.iter().any(|b| Retained::as_ptr(b) as usize == object)
    })
}
