//! A self-test of a device: every kind of kernel in its dtypes against the CPU, work that shows missing barriers, and a short benchmark.
//!
//! The CPU's own results are compared with numbers that were recorded on another machine, so that both may not be wrong alike.

mod cases;
mod chips;
#[cfg(feature = "metal")]
mod dispatches;
mod forms;
mod litmus;
mod model_cases;
#[cfg(all(test, feature = "shaders"))]
mod tests;

pub use chips::published_bandwidth;

use super::{Options, Outcome, Work, measure};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::plan::CompiledKernel;
use crate::tensor::Tensor;
use cases::{SelfTestCase, cases};
use litmus::{LITMUS, Litmus, ROUNDS};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// For each case the first of these many values, spread over its result, as the bits of f32.
const RECORDED: &str = include_str!("recorded.txt");
const SAMPLES: usize = 6;

/// What became of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct SelfTestRow {
    /// The kind of kernel, the operation, its sizes and dtype.
    pub name: String,
    /// The largest difference from the CPU's values, as a part of the largest of them; infinite where one of the two is not a number.
    pub error: Option<f64>,
    /// The largest that is right.
    pub tolerance: f64,
    /// What went wrong, if something did.
    pub failed: Option<String>,
    /// Seconds, the compiling of its kernels included.
    pub seconds: f64,
}

/// A measurement of the self-test.
#[derive(Clone, Debug, PartialEq)]
pub struct SelfTestBench {
    /// What was measured.
    pub name: String,
    /// The median.
    pub seconds: f64,
    /// Bytes that it must move.
    pub bytes: f64,
    /// Operations.
    pub operations: f64,
}

/// What a self-test found.
#[derive(Clone, Debug, PartialEq)]
pub struct SelfTestReport {
    /// The device's name.
    pub device: String,
    /// The cases, then the work that shows missing barriers.
    pub rows: Vec<SelfTestRow>,
    /// Cases that were not computed, since the time was up.
    pub not_done: Vec<String>,
    /// What was measured; empty where that was not asked for.
    pub bench: Vec<SelfTestBench>,
    /// Kernels that were compiled, and the seconds that took.
    pub kernels: (usize, f64),
    /// Each of them, with its own time.
    pub compiled: Vec<CompiledKernel>,
    /// Kernels whose parts in Metal's language Metal's compiler refused, with its message: their WGSL forms ran.
    pub refused: Vec<String>,
    /// What became of kernels in Metal's language of the forms that Apple's compiler is known to get wrong; the library has none, so that nothing fails by it.
    pub known_forms: Vec<String>,
    /// Seconds in all.
    pub seconds: f64,
}

/// What a self-test tells while it runs: what was told last is where a device hangs or a driver ends the process.
pub enum SelfTestProgress<'r> {
    /// Work of this name begins, behind these rows.
    Begins(&'r str, &'r [SelfTestRow]),
    /// A row is there.
    Done(&'r SelfTestRow),
}

/// What the CPU gives for each case, computed once for all devices that are tested.
#[derive(Default)]
pub struct SelfTestReference(HashMap<String, Result<Vec<f32>, String>>);

impl SelfTestReference {
    /// The values of this name, which `work` computes the first time.
    fn of(&mut self, name: &str, work: impl FnOnce() -> TensorResult<Vec<f32>>) -> Result<&[f32], String> {
        self.0.entry(name.into()).or_insert_with(|| caught(work)).as_deref().map_err(String::clone)
    }
}

impl SelfTestReport {
    /// Whether nothing failed.
    pub fn passes(&self) -> bool {
        self.rows.iter().all(|r| r.failed.is_none())
    }

    /// The report as a JSON object, as [`SelfTestReport::from_json`] takes it.
    pub fn to_json(&self) -> Value {
        let rows = self
            .rows
            .iter()
            .map(|r| json!({ "name": r.name, "error": r.error, "tolerance": r.tolerance, "failed": r.failed, "seconds": r.seconds }));
        let bench =
            self.bench.iter().map(|b| json!({ "name": b.name, "seconds": b.seconds, "bytes": b.bytes, "operations": b.operations }));
        let compiled = self.compiled.iter().map(|k| json!({ "name": k.name, "seconds": k.seconds, "found": k.found }));
        json!({ "device": self.device, "rows": rows.collect::<Vec<_>>(), "not_done": self.not_done, "bench": bench.collect::<Vec<_>>(),
            "compiled": compiled.collect::<Vec<_>>(), "kernels": self.kernels.0, "kernel_seconds": self.kernels.1, "refused": self.refused, "known_forms": self.known_forms,
            "seconds": self.seconds })
    }

    /// A report from its JSON object.
    ///
    /// # Errors
    /// [`TensorError::Format`] where something is missing.
    ///
    /// ```
    /// use tensorlogic::measure::SelfTestReport;
    /// let (rows, not_done, bench, refused) = (vec![], vec![], vec![], vec![]);
    /// let (device, compiled, known_forms) = ("cpu".to_string(), vec![], vec![]);
    /// let report = SelfTestReport { device, rows, not_done, bench, kernels: (3, 0.5), compiled, refused, known_forms, seconds: 2.0 };
    /// let mut json = report.to_json();
    /// assert_eq!(SelfTestReport::from_json(&json)?, report);
    /// json["seconds"].take();
    /// assert!(SelfTestReport::from_json(&json).unwrap_err().to_string().ends_with("seconds is missing"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_json(v: &Value) -> TensorResult<SelfTestReport> {
        let wrong = |what: &str| TensorError::format("self-test report", format!("{what} is missing"));
        let text = |v: &Value, k: &str| v[k].as_str().map(str::to_string).ok_or_else(|| wrong(k));
        let number = |v: &Value, k: &str| v[k].as_f64().ok_or_else(|| wrong(k));
        let list = |k: &str| v[k].as_array().ok_or_else(|| wrong(k));
        let row = |v: &Value| {
            let failed = v["failed"].as_str().map(str::to_string);
            let (tolerance, seconds) = (number(v, "tolerance")?, number(v, "seconds")?);
            Ok(SelfTestRow { name: text(v, "name")?, error: v["error"].as_f64(), tolerance, failed, seconds })
        };
        let bench = |v: &Value| {
            let (seconds, bytes, operations) = (number(v, "seconds")?, number(v, "bytes")?, number(v, "operations")?);
            Ok(SelfTestBench { name: text(v, "name")?, seconds, bytes, operations })
        };
        let kernel = |v: &Value| {
            let found = v["found"].as_bool().unwrap_or_default();
            Ok(CompiledKernel { name: text(v, "name")?, seconds: number(v, "seconds")?, found })
        };
        let texts = |k: &str| Ok(list(k)?.iter().filter_map(|r| r.as_str().map(str::to_string)).collect());
        Ok(SelfTestReport {
            device: text(v, "device")?,
            rows: list("rows")?.iter().map(row).collect::<TensorResult<_>>()?,
            // Reports of earlier builds have none.
            not_done: if v["not_done"].is_null() { vec![] } else { texts("not_done")? },
            bench: list("bench")?.iter().map(bench).collect::<TensorResult<_>>()?,
            compiled: v["compiled"].as_array().into_iter().flatten().map(kernel).collect::<TensorResult<_>>()?,
            kernels: (number(v, "kernels")? as usize, number(v, "kernel_seconds")?),
            refused: texts("refused")?,
            known_forms: if v["known_forms"].is_null() { vec![] } else { texts("known_forms")? },
            seconds: number(v, "seconds")?,
        })
    }
}

/// What the self-test does besides its cases, and which of them it leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub struct SelfTestOptions<'o> {
    /// Seconds that are spent on measuring, about; none where 0.
    pub bench_seconds: f64,
    /// Only work whose name begins so; all where empty. The name of what is measured is `bench`.
    pub only: &'o str,
    /// The name by which the device is opened again when it was lost; without one, the test ends there.
    pub reopen: Option<&'o str>,
    /// When no further case begins. Of the work that shows missing barriers one round is done all the same, and what is measured.
    pub until: Option<Instant>,
}

/// How often a device that was lost is opened again.
const REOPENED: usize = 3;

/// The values of a result, as f32.
fn values(t: &Tensor) -> TensorResult<Vec<f32>> {
    t.cast(DType::F32)?.to_vec()
}

/// The largest difference, as a part of the largest value; infinite where one of two values is not a number or the counts differ.
fn error(got: &[f32], want: &[f32]) -> f64 {
    if got.len() != want.len() {
        return f64::INFINITY;
    }
    let largest = want.iter().filter(|v| v.is_finite()).fold(1e-6f64, |m, v| m.max(f64::from(v.abs())));
    let off = |(a, b): (&f32, &f32)| match (a == b || a.is_nan() && b.is_nan(), a.is_finite() && b.is_finite()) {
        (true, _) => 0.0,
        (_, true) => (f64::from(*a) - f64::from(*b)).abs() / largest,
        _ => f64::INFINITY,
    };
    got.iter().zip(want).map(off).fold(0.0, f64::max)
}

/// Values spread over a result.
fn samples(values: &[f32]) -> Vec<f32> {
    let step = values.len().div_ceil(SAMPLES).max(1);
    values.iter().step_by(step).copied().collect()
}

/// Runs what may panic; a panic is an error too.
///
/// # Errors
/// The message of the error or of the panic.
///
/// ```
/// use tensorlogic::measure::caught;
/// assert_eq!(caught(|| Ok::<i32, String>(3)), Ok(3));
/// assert_eq!(caught(|| -> Result<i32, String> { panic!("no {}", 4) }), Err("panicked: no 4".into()));
/// ```
pub fn caught<T, E: Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|e| e.to_string()),
        Err(panic) => {
            let why = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            Err(format!("panicked: {}", why.unwrap_or_else(|| "no reason is given".into())))
        }
    }
}

/// What was recorded for a case on another machine.
fn recorded(name: &str) -> Option<Vec<f32>> {
    let line = RECORDED.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('\t'))?;
    line.split(' ').map(|word| u32::from_str_radix(word, 16).ok().map(f32::from_bits)).collect()
}

/// Runs a case on the device, and compares it with the CPU, whose values must be those recorded.
fn run_case(case: &SelfTestCase, device: &Device, reference: &mut SelfTestReference) -> SelfTestRow {
    let start = Instant::now();
    let got = caught(|| values(&(case.run)(device)?));
    let seconds = start.elapsed().as_secs_f64();
    let want = reference.of(&case.name, || values(&(case.run)(&Device::cpu())?));
    let mut row = SelfTestRow { name: case.name.clone(), error: None, tolerance: case.tolerance, failed: None, seconds };
    match (got, want) {
        (Err(e), _) => row.failed = Some(e),
        (_, Err(e)) => row.failed = Some(format!("on the CPU: {e}")),
        (Ok(got), Ok(want)) => {
            let off = error(&got, want);
            row.error = Some(off);
            if off > case.tolerance {
                row.failed = Some(format!("a difference of {off:.1e}"));
            }
            let before = recorded(&case.name);
            let off = before.map(|r| error(&samples(want), &r)).unwrap_or(f64::INFINITY);
            if off > case.tolerance.max(1e-6) {
                row.failed = Some(format!("the CPU's values are {off:.1e} from those recorded"));
            }
        }
    }
    row
}

fn litmus_name(litmus: &Litmus) -> String {
    format!("litmus {}", litmus.name)
}

/// Work that shows missing barriers, several rounds of it, or one where the time is up: the values must be the CPU's, exactly.
fn run_litmus(litmus: &Litmus, device: &Device, until: Option<Instant>, reference: &mut SelfTestReference) -> SelfTestRow {
    let (start, name) = (Instant::now(), &litmus_name(litmus));
    let mut row = SelfTestRow { name: name.clone(), error: None, tolerance: 0.0, failed: None, seconds: 0.0 };
    for round in 0..ROUNDS {
        let got = caught(|| (litmus.run)(device, round));
        let want = reference.of(&format!("{name} {round}"), || (litmus.run)(&Device::cpu(), round));
        match got.and_then(|got| Ok(error(&got, want?))) {
            Ok(off) => row.error = Some(row.error.unwrap_or(0.0).max(off)),
            Err(e) => row.failed = Some(e),
        }
        if row.failed.is_some() || until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
    }
    if row.error.is_some_and(|e| e > 0.0) {
        row.failed = Some(format!("a difference of {:.1e} between exact values", row.error.unwrap_or_default()));
    }
    row.seconds = start.elapsed().as_secs_f64();
    row
}

/// The longest large product that is worth measuring, in seconds; on slower devices small ones are measured.
const MAX_PRODUCT_SECONDS: f64 = 1.0;

/// A copy, products of one row and a square product: large ones, unless the small ones tell that they would take too long.
fn bench(device: &Device, seconds: f64) -> TensorResult<Vec<SelfTestBench>> {
    let small = bench_of(device, seconds, true)?;
    let product = small.last().map_or(f64::INFINITY, |b| b.seconds);
    if product * f64::from((LARGE_SIDE / SMALL_SIDE).pow(3)) > MAX_PRODUCT_SECONDS { Ok(small) } else { bench_of(device, seconds, false) }
}

/// Sides of the square products.
const SMALL_SIDE: u32 = 128;
const LARGE_SIDE: u32 = 2048;

fn bench_of(device: &Device, seconds: f64, quick: bool) -> TensorResult<Vec<SelfTestBench>> {
    let (side, copied) = if quick { (512, 1 << 20) } else { (4096, 64 << 20) };
    let options =
        Options { samples: if quick { 3 } else { 15 }, sample: Duration::from_secs_f64(seconds / 200.0), quick, ..Options::new() };
    let ones = |shape: &[usize], dtype| Tensor::full(1.0, shape, dtype, device).and_then(|t| t.eval().map(|_| t.clone()));
    let mut out = vec![];
    let mut add = |name: String, bytes: f64, operations: f64, expect: f64, run: &dyn Fn() -> TensorResult<Tensor>| {
        let run = Box::new(move |_| run().map(Outcome::Tensor));
        let times = measure(device, &Work { variants: 1, run, expect: vec![expect], tolerance: 1e-2 }, &options)?;
        out.push(SelfTestBench { name, seconds: times.best().median, bytes, operations });
        TensorResult::Ok(())
    };
    let x = ones(&[copied / 4], DType::F32)?;
    add(format!("negation of {} MiB", copied >> 20), 2.0 * copied as f64, copied as f64 / 4.0, -1.0, &|| x.neg())?;
    let row = ones(&[1, side], DType::F16)?;
    let flat = (side * side) as f64;
    for dtype in [DType::F16, DType::Q4_0] {
        let host = Tensor::full(1.0, &[side, side], DType::F32, &Device::cpu())?.to_vec()?;
        let w = match dtype.is_block() {
            true => {
                let bytes = std::sync::Arc::new(crate::quant::quantize(dtype, &host)?);
                let len = bytes.len();
                Tensor::from_bytes(crate::backends::Bytes::Shared(bytes, 0, len), dtype, &[side, side], device)?
            }
            false => ones(&[side, side], dtype)?,
        };
        let bytes = flat * dtype.block_bytes() as f64 / dtype.block() as f64;
        add(format!("one row by {side}x{side} {dtype}"), bytes, 2.0 * flat, side as f64, &|| row.matmul(&w.t()?))?;
    }
    let edge = if quick { SMALL_SIDE } else { LARGE_SIDE } as usize;
    let a = ones(&[edge, edge], DType::F16)?;
    let cubed = (edge * edge * edge) as f64;
    add(format!("product {edge}x{edge}x{edge} f16"), 6.0 * (edge * edge) as f64, 2.0 * cubed, edge as f64, &|| a.matmul(&a))?;
    Ok(out)
}

/// A test that runs.
struct SelfTestRun<'r> {
    device: Device,
    options: SelfTestOptions<'r>,
    rows: Vec<SelfTestRow>,
    not_done: Vec<String>,
    /// How often the device may still be opened again.
    left: usize,
    progress: &'r mut dyn FnMut(SelfTestProgress<'_>),
}

impl SelfTestRun<'_> {
    /// Does work of this name, if it is asked for. Where the device was lost before and cannot be opened again, it is not done.
    fn row(&mut self, name: &str, work: impl FnOnce(&Device) -> Option<SelfTestRow>) {
        if !name.starts_with(self.options.only) {
            return;
        }
        if self.device.is_lost() && !self.reopens() {
            self.add(failed(name, "not done: the device was lost before".into(), 0.0));
            return;
        }
        (self.progress)(SelfTestProgress::Begins(name, &self.rows));
        work(&self.device).into_iter().for_each(|row| self.add(row));
    }

    fn add(&mut self, row: SelfTestRow) {
        (self.progress)(SelfTestProgress::Done(&row));
        self.rows.push(row);
    }

    /// Runs the recorded dispatches again, where the device takes Metal's language.
    #[cfg(feature = "metal")]
    fn replay(&mut self, until: Option<Instant>) {
        if !dispatches::runs_on(&self.device) {
            return;
        }
        let recording = match dispatches::Recording::read() {
            Ok(recording) => recording,
            Err(e) => return self.add(failed("recorded dispatches", e.to_string(), 0.0)),
        };
        for (n, dispatch) in recording.dispatches.iter().enumerate() {
            let name = format!("recorded {}", dispatch.name);
            if until.is_some_and(|until| Instant::now() >= until) {
                self.not_done.extend(name.starts_with(self.options.only).then_some(name));
                continue;
            }
            self.row(&name, |device| {
                let start = Instant::now();
                let mut row = failed(&name, String::new(), 0.0);
                row.failed = match caught(|| recording.replay(n, device)) {
                    Ok((off, right)) => {
                        (row.error, row.tolerance) = (Some(off), right);
                        (off > right).then(|| format!("a difference of {off:.1e} from what was recorded"))
                    }
                    Err(why) => Some(why),
                };
                row.seconds = start.elapsed().as_secs_f64();
                Some(row)
            });
        }
    }

    /// Opens the device that was lost again.
    fn reopens(&mut self) -> bool {
        let Some(name) = self.options.reopen.filter(|_| self.left > 0) else { return false };
        self.left -= 1;
        let opened = caught(|| Device::open(name));
        opened.is_ok_and(|device| {
            device.set_adaptive(false);
            self.device = device;
            true
        })
    }
}

/// A row that says what went wrong.
fn failed(name: &str, why: String, seconds: f64) -> SelfTestRow {
    SelfTestRow { name: name.into(), error: None, tolerance: 0.0, failed: Some(why), seconds }
}

/// Tests a device. What fails is in the report; `progress` is told what begins, and each row. `reference` is shared by the tests of several devices.
///
/// ```
/// use tensorlogic::{Device, measure::{SelfTestOptions, self_test}};
/// let options = SelfTestOptions { only: "map", ..Default::default() };
/// let report = self_test(&Device::cpu(), &options, &mut Default::default(), &mut |_| {});
/// assert!(report.passes() && report.rows.len() > 50);
/// ```
pub fn self_test(
    device: &Device,
    options: &SelfTestOptions<'_>,
    reference: &mut SelfTestReference,
    progress: &mut dyn FnMut(SelfTestProgress<'_>),
) -> SelfTestReport {
    let (start, before) = (Instant::now(), device.pipeline_stats());
    // On the device however small the work is.
    let adaptive = device.adaptive();
    device.set_adaptive(false);
    let (rows, not_done) = (vec![], vec![]);
    let mut run = SelfTestRun { device: device.clone(), options: *options, rows, not_done, left: REOPENED, progress };
    // First, so that a driver that compiles slowly does not leave them out.
    #[cfg(feature = "metal")]
    run.replay(options.until);
    for case in cases() {
        if options.until.is_some_and(|until| Instant::now() >= until) {
            run.not_done.extend(case.name.starts_with(options.only).then_some(case.name));
            continue;
        }
        run.row(&case.name, |device| Some(run_case(&case, device, reference)));
    }
    for litmus in &LITMUS {
        run.row(&litmus_name(litmus), |device| Some(run_litmus(litmus, device, options.until, reference)));
    }
    let mut measured = vec![];
    if options.bench_seconds > 0.0 {
        run.row("bench", |device| {
            let benched = Instant::now();
            let done = caught(|| bench(device, options.bench_seconds));
            match done {
                Ok(b) => {
                    measured = b;
                    None
                }
                Err(e) => Some(failed("bench", e, benched.elapsed().as_secs_f64())),
            }
        });
    }
    // Last: what they may do to a device is no other work's fault.
    let mut known_forms = vec![];
    run.row("forms", |device| {
        known_forms = forms::told(device);
        None
    });
    device.set_adaptive(adaptive);
    let after = run.device.pipeline_stats();
    let kernels = (after.pipelines - before.pipelines.min(after.pipelines), (after.seconds - before.seconds).max(0.0));
    let seconds = start.elapsed().as_secs_f64();
    let SelfTestRun { rows, not_done, .. } = run;
    // A device that was opened again has compiled only since then.
    let compiled = after.kernels.into_iter().skip(if after.pipelines < before.pipelines { 0 } else { before.kernels.len() }).collect();
    SelfTestReport {
        device: device.name(),
        rows,
        not_done,
        bench: measured,
        kernels,
        compiled,
        refused: after.refused_bodies,
        known_forms,
        seconds,
    }
}
