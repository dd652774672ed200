//! `tl doctor --self-test`: every device of this machine against the CPU and against recorded values; the result as a file to send, which is written
//! as the test goes on.

use crate::bench::Batch;
use crate::device_facts::device_facts;
use crate::fetch::{PullOptions, builtin};
use crate::output::{self, Failure};
use crate::self_test_text::whole;
use crate::{Global, bundle, machine, model};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use tensorlogic::Device;
use tensorlogic::measure::{
    SelfTestBench, SelfTestOptions, SelfTestProgress, SelfTestReference, SelfTestReport, SelfTestRow, caught, self_test,
};
use tensorlogic::models::{self, KvCache};

/// Names by which devices are tried, in this order: each way to a GPU is tested apart.
const DEVICES: [&str; 5] = ["cpu", "metal", "metal-wgpu", "vulkan", "dx12"];
/// Seconds of measuring on all devices together, about.
const BENCH_SECONDS: f64 = 30.0;
/// Texts that the built-in model writes, after one that is not counted.
const TEXTS: usize = 5;
/// The name of what they measure.
const DECODE: &str = "bench: a token of the built-in model";
/// The file of a bundle that `--read-bundle` shows.
const REPORT: &str = "report.json";

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

/// A text without the folders that may name a user.
fn without_folders(text: &str) -> String {
    let variables = ["TL_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "TMPDIR", "TEMP", "HOME", "USERPROFILE"];
    let folders = variables.iter().filter_map(|v| Some((*v, std::env::var(v).ok()?)));
    // In JSON a backslash is two.
    let both = folders.flat_map(|(v, folder)| [(v, folder.replace('\\', "\\\\")), (v, folder)]);
    both.filter(|(_, folder)| folder.len() > 1).fold(text.to_string(), |text, (v, folder)| text.replace(&folder, &format!("${v}")))
}

/// The report as it stands. Its file is written anew whenever something begins, so that a crash, a hang or Ctrl-C leaves what was found, and what was
/// being done.
struct BundleReport<'f> {
    file: Option<&'f Path>,
    machine: Value,
    devices: Vec<Value>,
}

impl BundleReport<'_> {
    fn json(&self) -> Value {
        json!({ "machine": self.machine, "devices": self.devices })
    }

    /// Writes the file, in place of the one before.
    fn write(&self) -> Result<(), Failure> {
        let Some(file) = self.file else { return Ok(()) };
        let (text, _) = whole(&self.json()).map_err(Failure::Error)?;
        let tar = bundle::pack(&[(REPORT, without_folders(&self.json().to_string())), ("report.txt", without_folders(&text))]);
        let mut part = file.as_os_str().to_os_string();
        part.push(".part");
        let wrote = std::fs::write(&part, tar).and_then(|()| std::fs::rename(&part, file));
        wrote.map_err(|e| Failure::Error(format!("{}: {e}", file.display())))
    }

    /// Writes the file with what is known of the device that is being tested.
    fn write_with(&mut self, name: &str, facts: &Value, report: &SelfTestReport, doing: &str) -> Result<(), Failure> {
        self.devices.push(json!({ "name": name, "facts": facts, "report": report.to_json(), "doing": doing }));
        let wrote = self.write();
        self.devices.pop();
        wrote
    }
}

/// The seconds of measuring for the next device of so many, of those that are left.
fn share(left: f64, devices: usize) -> f64 {
    left / devices.max(1) as f64
}

/// Tests a device under this name, which took so long to open; gives what the report says of it.
fn test(
    name: &str,
    device: &Device,
    options: &SelfTestOptions<'_>,
    shared: (&mut SelfTestReference, &mut BundleReport<'_>),
    (opening, quiet): (Duration, bool),
) -> Result<Value, Failure> {
    let ((reference, all), mut facts, start) = (shared, device_facts(device), Instant::now());
    facts["open_seconds"] = json!(opening.as_secs_f64());
    let (mut wrote, mut kind) = (Ok(()), String::new());
    let so_far = |rows: &[SelfTestRow]| SelfTestReport {
        device: device.name(),
        rows: rows.to_vec(),
        not_done: vec![],
        bench: vec![],
        kernels: (0, 0.0),
        compiled: vec![],
        known_forms: vec![],
        refused: device.pipeline_stats().refused_bodies,
        seconds: start.elapsed().as_secs_f64(),
    };
    let mut report = self_test(device, options, reference, &mut |progress| {
        let SelfTestProgress::Begins(doing, rows) = progress else { return };
        let first = doing.split([' ', ',']).next().unwrap_or(doing);
        if first != kind {
            kind = first.into();
            if !quiet {
                output::note(&format!("{name}: {kind}, after {} results in {:.0} s", rows.len(), start.elapsed().as_secs_f64()));
            }
        }
        if wrote.is_ok() {
            wrote = all.write_with(name, &facts, &so_far(rows), doing);
        }
    });
    wrote?;
    if DECODE.starts_with(options.only) {
        all.write_with(name, &facts, &report, DECODE)?;
        let began = Instant::now();
        match caught(|| decode(device)) {
            Ok(bench) => report.bench.push(bench),
            Err(why) => {
                let seconds = began.elapsed().as_secs_f64();
                report.rows.push(SelfTestRow { name: DECODE.into(), error: None, tolerance: 0.0, failed: Some(why), seconds });
            }
        }
    }
    Ok(json!({ "name": name, "facts": facts, "report": report.to_json() }))
}

/// Whether this system has what the name stands for, as a rule.
fn is_usual(name: &str) -> bool {
    match name {
        "metal" | "metal-wgpu" => cfg!(target_vendor = "apple"),
        "vulkan" => !cfg!(target_vendor = "apple"),
        "dx12" => cfg!(windows),
        _ => true,
    }
}

/// When the next of these devices is to be through with its cases, so that each has as much of what is left as the others.
fn until(end: Instant, names: &[&str]) -> Instant {
    let (now, devices) = (Instant::now(), names.iter().filter(|name| is_usual(name)).count());
    now + end.saturating_duration_since(now) / devices.max(1) as u32
}

/// Tests the devices, or those of these names, by the work whose name begins as given, within about so many seconds, and writes the bundle if one is
/// asked for.
pub fn run(names: &[String], only: &str, seconds: f64, file: Option<&Path>, global: Global) -> Result<(), Failure> {
    let names: Vec<&str> = if names.is_empty() { DEVICES.to_vec() } else { names.iter().map(String::as_str).collect() };
    let mut report = BundleReport { file, machine: machine::machine(), devices: vec![] };
    let measuring = BENCH_SECONDS.min(seconds / 3.0);
    let end = Instant::now() + Duration::from_secs_f64(seconds - measuring);
    let (mut reference, mut left) = (SelfTestReference::default(), measuring);
    for (n, name) in names.iter().enumerate() {
        report.devices.push(json!({ "name": name, "error": "it ended, or was ended, while it opened", "doing": "opening" }));
        report.write()?;
        report.devices.pop();
        let opening = Instant::now();
        let opened = caught(|| if *name == "cpu" { Ok(Device::cpu()) } else { Device::open(name) });
        let opening = opening.elapsed();
        let tested = match opened {
            Ok(device) => {
                if !global.quiet {
                    output::note(&format!("{name}: {}", device.name()));
                }
                let bench_seconds = share(left, names.len() - n);
                left -= bench_seconds;
                let until = Some(until(end, &names[n..]));
                let options = SelfTestOptions { bench_seconds, only, reopen: Some(*name), until };
                test(name, &device, &options, (&mut reference, &mut report), (opening, global.quiet))?
            }
            Err(e) => json!({ "name": name, "error": e }),
        };
        report.devices.push(tested);
    }
    report.write()?;
    let (text, passes) = whole(&report.json()).map_err(Failure::Error)?;
    output::result(if global.json { report.json().to_string() } else { text }.trim_end())?;
    if passes { Ok(()) } else { Err(Failure::Error("the self-test found what is wrong on this machine".into())) }
}

/// Shows a bundle that was made on another machine.
pub fn show(file: &Path, global: Global) -> Result<(), Failure> {
    let json = bundle::read(file, REPORT).map_err(Failure::Error)?;
    let report: Value = serde_json::from_str(&json).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?;
    let (text, _) = whole(&report).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?;
    output::result(if global.json { report.to_string() } else { text }.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_share_the_time() {
        let end = Instant::now() + Duration::from_secs(100);
        let share = |names: &[&str]| until(end, names).saturating_duration_since(Instant::now()).as_secs_f64().round();
        assert_eq!((share(&["cpu"]), share(&["cpu", "no such system", "cpu", "cpu"])), (100.0, 25.0));
        assert_eq!(share(&[if cfg!(windows) { "metal" } else { "dx12" }]), 100.0);
        assert!(until(Instant::now(), &DEVICES) <= Instant::now());
    }

    /// However many of the devices open, they measure no longer than one did.
    #[test]
    fn devices_share_the_seconds_of_measuring() {
        for opens in 0u32..1 << DEVICES.len() {
            let (mut left, mut shares) = (BENCH_SECONDS, vec![]);
            for n in (0..DEVICES.len()).filter(|n| opens >> n & 1 == 1) {
                shares.push(share(left, DEVICES.len() - n));
                left -= shares[shares.len() - 1];
            }
            assert!(shares.iter().sum::<f64>() <= BENCH_SECONDS + 1e-9, "{shares:?}");
            assert!(shares.iter().all(|s| *s >= BENCH_SECONDS / DEVICES.len() as f64 - 1e-9), "{shares:?}");
        }
    }
}
