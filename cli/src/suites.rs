//! `tl bench run` and `tl bench compare`: the library's suites of single operations, saved, plotted, and two runs compared.

use crate::output::{self, Failure};
use crate::{Global, table};
use clap::Args;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use tensorlogic::Device;
use tensorlogic::io::{save::save, write_error};
use tensorlogic::measure::{self, Environment, HierarchyOptions, Limits, Options, Record, Technique, Verdict};

/// Measure products, elementwise work, reductions, transfers, activations, and the gains of fusion, pool and batches
#[derive(Args)]
#[command(
    after_help = "Each time is shown next to the minimum that this machine's limits allow. Limits are measured in the same run, and again if a row is
faster than they allow, since the machine may have been busy. Each sample ends with a value that is read back and checked; GPU (ms) is by the GPU's
own clock.

Examples:
  tl bench run                                   every category
  tl bench run --category reduction --device vulkan
  tl bench run --save a.jsonl --plot a.svg       lines are appended, so runs of two versions can be interleaved
  tl bench run --suite floors                    the required bounds
  tl bench run --suite memory --device cpu       planned bytes, peak and time in every order of buffers
  tl bench run --suite caches --plot c.svg       sizes and rates of caches, and what techniques for them gain or lose"
)]
pub struct RunArgs {
    /// Suite: metal (all categories), floors (required bounds), memory (orders of buffers) or caches (the memory hierarchy, and
    /// techniques switched off and on)
    #[arg(long, default_value = "metal", value_parser = ["metal", "floors", "memory", "caches"])]
    suite: String,
    /// Only categories whose heading contains this text
    #[arg(long, default_value = "")]
    category: String,
    /// Device: auto, cpu, gpu, vulkan, metal or dx12; the last four accept an index, such as vulkan:1
    #[arg(long, env = "TL_DEVICE", default_value = "auto")]
    device: String,
    /// Samples per clock
    #[arg(long)]
    samples: Option<usize>,
    /// Few samples and small sizes, as a smoke test
    #[arg(long)]
    quick: bool,
    /// Append the measurements to this file as JSON lines
    #[arg(long)]
    save: Option<PathBuf>,
    /// Write a roofline plot (of caches: latency and bandwidth by working set): FILE.svg or FILE.html
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// Compare two files of measurements and distinguish changes from noise
#[derive(Args)]
#[command(
    after_help = "A change is reported as real if a Mann-Whitney U test of the samples gives p < 0.01 and the medians differ by more than the noise:
three median absolute deviations of the samples, or the range of repeated runs' medians, and at least 1 %. Interleave the runs:

  for i in 1 2 3 4; do ./tl-before bench run --save a.jsonl; ./tl-after bench run --save b.jsonl; done
  tl bench compare a.jsonl b.jsonl --fail-on-regression 5
  tl bench compare --across cpu.jsonl gpu.jsonl    two devices"
)]
pub struct CompareArgs {
    /// Measurements before the change
    before: PathBuf,
    /// Measurements after the change
    after: PathBuf,
    /// Match rows by operation and size only, to compare different devices
    #[arg(long)]
    across: bool,
    /// Exit with 1 if anything became slower by more than this percentage
    #[arg(long, value_name = "PCT")]
    fail_on_regression: Option<f64>,
}

/// Runs `bench run`.
pub fn run(args: &RunArgs, global: Global) -> Result<(), Failure> {
    let device = crate::model::open_device(&args.device)?;
    let mut options = if args.quick { Options::quick() } else { Options::new() };
    options.samples = args.samples.unwrap_or(options.samples).max(1);
    if !global.json {
        output::result(&Environment::of(&device).line())?;
    }
    if args.suite == "memory" {
        return memory(args, &device, &options, global);
    }
    if args.suite == "caches" {
        return caches(args, &device, &options, global);
    }
    let records = if args.suite == "floors" {
        let (floors, records) = measure::floors(&device, &options, &mut |_| {})?;
        for f in &floors {
            let line = if global.json {
                json!({ "name": f.name, "what": f.what, "seconds": f.seconds, "value": f.value, "unit": f.unit, "met": f.met(),
                    "verdict": f.verdict.map(word) })
                .to_string()
            } else {
                f.to_string()
            };
            output::result(&line)?;
        }
        records
    } else {
        let progress = |r: &Record| {
            if !global.quiet && !global.json {
                output::note(&format!("{} {}", r.operation, r.size));
            }
        };
        let records = measure::suite(&device, &options, &args.category, &mut { progress })?;
        if records.is_empty() {
            return Err(Failure::Usage(format!(
                "--category {}: expected part of one of {}",
                args.category,
                measure::CATEGORIES.join(", ")
            )));
        }
        if global.json {
            records.iter().try_for_each(|r| output::result(&r.to_json().to_string()))?;
        } else {
            output::result(measure::table(&records).trim_end())?;
        }
        records
    };
    save_records(args, &records)?;
    if let Some(path) = &args.plot {
        let mut limits = Limits::new(&device, options);
        let (bandwidth, compute) = (limits.copy_bandwidth()? * 1e-9, limits.operations()? * 1e-9);
        let page = if path.extension().is_some_and(|e| e == "html") { measure::html } else { measure::svg };
        write_plot(path, &page(&records, bandwidth, compute))?;
    }
    Ok(())
}

/// Runs `bench run --suite caches`.
fn caches(args: &RunArgs, device: &Device, options: &Options, global: Global) -> Result<(), Failure> {
    let sets = if args.quick { HierarchyOptions::quick() } else { HierarchyOptions::new() };
    let hierarchy = measure::hierarchy(device, &sets)?;
    if global.json {
        output::result(&hierarchy.to_json().to_string())?;
    } else {
        output::result(&hierarchy.to_string())?;
        output::result(&format!("{:<14} {:<22} {:>10} {:>10} {:>7} {:>10}", "technique", "work", "off (ms)", "on (ms)", "ratio", "noise"))?;
    }
    let mut printed = Ok(());
    let mut print = |t: &Technique| {
        let line = json!({ "technique": t.name, "work": t.work, "off": t.off, "on": t.on, "before": t.change.before,
            "after": t.change.after, "ratio": t.ratio(), "noise": t.change.noise, "verdict": t.verdict() });
        let line = if global.json { line.to_string() } else { t.to_string() };
        if printed.is_ok() {
            printed = output::result(&line);
        }
    };
    let (_, records) = measure::caches(device, options, &mut print)?;
    printed?;
    save_records(args, &records)?;
    if let Some(path) = &args.plot {
        let svg = hierarchy.svg();
        let html = path.extension().is_some_and(|e| e == "html");
        write_plot(path, &if html { format!("<!doctype html>\n<meta charset=\"utf-8\">\n{svg}") } else { svg })?;
    }
    Ok(())
}

/// Appends the records to the file of `--save`.
fn save_records(args: &RunArgs, records: &[Record]) -> Result<(), Failure> {
    let Some(path) = &args.save else { return Ok(()) };
    append(path, &records.iter().map(|r| format!("{}\n", r.to_json())).collect::<String>())
}

fn write_plot(path: &Path, text: &str) -> Result<(), Failure> {
    match path.exists() && !path.is_file() {
        // A pipe or a device.
        true => std::fs::write(path, text).map_err(|e| write_error(path, e, 0))?,
        false => save(path, |out| out.write_all(text.as_bytes()))?,
    }
    Ok(())
}

/// The suite of orders of buffers, which has rows of its own.
fn memory(args: &RunArgs, device: &Device, options: &Options, global: Global) -> Result<(), Failure> {
    if args.plot.is_some() || !args.category.is_empty() {
        return Err(Failure::Usage("--suite memory has no plot and no categories; use --save or --json".into()));
    }
    if !global.json {
        output::result(measure::MEMORY_HEADING)?;
    }
    let mut closed = Ok(());
    let mut print = |row: &measure::MemoryRow| {
        let line = if global.json { row.to_json().to_string() } else { row.to_string() };
        closed = std::mem::replace(&mut closed, Ok(())).and_then(|()| output::result(&line));
    };
    let rows = measure::memory(device, options, &mut print)?;
    closed?;
    let environment = Environment::of(device).to_json();
    let line = |row: &measure::MemoryRow| {
        let mut line = row.to_json();
        line["environment"] = environment.clone();
        format!("{line}\n")
    };
    match &args.save {
        Some(path) => append(path, &rows.iter().map(line).collect::<String>()),
        None => Ok(()),
    }
}

/// Adds lines to a file: all of them or, where that fails, none.
fn append(path: &Path, lines: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| write_error(path, e, 0);
    let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    let before = file.metadata().map_err(failed)?.len();
    if let Err(e) = file.write_all(lines.as_bytes()) {
        // The first error is the one to report.
        let _ = file.set_len(before);
        return Err(failed(e).into());
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<Record>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::Error(format!("{}: {e}", path.display())))?;
    measure::read_records(&text).map_err(|e| Failure::Error(format!("{}: {e}", path.display())))
}

/// The devices of these measurements.
fn devices(records: &[Record]) -> String {
    let mut names: Vec<&str> = records.iter().map(|r| r.environment.device.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// A verdict in a word.
fn word(v: Verdict) -> &'static str {
    match v {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::Same => "same",
    }
}

/// Runs `bench compare`.
pub fn compare(args: &CompareArgs, global: Global) -> Result<(), Failure> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let changes = if args.across { measure::compare_across(&before, &after) } else { measure::compare(&before, &after) };
    if changes.is_empty() {
        let common = if args.across { "operation and size" } else { "operation, size and device" };
        let others = !args.across && !measure::compare_across(&before, &after).is_empty();
        let help = if others { "; --across compares devices" } else { "" };
        return Err(Failure::Error(format!("the files have no {common} in common{help}")));
    }
    if args.across && !global.quiet {
        output::note(&format!("before: {}; after: {}", devices(&before), devices(&after)));
    }
    if global.json {
        for c in &changes {
            let line = json!({ "name": c.name, "before": c.before, "after": c.after, "change": c.relative(), "noise": c.noise, "p": c.p,
                "runs": c.runs, "verdict": word(c.verdict) });
            output::result(&line.to_string())?;
        }
    } else {
        let head = ["operation", "before (ms)", "after (ms)", "change", "noise", "p", ""].map(String::from).to_vec();
        let row = |c: &measure::Change| {
            let number = |v: f64| format!("{:.5}", v * 1e3);
            let percent = |v: f64| format!("{:+.1} %", v * 100.0);
            let noise = format!("{:.1} %", c.noise * 100.0);
            vec![
                c.name.clone(),
                number(c.before),
                number(c.after),
                percent(c.relative()),
                noise,
                format!("{:.4}", c.p),
                word(c.verdict).into(),
            ]
        };
        let rows: Vec<Vec<String>> = std::iter::once(head).chain(changes.iter().map(row)).collect();
        table::lines(&rows, &[1, 2, 3, 4, 5]).iter().try_for_each(|l| output::result(l))?;
    }
    let single = changes.iter().filter(|c| c.runs < 2 && c.verdict != Verdict::Same).count();
    if single > 0 && !global.quiet {
        output::note(&format!(
            "{single} of these changes rest on a single run per side, and processes differ by chance: append two more interleaved runs of each to the files"
        ));
    }
    let Some(most) = args.fail_on_regression else { return Ok(()) };
    let slower = |c: &&measure::Change| c.verdict == Verdict::Slower && c.relative() * 100.0 > most;
    let names: Vec<String> = changes.iter().filter(slower).map(|c| c.name.clone()).collect();
    if names.is_empty() { Ok(()) } else { Err(Failure::Error(format!("slower by more than {most} %: {}", names.join(", ")))) }
}
