//! Fences between encoders, and events that commands set.

#![allow(non_snake_case)]
use objc2::runtime::{NSObject, NSObjectProtocol};
use objc2::{DefinedClass, define_class};
use objc2_metal::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeFence"]
    #[ivars = ()]
    pub struct FakeFence;
    unsafe impl NSObjectProtocol for FakeFence {}
    unsafe impl MTLFence for FakeFence {}
);
define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeEvent"]
    #[ivars = AtomicU64]
    pub struct FakeEvent;
    unsafe impl NSObjectProtocol for FakeEvent {}
    unsafe impl MTLEvent for FakeEvent {}
    unsafe impl MTLSharedEvent for FakeEvent {
        #[unsafe(method(signaledValue))]
        fn signaledValue(&self) -> u64 {
            self.ivars().load(SeqCst)
        }
    }
);
