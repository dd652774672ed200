//! `tl doctor --self-test`: every device of this machine against the CPU and against recorded values; the result as a file to send.

use crate::bench::Batch;
use crate::fetch::{PullOptions, builtin};
use crate::output::{self, Failure};
use crate::{Global, bundle, model};
use serde_json::{Value, json};
use std::path::Path;
use tensorlogic::Device;
use tensorlogic::backends::gpu;
use tensorlogic::measure::{SelfTestBench, SelfTestOptions, SelfTestReport, SelfTestRow, published_bandwidth, self_test};
use tensorlogic::models::{self, KvCache};

/// Names by which devices are tried, in this order: each way to a GPU is tested apart.
const DEVICES: [&str; 5] = ["cpu", "metal", "metal-wgpu", "vulkan", "dx12"];
/// Seconds of measuring, about.
const BENCH_SECONDS: f64 = 30.0;
/// Texts that the built-in model writes, after one that is not counted.
const TEXTS: usize = 5;
/// The file of a bundle that `--read-bundle` shows.
const REPORT: &str = "report.json";

/// What the report says of the machine: no names of users, folders or hosts.
fn machine() -> Value {
    let adapters = gpu::adapters().into_iter().map(|a| {
        let limits: serde_json::Map<String, Value> = a.limits.iter().map(|(name, n)| ((*name).into(), json!(n))).collect();
        json!({ "name": a.name, "backend": a.backend, "kind": a.kind, "driver": a.driver, "features": a.features, "limits": limits })
    });
    json!({ "version": env!("CARGO_PKG_VERSION"), "os": std::env::consts::OS, "arch": std::env::consts::ARCH, "system": system(),
        "adapters": adapters.collect::<Vec<_>>() })
}

/// The system's and the processor's version, where the system tells.
fn system() -> Vec<String> {
    let commands: [&[&str]; 3] =
        [&["sw_vers", "-productVersion"], &["sw_vers", "-buildVersion"], &["sysctl", "-n", "machdep.cpu.brand_string"]];
    let told = |c: &&[&str]| {
        let out = std::process::Command::new(c[0]).args(&c[1..]).output().ok()?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_string()).filter(|s| out.status.success() && !s.is_empty())
    };
    commands.iter().filter(|_| cfg!(target_vendor = "apple")).filter_map(told).collect()
}

/// A measurement with what it amounts to.
fn bench_line(b: &SelfTestBench, published: Option<[f64; 2]>) -> String {
    let rate = b.bytes / b.seconds;
    let mut line =
        format!("  {:<34} {:>10.1} µs  {:>7.1} GB/s  {:>9.1} GFLOP/s", b.name, b.seconds * 1e6, rate / 1e9, b.operations / b.seconds / 1e9);
    if let Some([slow, fast]) = published {
        let part = |limit: f64| format!("{:.0} %", 100.0 * rate / limit);
        line += &match slow == fast {
            true => format!("  {} of the published bandwidth", part(slow)),
            false => format!("  {} or {} of the published bandwidth", part(fast), part(slow)),
        };
    }
    line
}

/// A report as text: what failed in full, of the rest how far it was from right.
fn text(r: &SelfTestReport) -> String {
    let failed: Vec<&SelfTestRow> = r.rows.iter().filter(|row| row.failed.is_some()).collect();
    let mut out = format!(
        "{}: {} of {} right; {} kernels compiled in {:.1} s; {:.1} s in all\n",
        r.device,
        r.rows.len() - failed.len(),
        r.rows.len(),
        r.kernels.0,
        r.kernels.1,
        r.seconds
    );
    for row in failed {
        // A compiler's message is long; the bundle's JSON has all of it.
        let why = row.failed.iter().flat_map(|f| f.lines().next()).map(|l| l.chars().take(200).collect::<String>()).collect::<String>();
        out += &format!("  FAILED {}: {why}\n", row.name);
    }
    let near = r.rows.iter().filter(|row| row.failed.is_none() && row.tolerance > 0.0);
    let nearest = near.filter_map(|row| Some((row.error? / row.tolerance, row))).max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((part, row)) = nearest {
        out += &format!("  nearest to its limit: {}, {:.0} % of {:.0e}\n", row.name, 100.0 * part, row.tolerance);
    }
    let published = published_bandwidth(&r.device);
    r.bench.iter().for_each(|b| out += &format!("{}\n", bench_line(b, published)));
    out
}

/// The whole report as text.
fn whole(report: &Value) -> Result<(String, bool), String> {
    let mut out = format!(
        "tl {} on {} {} {}\n",
        report["machine"]["version"].as_str().unwrap_or("?"),
        report["machine"]["os"].as_str().unwrap_or("?"),
        report["machine"]["arch"].as_str().unwrap_or("?"),
        report["machine"]["system"].as_array().map_or(String::new(), |s| s.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "))
    );
    for a in report["machine"]["adapters"].as_array().into_iter().flatten() {
        out += &format!(
            "adapter {} ({}), driver {}\n",
            a["name"].as_str().unwrap_or("?"),
            a["backend"].as_str().unwrap_or("?"),
            a["driver"].as_str().unwrap_or("?")
        );
    }
    let mut passes = true;
    for device in report["devices"].as_array().ok_or("the report lists no devices")? {
        let name = device["name"].as_str().unwrap_or("?");
        match &device["report"] {
            Value::Null => out += &format!("{name}: not opened: {}\n", device["error"].as_str().unwrap_or("?")),
            report => {
                let r = SelfTestReport::from_json(report).map_err(|e| e.to_string())?;
                passes &= r.passes();
                out += &format!("{name} = {}", text(&r));
            }
        }
    }
    Ok((out, passes))
}

/// Writing a token by the built-in model, a mean over a text and the median of some: mostly what a step costs besides its few weights.
fn decode(device: &Device) -> Result<SelfTestBench, Failure> {
    let path = builtin::tiny(&PullOptions::from_env()?)?;
    let model = models::load(&model::open(&path, device)?, None).map_err(|e| model::unreadable(&path, e))?;
    let batch = Batch { count: 1, prompt: 16, tokens: 33, submits_ahead: 1 };
    let write = |_| {
        let mut cache = KvCache::batch(&model.shape(), 1, batch.prompt + batch.tokens, device)?;
        batch.run(&*model, device, &mut cache).map(|(_, wrote)| wrote.as_secs_f64() / (batch.tokens - 1) as f64)
    };
    let mut seconds = (0..=TEXTS).map(write).collect::<Result<Vec<f64>, Failure>>()?.split_off(1);
    seconds.sort_by(f64::total_cmp);
    let weights = model.weights();
    let bytes: usize = weights.iter().filter_map(|w| w.dtype().bytes(w.numel())).sum();
    let operations = 2.0 * weights.iter().map(|w| w.numel() as f64).sum::<f64>();
    Ok(SelfTestBench { name: "a token of the built-in model".into(), seconds: seconds[TEXTS / 2], bytes: bytes as f64, operations })
}

/// Tests the devices, or those of these names, and writes the bundle if one is asked for.
pub fn run(only: &[String], file: Option<&Path>, global: Global) -> Result<(), Failure> {
    let mut devices = vec![];
    let names: Vec<&str> = if only.is_empty() { DEVICES.to_vec() } else { only.iter().map(String::as_str).collect() };
    for name in names {
        let opened = if name == "cpu" { Ok(Device::cpu()) } else { Device::open(name) };
        devices.push(match opened {
            Ok(device) => {
                if !global.quiet {
                    output::note(&format!("{name}: {}", device.name()));
                }
                let mut report = self_test(&device, &SelfTestOptions { bench_seconds: BENCH_SECONDS }, &mut |_| {});
                report.bench.push(decode(&device)?);
                json!({ "name": name, "stands_in": device.stands_in(), "report": report.to_json() })
            }
            Err(e) => json!({ "name": name, "error": e.to_string() }),
        });
    }
    let report = json!({ "machine": machine(), "devices": devices });
    let (text, passes) = whole(&report).map_err(Failure::Error)?;
    if let Some(file) = file {
        let tar = bundle::pack(&[(REPORT, report.to_string()), ("report.txt", text.clone())]);
        std::fs::write(file, tar).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?;
    }
    output::result(if global.json { report.to_string() } else { text }.trim_end())?;
    if passes { Ok(()) } else { Err(Failure::Error("the self-test found what is wrong on this machine".into())) }
}

/// Shows a bundle that was made on another machine.
pub fn show(file: &Path, global: Global) -> Result<(), Failure> {
    let json = bundle::read(file, REPORT).map_err(Failure::Error)?;
    let report: Value = serde_json::from_str(&json).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?;
    let (text, _) = whole(&report).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?;
    output::result(if global.json { report.to_string() } else { text }.trim_end())
}
