//! The file of a running process' metrics and findings, for `tl top` and `tl doctor --while`: written only where `TL_METRICS` names one.

use crate::backends::files::write_whole;
use crate::device::Device;
use crate::diagnose::Finding;
use crate::events;
use crate::metrics::prometheus;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks at whether a device computes.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time between two writes.
const WRITE: Duration = Duration::from_millis(250);

/// A device that is watched.
struct Watched {
    device: Device,
    /// Looks since the last write, and those that found it computing.
    looks: u32,
    busy: u32,
    /// The part of the looks before the last write that found it computing.
    utilization: Option<f64>,
}

struct Watch {
    file: PathBuf,
    devices: Mutex<Vec<Watched>>,
}

/// The file that `TL_METRICS` names: in a folder, the one of this process.
fn file() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("TL_METRICS").filter(|v| !v.is_empty())?);
    Some(if path.is_dir() { path.join(format!("{}.json", std::process::id())) } else { path })
}

fn running() -> Option<&'static Watch> {
    static WATCH: OnceLock<Option<Watch>> = OnceLock::new();
    let mut new = false;
    let watch = WATCH.get_or_init(|| {
        new = true;
        file().map(|file| Watch { file, devices: Mutex::default() })
    });
    let watch = watch.as_ref()?;
    if new {
        // Without a thread there are no metrics, and the program runs as it would.
        let _ = std::thread::Builder::new().name("tensorlogic metrics".into()).spawn(|| observe(watch));
        #[cfg(unix)]
        // SAFETY: the function is one of the program and unwinds nothing: it takes locks that it can have, and writes a file.
        unsafe {
            libc::atexit(at_exit)
        };
    }
    Some(watch)
}

/// Watches a device from now on, where `TL_METRICS` names a file.
#[cold]
pub(crate) fn watch(device: &Device) {
    let Some(watch) = running() else { return };
    let mut devices = watch.devices.lock().unwrap_or_else(PoisonError::into_inner);
    if !devices.iter().any(|w| w.device == *device) {
        devices.push(Watched { device: device.clone(), looks: 0, busy: 0, utilization: None });
    }
}

/// What the process ends with.
#[cfg(unix)]
extern "C" fn at_exit() {
    if let Some(watch) = running() {
        let devices = watch.devices.try_lock();
        // Another thread may still hold a device's lock, and would never let it go.
        if let Ok(mut devices) = devices {
            devices.retain(|w| w.device.evaluator().try_lock().is_ok());
            write(&watch.file, &mut devices, true);
        }
    }
}

fn observe(watch: &'static Watch) {
    let mut written = Instant::now();
    loop {
        std::thread::sleep(POLL_INTERVAL);
        let mut devices = watch.devices.lock().unwrap_or_else(PoisonError::into_inner);
        for w in devices.iter_mut() {
            w.looks += 1;
            w.busy += w.device.backend().is_busy() as u32;
        }
        if written.elapsed() >= WRITE {
            written = Instant::now();
            write(&watch.file, &mut devices, false);
        }
    }
}

/// Writes the metrics and findings of every device; as Prometheus' text where the file's name ends with `.prom`.
fn write(file: &Path, devices: &mut [Watched], ended: bool) {
    for w in devices.iter_mut().filter(|w| w.looks > 0) {
        w.utilization = Some(w.busy as f64 / w.looks as f64);
        (w.looks, w.busy) = (0, 0);
    }
    let text = match file.extension().is_some_and(|e| e == "prom") {
        true => prometheus(&devices.iter().map(|w| w.device.metrics()).collect::<Vec<_>>()),
        false => {
            let each = devices.iter().map(|w| {
                let findings: Vec<_> = w.device.look_for_problems().iter().map(Finding::to_json).collect();
                let mut device = w.device.metrics().to_json();
                device["utilization"] = json!(w.utilization);
                device["findings"] = json!(findings);
                device
            });
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
            let devices: Vec<_> = each.collect();
            json!({ "pid": std::process::id(), "time": now, "ended": ended, "devices": devices }).to_string()
        }
    };
    if write_whole(file, text.as_bytes()).is_ok() {
        events::metrics_written(&file.to_string_lossy());
    }
}

/// Writes the file of one device.
#[cfg(all(test, feature = "gpu", feature = "text"))]
pub(crate) fn write_once(file: &Path, device: &Device) {
    write(file, &mut [Watched { device: device.clone(), looks: 0, busy: 0, utilization: None }], false);
}
