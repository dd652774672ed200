//! The memory hierarchy as it is measured: latency and bandwidth over growing working sets, and the levels that show in them.

mod counters;
mod gpu;
mod host;
mod knees;
mod plot;
mod system;

pub use counters::CacheCounters;
pub(super) use host::SplitMix;
pub use knees::{CacheLevel, WorkingSet};
pub use system::SystemCache;

use crate::device::Device;
use crate::error::TensorResult;
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// What [`hierarchy`] measures.
#[derive(Clone, Copy, Debug)]
pub struct HierarchyOptions {
    /// Bytes of the largest working set; the smallest has 4 KiB.
    pub largest: u64,
    /// Steps from one working set to twice as much.
    pub steps: u32,
    /// Samples of each figure, of which the best counts: other work on the machine can only make it worse.
    pub samples: usize,
    /// When to stop, even if the largest working set was not reached.
    pub time: Duration,
}

impl HierarchyOptions {
    /// For numbers that are kept: up to 256 MiB in at most a minute.
    pub fn new() -> HierarchyOptions {
        HierarchyOptions { largest: 256 << 20, steps: 4, samples: 8, time: Duration::from_secs(60) }
    }
    /// For a test of the measurement itself: up to 64 KiB.
    pub fn quick() -> HierarchyOptions {
        HierarchyOptions { largest: 64 << 10, steps: 1, samples: 2, time: Duration::from_secs(10) }
    }
    /// The working sets in bytes, ascending multiples of `unit`.
    fn sizes(&self, unit: u64) -> Vec<u64> {
        let steps = f64::from(self.steps.max(1));
        let all = (0..).map(|n| (LEAST * 2f64.powf(f64::from(n) / steps) / unit as f64).round() as u64 * unit);
        let mut sizes: Vec<u64> = all.take_while(|bytes| *bytes <= self.largest.max(LEAST as u64)).collect();
        sizes.dedup();
        sizes
    }
}

/// Bytes of the smallest working set.
const LEAST: f64 = 4096.0;

impl Default for HierarchyOptions {
    fn default() -> HierarchyOptions {
        HierarchyOptions::new()
    }
}

/// The memory hierarchy of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Hierarchy {
    /// The device's name.
    pub device: String,
    /// What was measured, by ascending working sets.
    pub points: Vec<WorkingSet>,
    /// The levels that show in the latencies, by ascending sizes.
    pub levels: Vec<CacheLevel>,
    /// The caches that the system tells of; empty for a GPU, and where the system tells nothing.
    pub system: Vec<SystemCache>,
}

/// Measures the memory hierarchy of a device: working sets of 4 KiB and more, until the largest or the time is reached.
///
/// On a CPU it is one thread's: a chase along a random cycle through the lines of the working set, sums over it, copies of one half to
/// the other.
/// On a GPU one thread chases, all threads read the whole set in a dispatch of 16 MiB or more, and a copy is one dispatch, which for
/// small sets takes as long as its launch. Times are the GPU's own clock's where it has one. The sets end before the first that the device
/// cannot hold in one tensor.
///
/// ```
/// use tensorlogic::measure::{HierarchyOptions, hierarchy};
/// use tensorlogic::prelude::*;
///
/// let h = hierarchy(&Device::cpu(), &HierarchyOptions::quick())?;
/// assert_eq!((h.points[0].bytes, h.points.len()), (4096, 5));
/// println!("{h}");
/// # Ok::<(), TensorError>(())
/// ```
///
/// # Errors
/// Those of the device, and when a measured result is wrong.
pub fn hierarchy(device: &Device, options: &HierarchyOptions) -> TensorResult<Hierarchy> {
    let cpu = device.capabilities().host_memory;
    let points = if cpu { host::measure(options)? } else { gpu::measure(device, options)? };
    let system = if cpu { system::system_caches(Path::new(system::FOLDER)) } else { Vec::new() };
    Ok(Hierarchy::of(device.name(), points, system))
}

/// A size of a working set, to three digits at least.
fn size_of_set(bytes: u64) -> String {
    match bytes {
        0..0x100_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

/// How far a measured size may be from the system's to be one of the same cache, as a factor.
const SAME_CACHE: f64 = 2.0;

impl Hierarchy {
    /// The hierarchy that shows in working sets of ascending sizes.
    pub fn of(device: String, points: Vec<WorkingSet>, system: Vec<SystemCache>) -> Hierarchy {
        Hierarchy { device, levels: knees::levels(&points), points, system }
    }

    /// Each cache that the system tells of, with the measured size as a part of the told one: of the level that is nearest to it, if one
    /// is within a factor of two.
    ///
    /// ```
    /// use tensorlogic::measure::{Hierarchy, SystemCache, WorkingSet};
    /// let latency = |kib: u64| if kib <= 64 { 1e-9 } else { 1e-8 };
    /// let point = |kib: u64| WorkingSet { bytes: kib << 10, latency: latency(kib), read: 1e10, copy: 1e10, hits: None };
    /// let points = (2..12).map(|n| point(1 << n)).collect();
    /// let told = [48, 32 << 10].map(|kib| SystemCache { level: 1, size: kib << 10, line: None });
    /// let parts: Vec<Option<f64>> = Hierarchy::of("a device".into(), points, told.to_vec()).compared().iter().map(|c| c.1).collect();
    /// assert!(parts[0].is_some_and(|p| (1.3..1.9).contains(&p)) && parts[1].is_none());
    /// ```
    pub fn compared(&self) -> Vec<(SystemCache, Option<f64>)> {
        let part = |told: &SystemCache| {
            let parts = self.levels.iter().filter_map(|l| Some(l.size? as f64 / told.size as f64));
            parts.min_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs())).filter(|p| p.ln().abs() <= SAME_CACHE.ln())
        };
        self.system.iter().map(|told| (*told, part(told))).collect()
    }

    /// Converts to a JSON object: bytes, seconds, and bytes per second.
    pub fn to_json(&self) -> Value {
        let point = |p: &WorkingSet| json!({ "bytes": p.bytes, "latency": p.latency, "read": p.read, "copy": p.copy, "hits": p.hits });
        let level = |l: &CacheLevel| json!({ "size": l.size, "latency": l.latency, "read": l.read, "copy": l.copy });
        let told = |(c, part): &(SystemCache, Option<f64>)| json!({ "level": c.level, "size": c.size, "line": c.line, "measured": part });
        json!({ "device": self.device, "points": self.points.iter().map(point).collect::<Vec<_>>(),
            "levels": self.levels.iter().map(level).collect::<Vec<_>>(), "system": self.compared().iter().map(told).collect::<Vec<_>>() })
    }

    /// The latency and the bandwidths over the working sets as SVG; dashed lines are the measured levels, dotted ones the system's.
    pub fn svg(&self) -> String {
        plot::svg(self)
    }
}

impl fmt::Display for Hierarchy {
    /// Working sets, levels, and the comparison with the system's figures.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = |latency: f64, read: f64, copy: f64| format!("{:>10.2} {:>12.2} {:>12.2}", latency * 1e9, read * 1e-9, copy * 1e-9);
        let titles = format!("{:>10} {:>12} {:>12}", "ns", "read GB/s", "copy GB/s");
        writeln!(f, "=== Memory Hierarchy of {} ===\n{:<14} {titles} {:>10}", self.device, "working set", "hits")?;
        for p in &self.points {
            let hits = p.hits.map_or("-".into(), |h| format!("{:.1} %", h * 100.0));
            writeln!(f, "{:<14} {} {hits:>10}", size_of_set(p.bytes), rates(p.latency, p.read, p.copy))?;
        }
        writeln!(f, "\n{:<14} {titles}", "level up to")?;
        for l in &self.levels {
            let size = l.size.map_or("beyond".into(), size_of_set);
            writeln!(f, "{size:<14} {}", rates(l.latency, l.read, l.copy))?;
        }
        if self.system.is_empty() {
            return writeln!(f, "\nthe system reports nothing about this device's caches");
        }
        writeln!(f)?;
        for (told, part) in self.compared() {
            let measured = part.map_or("no level near it was measured".into(), |p| format!("measured {:.0} % of it", p * 100.0));
            writeln!(f, "the system's L{}: {}, {measured}", told.level, size_of_set(told.size))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
