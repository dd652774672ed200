//! Measuring: warm-up, samples by the wall's clock and the GPU's own, the limits of the machine, suites, reports and comparisons.
//!
//! A sample is a batch of evaluations that ends with an element of the last result read back and compared with what it must be. Inputs take
//! turns, so a value that was not computed again, or not waited for, is seen; nothing is reported then.

mod caches;
mod compare;
mod cpu_time;
mod downloads;
mod energy;
mod environment;
mod floor;
mod floors;
mod fused_floors;
mod gains;
mod hierarchy;
mod limits;
mod memory;
mod memory_floors;
mod monitor;
mod optimize;
mod pairs;
mod plot;
mod probe;
mod record;
mod reuse;
mod runner;
mod self_test;
mod suites;
#[cfg(any(feature = "gpu", all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal))))]
mod tune;
mod wgsl_kernel;

pub use caches::{Technique, caches};
pub use compare::{Change, Verdict, compare, compare_across};
pub use cpu_time::cpu_time;
pub use energy::{Energy, EnergyMeter};
pub use environment::Environment;
pub use floor::Floor;
pub use floors::floors;
pub use hierarchy::{CacheCounters, CacheLevel, Hierarchy, HierarchyOptions, SystemCache, WorkingSet, hierarchy};
pub use limits::Limits;
pub use memory::{MEMORY_HEADING, MemoryRow, memory};
pub use monitor::{Measured, PerformanceMonitor};
pub use optimize::MemoryPlanReport;
pub use plot::{html, svg};
pub use record::{Record, read_records, table};
pub use reuse::ReuseHistogram;
pub use runner::CATEGORIES;
pub use self_test::{
    SelfTestBench, SelfTestOptions, SelfTestProgress, SelfTestReference, SelfTestReport, SelfTestRow, caught, published_bandwidth,
    self_test,
};
pub use suites::suite;
#[cfg(any(feature = "gpu", all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal))))]
pub use tune::{TuneOptions, TuneReport, TuneRow, TuningGroup, tune, tune_model};

use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::plan::Timing;
use crate::tensor::Tensor;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How carefully to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Samples of each clock.
    pub samples: usize,
    /// Work before the first sample.
    pub warm_up: Duration,
    /// How long a sample lasts at least.
    pub sample: Duration,
    /// Whether the largest sizes are left out, to see that everything works.
    pub quick: bool,
}

impl Options {
    /// For numbers that are kept.
    pub fn new() -> Options {
        Options { samples: 25, warm_up: Duration::from_millis(60), sample: Duration::from_millis(2), quick: false }
    }
    /// For a test of the benchmark itself.
    pub fn quick() -> Options {
        Options { samples: 3, warm_up: Duration::ZERO, sample: Duration::ZERO, quick: true }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

/// Samples in seconds and what they amount to.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Half of the samples are not above it.
    pub median: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// 95 of 100 samples are not above it.
    pub p95: f64,
    /// The median distance from the median.
    pub mad: f64,
    /// The samples, in the order they were taken.
    pub samples: Vec<f64>,
}

impl Stats {
    /// The statistics of samples; `None` if there are none, or one is not a valid time.
    pub fn of(samples: Vec<f64>) -> Option<Stats> {
        if samples.is_empty() || samples.iter().any(|s| !s.is_finite() || *s < 0.0) {
            return None;
        }
        let sorted = |v: &[f64]| {
            let mut v = v.to_vec();
            v.sort_by(f64::total_cmp);
            v
        };
        let s = sorted(&samples);
        let median = middle(&s);
        let mad = middle(&sorted(&s.iter().map(|x| (x - median).abs()).collect::<Vec<_>>()));
        let p95 = s[(s.len() * 95).div_ceil(100).clamp(1, s.len()) - 1];
        Some(Stats { median, mean: s.iter().sum::<f64>() / s.len() as f64, min: s[0], max: s[s.len() - 1], p95, mad, samples })
    }
    /// The median distance from the median, as a part of it.
    pub fn spread(&self) -> f64 {
        if self.median > 0.0 { self.mad / self.median } else { 0.0 }
    }
}

/// The median of sorted numbers.
pub(crate) fn middle(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 }
}

/// The result of one evaluation of a measured operation.
pub enum Outcome {
    /// A tensor, evaluated by the harness.
    Tensor(Tensor),
    /// A number that was waited for.
    Value(f64),
}

impl From<Tensor> for Outcome {
    fn from(t: Tensor) -> Outcome {
        Outcome::Tensor(t)
    }
}

/// An operation to measure.
pub struct Work<'a> {
    /// Inputs that take turns.
    pub variants: usize,
    /// Runs the operation on input `v`.
    pub run: Box<dyn Fn(usize) -> TensorResult<Outcome> + 'a>,
    /// The expected first element of the result for input `v`.
    pub expect: Vec<f64>,
    /// How far from that it may be, as a part of `1 + |expected|`.
    pub tolerance: f64,
}

/// Both clocks' times of one evaluation.
#[derive(Clone, Debug)]
pub struct Times {
    /// The wall's, the waiting for the device included and shared among the evaluations of a sample.
    pub wall: Stats,
    /// Time by the GPU's clock; `None` on a CPU, or if the GPU has none.
    pub gpu: Option<Stats>,
    /// Evaluations of a sample.
    pub batch: usize,
}

impl Times {
    /// Time by the GPU's clock if there is one, else wall-clock time.
    pub fn best(&self) -> &Stats {
        self.gpu.as_ref().unwrap_or(&self.wall)
    }
}

/// The first element of an evaluated tensor, waited for.
///
/// # Errors
/// When the tensor is empty; those of the evaluation.
///
/// ```
/// use tensorlogic::measure::first;
/// use tensorlogic::prelude::*;
/// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &Device::cpu())?;
/// assert_eq!(first(&x.mul(2.5)?)?, 2.5);
/// # Ok::<(), TensorError>(())
/// ```
pub fn first(t: &Tensor) -> TensorResult<f64> {
    use crate::dtype::DType::*;
    let mut one = t.clone();
    for d in 0..t.rank() {
        one = one.narrow(d, 0, 1)?;
    }
    let b = one.to_bytes()?;
    Ok(match t.dtype() {
        F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f64(),
        BF16 => half::bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64,
        I32 => i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64,
        _ => one.to_vec()?[0] as f64,
    })
}

/// Runs a batch, checks the last result, and returns the wall-clock time of one evaluation.
fn batch(work: &Work<'_>, count: usize, turn: &mut usize) -> TensorResult<f64> {
    let start = Instant::now();
    let mut last = None;
    let mut v = 0;
    for _ in 0..count.max(1) {
        v = *turn % work.variants;
        *turn += 1;
        let outcome = (work.run)(v)?;
        if let Outcome::Tensor(t) = &outcome {
            t.eval()?;
        }
        last = Some(outcome);
    }
    let got = match last {
        Some(Outcome::Tensor(t)) => first(&t)?,
        Some(Outcome::Value(x)) => x,
        None => f64::NAN,
    };
    let time = start.elapsed().as_secs_f64() / count.max(1) as f64;
    let want = work.expect[v % work.expect.len()];
    if !((got - want).abs() <= work.tolerance * (1.0 + want.abs())) {
        return Err(TensorError::Internal(format!("a measured result starts with {got} instead of {want}: nothing is reported")));
    }
    Ok(time)
}

/// Measures an operation.
///
/// # Errors
/// Those of the operation, and when a result is wrong.
///
/// ```
/// use tensorlogic::measure::{Options, Work, measure};
/// use tensorlogic::prelude::*;
/// let device = Device::cpu();
/// let x = Tensor::full(2.0, &[8], DType::F32, &device)?;
/// let measured = |first: f64| {
///     let work = Work { variants: 1, run: Box::new(|_| Ok(x.mul(3.0)?.into())), expect: vec![first], tolerance: 1e-6 };
///     measure(&device, &work, &Options::quick())
/// };
/// assert_eq!(measured(6.0)?.wall.samples.len(), 3);
/// assert!(measured(7.0).is_err()); // 2 · 3 is not 7
/// # Ok::<(), TensorError>(())
/// ```
pub fn measure(device: &Device, work: &Work<'_>, options: &Options) -> TensorResult<Times> {
    // On the device however small the work is: otherwise the CPU would do some of it.
    let adaptive = device.adaptive();
    device.set_adaptive(false);
    let times = measure_there(device, work, options);
    device.set_adaptive(adaptive);
    times
}

fn measure_there(device: &Device, work: &Work<'_>, options: &Options) -> TensorResult<Times> {
    let mut turn = 0;
    // Every input once at least: the first evaluation compiles, and the first use of memory is slow.
    for _ in 0..work.variants.clamp(1, 4) {
        batch(work, 1, &mut turn)?;
    }
    // The device idled meanwhile.
    let begun = Instant::now();
    while begun.elapsed() < options.warm_up {
        batch(work, 4, &mut turn)?;
    }
    let one = batch(work, 1, &mut turn)?;
    let count = if options.quick { 2 } else { ((options.sample.as_secs_f64() / one.max(1e-9)).ceil() as usize).clamp(1, 500) };
    // Once more with the true cost of an evaluation in a batch: the wait for the device is most of a single one.
    let each = batch(work, count, &mut turn)?;
    let count = if options.quick { 2 } else { ((options.sample.as_secs_f64() / each.max(1e-9)).ceil() as usize).clamp(1, 500) };
    let samples = (0..options.samples).map(|_| batch(work, count, &mut turn)).collect::<TensorResult<Vec<_>>>()?;
    let none = || TensorError::Value("no sample was taken".into());
    let wall = Stats::of(samples).ok_or_else(none)?;
    let gpu = if device.capabilities().clock { gpu_samples(device, work, options, count.min(64), &mut turn)? } else { None };
    Ok(Times { wall, gpu, batch: count })
}

/// Samples by the GPU's clock. Runs are submitted as usual, and their timestamps are read at the end.
fn gpu_samples(device: &Device, work: &Work<'_>, options: &Options, count: usize, turn: &mut usize) -> TensorResult<Option<Stats>> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    device.synchronize()?;
    device.backend().start_timing(Timing::Runs)?;
    let done = (0..options.samples).try_for_each(|_| batch(work, count, turn).map(drop));
    let runs = device.backend().finish_timing()?;
    done?;
    let times: Option<Vec<f64>> = runs.iter().map(|r| r.run.map(|[a, b]| b - a)).collect();
    let each = runs.len() / (options.samples * count).max(1);
    let Some(times) = times.filter(|_| each > 0 && runs.len() == each * options.samples * count) else { return Ok(None) };
    Ok(Stats::of(times.chunks(each * count).map(|c| c.iter().sum::<f64>() / count as f64).collect()))
}

#[cfg(test)]
mod tests;
