//! Execution profiles: a table by op and line, and a trace for a browser. Only measured values are shown.

mod schedule;

pub use schedule::{Schedule, StepProfiler, trace_files};

use crate::backends::Backend;
use crate::device::{Device, MemoryProfile, MemoryReport};
use crate::error::{At, TensorResult};
use crate::events::{HostSpan, HostSpans, record_host_spans};
use crate::plan::{RunTimes, Step, Timing, Work};
use crate::shape::Shape;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measures every step that runs on a device until it is finished. Dropping it discards the measurements.
pub struct Profiler {
    backend: Option<Arc<dyn Backend>>,
    device: String,
    device_clock: bool,
    began: Instant,
    options: ProfileOptions,
    memory: Option<MemoryProfile>,
    host: Option<HostSpans>,
}

/// What is recorded besides the times of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Rows are told apart by the shapes of their operands as well.
    pub shapes: bool,
    /// The memory in use over time, and who holds it at the peak.
    pub memory: bool,
    /// What the host does: collecting graphs, compiling, encoding, submitting, waiting, in all threads.
    pub host: bool,
}

impl ProfileOptions {
    /// Everything.
    pub fn all() -> ProfileOptions {
        ProfileOptions { shapes: true, memory: true, host: true }
    }
}

/// By what rows are sorted; the most comes first, names in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    /// Total time.
    Time,
    /// Number of dispatches.
    Count,
    /// Bytes moved.
    Bytes,
    /// Arithmetic operations.
    Operations,
    /// The op.
    Name,
}

/// The measurements.
#[derive(Clone)]
pub struct Profile {
    /// The device's name.
    pub device: String,
    /// Whether step times are from the GPU's clock; otherwise they are wall-clock times.
    pub gpu_clock: bool,
    /// Wall-clock time from start to end, including waits for the device.
    pub wall: Duration,
    /// The device's limits in bytes per second and operations per second, if measured: [`Profile::with_limits`].
    pub limits: Option<[f64; 2]>,
    /// The memory meanwhile, if it was recorded.
    pub memory: Option<MemoryReport>,
    /// What the host did, if it was recorded.
    pub host: Vec<HostSpan>,
    began: Instant,
    /// When the recording of memory began.
    memory_began: Instant,
    shapes: bool,
    runs: Vec<RunTimes>,
}

/// All steps of one op on one source line.
#[derive(Clone, Debug)]
pub struct Row {
    /// The op; for fused elementwise work, the last of the chain and the number of ops fused into it: `clamp +7`.
    pub op: String,
    /// The user's line that called it.
    pub at: At,
    /// The shapes of its operands and results, if they were asked for: `[8,64]·[64,32] → [8,32]`.
    pub shapes: String,
    /// Number of dispatches.
    pub count: usize,
    /// Their total time in seconds; `None` if the device has no clock.
    pub seconds: Option<f64>,
    /// Fraction of the total measured time, 0 to 1.
    pub share: Option<f64>,
    /// Minimum number of bytes moved.
    pub bytes: u64,
    /// Arithmetic operations.
    pub operations: u64,
}

impl Row {
    /// Bytes per second.
    pub fn bandwidth(&self) -> Option<f64> {
        self.seconds.filter(|s| *s > 0.0).map(|s| self.bytes as f64 / s)
    }
    /// Operations per second.
    pub fn rate(&self) -> Option<f64> {
        self.seconds.filter(|s| *s > 0.0).map(|s| self.operations as f64 / s)
    }
    /// The fraction of the tighter limit `[bytes/s, operations/s]` that was reached. Where the first limit is the memory's bandwidth, a fraction above 1 means
    /// that caches served a part of the bytes: the memory cannot have moved them all in that time. Without counters that is all that can be known of it.
    pub fn fraction(&self, limits: [f64; 2]) -> Option<f64> {
        Some((self.bandwidth()? / limits[0]).max(self.rate()? / limits[1]))
    }
}

/// A step's name in tables.
fn label(step: &Step) -> String {
    let programs = step.loads.iter().map(|l| &l.program).chain(step.stores.iter().map(|s| &s.program));
    let all: usize = programs.map(|p| p.arithmetic()).sum();
    let fused = if matches!(step.work, Work::Map) { all.saturating_sub(1) } else { all };
    if fused == 0 { step.name.to_string() } else { format!("{} +{fused}", step.name) }
}

/// The shapes of a step's operands and results.
fn shapes_of(step: &Step) -> String {
    // A kernel sees products as batches, often of one, and their right sides, one for each result, transposed.
    let text = |shape: &Shape| {
        let ones = shape.dims().iter().take(shape.rank().saturating_sub(2)).take_while(|&&d| d == 1).count();
        Shape::of(&shape.dims()[ones..]).to_string()
    };
    let right = if step.name == "matmul" { 1..step.stores.len() + 1 } else { 0..0 };
    let operand = |(n, shape): (usize, Shape)| match shape.rank() {
        3 if right.contains(&n) => text(&shape.with(1, shape[2]).with(2, shape[1])),
        _ => text(&shape),
    };
    let list = |shapes: &mut dyn Iterator<Item = String>, between| shapes.collect::<Vec<_>>().join(between);
    let loads = list(&mut step.loads.iter().map(|l| l.shape).enumerate().map(operand), "·");
    let stores = list(&mut step.stores.iter().map(|s| text(&s.shape)), ", ");
    if loads.is_empty() { stores } else { format!("{loads} → {stores}") }
}

impl Device {
    /// Measures what runs on this device until [`Profiler::finish`]: on a GPU by the GPU's clock, on the CPU by the wall clock.
    ///
    /// # Errors
    /// If this device is already being measured.
    ///
    /// ```standalone_crate
    /// # use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let x = Tensor::ones(&[1000], DType::F32, &device)?;
    /// let profiler = device.profiler()?;
    /// assert_eq!(x.add(1.0)?.sum_all()?.item()?, 2000.0);
    /// let profile = profiler.finish()?;
    /// assert_eq!((profile.rows()[0].op.as_str(), profile.rows()[0].count), ("sum +1", 1)); // the addition was fused into the sum
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn profiler(&self) -> TensorResult<Profiler> {
        self.profiler_with(ProfileOptions::default())
    }

    /// As [`Device::profiler`], recording more.
    ///
    /// # Errors
    /// If this device is already being measured.
    ///
    /// ```standalone_crate
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::profile::ProfileOptions;
    ///
    /// let (device, mut rng) = (Device::cpu(), Rng::new(1));
    /// let (a, b) = (rng.normal(&[64, 64], DType::F32, &device)?, rng.normal(&[64, 64], DType::F32, &device)?);
    /// eval_all(&[&a, &b])?;
    /// let profiler = device.profiler_with(ProfileOptions { shapes: true, ..Default::default() })?;
    /// a.matmul(&b)?.eval()?;
    /// assert_eq!(profiler.finish()?.rows()[0].shapes, "[64,64]·[64,64] → [64,64]");
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn profiler_with(&self, options: ProfileOptions) -> TensorResult<Profiler> {
        self.synchronize()?;
        self.backend().start_timing(Timing::Steps)?;
        Ok(Profiler {
            backend: Some(self.backend().clone()),
            device: self.name(),
            device_clock: self.capabilities().clock,
            options,
            memory: options.memory.then(|| self.memory_profile()),
            host: options.host.then(record_host_spans),
            began: Instant::now(),
        })
    }

    /// Runs `work` and returns its result together with a profile of what ran on this device.
    ///
    /// ```standalone_crate
    /// # use tensorlogic::{DType, Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::ones(&[1000], DType::F32, &device)?;
    /// let (sum, profile) = device.profile(|| x.add(1.0)?.sum_all()?.item())?;
    /// assert_eq!(sum, 2000.0);
    /// assert_eq!(profile.rows()[0].op, "sum +1"); // the addition was fused into the sum
    /// println!("{profile}");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Those of `work` and of the device; also if this device is already being measured.
    pub fn profile<T>(&self, work: impl FnOnce() -> TensorResult<T>) -> TensorResult<(T, Profile)> {
        let profiler = self.profiler()?;
        let value = work()?;
        Ok((value, profiler.finish()?))
    }
}

impl Profiler {
    /// Waits for all submitted work and returns the measurements.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// ```standalone_crate
    /// # use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let profiler = device.profiler()?;
    /// assert!(device.profiler().is_err()); // one measurement at a time
    /// Tensor::ones(&[8], DType::F32, &device)?.exp()?.eval()?;
    /// let profile = profiler.finish()?;
    /// assert_eq!((profile.runs(), profile.device), (1, device.name()));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn finish(mut self) -> TensorResult<Profile> {
        let runs = match self.backend.take() {
            Some(m) => {
                m.synchronize()?;
                m.finish_timing()?
            }
            None => Vec::new(),
        };
        let wall = self.began.elapsed();
        let memory = self.memory.take().map(|m| m.report());
        let memory_began = memory.as_ref().and_then(|m| Instant::now().checked_sub(m.elapsed)).unwrap_or(self.began);
        Ok(Profile {
            device: std::mem::take(&mut self.device),
            gpu_clock: self.device_clock,
            wall,
            limits: None,
            memory,
            host: self.host.take().map_or(vec![], |h| h.spans()),
            began: self.began,
            memory_began,
            shapes: self.options.shapes,
            runs,
        })
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        if let Some(m) = self.backend.take() {
            // Whoever drops it does not want the result; a lost device reports itself on the next call.
            let _ = m.finish_timing();
        }
    }
}

impl Profile {
    /// Sets the limits for the column `limit`: bytes and operations per second, measured in this process.
    pub fn with_limits(mut self, bytes: f64, operations: f64) -> Profile {
        self.limits = Some([bytes, operations]);
        self
    }

    /// Number of evaluations.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Total time of the steps in seconds; `None` if nothing was measured.
    pub fn seconds(&self) -> Option<f64> {
        let steps = self.runs.iter().flat_map(|r| r.steps.iter().flatten());
        steps.map(|[a, b]| b - a).fold(None, |sum, s| Some(sum.unwrap_or(0.0) + s))
    }

    /// The steps grouped by op and line, longest first.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut known: HashMap<(String, At, String), usize> = HashMap::new();
        let all = self.seconds();
        for r in &self.runs {
            for (step, time) in r.plan.steps.iter().zip(&r.steps) {
                let op = label(step);
                let shapes = if self.shapes { shapes_of(step) } else { String::new() };
                let at = *known.entry((op.clone(), step.at, shapes.clone())).or_insert_with(|| {
                    rows.push(Row { op, at: step.at, shapes, count: 0, seconds: None, share: None, bytes: 0, operations: 0 });
                    rows.len() - 1
                });
                let row = &mut rows[at];
                row.count += 1;
                row.bytes += step.bytes();
                row.operations += step.operations();
                if let Some([a, b]) = time {
                    row.seconds = Some(row.seconds.unwrap_or(0.0) + b - a);
                }
            }
        }
        for r in &mut rows {
            r.share = r.seconds.zip(all).filter(|(_, all)| *all > 0.0).map(|(s, all)| s / all);
        }
        rows.sort_by(|a, b| b.seconds.unwrap_or(0.0).total_cmp(&a.seconds.unwrap_or(0.0)));
        rows
    }

    /// The runs and steps as a trace for `chrome://tracing` and ui.perfetto.dev: the host on one track, the device on another; the spans of
    /// each thread of the host and the memory in use on further ones, if they were recorded.
    ///
    /// The device's clock has its own origin; it is shifted so that no run starts before the host began to submit it.
    pub fn chrome_trace(&self) -> String {
        let host = |t: Instant| t.saturating_duration_since(self.began).as_secs_f64();
        let shift = self.runs.iter().filter_map(|r| Some(host(r.host[0]) - r.run?[0])).fold(0f64, f64::max);
        let mut out = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        let clock = if self.gpu_clock { "GPU clock" } else { "wall clock" };
        for (tid, name) in [(0, "host".to_string()), (1, format!("{} ({clock})", self.device))] {
            let _ = writeln!(
                out,
                "{{\"ph\":\"M\",\"pid\":0,\"tid\":{tid},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}},",
                json_text(&name)
            );
        }
        let mut event = |tid: u32, name: &str, from: f64, to: f64, args: String| {
            let _ = writeln!(
                out,
                "{{\"ph\":\"X\",\"pid\":0,\"tid\":{tid},\"name\":{},\"ts\":{:.3},\"dur\":{:.3},\"args\":{{{args}}}}},",
                json_text(name),
                from * 1e6,
                (to - from) * 1e6
            );
        };
        for r in &self.runs {
            let [from, to] = r.host.map(host);
            event(0, "run", from, to, format!("\"dispatches\":{}", r.plan.steps.len()));
            for (step, time) in r.plan.steps.iter().zip(&r.steps) {
                let Some([a, b]) = time else { continue };
                let line = json_text(&format!("{}:{}", step.at.file(), step.at.line()));
                let args = format!("\"line\":{line},\"bytes\":{},\"operations\":{}", step.bytes(), step.operations());
                event(1, &label(step), a + shift, b + shift, args);
            }
        }
        self.host_tracks(&mut out);
        self.memory_track(&mut out);
        // The last comma is not allowed in JSON.
        out.truncate(out.trim_end().trim_end_matches(',').len());
        out.push_str("\n]}\n");
        out
    }
}

impl Profile {
    /// The spans of each thread of the host.
    fn host_tracks(&self, out: &mut String) {
        const FIRST_TRACK: u32 = 16;
        let mut threads: Vec<u32> = self.host.iter().map(|s| s.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        for thread in threads {
            let (tid, name) = (FIRST_TRACK + thread, format!("host thread {thread}"));
            let _ = writeln!(out, "{{\"ph\":\"M\",\"pid\":0,\"tid\":{tid},\"name\":\"thread_name\",\"args\":{{\"name\":\"{name}\"}}}},");
        }
        for span in &self.host {
            let [from, to] = span.time.map(|t| t.saturating_duration_since(self.began).as_secs_f64() * 1e6);
            let (tid, name) = (FIRST_TRACK + span.thread, span.name);
            let _ = writeln!(
                out,
                "{{\"ph\":\"X\",\"pid\":0,\"tid\":{tid},\"name\":\"{name}\",\"ts\":{from:.3},\"dur\":{:.3},\"args\":{{\"depth\":{}}}}},",
                to - from,
                span.depth
            );
        }
    }

    /// The memory in use over time.
    fn memory_track(&self, out: &mut String) {
        let Some(memory) = &self.memory else { return };
        for (after, bytes) in &memory.timeline {
            let at = (self.memory_began + *after).saturating_duration_since(self.began).as_secs_f64() * 1e6;
            let _ = writeln!(out, "{{\"ph\":\"C\",\"pid\":0,\"name\":\"memory in use\",\"ts\":{at:.3},\"args\":{{\"bytes\":{bytes}}}}},");
        }
    }

    /// The rows as text, sorted, of which at most `limit` are shown.
    pub fn table(&self, sort: SortBy, limit: usize) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_table(&mut text, sort, limit);
        text
    }

    fn write_table(&self, f: &mut dyn Write, sort: SortBy, limit: usize) -> fmt::Result {
        let mut rows = self.rows();
        match sort {
            SortBy::Time => {}
            SortBy::Count => rows.sort_by_key(|r| std::cmp::Reverse(r.count)),
            SortBy::Bytes => rows.sort_by_key(|r| std::cmp::Reverse(r.bytes)),
            SortBy::Operations => rows.sort_by_key(|r| std::cmp::Reverse(r.operations)),
            SortBy::Name => rows.sort_by(|a, b| a.op.cmp(&b.op)),
        }
        let dispatches = rows.iter().map(|r| r.count).sum::<usize>();
        let left_out = rows.len().saturating_sub(limit);
        rows.truncate(limit);
        let clock = if self.gpu_clock { "GPU clock" } else { "wall clock" };
        writeln!(f, "{}: {} evaluations, {:.3} ms wall", self.device, self.runs(), self.wall.as_secs_f64() * 1e3)?;
        let Some(all) = self.seconds() else {
            return writeln!(f, "no step was timed: {}", if rows.is_empty() { "nothing ran" } else { "this device has no timestamps" });
        };
        writeln!(f, "{:.3} ms in {dispatches} dispatches ({clock})", all * 1e3)?;
        write_rows(f, &rows, self.limits)?;
        if left_out > 0 {
            writeln!(f, "and {left_out} more rows")?;
        }
        if let Some(m) = &self.memory {
            let mib = |bytes: usize| bytes as f64 / 1048576.0;
            writeln!(f, "memory: {:.2} MiB in use, {:.2} MiB at the peak", mib(m.in_use), mib(m.peak))?;
        }
        Ok(())
    }
}

/// Rows with their titles.
fn write_rows(f: &mut dyn Write, rows: &[Row], limits: Option<[f64; 2]>) -> fmt::Result {
    let line = |r: &Row| format!("{}:{}", r.at.file(), r.at.line());
    let wide = |f: &dyn Fn(&Row) -> usize, least| rows.iter().map(f).max().unwrap_or(0).max(least);
    let (ops, lines) = (wide(&|r| r.op.chars().count(), 2), wide(&|r| line(r).chars().count(), 4));
    let limit = if limits.is_some() { "  of limit" } else { "" };
    let shapes = if rows.iter().any(|r| !r.shapes.is_empty()) { "  shapes" } else { "" };
    writeln!(
        f,
        "{:ops$}  {:lines$}  {:>7} {:>11} {:>7} {:>9} {:>9}{limit}{shapes}",
        "op", "line", "count", "ms", "share", "GB/s", "GFLOP/s"
    )?;
    let number = |v: Option<f64>, scale: f64, digits: usize| v.map_or("-".to_string(), |v| format!("{:.digits$}", v * scale));
    for r in rows {
        let share = r.share.map_or("-".into(), |s| format!("{:.1} %", s * 100.0));
        let limit = limits.map(|l| r.fraction(l).map_or("-".into(), |f| format!("{:.0} %", f * 100.0)));
        let limit = limit.map_or(String::new(), |l: String| format!("  {l:>8}"));
        let shapes = if r.shapes.is_empty() { String::new() } else { format!("  {}", r.shapes) };
        writeln!(
            f,
            "{:ops$}  {:lines$}  {:>7} {:>11} {share:>7} {:>9} {:>9}{limit}{shapes}",
            r.op,
            line(r),
            r.count,
            number(r.seconds, 1e3, 4),
            number(r.bandwidth(), 1e-9, 1),
            number(r.rate(), 1e-9, 1)
        )?;
    }
    Ok(())
}

/// Text as a JSON string.
pub(crate) fn json_text(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_table(f, SortBy::Time, usize::MAX)
    }
}
