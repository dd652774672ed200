//! Measures which numbers of a tuning table serve this GPU best: one change at a time against the table of its class, by the GPU's own clock.
//!
//! A change is measured only where it changes a kernel, alternating with the class's table, and kept only where it is faster beyond noise and
//! slower nowhere. What is kept is measured once more as a whole; a group in which anything is slower then has its class's values.

mod candidates;
mod cases;
mod fit;
mod model_cases;

pub use cases::TuningGroup;

use super::{Stats, first};
use crate::backends::TunedAdapter;
use crate::backends::codegen::{Shader, kernel_shaders};
use crate::backends::open::open;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::{eval_all, plan_of};
use crate::models::{Model, tuning_key};
use crate::plan::{AdapterInfo, Plan, Timing};
use crate::tensor::Tensor;
use crate::tuning::Tuning;
use candidates::{Candidate, candidates};
use cases::{TuneCase, TuneRun, cases, product};
use fit::{TileTime, TileTimes, fit};
use model_cases::model_cases;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// A gain or loss up to this part is none.
const TOLERANCE: f64 = 0.03;
/// The longest work that is measured, in seconds.
const MAX_SAMPLE_SECONDS: f64 = 0.05;
/// Parts of the time after which no further case, no further tile and no further candidate is begun; the rest is for the last comparison.
const UNTIL: [f64; 3] = [0.15, 0.4, 0.75];
/// Samples of each table in the search, and in the last comparison.
const SAMPLES: [usize; 2] = [7, 11];
/// How long a sample lasts at least.
const SAMPLE: f64 = 1e-3;

/// How to tune.
pub struct TuneOptions<'a> {
    /// Seconds after which nothing more is measured.
    pub seconds: f64,
    /// Asked between measurements; where it gives true, nothing is reported.
    pub stop: &'a dyn Fn() -> bool,
    /// Told what is measured.
    pub progress: &'a dyn Fn(&str),
}

/// One kind of work under the class's table and under the measured one.
#[derive(Clone, Debug)]
pub struct TuneRow {
    /// The part of the table that serves it.
    pub group: TuningGroup,
    /// The work.
    pub what: String,
    /// Seconds under the class's table.
    pub before: f64,
    /// Seconds under the measured table.
    pub after: f64,
    /// Whether the group's measured numbers were kept.
    pub kept: bool,
}

/// What was measured.
pub struct TuneReport {
    opened: Opened,
    /// The key of the model that it was measured for, if it was for one.
    model: Option<String>,
    /// The device as people know it.
    pub device: String,
    /// Whether it is a driver that computes on the CPU.
    pub software: bool,
    /// The table of the adapter's class; for a model the one that was in force before.
    pub class: Tuning,
    /// The measured table.
    pub table: Tuning,
    /// What differs, each as `number: value`.
    pub changes: Vec<String>,
    /// The last comparison: work whose kernels differ between the two tables.
    pub rows: Vec<TuneRow>,
    /// Kinds of work that were measured, of so many that there are.
    pub cases: [usize; 2],
    /// Changes that were tried, of so many that change a kernel.
    pub tried: [usize; 2],
    /// Whether the times are the GPU's own clock's; else they are the wall's.
    pub gpu_clock: bool,
    /// How long it took.
    pub seconds: f64,
}

impl TuneReport {
    /// Keeps the table for this adapter: whoever opens it from now on has it, or whoever runs the model that it was measured for by
    /// [`PipelineStrategy::Optimized`](crate::PipelineStrategy::Optimized). Gives the file.
    ///
    /// # Errors
    /// Those of [`TunedAdapter::store_tuning`].
    ///
    /// ```no_run
    /// # // Not run: it measures for a minute, and replaces the table that this machine's programs use.
    /// use tensorlogic::measure::{TuneOptions, tune};
    /// let options = TuneOptions { seconds: 60.0, stop: &|| false, progress: &|_| {} };
    /// let report = tune("vulkan", &options)?.expect("nobody stopped it");
    /// assert!(report.store()?.exists()); // `Device::open("vulkan")` takes the table from there
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn store(&self) -> TensorResult<PathBuf> {
        self.opened.adapter()?.store_tuning(self.model.as_deref(), &self.table)
    }
}

/// Measures the best table for a GPU; `None` where it was stopped. Nothing is stored, and no open device changes.
///
/// # Errors
/// [`TensorError::UnsupportedDevice`] where there is no such GPU, those of the device, and [`TensorError::Internal`] where a kernel computes
/// something else under another table.
///
/// ```no_run
/// # // Not run: it measures for a minute.
/// use tensorlogic::measure::{TuneOptions, tune};
/// let options = TuneOptions { seconds: 60.0, stop: &|| false, progress: &|what| println!("{what}") };
/// let report = tune("vulkan", &options)?.expect("nobody stopped it");
/// // What is kept is slower nowhere, but for noise.
/// assert!(report.rows.iter().filter(|row| row.kept).all(|row| row.after < 1.05 * row.before));
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn tune(device: &str, options: &TuneOptions<'_>) -> TensorResult<Option<TuneReport>> {
    let begun = Instant::now();
    let opened = Opened::new(device, None)?;
    let class = opened.adapter()?.class_tuning();
    let base = if opened.device.tuning() == Some(&class) { opened } else { Opened::new(device, Some(class.clone()))? };
    let software = base.software;
    let mut tuner = Tuner { selector: device, options, begun, class, base, known: Vec::new(), gpu_clock: true, tried: [0; 2], model: None };
    tuner.run(cases(software))
}

/// The same for the shapes of one model, against the table in force: what [`PipelineStrategy::Optimized`](crate::PipelineStrategy::Optimized)
/// takes once it is kept.
///
/// # Errors
/// Those of [`tune`].
///
/// ```no_run
/// # // Not run: it measures for seconds, and which kinds of work the time allows depends on the GPU.
/// use tensorlogic::Device;
/// use tensorlogic::measure::{TuneOptions, tune_model};
/// use tensorlogic::models::{self, Weights};
/// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &Device::open("vulkan")?)?, None)?;
/// let options = TuneOptions { seconds: 10.0, stop: &|| false, progress: &|_| {} };
/// let report = tune_model("vulkan", &*model, &options)?.expect("nobody stopped it");
/// assert!(report.cases[0] <= report.cases[1]); // as many kinds of work as the time allowed
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn tune_model(device: &str, model: &dyn Model, options: &TuneOptions<'_>) -> TensorResult<Option<TuneReport>> {
    let begun = Instant::now();
    let base = Opened::new(device, None)?;
    let class = (*base.adapter()?.info.tuning).clone();
    let (software, model_key) = (base.software, Some(tuning_key(model)));
    let (known, gpu_clock, tried) = (Vec::new(), true, [0; 2]);
    let mut tuner = Tuner { selector: device, options, begun, class, base, known, gpu_clock, tried, model: model_key };
    tuner.run(model_cases(model, software))
}

/// A device under one table.
#[derive(Clone)]
struct Opened {
    device: Device,
    /// Whether it is a driver that computes on the CPU.
    software: bool,
}

impl Opened {
    /// A device of its own, with this table or the one in force for it.
    fn new(selector: &str, table: Option<Tuning>) -> TensorResult<Opened> {
        let opened = open(selector, table)?;
        let software = opened.software;
        let device = Device::of_opened(opened);
        device.set_adaptive(false);
        Ok(Opened { device, software })
    }
    fn adapter(&self) -> TensorResult<&TunedAdapter> {
        let none = || TensorError::UnsupportedDevice(format!("{} has no tuning table", self.device.name()));
        self.device.backend().adapter().ok_or_else(none)
    }
    fn info(&self) -> TensorResult<&AdapterInfo> {
        self.adapter().map(|a| &a.info)
    }
    fn with(selector: &str, table: Tuning) -> TensorResult<Opened> {
        Opened::new(selector, Some(table))
    }
}

/// A case that the class's table has run.
struct Known {
    case: TuneCase,
    plan: Arc<Plan>,
    shaders: Vec<Shader>,
    /// Seconds until it had run once: most of them the driver's, which compiled its kernels. Another table's kernels take about as long.
    first: f64,
}

/// Times of one case under two tables.
struct Comparison {
    before: f64,
    after: f64,
    noise: f64,
}

impl Comparison {
    fn gain(&self) -> f64 {
        self.before / self.after.max(1e-12)
    }
    fn is_faster(&self) -> bool {
        self.gain() > 1.0 + TOLERANCE + self.noise
    }
    fn is_slower(&self) -> bool {
        self.gain() < 1.0 / (1.0 + TOLERANCE)
    }
}

/// A change that made something faster.
struct MeasuredGain {
    /// Its number among the candidates.
    candidate: usize,
    /// The geometric mean of the gains.
    mean: f64,
}

struct Tuner<'a> {
    selector: &'a str,
    options: &'a TuneOptions<'a>,
    begun: Instant,
    class: Tuning,
    base: Opened,
    known: Vec<Known>,
    gpu_clock: bool,
    tried: [usize; 2],
    model: Option<String>,
}

impl Tuner<'_> {
    /// Whether this part of the time is over, or the user wants no more.
    fn over(&self, part: f64) -> bool {
        self.over_after(0.0, part)
    }
    /// Whether it will be over once work of so many seconds is done.
    fn over_after(&self, seconds: f64, part: f64) -> bool {
        self.stopped() || self.begun.elapsed().as_secs_f64() + seconds > part * self.options.seconds
    }
    fn stopped(&self) -> bool {
        (self.options.stop)()
    }
    fn say(&self, what: &str) {
        (self.options.progress)(what);
    }

    fn run(&mut self, all: Vec<TuneCase>) -> TensorResult<Option<TuneReport>> {
        let software = self.base.software;
        let count = all.len();
        self.run_class(all)?;
        let fitted = self.fit_tiles(software)?;
        let all = candidates(&self.class, fitted);
        let gains = self.search(&all)?;
        if self.stopped() {
            return Ok(None);
        }
        let mut table = self.class.clone();
        gains.iter().for_each(|g| (all[g.candidate].apply)(&mut table));
        let rows = self.compare_whole(&mut table)?;
        if self.stopped() {
            return Ok(None);
        }
        let kept = |g: TuningGroup| !rows.iter().any(|r| r.group == g && !r.kept) && rows.iter().any(|r| r.group == g);
        let changed = gains.iter().map(|g| &all[g.candidate]).filter(|c| kept(c.group));
        let changes = changed.map(|c| format!("{}: {}", c.field, c.value)).collect();
        table.name = format!("measured on {}", self.base.device.name());
        Ok(Some(TuneReport {
            opened: self.base.clone(),
            model: self.model.clone(),
            device: self.base.device.name(),
            software,
            class: self.class.clone(),
            table,
            changes,
            rows,
            cases: [self.known.len(), count],
            tried: self.tried,
            gpu_clock: self.gpu_clock,
            seconds: self.begun.elapsed().as_secs_f64(),
        }))
    }

    /// Runs each case under the class's table: it is compiled then, and takes no longer than may be measured.
    fn run_class(&mut self, all: Vec<TuneCase>) -> TensorResult<()> {
        let mut rate = [0f64; TuningGroup::ALL.len()];
        for case in all {
            if self.stopped() || self.over(UNTIL[0]) && !self.known.is_empty() {
                break;
            }
            let rate = &mut rate[case.group as usize];
            if *rate > 0.0 && case.work / *rate > MAX_SAMPLE_SECONDS {
                continue;
            }
            self.say(&case.name);
            let run = (case.make)(&self.base.device)?;
            let results = run()?;
            let Some(plan) = plan_of(&results.iter().collect::<Vec<_>>())? else { continue };
            drop(results);
            let begun = Instant::now();
            self.sample(&self.base.device, &run, 1)?;
            let first = begun.elapsed().as_secs_f64();
            let (seconds, by_gpu) = self.sample(&self.base.device, &run, 1)?;
            self.gpu_clock &= by_gpu;
            *rate = rate.max(case.work / seconds.max(1e-9));
            if seconds <= MAX_SAMPLE_SECONDS {
                let shaders = kernel_shaders(&plan, self.base.info()?)?;
                self.known.push(Known { case, plan, shaders, first });
            }
        }
        Ok(())
    }

    /// Seconds of an evaluation, a mean of `count`, and whether they are the GPU's own.
    fn sample(&self, device: &Device, run: &TuneRun, count: usize) -> TensorResult<(f64, bool)> {
        device.synchronize()?;
        device.backend().start_timing(Timing::Runs)?;
        let begun = Instant::now();
        let done = (0..count).try_for_each(|_| {
            let results = run()?;
            eval_all(&results.iter().collect::<Vec<_>>())
        });
        let waited = device.synchronize();
        let wall = begun.elapsed().as_secs_f64();
        let runs = device.backend().finish_timing()?;
        done.and(waited)?;
        let own: Option<f64> = runs.iter().map(|r| r.run.map(|[a, b]| b - a)).sum();
        match own.filter(|s| *s > 0.0) {
            Some(seconds) => Ok((seconds / count as f64, true)),
            None => Ok((wall / count as f64, false)),
        }
    }

    /// Whether another table changes a kernel of the case, or which kernels there are.
    fn differs(&self, known: &Known, table: &Tuning) -> bool {
        let plans = known.case.group == TuningGroup::Unpack && table.unpack != self.class.unpack;
        let Ok(info) = self.base.info() else { return true };
        let info = AdapterInfo { tuning: Arc::new(table.clone()), ..info.clone() };
        plans || kernel_shaders(&known.plan, &info).map_or(true, |shaders| shaders != known.shaders)
    }

    /// Measures a case under the class's table and another, in turns.
    fn compare(&self, known: &Known, other: &Opened, samples: usize) -> TensorResult<Comparison> {
        self.say(&known.case.name);
        let devices = [&self.base.device, &other.device];
        let runs = [(known.case.make)(devices[0])?, (known.case.make)(devices[1])?];
        let mut begins = [0.0; 2];
        for i in 0..2 {
            let results = runs[i]()?;
            eval_all(&results.iter().collect::<Vec<_>>())?;
            begins[i] = results.first().map_or(Ok(0.0), first)?;
        }
        if !((begins[0] - begins[1]).abs() <= 0.02 * (1.0 + begins[0].abs())) {
            let what = &known.case.name;
            let message =
                format!("{what} begins with {} under the class's table and with {} under another: nothing is stored", begins[0], begins[1]);
            return Err(TensorError::Internal(message));
        }
        let (once, _) = self.sample(devices[0], &runs[0], 2)?;
        self.sample(devices[1], &runs[1], 2)?;
        let count = ((SAMPLE / once.max(1e-9)).ceil() as usize).clamp(1, 64);
        let mut times = [Vec::new(), Vec::new()];
        for turn in 0..samples {
            for i in [turn % 2, 1 - turn % 2] {
                times[i].push(self.sample(devices[i], &runs[i], count)?.0);
            }
            // Slow work has little noise, and other work waits.
            if turn >= 2 && self.over(1.0) {
                break;
            }
        }
        let none = || TensorError::Internal("no sample was taken".into());
        let [before, after] = times.map(Stats::of);
        let (before, after) = (before.ok_or_else(none)?, after.ok_or_else(none)?);
        Ok(Comparison { before: before.median, after: after.median, noise: before.spread() + after.spread() })
    }

    /// The same; what seems slower is measured once more, while there is time, and the second result counts.
    fn compare_surely(&self, known: &Known, other: &Opened, samples: usize, until: f64) -> TensorResult<Comparison> {
        let c = self.compare(known, other, samples)?;
        if c.is_slower() && !self.over(until) { self.compare(known, other, SAMPLES[1]) } else { Ok(c) }
    }

    /// Tables with measured costs of tiles.
    fn fit_tiles(&mut self, software: bool) -> TensorResult<Vec<(String, Tuning)>> {
        let edge = self.base.info()?.coop;
        let wanted = self.known.iter().any(|k| k.case.group == TuningGroup::Gemm && is_coop(&k.shaders));
        if edge == 0 || !wanted {
            return Ok(vec![]);
        }
        let fixed = self.dispatch_us()?;
        let (rows, n, k): (&[usize], usize, usize) = if software { (&[16, 64], 64, 128) } else { (&[16, 64, 256, 1024, 4096], 2048, 1024) };
        let plain = rows.iter().map(|&m| ([m, n, k], 0));
        let transposed = (1..4).map(|layout| ([rows[rows.len() - 1].min(1024), n, k], layout));
        let sizes: Vec<([usize; 3], usize)> = plain.chain(transposed.filter(|_| !software)).collect();
        let mut measured = Vec::new();
        for tile in self.class.gemm.tiles.clone() {
            if self.over(UNTIL[1]) {
                return Ok(vec![]);
            }
            self.say(&format!("tile of {:?} subgroups, {:?} fragments, {} of K", tile.warps, tile.fragments, tile.bk));
            let mut table = self.class.clone();
            table.gemm.tiles = vec![tile];
            table.gemm.min_split_k = usize::MAX >> 8;
            let info = AdapterInfo { tuning: Arc::new(table.clone()), ..self.base.info()?.clone() };
            // A tile that does not fit the adapter leaves the product to another kernel.
            let fits =
                self.known.iter().any(|k| k.case.group == TuningGroup::Gemm && kernel_shaders(&k.plan, &info).is_ok_and(|s| is_coop(&s)));
            if !fits {
                continue;
            }
            let opened = Opened::with(self.selector, table)?;
            let mut times = Vec::new();
            for &(size, layout) in &sizes {
                if self.over(UNTIL[1]) {
                    return Ok(vec![]);
                }
                let run = (product(TuningGroup::Gemm, size, DType::F16, [layout / 2 == 1, layout % 2 == 1], 1).make)(&opened.device)?;
                let once = self.sample(&opened.device, &run, 1).and_then(|_| self.sample(&opened.device, &run, 2))?.0;
                let count = ((SAMPLE / once.max(1e-9)).ceil() as usize).clamp(1, 64);
                let samples = (0..5).map(|_| Ok(self.sample(&opened.device, &run, count)?.0)).collect::<TensorResult<Vec<f64>>>()?;
                let us = Stats::of(samples).map_or(0.0, |s| s.median * 1e6);
                times.push(TileTime { size, layout, us: (us - fixed).max(0.2 * us) });
            }
            measured.push(TileTimes { tile, times });
        }
        Ok(fit(&self.class, &measured, edge))
    }

    /// Microseconds of a dispatch that does nothing much.
    fn dispatch_us(&self) -> TensorResult<f64> {
        let x = Tensor::ones(&[64], DType::F32, &self.base.device)?;
        x.eval()?;
        let run: TuneRun = Box::new(move || Ok(vec![x.add(1.0)?]));
        let samples = (0..7).map(|_| Ok(self.sample(&self.base.device, &run, 16)?.0)).collect::<TensorResult<Vec<f64>>>()?;
        Ok(Stats::of(samples).map_or(0.0, |s| s.median * 1e6))
    }

    /// Tries candidates: one of each group at a time, since groups do not share kernels. Gives those to keep.
    fn search(&mut self, all: &[Candidate]) -> TensorResult<Vec<MeasuredGain>> {
        let changed = |c: &Candidate| -> Vec<usize> {
            let mut table = self.class.clone();
            (c.apply)(&mut table);
            (0..self.known.len()).filter(|&k| self.known[k].case.group == c.group && self.differs(&self.known[k], &table)).collect()
        };
        let mut waiting: Vec<(usize, Vec<usize>)> =
            all.iter().enumerate().map(|(i, c)| (i, changed(c))).filter(|w| !w.1.is_empty()).collect();
        self.tried[1] = waiting.len();
        let mut gains: Vec<MeasuredGain> = Vec::new();
        while !waiting.is_empty() && !self.over(UNTIL[2]) {
            let mut round: Vec<(usize, Vec<usize>)> = Vec::new();
            for group in TuningGroup::ALL {
                let next = waiting.iter().position(|w| all[w.0].group == group);
                round.extend(next.map(|at| waiting.remove(at)));
            }
            let mut table = self.class.clone();
            round.iter().for_each(|r| (all[r.0].apply)(&mut table));
            let other = Opened::with(self.selector, table)?;
            for (candidate, cases) in round {
                let Some(mean) = self.try_candidate(&other, &cases)? else { continue };
                self.tried[0] += 1;
                let same = gains.iter().position(|g| all[g.candidate].field == all[candidate].field);
                match same {
                    _ if mean <= 1.0 => {}
                    Some(at) if gains[at].mean >= mean => {}
                    Some(at) => gains[at] = MeasuredGain { candidate, mean },
                    None => gains.push(MeasuredGain { candidate, mean }),
                }
            }
        }
        Ok(gains)
    }

    /// The mean gain over these cases, or 1 where one is slower or none is faster beyond noise; `None` where the time was over before.
    fn try_candidate(&self, other: &Opened, cases: &[usize]) -> TensorResult<Option<f64>> {
        let (mut logs, mut faster) = (0.0, false);
        for &k in cases {
            if self.over_after(self.known[k].first, UNTIL[2]) {
                return Ok(None);
            }
            let c = self.compare_surely(&self.known[k], other, SAMPLES[0], UNTIL[2])?;
            if c.is_slower() {
                return Ok(Some(1.0));
            }
            faster |= c.is_faster();
            logs += c.gain().ln();
        }
        let mean = (logs / cases.len().max(1) as f64).exp();
        Ok(Some(if faster { mean } else { 1.0 }))
    }

    /// Measures all that changes under the table, and gives the class's values back to groups in which something is slower, or not measured in time.
    fn compare_whole(&self, table: &mut Tuning) -> TensorResult<Vec<TuneRow>> {
        let mut rows = Vec::new();
        if *table == self.class {
            return Ok(rows);
        }
        let other = Opened::with(self.selector, table.clone())?;
        let mut dropped: Vec<TuningGroup> = Vec::new();
        for known in self.known.iter().filter(|k| self.differs(k, table)) {
            // Groups that this case depends on: a reduction also asks the numbers of kernels over rows.
            let of = || {
                TuningGroup::ALL.into_iter().filter(|g| {
                    let mut alone = self.class.clone();
                    g.copy(table, &mut alone);
                    self.differs(known, &alone)
                })
            };
            if self.over(1.0) {
                dropped.extend(of());
                continue;
            }
            let c = self.compare_surely(known, &other, SAMPLES[1], 1.0)?;
            if c.is_slower() {
                dropped.extend(of());
            }
            let what = known.case.name.clone();
            rows.push(TuneRow { group: known.case.group, what, before: c.before, after: c.after, kept: true });
        }
        for group in TuningGroup::ALL.into_iter().filter(|g| dropped.contains(g)) {
            group.copy(&self.class, table);
            rows.iter_mut().filter(|r| r.group == group).for_each(|r| r.kept = false);
        }
        Ok(rows)
    }
}

/// Whether these kernels multiply by cooperative matrices.
fn is_coop(shaders: &[Shader]) -> bool {
    shaders.iter().any(|s| s.wgsl.contains("coopMultiplyAdd"))
}
