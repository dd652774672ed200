//! What the tests of other programs find under this name, with the devices of this one: those that run here too are compiled in with `path`.
#![allow(dead_code)]

use super::backend::{Change, MslBackend, apple};
use super::toolchain::Mode;
use std::sync::{Arc, OnceLock};
use tensorlogic::Device;
use tensorlogic::plan::AdapterInfo;

#[path = "../common/mod.rs"]
mod shared;
#[allow(unused_imports)]
pub use shared::{assert_close, noise, noise_f32};

/// The backend that executes Metal sources, and its device, on which small cases run too; `None` where there is no compiler.
pub fn msl() -> Option<&'static (Arc<MslBackend>, Device)> {
    static ONE: OnceLock<Option<(Arc<MslBackend>, Device)>> = OnceLock::new();
    ONE.get_or_init(|| open(Mode::Plain, None)).as_ref()
}

/// A backend of its own, and its device; sources are changed before they are compiled.
pub fn open(mode: Mode, change: Option<Change>) -> Option<(Arc<MslBackend>, Device)> {
    open_as(apple(), mode, change)
}

/// The same of a GPU that answers otherwise.
pub fn open_as(info: AdapterInfo, mode: Mode, change: Option<Change>) -> Option<(Arc<MslBackend>, Device)> {
    let backend = MslBackend::open(info, mode, change)?;
    let device = Device::from_backend(backend.clone());
    device.set_adaptive(false);
    Some((backend, device))
}

/// The GPU under test: here always the one that executes Metal sources.
pub fn gpu() -> Option<Device> {
    msl().map(|m| m.1.clone())
}

/// The CPU, and the GPU under test where there is one. Before it comes a device on which the CPU does what the GPU will be asked for, so that the
/// kernels of a test are compiled together.
pub fn devices() -> Vec<Device> {
    let learner = msl().and_then(|m| m.0.learner()).map(|b| Device::from_backend(b));
    learner.iter().for_each(|d| d.set_adaptive(false));
    [Some(Device::cpu()), learner, gpu()].into_iter().flatten().collect()
}

/// Does `work` on the GPU under test, where there is one: here twice, of which the first time only tells which kernels it needs.
pub fn on_gpu(work: impl Fn(&Device)) {
    if let Some((backend, device)) = open(Mode::Plain, None) {
        backend.with_kernels_of(|_| work(&device));
    }
}
