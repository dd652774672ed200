//! Problems of a running program, from live counters: what is wrong, the figures that show it, and one cure.
//!
//! Rates are taken over the last evaluations (up to 512), without the first 32, in which plans and kernels are made.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{At, TensorResult};
use crate::eval::{Activity, Sample, activity, fusion, without_fusion};
use crate::events;
use crate::plan::{Buf, Plan, Work};
use crate::tensor::Tensor;
use std::fmt;
use std::time::Instant;

/// Evaluations from which on rates say something.
const MIN_EVALUATIONS: u64 = 64;
/// Growth of memory that counts: less is a warm-up or a list of losses.
const MIN_GROWTH: usize = 1 << 20;
/// Bytes of an f32 weight from which on its type matters.
const MIN_WEIGHT: u64 = 256 << 10;
/// Elements and operations of an evaluation below which a wait for it takes longer than the work.
const SMALL_WORK: f64 = 1e6;
/// Elements and operations of a dispatch below which its launch takes longer than its work.
const SMALL_DISPATCH: (f64, f64) = (2048.0, 65536.0);

/// A problem that [`Device::diagnose`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Problem {
    /// `auto` found no hardware GPU.
    NoGpu,
    /// More than 90 % of the memory limit was in use.
    MemoryAlmostFull,
    /// The memory in use grows from sample to sample.
    MemoryGrows,
    /// Less than 60 % of the requests for memory are served by free buffers.
    LowReuse,
    /// Products read large f32 weights on a GPU that has f16.
    F32Weights,
    /// Values go to the host and back in every step, which does little with them.
    ValuesCross,
    /// The host waits for the device after every small step.
    WaitsEachStep,
    /// Values are read in the middle of chains of operations.
    ChainsCut,
    /// Inputs are uploaded in many small pieces.
    SmallUploads,
    /// New plans are still being compiled.
    PlanMisses,
    /// New kernels are still being compiled.
    KernelsCompiled,
    /// Steps consist of many tiny dispatches.
    LaunchBound,
    /// A setting for debugging is in force.
    DebugSetting,
    /// A recording of memory goes on.
    Recording,
}

impl Problem {
    /// Every problem.
    pub const ALL: [Problem; 14] = [
        Problem::NoGpu,
        Problem::MemoryAlmostFull,
        Problem::MemoryGrows,
        Problem::LowReuse,
        Problem::F32Weights,
        Problem::ValuesCross,
        Problem::WaitsEachStep,
        Problem::ChainsCut,
        Problem::SmallUploads,
        Problem::PlanMisses,
        Problem::KernelsCompiled,
        Problem::LaunchBound,
        Problem::DebugSetting,
        Problem::Recording,
    ];

    /// Its name in JSON and on the command line.
    pub fn name(self) -> &'static str {
        self.texts()[0]
    }

    /// One thing to do about it.
    pub fn cure(self) -> &'static str {
        self.texts()[2]
    }

    /// Name, description and cure.
    fn texts(self) -> [&'static str; 3] {
        match self {
            Problem::NoGpu => [
                "no-gpu",
                "there is no hardware GPU",
                "`tl doctor` lists adapters and missing drivers; name the device `cpu` if this is intended",
            ],
            Problem::MemoryAlmostFull => [
                "memory-almost-full",
                "memory is almost full",
                "use smaller batches, drop tensors (Device::memory_profile lists their lines), or raise TL_MEM_LIMIT",
            ],
            Problem::MemoryGrows => [
                "memory-grows",
                "the memory in use grows",
                "LeakDetector names the lines whose tensors are kept; keep numbers (item) instead of tensors",
            ],
            Problem::LowReuse => {
                ["low-reuse", "memory is rarely reused", "raise TL_CACHE_LIMIT or BufferPool::set_limit, or use fewer distinct sizes"]
            }
            Problem::F32Weights => [
                "f32-weights",
                "products read f32 weights",
                "load or cast the weights as device.default_float(), or train with Optimizer::mixed_precision",
            ],
            Problem::ValuesCross => {
                ["values-cross", "values cross to the host and back", "keep them on the device: do the host's part with tensor operations"]
            }
            Problem::WaitsEachStep => [
                "waits-each-step",
                "the host waits after every step",
                "read results every few steps, or with Tensor::download one step later; synchronize only to time",
            ],
            Problem::ChainsCut => [
                "chains-cut",
                "values are read in the middle of chains",
                "read them at the end, or evaluate them together with the result (eval_all)",
            ],
            Problem::SmallUploads => {
                ["small-uploads", "inputs are uploaded in small pieces", "upload one tensor and take views of it (narrow, i)"]
            }
            Problem::PlanMisses => [
                "plan-misses",
                "plans are compiled in the loop",
                "pad sizes to a few, and pass changing numbers as arguments of methods rather than as shapes",
            ],
            Problem::KernelsCompiled => [
                "kernels-compiled",
                "kernels are compiled in the loop",
                "numbers that change belong in arguments (add, mul) or tensors, not in options that are part of a kernel",
            ],
            Problem::LaunchBound => {
                ["launch-bound", "steps consist of many tiny dispatches", "stack small tensors and do one operation on the batch"]
            }
            Problem::DebugSetting => ["debug-setting", "a setting for debugging is in force", "unset it"],
            Problem::Recording => [
                "recording",
                "a memory recording is still running",
                "drop the MemoryProfile or LeakDetector: every request for memory is recorded",
            ],
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts()[1])
    }
}

/// A problem of the running program.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What is wrong.
    pub what: Problem,
    /// The figures that show it.
    pub evidence: String,
    /// One thing to do about it.
    pub cure: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n  → {}", self.what, self.evidence, self.cure)
    }
}

impl Finding {
    /// `{ "what", "name", "evidence", "cure" }`.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "what": self.what.to_string(), "name": self.what.name(), "evidence": self.evidence, "cure": self.cure })
    }
}

impl Device {
    /// Problems of the program that runs on this device, from its counters; none for a good program. Rates need 64 evaluations after the
    /// first 32. Where steps look bound by launches, a launch is measured, which takes some milliseconds; otherwise nothing runs.
    ///
    /// ```standalone_crate
    /// # use tensorlogic::{Device, DType, Tensor};
    /// let device = Device::cpu();
    /// let mut x = Tensor::ones(&[64, 64], DType::F32, &device)?;
    /// for _ in 0..200 {
    ///     x = x.mul(0.5)?.add(1.0)?;
    ///     if x.to_vec()?[0] > 1e6 { // read in the middle of the chain
    ///         break;
    ///     }
    /// }
    /// for finding in device.diagnose()? {
    ///     println!("{finding}");
    /// }
    /// # use tensorlogic::diagnose::Problem;
    /// # assert!(device.diagnose()?.iter().any(|f| f.what == Problem::ChainsCut));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Those of the device while a launch is measured.
    pub fn diagnose(&self) -> TensorResult<Vec<Finding>> {
        let mut findings = self.look_for_problems();
        if let Some(at) = findings.iter().position(|f| f.what == Problem::LaunchBound) {
            let elements = Look::of(self).rate(|s| s.stats.elements) / Look::of(self).rate(|s| s.stats.steps).max(1e-9);
            let [one, large] = launch_seconds(self, [1, (elements as usize).max(2)])?;
            if large > 3.0 * one {
                findings.remove(at);
            } else {
                let measured = format!("; measured: {:.1} µs a dispatch, {:.1} µs on one element", large * 1e6, one * 1e6);
                findings[at].evidence += &measured;
            }
        }
        findings.iter().for_each(|f| events::finding(f.what.name(), &f.evidence));
        Ok(findings)
    }

    /// What the counters show; nothing is measured.
    pub(crate) fn look_for_problems(&self) -> Vec<Finding> {
        let look = Look::of(self);
        let checks: [fn(&Look) -> Option<Finding>; 12] = [
            Look::no_gpu,
            Look::debug_setting,
            Look::recording,
            Look::almost_full,
            Look::memory,
            Look::f32_weights,
            Look::values_cross,
            Look::chains_cut,
            Look::waits,
            Look::small_uploads,
            Look::compiling,
            Look::launch_bound,
        ];
        let found: Vec<Finding> = checks.iter().filter_map(|check| check(&look)).collect();
        // Whoever reads values on the way waits for them; once is enough.
        let explained = found.iter().any(|f| matches!(f.what, Problem::ValuesCross | Problem::ChainsCut));
        found.into_iter().filter(|f| !explained || f.what != Problem::WaitsEachStep).collect()
    }
}

/// Seconds of a dispatch that depends on the one before, on so many elements and on so many: the least of some chains, which take turns.
fn launch_seconds(device: &Device, elements: [usize; 2]) -> TensorResult<[f64; 2]> {
    const CHAIN: usize = 32;
    const ROUNDS: usize = 10;
    let mut least = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for (n, least) in elements.into_iter().zip(&mut least) {
            let mut y = Tensor::full(1.0, &[n], DType::F32, device)?;
            y.eval()?;
            device.backend().synchronize()?;
            for _ in 0..CHAIN {
                y = y.add(1.0)?;
            }
            let start = Instant::now();
            without_fusion(|| y.eval().map(drop))?;
            device.backend().synchronize()?;
            *least = least.min(start.elapsed().as_secs_f64() / CHAIN as f64);
        }
    }
    Ok(least)
}

/// A line of the program, in evidence.
fn line(at: Option<At>) -> String {
    at.map_or(String::new(), |at| format!(", last at {}:{}", at.file(), at.line()))
}

fn bytes(n: f64) -> String {
    match n {
        n if n < 1024.0 => format!("{n:.0} B"),
        n if n < 1048576.0 => format!("{:.1} KiB", n / 1024.0),
        n => format!("{:.1} MiB", n / 1048576.0),
    }
}

/// The counters of a device, now and before.
struct Look {
    device: Device,
    activity: Activity,
    now: Sample,
    /// The begin of the window for rates, if it is long enough.
    before: Option<Sample>,
}

impl Look {
    fn of(device: &Device) -> Look {
        let activity = activity(device);
        let now = Sample::now(activity.stats, device);
        // The first sample is of the first evaluation, until it has gone.
        let first = activity.samples.iter().find(|s| s.stats.evaluations >= 32).copied();
        let before = first.filter(|s| now.stats.evaluations - s.stats.evaluations >= MIN_EVALUATIONS);
        Look { device: device.clone(), activity, now, before }
    }

    fn find(what: Problem, evidence: String) -> Option<Finding> {
        Some(Finding { what, evidence, cure: what.cure() })
    }

    /// How much a counter grew in the window.
    fn grown(&self, of: fn(&Sample) -> u64) -> f64 {
        self.before.map_or(0.0, |before| of(&self.now).saturating_sub(of(&before)) as f64)
    }

    /// How much a counter grew for each evaluation.
    fn rate(&self, of: fn(&Sample) -> u64) -> f64 {
        self.grown(of) / self.evaluations().max(1.0)
    }

    fn evaluations(&self) -> f64 {
        self.grown(|s| s.stats.evaluations)
    }

    /// Elements and operations of an evaluation.
    fn work(&self) -> f64 {
        self.rate(|s| s.stats.elements) + self.rate(|s| s.stats.operations)
    }

    fn queue(&self) -> bool {
        self.device.capabilities().queue
    }

    fn no_gpu(&self) -> Option<Finding> {
        if !self.device.is_fallback() {
            return None;
        }
        Look::find(Problem::NoGpu, format!("`auto` chose {}", self.device.name()))
    }

    fn debug_setting(&self) -> Option<Finding> {
        let checked = self.queue() && std::env::var("TL_GPU_CHECKED").is_ok_and(|v| v == "1");
        let set = [(!fusion(), "TL_NO_FUSION=1: every operation is a dispatch"), (checked, "TL_GPU_CHECKED=1: kernels check every index")];
        let set: Vec<&str> = set.into_iter().filter(|s| s.0).map(|s| s.1).collect();
        if set.is_empty() { None } else { Look::find(Problem::DebugSetting, set.join("; ")) }
    }

    fn recording(&self) -> Option<Finding> {
        let pool = self.device.backend().pool();
        if !pool.recording() {
            return None;
        }
        let report = pool.report();
        Look::find(Problem::Recording, format!("for {:.1} s, {} requests", report.elapsed.as_secs_f64(), report.taken))
    }

    fn almost_full(&self) -> Option<Finding> {
        let pool = self.device.buffer_pool_stats();
        let limit = pool.limit? as f64;
        let part = pool.peak_allocated as f64 / limit.max(1.0);
        if part <= 0.9 {
            return None;
        }
        let evidence = format!("{} of {} were in use, {:.0} %", bytes(pool.peak_allocated as f64), bytes(limit), part * 100.0);
        Look::find(Problem::MemoryAlmostFull, evidence)
    }

    /// Memory that grows, or is not reused though it does not grow.
    fn memory(&self) -> Option<Finding> {
        let from = self.before?.stats.evaluations;
        let samples = self.activity.samples.iter().filter(|s| s.stats.evaluations >= from);
        let held: Vec<usize> = samples.map(|s| s.memory.in_use).collect();
        let (first, last) = (held[0], held[held.len() - 1]);
        if held.len() > 3 && held.windows(2).all(|w| w[0] < w[1]) && last > first + MIN_GROWTH {
            let evidence = format!("from {} to {} in {:.0} evaluations", bytes(first as f64), bytes(last as f64), self.evaluations());
            return Look::find(Problem::MemoryGrows, evidence);
        }
        let (requests, reused) = (self.grown(|s| s.memory.requests), self.grown(|s| s.memory.reused));
        if requests < MIN_EVALUATIONS as f64 || reused >= 0.6 * requests {
            return None;
        }
        let limit = bytes(self.device.buffer_pool_stats().cache_limit as f64);
        let evidence = format!("{:.0} % of {requests:.0} requests were reused; at most {limit} are kept", reused / requests * 100.0);
        Look::find(Problem::LowReuse, evidence)
    }

    fn f32_weights(&self) -> Option<Finding> {
        if self.device.default_float() != DType::F16 {
            return None;
        }
        let mut found: Vec<(u64, &'static str, At)> = Vec::new();
        for step in self.activity.plans.iter().flat_map(|plan: &std::sync::Arc<Plan>| &plan.steps) {
            let product = matches!(step.work, Work::Kernel(_)) && step.name.contains("matmul");
            let f32_input = |s: &crate::plan::Source| matches!(s.buf, Buf::Input(_)) && s.dtype == DType::F32;
            let weights = step.loads.iter().flat_map(|l| &l.sources).filter(|s| f32_input(s)).map(|s| s.distinct_bytes());
            if let Some(most) = weights.max().filter(|bytes| product && *bytes >= MIN_WEIGHT) {
                found.push((most, step.name, step.at));
            }
        }
        let &(most, name, at) = found.iter().max_by_key(|f| f.0)?;
        let evidence =
            format!("{} products; the largest weight has {} ({name} at {}:{})", found.len(), bytes(most as f64), at.file(), at.line());
        Look::find(Problem::F32Weights, evidence)
    }

    fn values_cross(&self) -> Option<Finding> {
        let (up, down) = (self.rate(|s| s.transfers.uploaded_bytes), self.rate(|s| s.transfers.downloaded_bytes));
        let least = up.min(down);
        if least < 16384.0 || self.work() > 8.0 * least {
            return None;
        }
        let evidence =
            format!("{} up and {} down with each evaluation, for {:.0} elements and operations", bytes(up), bytes(down), self.work());
        Look::find(Problem::ValuesCross, evidence)
    }

    fn chains_cut(&self) -> Option<Finding> {
        let cut = self.grown(|s| s.stats.cut);
        if cut < 16.0 || cut < 0.25 * self.evaluations() {
            return None;
        }
        let evidence =
            format!("{cut:.0} of {:.0} evaluations continue from a value that was read{}", self.evaluations(), line(self.activity.cut_at));
        Look::find(Problem::ChainsCut, evidence)
    }

    fn waits(&self) -> Option<Finding> {
        if !self.queue() || self.before.is_none() {
            return None;
        }
        let (synchronized, read) = (self.rate(|s| s.queue.synchronizations), self.rate(|s| s.stats.reads));
        if synchronized < 0.5 && (read < 0.9 || self.work() > SMALL_WORK) {
            return None;
        }
        let waited = (self.now.queue.wait_seconds - self.before?.queue.wait_seconds) / self.evaluations();
        let evidence =
            format!("{read:.1} reads and {synchronized:.1} synchronizations for each evaluation, {:.0} µs of waiting", waited * 1e6);
        Look::find(Problem::WaitsEachStep, evidence)
    }

    fn small_uploads(&self) -> Option<Finding> {
        let (pieces, sent) = (self.rate(|s| s.transfers.uploads), self.rate(|s| s.transfers.uploaded_bytes));
        if pieces < 8.0 || sent / pieces > 16384.0 {
            return None;
        }
        Look::find(Problem::SmallUploads, format!("{pieces:.0} uploads of {} for each evaluation", bytes(sent / pieces)))
    }

    /// New kernels, or new plans from known kernels.
    fn compiling(&self) -> Option<Finding> {
        let (plans, kernels) = (self.grown(|s| s.stats.misses), self.grown(|s| s.queue.kernels));
        let of = format!("in the last {:.0} evaluations{}", self.evaluations(), line(self.activity.missed_at));
        if kernels >= 8.0 && kernels >= 0.1 * self.evaluations() {
            return Look::find(Problem::KernelsCompiled, format!("{kernels:.0} {of}"));
        }
        if plans < 16.0 || plans < 0.25 * self.evaluations() {
            return None;
        }
        Look::find(Problem::PlanMisses, format!("{plans:.0} {of}"))
    }

    fn launch_bound(&self) -> Option<Finding> {
        let dispatches = self.rate(|s| s.stats.steps);
        let elements = self.rate(|s| s.stats.elements) / dispatches.max(1e-9);
        let operations = self.rate(|s| s.stats.operations) / dispatches.max(1e-9);
        if dispatches < 16.0 || elements > SMALL_DISPATCH.0 || operations > SMALL_DISPATCH.1 {
            return None;
        }
        let evidence = format!("{dispatches:.0} dispatches an evaluation, of {elements:.0} elements and {operations:.0} operations each");
        Look::find(Problem::LaunchBound, evidence)
    }
}
