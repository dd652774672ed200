//! Kernel variants from the plain one to the engine's own: each is one short WGSL template that adds one idea, checked, then timed.
//!
//! `cargo bench --bench kernels -- [--only TEXT] [--small]`. The device is `TL_DEVICE`'s, else the first real GPU. A variant is compared with the
//! definition in f64 on sizes that are multiples of nothing, and on some elements of the size that is timed; a wrong one ends the run with exit
//! code 1. Times are the GPU's own clock's. `--small` does the same with tiny sizes, to see that everything works.

#[path = "mod.rs"]
mod kernels;

use kernels::workload::{Limit, Prepared, Variant, Verdict, Workload};
use std::process::ExitCode;
use std::time::Duration;
use tensorlogic::backends::gpu::GpuBackend;
use tensorlogic::eval::eval_all;
use tensorlogic::measure::{Environment, Limits, Options, Outcome, Work, measure};
use tensorlogic::plan::AdapterInfo;
use tensorlogic::{Device, TensorResult};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Elements that are compared at the size that is timed.
const SPREAD: usize = 61;

struct Bench {
    device: Device,
    adapter: AdapterInfo,
    limits: Limits,
    small: bool,
}

impl Bench {
    /// Checks and times a workload's variants; gives what is wrong with one.
    fn compare(&mut self, workload: &Workload) -> Result<Verdict> {
        let timed = if self.small { workload.small } else { workload.timed };
        let (amount, limit, (unit, scale), of) = match workload.limit {
            Limit::Copy(bytes) => (bytes(timed), self.limits.copy_bandwidth()?, ("GB/s", 1e9), "a copy's bandwidth"),
            Limit::Operations(count) => (count(timed), self.limits.operations()?, ("TFLOP/s", 1e12), "f32 multiplications in registers"),
        };
        let size = timed.iter().map(|s| s.to_string()).collect::<Vec<_>>().join(" × ");
        println!("\n{}, {size}; limit: {of}, {:.2} {unit}", workload.name, limit / scale);
        println!("{:<18} {:>11} {:>15} {:>9} {:>11}", "variant", "time", "rate", "of limit", "× before");
        // Twice as many as run together: nothing that was computed in one evaluation serves the next.
        let prepare = |v: usize| workload.prepare(timed, 1 + v as u64, v % workload.together == 0, &self.device);
        let sets = (0..2 * workload.together).map(prepare).collect::<TensorResult<Vec<_>>>()?;
        let expect: Vec<f64> = sets.iter().step_by(workload.together).map(|s| (workload.truth)(timed, &s.values, 0).value).collect();
        let mut before: Option<f64> = None;
        for variant in &workload.variants {
            if let Some(reason) = (variant.lacks)(&self.adapter, timed) {
                println!("{:<18} skipped: {reason}", variant.name);
                continue;
            }
            let ragged = workload.prepare(&variant.fitted(workload.ragged), 99, true, &self.device)?;
            for (on, most) in [(&ragged, usize::MAX), (&sets[0], SPREAD)] {
                if let Err(wrong) = workload.check(variant, on, most)? {
                    return Ok(Err(wrong));
                }
            }
            let seconds = self.time(workload, variant, &sets, &expect)?;
            let rate = amount as f64 / seconds;
            let faster = before.map_or(String::new(), |b| format!("{:.2}", b / seconds));
            let (micros, rate, fraction) = (seconds * 1e6, format!("{:.2} {unit}", rate / scale), rate / limit);
            println!("{:<18} {micros:>8.1} µs {rate:>15} {fraction:>9.3} {faster:>11}   {}", variant.name, variant.idea);
            before = Some(seconds);
        }
        Ok(Ok(()))
    }

    /// Seconds of one evaluation.
    fn time(&self, workload: &Workload, variant: &Variant, sets: &[Prepared], expect: &[f64]) -> Result<f64> {
        let run = |v: usize| {
            let own = &sets[v * workload.together..][..workload.together];
            let all = own.iter().map(|s| (variant.run)(&s.sizes, &s.inputs)).collect::<TensorResult<Vec<_>>>()?;
            eval_all(&all.iter().collect::<Vec<_>>())?;
            Ok(Outcome::Tensor(all[0].clone()))
        };
        let work = Work { variants: 2, run: Box::new(run), expect: expect.to_vec(), tolerance: 0.02 };
        let times = measure(&self.device, &work, &options(self.small))?;
        Ok(times.best().median / workload.together as f64)
    }
}

fn options(small: bool) -> Options {
    // After a moment without work an H100 runs short kernels up to twice as slowly for a while.
    if small { Options::quick() } else { Options { samples: 11, warm_up: Duration::from_millis(300), ..Options::new() } }
}

/// What is wrong with a variant, if one is.
fn run() -> Result<Verdict> {
    let (mut only, mut small) = (String::new(), false);
    let mut rest = std::env::args().skip(1);
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--only" => only = rest.next().ok_or("--only wants a value")?,
            "--small" => small = true,
            // What cargo adds.
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let device = Device::auto()?;
    if device.is_cpu() {
        return Err("no GPU: the variants are WGSL (TL_DEVICE=vulkan takes a software one, too)".into());
    }
    // Small sizes, too, are the GPU's.
    device.set_adaptive(false);
    let adapter = GpuBackend::open(&std::env::var("TL_DEVICE").unwrap_or_else(|_| "auto".into()))?.info().clone();
    println!("{}", Environment::of(&device).line());
    let mut limits = Limits::new(&device, options(small));
    let (copy, read, operations) = (limits.copy_bandwidth()?, limits.read_bandwidth()?, limits.operations()?);
    let (copy, read, operations) = (copy / 1e9, read / 1e9, operations / 1e12);
    println!("measured limits: copy {copy:.1} GB/s, read {read:.1} GB/s, f32 multiplications in registers {operations:.2} TFLOP/s");
    let mut bench = Bench { device, adapter, limits, small };
    for workload in kernels::all().iter().filter(|l| l.name.contains(&only)) {
        if let Err(wrong) = bench.compare(workload)? {
            return Ok(Err(wrong));
        }
    }
    Ok(Ok(()))
}

fn main() -> ExitCode {
    match run() {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(wrong)) => {
            eprintln!("kernels: wrong: {wrong}");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("kernels: {e}");
            ExitCode::from(2)
        }
    }
}
