//! `tl doctor`: what the engine found on this machine, which settings are in force, and what to do about what is wrong.

use crate::device_facts::of_class;
use crate::output::{self, Failure};
use crate::{Global, interrupt, model, self_test, table, watch};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tensorlogic::backends::{cpu, gpu, limits};
use tensorlogic::cpu_fallback::FallbackModel;
use tensorlogic::io::human_bytes;
use tensorlogic::plan::BufferOrder;
use tensorlogic::tuning::{Tuning, TuningSource};
use tensorlogic::{Device, PipelineStrategy};

/// Show adapters, limits, memory, settings and problems
#[derive(Args)]
#[command(
    after_help = "The exit code is 0 even if problems are shown: they are hints. The crossover (the amount of work below which values in host memory are \
computed on the CPU) is measured once per adapter and stored in the cache folder.

With --while, a program is run and its problems are shown when it ends, from its own counters: values that cross to the host, plans or
kernels that are compiled in a loop, waits, memory that grows. Its output goes to stderr.
  tl doctor --while tl generate \"Why is the sky blue?\"
  tl doctor --while target/release/my-program

With --self-test, devices are tested, and what came out can be sent as one file.
  tl doctor --self-test --bundle report.tar
  tl doctor --read-bundle report.tar"
)]
pub struct DoctorArgs {
    /// Measure the crossover between CPU and GPU again, for software adapters too
    #[arg(long)]
    measure: bool,
    /// Run a program that uses the library, and show its problems when it ends; everything after it belongs to the program
    #[arg(long = "while", value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true, conflicts_with = "measure")]
    command: Vec<std::ffi::OsString>,
    /// Compute with every kind of kernel on each device and compare with the CPU and with recorded values; needs no network. Exit code 1 where
    /// something is wrong
    #[arg(long, conflicts_with_all = ["measure", "command"])]
    self_test: bool,
    /// With --self-test: write the report to this file, a tar without names of users, hosts or folders. It is written as the test goes on, so
    /// that a crash or Ctrl-C leaves what was found
    #[arg(long, value_name = "FILE.tar", requires = "self_test")]
    bundle: Option<PathBuf>,
    /// With --self-test: only this device; may be given several times [default: cpu, metal, metal-wgpu, vulkan, dx12]
    #[arg(long, value_name = "NAME", requires = "self_test")]
    device: Vec<String>,
    /// With --self-test: only cases whose name starts with this prefix, such as `product` or `litmus`; `bench` selects the benchmarks
    #[arg(long, value_name = "NAME", requires = "self_test")]
    cases: Option<String>,
    /// With --self-test: approximate time limit in seconds for all devices; remaining cases are listed as not done
    #[arg(long, value_name = "SECONDS", default_value_t = 110.0, requires = "self_test", value_parser = seconds)]
    seconds: f64,
    /// Show a report that --bundle wrote
    #[arg(long, value_name = "FILE.tar", conflicts_with_all = ["measure", "command", "self_test"])]
    read_bundle: Option<PathBuf>,
}

/// A time that can be waited for.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().map_err(|e| e.to_string())?;
    if (0.0..=1e6).contains(&seconds) { Ok(seconds) } else { Err("expected 0 to 1000000".into()) }
}

/// An environment variable: its name, its effect, and the equivalent library call.
pub struct Variable {
    name: &'static str,
    does: &'static str,
    call: &'static str,
}

const fn variable(name: &'static str, does: &'static str, call: &'static str) -> Variable {
    Variable { name, does, call }
}

/// Every setting of the library and the command.
pub const VARIABLES: [Variable; 23] = [
    variable("TL_DEVICE", "the device that `auto` selects: cpu, gpu, vulkan, metal, dx12, each with an optional :index", "Device::open"),
    variable("TL_NUM_THREADS", "number of threads of the CPU device", "CpuBackend::with_threads"),
    variable("TL_CPU", "instruction set of the CPU device: plain; avx2, avx512; neon, dotprod, i8mm, bf16", "-"),
    variable(
        "TL_MEM_LIMIT",
        "limit of memory allocated on a device, without mapped files: 512M, 2G, 75%, auto",
        "Device::set_memory_limit",
    ),
    variable("TL_CACHE_LIMIT", "limit of memory kept for reuse: 512M, 2G, 10%, auto", "BufferPool::set_limit"),
    variable("TL_NO_FUSION", "1 disables fusion: every operation is its own dispatch", "eval::without_fusion"),
    variable("TL_ORDER", "order of steps and buffers: program, spatial, temporal, size, workgroup, auto", "eval::with_order"),
    variable(
        "TL_METAL_NO_COPY",
        "0 copies mapped weight files on Metal; 1 binds them in place through wgpu too (type-checked, not run)",
        "-",
    ),
    variable("TL_ADAPTIVE", "0 keeps small work on host values off the CPU, 1 allows it on software adapters too", "Device::set_adaptive"),
    variable("TL_ALLOW_SOFTWARE", "1 lets `gpu` and `auto` choose a software adapter", "Device::open(\"vulkan\")"),
    variable("TL_GPU_CHECKED", "1 compiles kernels with bounds checks; on `metal` names the one step that failed", "-"),
    variable("TL_LABELS", "1 labels each dispatch with its op and source line in captures", "Step::label"),
    variable(
        "TL_GPU_WITHOUT",
        "adapter features to disable, for comparison: f16, subgroup, cooperative matrix, limits, large bindings, …",
        "-",
    ),
    variable(
        "TL_TUNING",
        "the tuning table of GPUs: generic, nvidia, apple, software, or a file as `tl tune` writes it",
        "Device::open_with_tuning",
    ),
    variable("TL_MPI", "MPI library of commands under mpirun or srun: a file or a name", "distributed::join"),
    variable("TL_SHARED_WINDOW", "0 lets ranks of one machine pass gradients on by MPI instead of by shared memory", "Ranks::window"),
    variable("TL_STRATEGY", "pipeline strategy: standard, optimized, low-latency, high-throughput, auto", "Device::set_strategy"),
    variable("TL_FALLBACK", "error ends work whose device is lost or full instead of going on with the next one", "Device::fallback"),
    variable("TL_CACHE_DIR", "folder of downloaded models, measurements and compiled kernels", "-"),
    variable(
        "TL_PIPELINE_CACHE",
        "0 disables the cache of compiled kernels, 1 includes those of software adapters",
        "Device::pipeline_stats",
    ),
    variable("TL_OFFLINE", "1 forbids downloads", "-"),
    variable(
        "TL_LOG",
        "level of the log on stderr: off, error, warn, info, debug, trace; per target as in debug,memory=trace",
        "events::KINDS",
    ),
    variable(
        "TL_METRICS",
        "file that a program writes its metrics and problems to, for `tl top`; *.prom for Prometheus; or a folder",
        "Device::metrics",
    ),
];

/// What the names of the tests' own settings begin with, which their scripts set.
const OF_TESTS: [&str; 5] = ["TL_REQUIRE_", "TL_TEST_", "TL_MESA_DIR", "TL_LAVAPIPE", "TL_EMULATED"];

/// The names of all settings.
pub fn names() -> impl Iterator<Item = &'static str> {
    VARIABLES.iter().map(|v| v.name)
}

/// A problem and how to fix it.
struct Problem {
    what: String,
    hint: String,
}

fn problem(list: &mut Vec<Problem>, what: impl Into<String>, hint: impl Into<String>) {
    list.push(Problem { what: what.into(), hint: hint.into() });
}

fn bytes(n: usize) -> String {
    human_bytes(n as u64)
}

fn micro(seconds: f64) -> String {
    format!("{:.1} µs", seconds * 1e6)
}

/// A device's memory as report lines and as JSON.
fn memory(d: &Device) -> (Vec<[String; 2]>, Value) {
    let (room, pool) = (d.memory_info(), d.buffer_pool_stats());
    let system = match room {
        Some(r) => match r.free {
            Some(free) => format!("{}, {} free", bytes(r.total), bytes(free)),
            None => bytes(r.total),
        },
        None => "not reported by the system".into(),
    };
    let limit = pool.limit.map_or("none".into(), bytes);
    let lines =
        vec![["memory".into(), system], ["allocated at most".into(), limit], ["kept for reuse at most".into(), bytes(pool.cache_limit)]];
    let json = json!({ "total_bytes": room.map(|r| r.total), "free_bytes": room.and_then(|r| r.free), "limit_bytes": pool.limit,
        "cache_limit_bytes": pool.cache_limit });
    (lines, json)
}

/// Where a device's tuning table comes from.
fn tuning_source(source: &TuningSource, table: &Tuning) -> String {
    match source {
        TuningSource::Class { .. } => format!("{}; `tl tune` measures this machine's", of_class(Some(table))),
        TuningSource::Environment(value) => format!("TL_TUNING={value}"),
        TuningSource::Measured(file) => format!("measured here, kept in {}", file.display()),
        TuningSource::Given => "given by the program".into(),
    }
}

fn crossover_json(c: &FallbackModel) -> Value {
    json!({ "round_trip_s": c.round_trip, "submit_s": c.submit, "host_s": c.host, "host_element_s": c.host_element,
        "host_op_s": c.host_op, "elements": c.elements() })
}

/// Environment variables with invalid values, and how to fix them.
pub fn wrong_settings() -> Vec<(String, &'static str)> {
    let mut wrong = Vec::new();
    let total = || limits::host_memory_info().map_or(1, |r| r.total);
    for name in ["TL_MEM_LIMIT", "TL_CACHE_LIMIT"] {
        if let Err(e) = std::env::var(name).map_or(Ok(None), |v| limits::amount(&v, Some(total()))) {
            wrong.push((format!("{name}: {e}"), "unset it, or set an amount such as 2G or 75%"));
        }
    }
    if let Some(v) = std::env::var("TL_NUM_THREADS").ok().filter(|v| v.trim().parse::<usize>().map_or(true, |n| n == 0)) {
        wrong.push((format!("TL_NUM_THREADS is {v:?}, which is not a valid thread count"), "unset it, or set a number above 0"));
    }
    if let Some(e) = std::env::var("TL_ORDER").ok().filter(|v| !v.is_empty()).and_then(|v| v.parse::<BufferOrder>().err()) {
        wrong.push((format!("TL_ORDER: {e}"), "unset it, or set the name of an order"));
    }
    if let Some(v) = std::env::var("TL_ADAPTIVE").ok().filter(|v| v != "0" && v != "1") {
        wrong.push((format!("TL_ADAPTIVE is {v:?}; expected 0 or 1"), "unset it: small work on host values runs on the CPU"));
    }
    if let Some(Err(e)) = std::env::var("TL_TUNING").ok().filter(|v| !v.is_empty()).map(|v| Tuning::from_setting(&v)) {
        wrong.push((e.to_string(), "unset it, or write generic, nvidia, apple, software, or a file as `tl tune` writes it"));
    }
    if let Err(e) = PipelineStrategy::from_env() {
        wrong.push((e.to_string(), "unset it: work is paced by the strategy `standard`"));
    }
    if let Some(v) = std::env::var("TL_FALLBACK").ok().filter(|v| v != "error" && v != "next") {
        wrong.push((format!("TL_FALLBACK is {v:?}; expected error or next"), "unset it: work continues on the next device"));
    }
    if let Some(Err(e)) = std::env::var("TL_LOG").ok().map(|v| crate::log::Filter::parse(&v)) {
        wrong.push((format!("TL_LOG: {e}"), "unset it, or write a level such as debug, or debug,memory=trace"));
    }
    if let Err(e) = cpu::instructions() {
        wrong.push((e.to_string(), "unset it to use the fastest instruction set of this processor"));
    }
    wrong
}

/// Checks the environment: invalid values and unknown variables.
fn settings(problems: &mut Vec<Problem>) {
    for (what, help) in wrong_settings() {
        problem(problems, what, help);
    }
    if let Some(Err(e)) = std::env::var("TL_DEVICE").ok().map(|name| model::open_device(&name)) {
        problem(problems, e.to_string(), "unset it, or set one of the names that `tl devices` shows");
    }
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let test = OF_TESTS.iter().any(|t| name.starts_with(t));
        if name.starts_with("TL_") && !test && !VARIABLES.iter().any(|v| v.name == name) {
            let near = VARIABLES.iter().max_by(|a, b| strsim::jaro(a.name, &name).total_cmp(&strsim::jaro(b.name, &name)));
            let near = near.filter(|v| strsim::jaro(v.name, &name) > 0.85).map(|v| format!("; did you mean {}?", v.name));
            problem(problems, format!("{name} is set, but is not a recognised variable"), format!("unset it{}", near.unwrap_or_default()));
        }
    }
    for name in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        let Some(list) = std::env::var_os(name) else { continue };
        for file in std::env::split_paths(&list).filter(|f| !f.as_os_str().is_empty() && !f.exists()) {
            problem(problems, format!("{name} names {}, which does not exist", file.display()), format!("correct or unset {name}"));
        }
    }
}

/// Looks for reasons why a GPU is missing.
fn drivers(adapters: &[gpu::AdapterDescription], problems: &mut Vec<Problem>) {
    if adapters.iter().any(|a| !a.software) {
        return;
    }
    let found = if adapters.is_empty() { "no graphics adapter was found" } else { "only software adapters were found" };
    if cfg!(target_os = "linux") {
        if Path::new("/proc/driver/nvidia/version").exists() || Path::new("/dev/nvidiactl").exists() {
            problem(
                problems,
                format!("{found}, though the NVIDIA kernel driver is loaded"),
                "its Vulkan part is missing: install libnvidia-gl (in a container: NVIDIA_DRIVER_CAPABILITIES=all) and libvulkan1",
            );
            return;
        }
        let nodes: Vec<_> = std::fs::read_dir("/dev/dri").into_iter().flatten().flatten().map(|e| e.path()).collect();
        let render = nodes.iter().find(|p| p.to_string_lossy().contains("renderD"));
        match render {
            Some(node) if std::fs::OpenOptions::new().read(true).write(true).open(node).is_err() => problem(
                problems,
                format!("{found}; {} exists but may not be opened", node.display()),
                "add yourself to the group `render`: sudo usermod -aG render $USER, then log in again",
            ),
            Some(node) => problem(
                problems,
                format!("{found}, though {} exists", node.display()),
                "install the Vulkan driver: mesa-vulkan-drivers on Debian and Ubuntu; `vulkaninfo --summary` shows what it finds",
            ),
            None => {
                let hint = "no action is needed on a machine without a GPU: the cpu device is used";
                problem(problems, format!("{found}: the kernel shows no graphics device"), hint);
            }
        }
    } else {
        problem(problems, found, "update the graphics driver; until then the cpu device is used");
    }
}

/// The report as lines of text.
#[derive(Default)]
struct ReportLines(Vec<String>);

impl ReportLines {
    /// Adds a title with its rows.
    fn section(&mut self, title: String, rows: Vec<[String; 2]>) {
        if !self.0.is_empty() {
            self.0.push(String::new());
        }
        self.0.push(title);
        let rows: Vec<Vec<String>> = rows.into_iter().map(|[a, b]| vec![format!("  {a}"), b]).collect();
        self.0.extend(table::lines(&rows, &[]));
    }
}

/// What the drivers say about an adapter: rows and JSON.
fn adapter(a: &gpu::AdapterDescription, name: &str, problems: &mut Vec<Problem>) -> (Vec<[String; 2]>, Value) {
    for (feature, loss) in [("f16", "kernels compute f16 tensors in f32"), ("subgroup", "reductions use a slower kernel")] {
        if !a.features.contains(&feature) {
            problem(problems, format!("{} lacks {feature}: {loss}", a.name), "a newer driver may offer it");
        }
    }
    let rows = vec![
        ["device".into(), name.into()],
        ["kind".into(), format!("{}{}", a.kind, if a.software { ", software: used only when named" } else { "" })],
        ["driver".into(), a.driver.clone()],
        ["features".into(), if a.features.is_empty() { "none".into() } else { a.features.join(", ") }],
        ["limits".into(), a.limits.iter().map(|(n, v)| format!("{n} {v}")).collect::<Vec<_>>().join(", ")],
    ];
    let limits: serde_json::Map<String, Value> = a.limits.iter().map(|(n, v)| (n.replace([' ', ','], "_"), json!(v))).collect();
    let json = json!({ "device": name, "name": a.name, "backend": a.backend, "kind": a.kind, "driver": a.driver,
        "software": a.software, "features": a.features, "limits": limits });
    (rows, json)
}

/// What is known of a device once it is open: its memory, tuning table, compiled kernels and crossover.
fn opened(d: &Device, name: &str, measure: bool, json: &mut Value, problems: &mut Vec<Problem>) -> Vec<[String; 2]> {
    let (mut rows, memory) = memory(d);
    rows.push(["storage".into(), format!("{:?}", d.storage_mode())]);
    json["memory"] = memory;
    json["storage"] = json!(format!("{:?}", d.storage_mode()));
    json["adaptive"] = json!(d.adaptive());
    if let Some(why) = d.stands_in() {
        json["stands_in"] = json!(why);
        rows.push(["backend".into(), format!("wgpu, since the native one cannot be opened: {why}")]);
        problem(problems, format!("{name} goes through wgpu: {why}"), "results are the same; work is slower by what wgpu costs");
    }
    if let Some(why) = d.lacks_metal_bodies() {
        json["lacks_metal_bodies"] = json!(why);
        rows.push(["kernels".into(), format!("in WGSL only, without parts in Metal's language: {why}")]);
        problem(
            problems,
            format!("{name} does not use kernels written in Metal's language: {why}"),
            "results are the same; work may be slower",
        );
    }
    if let Some(why) = d.lacks_tensor_ops() {
        json["lacks_tensor_ops"] = json!(why);
        rows.push(["tensor operations".into(), format!("not used: {why}")]);
    }
    if let Some(held) = d.matrix_elements() {
        let of_lane = format!("{} in each of {} rows", held.row_elements(), held.lane_rows());
        json["matrix_elements"] = json!({ "lane_rows": held.lane_rows(), "row_elements": held.row_elements() });
        rows.push(["matrix elements".into(), format!("accessible, {of_lane} per lane: attention keeps its scores in registers")]);
    }
    if let Some((table, source)) = d.tuning().zip(d.tuning_source()) {
        let from = tuning_source(source, table);
        rows.push(["tuning table".into(), format!("{}: {from}", table.name)]);
        json["tuning"] = json!({ "name": table.name, "source": from, "table": table });
        if let TuningSource::Class { ignored: Some(why) } = source {
            let what = format!("{name}: the measured tuning table is not used: {why}");
            problem(problems, what, "run `tl tune` again, or delete the file");
        }
    }
    let kept = d.pipeline_stats();
    json["pipeline_cache"] = json!({ "file": kept.file, "bytes": kept.bytes });
    let kernels = match &kept.file {
        Some(f) => format!("{} in {}", bytes(kept.bytes as usize), f.display()),
        None => "not used for this device".into(),
    };
    rows.push(["compiled kernels".into(), kernels]);
    rows.push(["crossover".into(), crossover(d, name, measure, json, problems)]);
    rows
}

/// The amount of work from which on a device is faster than the CPU.
fn crossover(d: &Device, name: &str, measure: bool, json: &mut Value, problems: &mut Vec<Problem>) -> String {
    let measured = match (measure, d.adaptive()) {
        (true, _) => d.measure_crossover(),
        (false, true) => d.crossover(),
        (false, false) => return "adaptive execution is off: every computation goes to the device".into(),
    };
    match &measured {
        Err(e) => {
            problem(problems, format!("{name}: measuring failed: {e}"), "update the driver, or name another device");
            "could not be measured".into()
        }
        Ok(c) => {
            json["crossover"] = crossover_json(c);
            format!(
                "{} elements of one operation (round trip {}, submit {}, CPU {} and {:.2} ns per element){}",
                c.elements(),
                micro(c.round_trip),
                micro(c.submit),
                micro(c.host),
                c.host_element * 1e9,
                if d.adaptive() { "" } else { "; not used: adaptive execution is off" }
            )
        }
    }
}

/// An adapter and, where it opens, its device: rows and JSON.
fn gpu_report(a: &gpu::AdapterDescription, measure: bool, problems: &mut Vec<Problem>) -> (Vec<[String; 2]>, Value) {
    let name = format!("{}:{}", a.backend, a.index);
    let (mut rows, mut json) = adapter(a, &name, problems);
    match Device::open(&name) {
        Ok(d) => rows.extend(opened(&d, &name, measure, &mut json, problems)),
        Err(e) => {
            rows.push(["state".into(), "does not open".into()]);
            json["error"] = json!(e.to_string());
            // What a setting does to every device was said above.
            if !e.to_string().starts_with("TL_") {
                problem(problems, format!("{name}: {e}"), "update or reinstall its driver; TL_DEVICE=cpu avoids it");
            }
        }
    }
    (rows, json)
}

/// Runs a program and shows the problems that it had.
fn run_while(program: &std::ffi::OsStr, arguments: &[std::ffi::OsString], global: Global) -> Result<(), Failure> {
    let file = std::env::temp_dir().join(format!("tl-doctor-{}.json", std::process::id()));
    let mut command = std::process::Command::new(program);
    command.args(arguments).env("TL_METRICS", &file).stdout(std::io::stderr());
    // Ctrl-C is for the program.
    interrupt::install();
    let status = command.status().map_err(|e| Failure::Error(format!("{}: {e}", program.display())))?;
    let read = if file.exists() { watch::read(&file)? } else { Vec::new() };
    let _ = std::fs::remove_file(&file);
    let Some(process) = read.first() else {
        return Err(Failure::Error(format!("{} evaluated no tensors ({status}), so there is nothing to say", program.display())));
    };
    if global.json {
        let devices: Vec<_> = process.devices.iter().map(|d| json!({ "device": d["device"], "findings": d["findings"] })).collect();
        return output::result(&json!({ "exit": status.code(), "devices": devices }).to_string());
    }
    for device in &process.devices {
        let found: Vec<&Value> = device["findings"].as_array().into_iter().flatten().collect();
        let evaluations = watch::Process::number(device, "evaluations_total");
        let title = if found.is_empty() { "no problems" } else { "problems" };
        output::result(&format!("{}: {title} in {evaluations:.0} evaluations", device["device"].as_str().unwrap_or("?")))?;
        for f in found {
            let text = |key: &str| f[key].as_str().unwrap_or("").to_string();
            output::result(&format!("  {}: {}\n    → {}", text("what"), text("evidence"), text("cure")))?;
        }
    }
    match status.success() {
        true => Ok(()),
        false => Err(Failure::Error(format!("{} ended with {status}", program.display()))),
    }
}

/// Runs the subcommand.
pub fn run(args: &DoctorArgs, global: Global) -> Result<(), Failure> {
    if let [program, arguments @ ..] = &args.command[..] {
        return run_while(program, arguments, global);
    }
    if let Some(file) = &args.read_bundle {
        return self_test::show(file, global);
    }
    if args.self_test {
        return self_test::run(&args.device, args.cases.as_deref().unwrap_or(""), args.seconds, args.bundle.as_deref(), global);
    }
    let mut problems = Vec::new();
    settings(&mut problems);
    let adapters = gpu::adapters();
    drivers(&adapters, &mut problems);

    let mut report = ReportLines::default();
    let version = env!("CARGO_PKG_VERSION");
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let folder = tensorlogic::cpu_fallback::cache_folder();
    let shown = folder.as_ref().map_or("none: HOME is not set".into(), |f| f.display().to_string());
    report.section(format!("tl {version}"), vec![["system".into(), system.clone()], ["cache folder".into(), shown]]);
    let host = Device::cpu();
    let (rows, host_memory) = memory(&host);
    report.section(host.name(), rows);
    let mut gpus = Vec::new();
    for a in &adapters {
        let (rows, json) = gpu_report(a, args.measure, &mut problems);
        report.section(a.name.clone(), rows);
        gpus.push(json);
    }

    let value = |v: &Variable| std::env::var(v.name).ok();
    if global.json {
        let variables: serde_json::Map<String, Value> = VARIABLES.iter().map(|v| (v.name.into(), json!(value(v)))).collect();
        let list: Vec<Value> = problems.iter().map(|p| json!({ "what": p.what, "hint": p.hint })).collect();
        let cpu = json!({ "name": host.name(), "threads": cpu::threads(), "memory": host_memory });
        let report = json!({ "version": version, "system": system, "cache_folder": folder, "cpu": cpu, "gpus": gpus,
            "variables": variables, "problems": list });
        return output::result(&report.to_string());
    }
    let rows = VARIABLES
        .iter()
        .map(|v| [v.name.to_string(), format!("{}  {} ({})", value(v).map_or("(not set)".into(), |s| format!("= {s}")), v.does, v.call)]);
    report.section("settings".into(), rows.collect());
    report.section(if problems.is_empty() { "no problems found" } else { "problems" }.into(), vec![]);
    report.0.extend(problems.iter().map(|p| format!("  {}\n    → {}", p.what, p.hint)));
    report.0.iter().try_for_each(|line| output::result(line))
}

#[cfg(test)]
mod tests {
    use super::{OF_TESTS, VARIABLES};
    use std::path::{Path, PathBuf};

    fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => sources(&path, out),
                false => out.extend(path.extension().is_some_and(|e| e == "rs").then_some(path)),
            }
        }
    }

    #[test]
    fn every_setting_that_the_sources_read_is_listed() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = Vec::new();
        sources(&own.join("src"), &mut files);
        sources(&own.join("../src"), &mut files);
        let mut missing = Vec::new();
        let mut seen = 0;
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            for part in text.split("\"TL_").skip(1) {
                let name: String = part.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
                let name = format!("TL_{name}");
                if name == "TL_" || OF_TESTS.iter().any(|t| name.starts_with(t)) {
                    continue;
                }
                seen += 1;
                if !VARIABLES.iter().any(|v| v.name == name) {
                    missing.push(format!("{name} in {}", file.display()));
                }
            }
        }
        assert!(seen > 8, "the sources were not found");
        assert!(missing.is_empty(), "{missing:?}");
    }
}
