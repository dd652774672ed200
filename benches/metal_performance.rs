//! Products, elementwise work, reductions, transfers and activations, and the gains of fusion, pool and batches; `--suite floors` checks the bounds.
//!
//! `cargo bench --bench metal_performance -- [--suite metal|floors] [--category TEXT] [--json FILE] [--plot FILE] [--samples N] [--quick]
//! [--peer PYTHON]`. The device is `TL_DEVICE`'s, else a GPU where there is one. `--json` appends lines.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;
use tensorlogic::Device;
use tensorlogic::measure::{Environment, Limits, Options, Record, floors, html, suite, svg, table};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Default)]
struct Args {
    suite: String,
    category: String,
    json: Option<String>,
    plot: Option<String>,
    samples: Option<usize>,
    quick: bool,
    peer: Option<String>,
}

fn args() -> Result<Args> {
    let mut a = Args { suite: "metal".into(), ..Args::default() };
    let mut rest = std::env::args().skip(1);
    while let Some(arg) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "--suite" => a.suite = value()?,
            "--category" => a.category = value()?,
            "--json" => a.json = Some(value()?),
            "--plot" => a.plot = Some(value()?),
            "--samples" => a.samples = Some(value()?.parse()?),
            "--peer" => a.peer = Some(value()?),
            "--quick" => a.quick = true,
            // What cargo adds.
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    Ok(a)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("metal_performance: {e}");
            ExitCode::from(2)
        }
    }
}

/// Whether every bound was kept.
fn run() -> Result<bool> {
    let args = args()?;
    let mut options = if args.quick { Options::quick() } else { Options::new() };
    options.samples = args.samples.unwrap_or(options.samples).max(1);
    let device = Device::auto()?;
    println!("{}", Environment::of(&device).line());
    let mut limits = Limits::new(&device, options);
    let (copy, read, ops, launch) = (limits.copy_bandwidth()?, limits.read_bandwidth()?, limits.operations()?, limits.launch()?);
    println!(
        "measured limits: copy {:.1} GB/s, read {:.1} GB/s, f32 {:.1} GFLOP/s, dependent dispatch {:.2} µs ({:.2} µs wall)",
        copy * 1e-9,
        read * 1e-9,
        ops * 1e-9,
        launch[0] * 1e6,
        launch[1] * 1e6
    );
    let mut ok = true;
    let records = match args.suite.as_str() {
        "metal" => {
            let records = suite(&device, &options, &args.category, &mut |_| {})?;
            println!("{}", table(&records));
            records
        }
        "floors" => {
            let (all, records) = floors(&device, &options, &mut |f| println!("{f}"))?;
            ok = options.quick || all.iter().all(|f| f.met() != Some(false));
            if let Some(python) = &args.peer {
                peer(python, &device, all.iter().map(|f| (f.name, f.seconds)))?;
            }
            records
        }
        other => return Err(format!("--suite {other}: expected metal or floors").into()),
    };
    if let Some(path) = &args.json {
        append(path, &records)?;
    }
    if let Some(path) = &args.plot {
        let page = if path.ends_with(".html") { html } else { svg };
        std::fs::write(path, page(&records, copy * 1e-9, ops * 1e-9))?;
    }
    Ok(ok)
}

fn append(path: &str, records: &[Record]) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    for r in records {
        writeln!(file, "{}", r.to_json())?;
    }
    Ok(())
}

/// Runs PyTorch on the same work and prints both times.
fn peer<'a>(python: &str, device: &Device, ours: impl Iterator<Item = (&'a str, f64)>) -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/pytorch_floors.py");
    let kind = if device.is_cpu() { "cpu" } else { "cuda" };
    let out = std::process::Command::new(python).args([script, kind]).output()?;
    if !out.status.success() {
        return Err(format!("{python} {script}: {}", String::from_utf8_lossy(&out.stderr).trim()).into());
    }
    let lines: Vec<serde_json::Value> =
        String::from_utf8(out.stdout)?.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
    println!("\n{:<18} {:>14} {:>14} {:>8}   peer", "", "tensorlogic", "peer", "ratio");
    for (name, seconds) in ours {
        for l in lines.iter().filter(|l| l["name"] == name) {
            let theirs = l["seconds"].as_f64().ok_or("the peer printed no time")?;
            let what = l["peer"].as_str().unwrap_or_default();
            println!("{name:<18} {:>11.2} µs {:>11.2} µs {:>8.2}   {what}", seconds * 1e6, theirs * 1e6, theirs / seconds);
        }
    }
    Ok(())
}
