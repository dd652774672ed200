//! The GPU of the library's own tests: the one that `TL_TEST_DEVICE` names (`cpu` for none), else the machine's, else a software driver.

use super::Device;
use crate::error::TensorResult;

/// What `open` makes of the name of the GPU under test; `None` where there is none, unless `TL_REQUIRE_GPU=1` or `TL_TEST_DEVICE` asks for one.
pub(crate) fn open<T>(open: impl Fn(&str) -> TensorResult<T>) -> Option<T> {
    let name = std::env::var("TL_TEST_DEVICE").unwrap_or_default();
    let opened = match name.as_str() {
        "cpu" => return None,
        "" => open("gpu").or_else(|_| open("vulkan")),
        name => open(name),
    };
    let required = !name.is_empty() || std::env::var("TL_REQUIRE_GPU").is_ok_and(|v| v == "1");
    opened.inspect_err(|e| assert!(!required, "{name}: {e}")).ok()
}

/// A CPU device of its own, with a pool of its own.
pub(crate) fn cpu() -> Device {
    Device::of(crate::backends::cpu::CpuBackend::with_threads(1), true)
}

/// Has `auto` mean the CPU.
#[cfg(all(feature = "gpu", feature = "text"))]
pub(crate) fn fall_back() {
    Device::fall_back(crate::error::TensorError::UnsupportedDevice("as asked".into()));
}

/// A device that is lost, which the CPU stands behind: what it is left for.
#[cfg(all(feature = "gpu", feature = "text"))]
pub(crate) fn left() -> Option<Device> {
    let device = cpu();
    device.set_fallback(vec!["cpu".into()]);
    device.fallback(&crate::error::TensorError::DeviceLost("as asked".into()))
}

/// The CPU, and the GPU under test where there is one.
pub(crate) fn devices() -> Vec<Device> {
    [Some(Device::cpu()), gpu()].into_iter().flatten().collect()
}

/// The GPU under test as a device, on which small cases run too.
pub(crate) fn gpu() -> Option<Device> {
    open(Device::open).inspect(|d| d.set_adaptive(false))
}
