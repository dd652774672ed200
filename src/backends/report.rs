//! Who holds which memory: what a recording collects, and the report it gives as text and as JSON lines.

use crate::error::At;
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Identifies a buffer in a memory profile.
pub(crate) type AllocId = u64;

/// Points of the timeline kept at most; beyond, neighbours are merged and the larger one stays.
const MAX_TIMELINE_POINTS: usize = 8192;

/// Memory that one line of the user's program holds through one op.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// The op that asked for it; `?` where it is not known.
    pub op: &'static str,
    /// The user's line, where it is known.
    pub at: Option<At>,
    /// How many buffers.
    pub buffers: usize,
    /// Their physical bytes.
    pub bytes: usize,
    /// Age of the oldest of them.
    pub age: Duration,
}

impl Holder {
    fn place(&self) -> String {
        self.at.map_or_else(|| "?".into(), |l| format!("{}:{}", l.file(), l.line()))
    }
}

/// The result of a memory profile. See [`crate::Device::memory_profile`].
#[derive(Clone, Debug, Default)]
pub struct MemoryReport {
    /// The device.
    pub device: String,
    /// Time since the recording began.
    pub elapsed: Duration,
    /// Bytes in use at its start; they are not listed by holder.
    pub before: usize,
    /// Bytes in use now, mapped files included.
    pub in_use: usize,
    /// The part of `in_use` that is read in place from files or from the caller's memory; no limit applies to it.
    pub mapped: usize,
    /// Bytes in the pool now.
    pub pooled: usize,
    /// The most bytes in use during the recording, mapped files included.
    pub peak: usize,
    /// Peak of allocated bytes, without mapped files: the memory to which `TL_MEM_LIMIT` applies.
    pub peak_allocated: usize,
    /// Time of the peak of `in_use`.
    pub peak_after: Duration,
    /// Buffers allocated during the recording.
    pub taken: u64,
    /// Buffers released during the recording.
    pub given: u64,
    /// Holders of memory at the peak, largest first.
    pub at_peak: Vec<Holder>,
    /// Holders of memory that was allocated during the recording and is still in use, largest first: leaks, or results that are still needed.
    pub held: Vec<Holder>,
    /// Bytes in use over time.
    pub timeline: Vec<(Duration, usize)>,
}

#[derive(Clone, Copy)]
struct Live {
    bytes: usize,
    op: &'static str,
    at: Option<At>,
    since: Duration,
}

/// Collects while a recording is on.
pub(super) struct Recorder {
    start: Instant,
    before: usize,
    live: HashMap<AllocId, Live>,
    taken: u64,
    given: u64,
    peak: usize,
    peak_allocated: usize,
    peak_after: Duration,
    /// The holders at the peak; `None` while nothing was given back since, so that `live` still shows them.
    at_peak: Option<Vec<Holder>>,
    timeline: Vec<(Duration, usize)>,
}

fn holders<'a>(live: impl Iterator<Item = &'a Live>, now: Duration) -> Vec<Holder> {
    let mut all: HashMap<(&'static str, Option<At>), Holder> = HashMap::new();
    for l in live {
        let h = all.entry((l.op, l.at)).or_insert(Holder { op: l.op, at: l.at, buffers: 0, bytes: 0, age: Duration::ZERO });
        h.buffers += 1;
        h.bytes += l.bytes;
        h.age = h.age.max(now.saturating_sub(l.since));
    }
    let mut list: Vec<Holder> = all.into_values().collect();
    list.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (a.op, a.place()).cmp(&(b.op, b.place()))));
    list
}

impl Recorder {
    pub fn new(in_use: usize, allocated: usize) -> Recorder {
        Recorder {
            start: Instant::now(),
            before: in_use,
            live: HashMap::new(),
            taken: 0,
            given: 0,
            peak: in_use,
            peak_allocated: allocated,
            peak_after: Duration::ZERO,
            at_peak: None,
            timeline: vec![(Duration::ZERO, in_use)],
        }
    }

    pub fn take(&mut self, alloc_id: AllocId, bytes: usize, in_use: usize, allocated: usize) {
        let now = self.start.elapsed();
        self.peak_allocated = self.peak_allocated.max(allocated);
        self.taken += 1;
        self.live.insert(alloc_id, Live { bytes, op: "?", at: None, since: now });
        if in_use > self.peak {
            (self.peak, self.peak_after, self.at_peak) = (in_use, now, None);
        }
        self.point(now, in_use);
    }

    pub fn give(&mut self, alloc_id: AllocId, bytes: usize, in_use_before: usize) {
        let now = self.start.elapsed();
        if in_use_before == self.peak && self.at_peak.is_none() {
            self.at_peak = Some(holders(self.live.values(), self.peak_after));
        }
        self.given += self.live.remove(&alloc_id).is_some() as u64;
        self.point(now, in_use_before.saturating_sub(bytes));
    }

    pub fn label(&mut self, alloc_id: AllocId, op: &'static str, at: At) {
        if let Some(l) = self.live.get_mut(&alloc_id) {
            (l.op, l.at) = (op, Some(at));
        }
    }

    fn point(&mut self, now: Duration, in_use: usize) {
        if self.timeline.len() >= MAX_TIMELINE_POINTS {
            let merged = self.timeline.chunks(2).map(|c| *c.iter().max_by_key(|p| p.1).unwrap_or(&c[0])).collect();
            self.timeline = merged;
        }
        self.timeline.push((now, in_use));
    }

    pub fn report(&self) -> MemoryReport {
        let now = self.start.elapsed();
        MemoryReport {
            elapsed: now,
            before: self.before,
            peak: self.peak,
            peak_allocated: self.peak_allocated,
            peak_after: self.peak_after,
            taken: self.taken,
            given: self.given,
            at_peak: self.at_peak.clone().unwrap_or_else(|| holders(self.live.values(), now)),
            held: holders(self.live.values(), now),
            timeline: self.timeline.clone(),
            ..MemoryReport::default()
        }
    }
}

fn human(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

impl MemoryReport {
    /// One JSON object a line: a `summary`, then `peak` and `held` holders, then the `timeline`. Times in seconds, sizes in bytes.
    pub fn to_json_lines(&self) -> String {
        use serde_json::json;
        let mut lines = vec![json!({
            "kind": "summary", "device": self.device, "seconds": self.elapsed.as_secs_f64(), "before": self.before, "in_use": self.in_use,
            "mapped": self.mapped, "pooled": self.pooled, "peak": self.peak, "peak_allocated": self.peak_allocated, "peak_after": self.peak_after.as_secs_f64(), "taken": self.taken, "given": self.given,
        })];
        for (kind, list) in [("peak", &self.at_peak), ("held", &self.held)] {
            lines.extend(list.iter().map(|h| {
                json!({ "kind": kind, "op": h.op, "at": h.at.map(|_| h.place()), "buffers": h.buffers, "bytes": h.bytes,
                    "age": h.age.as_secs_f64() })
            }));
        }
        lines.extend(self.timeline.iter().map(|(t, bytes)| json!({ "kind": "timeline", "seconds": t.as_secs_f64(), "in_use": bytes })));
        lines.iter().map(|l| format!("{l}\n")).collect()
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "memory of {}, recorded for {:.3} s", self.device, self.elapsed.as_secs_f64())?;
        writeln!(
            f,
            "  in use   {:>10}   ({} at the start of the recording), {} of it mapped files",
            human(self.in_use),
            human(self.before),
            human(self.mapped)
        )?;
        writeln!(f, "  pooled   {:>10}", human(self.pooled))?;
        writeln!(f, "  peak     {:>10}   after {:.3} s, mapped files included", human(self.peak), self.peak_after.as_secs_f64())?;
        writeln!(f, "  allocated{:>10}   peak without mapped files, to which TL_MEM_LIMIT applies", human(self.peak_allocated))?;
        writeln!(f, "  buffers  {:>10}   allocated, {} released", self.taken, self.given)?;
        for (title, list) in [("held at the peak", &self.at_peak), ("still held", &self.held)] {
            writeln!(f, "{title}{}", if list.is_empty() { ": nothing" } else { "" })?;
            for h in list {
                writeln!(f, "  {:>10} in {:>4}  {:<16} {}  for {:.3} s", human(h.bytes), h.buffers, h.op, h.place(), h.age.as_secs_f64())?;
            }
        }
        // The timeline as bars: the most of each of 60 spans of time.
        let mut bars = [self.before; 60];
        let span = self.elapsed.as_secs_f64().max(1e-9) / 60.0;
        let mut reached = 0;
        let mut level = self.before;
        for (t, bytes) in &self.timeline {
            let at = ((t.as_secs_f64() / span) as usize).min(59);
            while reached < at {
                reached += 1;
                bars[reached] = level;
            }
            bars[at] = bars[at].max(*bytes);
            level = *bytes;
        }
        bars[reached..].iter_mut().skip(1).for_each(|b| *b = level);
        let most = self.peak.max(1);
        let bar = |b: &usize| [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][(b * 8).div_ceil(most).min(8)];
        writeln!(f, "in use over time (full height is the peak)\n  {}", bars.iter().map(bar).collect::<String>())
    }
}
