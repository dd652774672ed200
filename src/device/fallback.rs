//! Going on elsewhere: the devices of a list that follow one which was lost or is full.

use super::Device;
use crate::error::{TensorError, TensorResult};
use crate::events;
use std::sync::atomic::Ordering::Relaxed;

/// The names that a device may have without an index, and whether they take one.
const KINDS: [(&str, bool); 7] =
    [("auto", false), ("cpu", false), ("gpu", true), ("vulkan", true), ("metal", true), ("metal-wgpu", true), ("dx12", true)];

/// Whether a device can have this name.
pub(super) fn is_name(name: &str) -> bool {
    let (kind, index) = name.split_once(':').map_or((name, None), |(kind, index)| (kind, Some(index)));
    KINDS.iter().any(|(known, takes)| *known == kind && index.is_none_or(|i| *takes && i.parse::<usize>().is_ok()))
}

/// Whether work may go on elsewhere: not with `TL_FALLBACK=error`.
fn is_allowed() -> bool {
    std::env::var("TL_FALLBACK").map_or(true, |v| v != "error")
}

/// Why work went on on another device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackNote {
    /// The name of the device that was left.
    pub from: String,
    /// The name of the device that took over.
    pub to: String,
    /// What happened there.
    pub reason: String,
}

impl std::fmt::Display for FallbackNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; going on with {}", self.from, self.reason, self.to)
    }
}

impl FallbackNote {
    /// The note for leaving `from` because of `error`.
    pub fn new(from: &Device, to: &Device, error: &TensorError) -> FallbackNote {
        let reason = match error {
            TensorError::DeviceLost(why) => format!("the device was lost ({why})"),
            TensorError::OutOfMemory { asked, .. } => format!("out of memory ({asked} bytes asked for)"),
            other => other.to_string(),
        };
        FallbackNote { from: from.name(), to: to.name(), reason }
    }
}

impl Device {
    /// Opens the first of these names that this machine has; the others are what [`Device::fallback`] goes on with.
    pub(super) fn open_list(list: &str) -> TensorResult<Device> {
        let names: Vec<&str> = list.split(',').map(str::trim).collect();
        if let Some(unknown) = names.iter().find(|n| !is_name(n)) {
            let kinds = KINDS.map(|k| k.0).join(", ");
            return Err(TensorError::UnsupportedDevice(format!("{unknown:?} in {list:?} is unknown; allowed are {kinds}")));
        }
        let mut failed = None;
        for (n, name) in names.iter().enumerate() {
            match Device::open(name) {
                Ok(device) => {
                    device.set_fallback(names[n + 1..].iter().map(|n| n.to_string()).collect());
                    return Ok(device);
                }
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        Err(failed.unwrap_or_else(|| TensorError::UnsupportedDevice("an empty list of devices".into())))
    }

    pub(super) fn set_fallback(&self, names: Vec<String>) {
        *self.0.fallback.lock().unwrap_or_else(|e| e.into_inner()) = names;
    }

    /// Whether the device is gone: every use of it gives [`TensorError::DeviceLost`].
    pub fn is_lost(&self) -> bool {
        self.0.backend.is_lost()
    }

    /// The device to go on with after `error`: the next one of the list that this device was opened with which can be opened, and the CPU
    /// behind a GPU that was opened as `auto`. `None` for errors other than a lost device or lack of memory, without such a device, and where
    /// `TL_FALLBACK=error` forbids it. Tensors of the lost device are gone. Each answer is an event (`device.left`) and is counted for the device
    /// that it names ([`Metrics::fallbacks`](crate::metrics::Metrics::fallbacks)).
    ///
    /// ```
    /// use tensorlogic::{Device, TensorError};
    /// let lost = TensorError::DeviceLost("unplugged".into());
    /// assert!(Device::cpu().fallback(&lost).is_none(), "the CPU has no fallback");
    /// if let Ok(gpu) = Device::open("gpu,cpu") {
    ///     assert!(gpu.is_cpu() || gpu.fallback(&lost) == Some(Device::cpu()));
    /// }
    /// ```
    pub fn fallback(&self, error: &TensorError) -> Option<Device> {
        if !matches!(error, TensorError::DeviceLost(_) | TensorError::OutOfMemory { .. }) || !is_allowed() {
            return None;
        }
        let mut names = self.0.fallback.lock().unwrap_or_else(|e| e.into_inner()).clone();
        while !names.is_empty() {
            let name = names.remove(0);
            // A second name of the same device has as little memory.
            if let Some(next) = Device::open(&name).ok().filter(|next| next != self && !next.is_lost()) {
                if !names.is_empty() {
                    next.set_fallback(names);
                }
                let note = FallbackNote::new(self, &next, error);
                events::device_left(&note.from, &note.to, &note.reason);
                next.0.fallbacks.fetch_add(1, Relaxed);
                return Some(next);
            }
        }
        None
    }

    /// How often work came here from a device that was lost or full.
    pub(crate) fn fallbacks(&self) -> u64 {
        self.0.fallbacks.load(Relaxed)
    }

    /// Makes the device behave as lost from its `submits`-th submit on, to try out what a program does then: the driver's device is destroyed.
    /// `TL_TEST_LOSE_DEVICE_AFTER` does the same to the first GPU that a process opens. Nothing happens on the CPU.
    pub fn lose_after(&self, submits: u64) {
        self.0.backend.lose_after(submits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked_and_open_their_first_device() {
        for name in ["auto", "cpu", "gpu", "vulkan:1", "metal:0"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "cuda", "cpu:1", "vulkan:", "vulkan:x", "auto:0"] {
            assert!(!is_name(name), "{name}");
        }
        let e = Device::open("cpu,cuda").unwrap_err().to_string();
        assert!(e.contains("\"cuda\" in \"cpu,cuda\" is unknown"), "{e}");
        // An index that no machine has.
        assert_eq!(Device::open("vulkan:99, cpu").unwrap(), Device::cpu());
        assert!(Device::open("vulkan:99,metal:99").is_err());
    }

    #[test]
    fn taking_over_is_counted() {
        let left = crate::device::under_test::cpu();
        left.set_fallback(vec!["vulkan:99".into(), "cpu".into()]);
        let before = Device::cpu().metrics().fallbacks;
        assert_eq!(left.fallback(&TensorError::DeviceLost("test".into())), Some(Device::cpu()));
        let after = Device::cpu().metrics();
        assert!(after.fallbacks > before && left.metrics().fallbacks == 0);
        assert!(after.to_prometheus().contains("tensorlogic_fallbacks_total{device=\"cpu"), "{}", after.to_prometheus());
    }

    #[test]
    fn only_a_lost_or_a_full_device_is_left() {
        let Some(gpu) = crate::device::under_test::gpu() else { return };
        gpu.set_fallback(vec!["vulkan:99".into(), "cpu".into()]);
        let full = TensorError::OutOfMemory { device: gpu.name(), asked: 1 << 40, in_use: 0, limit: None, help: "" };
        for error in [TensorError::DeviceLost("test".into()), full] {
            assert_eq!(gpu.fallback(&error), Some(Device::cpu()), "{error}");
        }
        assert_eq!(gpu.fallback(&TensorError::Value("test".into())), None);
        gpu.set_fallback(vec![]);
        assert_eq!(gpu.fallback(&TensorError::DeviceLost("test".into())), None);
    }
}
