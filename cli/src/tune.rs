//! `tl tune`: measures which tiles, splits and thresholds serve this machine's GPU best, and keeps them for every later program.

use crate::output::{self, Failure};
use crate::{Global, interrupt, model, table};
use clap::Args;
use serde_json::json;
use tensorlogic::Device;
use tensorlogic::measure::{TuneOptions, TuneReport, tune, tune_model};
use tensorlogic::models::{self, Model, pacing_for};
use tensorlogic::strategy::PipelineStrategy;
use tensorlogic::tuning::TuningSource;

/// Measure the best tile and split configurations of the GPU, and keep them
#[derive(Args)]
#[command(
    after_help = "Kernels read some numbers from a table: tiles of products, in how many parts sums are split, from how many rows on another kernel is
used. Each class of GPU has one; this measures the numbers on this machine, each change alternating with the class's table, and keeps what is
faster by 3 % and more beyond noise and slower nowhere. The table is kept next to the crossover in the cache folder, for this adapter, its
driver and this version. Results are right with every table; sums may be split, and so rounded, otherwise.

Let nothing else run on the GPU meanwhile. `tl doctor` shows which table is in force; TL_TUNING=nvidia (generic, apple, software, or a file)
takes another one for a moment. Ctrl-C leaves what is kept as it is.

Examples:
  tl tune
  tl tune --device vulkan:1 --seconds 30
  tl tune -m smollm2-135m-instruct             for one model, in 10 s; `--strategy optimized` takes it
  tl tune --dry-run --json > table.json        the report holds the table; nothing is kept"
)]
pub struct TuneArgs {
    /// Which GPU: auto, gpu, vulkan, metal or dx12; the last four also with an index, as vulkan:1
    #[arg(long, env = "TL_DEVICE", default_value = "auto")]
    device: String,
    /// Measure the shapes of this model only, for `--strategy optimized`: a file, folder or name as in `tl generate -m`
    #[arg(short, long)]
    model: Option<String>,
    /// Seconds that measuring takes at most [default: 60, or 10 for a model]
    #[arg(long)]
    seconds: Option<f64>,
    /// Measure and show, but keep nothing
    #[arg(long)]
    dry_run: bool,
}

fn micro(seconds: f64) -> String {
    format!("{:.1} µs", seconds * 1e6)
}

fn lines(report: &TuneReport) -> Vec<String> {
    let mut rows = vec![["kernels of", "work", "before", "after", "gain", ""].map(String::from).to_vec()];
    rows.extend(report.rows.iter().map(|r| {
        let gain = format!("{:+.1} %", (r.before / r.after - 1.0) * 100.0);
        let kept = if r.kept { "" } else { "not kept: something of this kind is slower, or was not measured in time" };
        vec![r.group.name().into(), r.what.clone(), micro(r.before), micro(r.after), gain, kept.into()]
    }));
    let mut lines = if report.rows.is_empty() { Vec::new() } else { table::lines(&rows, &[2, 3, 4]) };
    match report.changes.is_empty() {
        true => lines.push(format!("nothing is faster than the table `{}`, beyond noise", report.class.name)),
        false => lines.extend(report.changes.iter().map(|c| format!("  {c}"))),
    }
    lines
}

/// Seconds that measuring takes for one model.
const MODEL_SECONDS: f64 = 10.0;

/// Sees to it that there is a table for a model where the device, opened by this name, takes one; says what it chose.
pub fn for_model(name: &str, device: &Device, model: &dyn Model, global: Global) -> Result<(), Failure> {
    let chosen = matches!(device.tuning_source(), None | Some(TuningSource::Environment(_) | TuningSource::Given));
    if chosen || pacing_for(PipelineStrategy::Optimized, model, device, 1).table.is_some() {
        return Ok(());
    }
    let selector = name.split(',').map(str::trim).find(|n| Device::open(n).is_ok_and(|d| d == *device)).unwrap_or(name);
    let options = TuneOptions { seconds: MODEL_SECONDS, stop: &interrupt::requested, progress: &|_| {} };
    let Some(report) = tune_model(selector, model, &options)? else { return Err(Failure::Interrupted) };
    let file = report.store()?;
    if !global.quiet {
        output::note(&format!("measured a table for this model in {:.1} s:", report.seconds));
        lines(&report).iter().for_each(|line| output::note(line));
        output::note(&format!("kept in {}", file.display()));
    }
    Ok(())
}

/// Runs the subcommand.
pub fn run(args: &TuneArgs, global: Global) -> Result<(), Failure> {
    let seconds = args.seconds.unwrap_or(if args.model.is_some() { MODEL_SECONDS } else { 60.0 });
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(Failure::Usage(format!("--seconds: {seconds} is out of range; allowed are times above 0 and up to 3600")));
    }
    let device = model::open_device(&args.device)?;
    if device.is_cpu() {
        return Err(Failure::Usage("--device: the cpu has no tuning table; name a GPU that `tl devices` shows".into()));
    }
    interrupt::install();
    let bar = indicatif::ProgressBar::new_spinner();
    let options = TuneOptions {
        seconds,
        stop: &interrupt::requested,
        progress: &|what| {
            if !global.quiet {
                bar.set_message(what.to_string());
                bar.tick();
            }
        },
    };
    let measured = match &args.model {
        Some(name) => {
            let path = model::path(Some(name), false, global)?;
            let built = models::load(&model::open(&path, &device)?, None).map_err(|e| model::unreadable(&path, e))?;
            tune_model(&args.device, &*built, &options)
        }
        None => tune(&args.device, &options),
    };
    bar.finish_and_clear();
    let Some(report) = measured? else { return Err(Failure::Interrupted) };
    let stored = if args.dry_run { None } else { Some(report.store()?) };
    if global.json {
        let rows: Vec<_> = report
            .rows
            .iter()
            .map(|r| json!({ "group": r.group.name(), "work": r.what, "before_s": r.before, "after_s": r.after, "kept": r.kept }))
            .collect();
        let json = json!({ "device": report.device, "software": report.software, "class": report.class.name, "table": report.table,
            "changes": report.changes, "rows": rows, "cases": report.cases, "tried": report.tried, "gpu_clock": report.gpu_clock,
            "seconds": report.seconds, "file": stored });
        return output::result(&json.to_string());
    }
    output::result(&report.device)?;
    lines(&report).iter().try_for_each(|line| output::result(line))?;
    match stored {
        Some(file) => output::result(&format!("kept in {}", file.display()))?,
        None => output::result("nothing was kept: --dry-run")?,
    }
    if !global.quiet {
        let clock = if report.gpu_clock { "the GPU's clock" } else { "the wall's clock: the GPU has none" };
        let [[cases, all_cases], [tried, changes]] = [report.cases, report.tried];
        output::note(&format!("{cases} of {all_cases} kinds of work, {tried} of {changes} changes, {:.1} s, by {clock}", report.seconds));
        if report.software {
            output::note("this adapter computes on the CPU: the numbers say nothing about a GPU");
        }
    }
    Ok(())
}
