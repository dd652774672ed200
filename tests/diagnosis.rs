//! Diagnosis: programs with one problem each, in processes of their own, and one without; leaks, scopes, metrics and their file.

mod common;
#[allow(dead_code)]
#[path = "../examples/diagnose.rs"]
mod example;

use common::{alone, command, devices, gpu, selector};
use example::{as_it_should_be, keeps_tensors, reads_in_the_middle};
use std::collections::HashSet;
use std::path::PathBuf;
use tensorlogic::diagnose::Problem;
use tensorlogic::leaks::LeakDetector;
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// The variables that tell the program of a process, and its device.
const PROGRAM: &str = "TL_TEST_PROGRAM";
const DEVICE: &str = "TL_TEST_PROGRAM_DEVICE";

fn ones(shape: &[usize], device: &Device) -> TensorResult<Tensor> {
    let t = Tensor::ones(shape, DType::F32, device)?;
    t.eval()?;
    Ok(t)
}

/// Runs the program of a problem, to its end or to where it shows.
fn cause(problem: Option<Problem>, device: &Device) -> TensorResult<Vec<Tensor>> {
    let steps = 200;
    match problem {
        // A setting or a device is wrong, not the program.
        None | Some(Problem::NoGpu | Problem::DebugSetting) => drop(as_it_should_be(device)?),
        Some(Problem::Recording) => {
            // For as long as the process lives.
            std::mem::forget(device.memory_profile());
            as_it_should_be(device)?;
        }
        Some(Problem::ChainsCut) => drop(reads_in_the_middle(device)?),
        Some(Problem::MemoryGrows) => drop(keeps_tensors(device)?),
        Some(Problem::MemoryAlmostFull) => {
            device.set_memory_limit(10 << 20);
            return Ok(vec![ones(&[19 << 17], device)?]);
        }
        Some(Problem::LowReuse) => {
            device.buffer_pool().set_limit(0);
            let x = ones(&[4096], device)?;
            for step in 0..steps {
                x.add(step as f64)?.exp()?.eval()?;
            }
        }
        Some(Problem::F32Weights) => {
            let (x, w) = (ones(&[64, 512], device)?, ones(&[512, 512], device)?);
            for step in 0..steps {
                x.add(step as f64)?.matmul(&w)?.eval()?;
            }
        }
        Some(Problem::ValuesCross) => {
            let mut x = ones(&[1 << 16], device)?;
            for _ in 0..steps {
                let host = x.add(1.0)?.to_vec()?;
                x = Tensor::from_vec(host, &[1 << 16], device)?;
            }
        }
        Some(Problem::WaitsEachStep) => {
            let x = ones(&[4096], device)?;
            for step in 0..steps {
                x.add(step as f64)?.eval()?;
                device.synchronize()?;
            }
        }
        Some(Problem::SmallUploads) => {
            for step in 0..steps {
                let mut sum = Tensor::from_vec(vec![step as f32; 64], &[64], device)?;
                for piece in 0..9 {
                    sum = sum.add(&Tensor::from_vec(vec![piece as f32; 64], &[64], device)?)?;
                }
                sum.eval()?;
            }
        }
        Some(Problem::PlanMisses) => {
            let x = ones(&[4096], device)?;
            for step in 0..steps {
                x.narrow(0, 0, 8 * (step + 1))?.add(1.0)?.eval()?;
            }
        }
        Some(Problem::KernelsCompiled) => {
            let x = ones(&[4096], device)?;
            for step in 0..steps {
                let mut y = x.clone();
                for bit in 0..8 {
                    y = if step >> bit & 1 == 1 { y.tanh()? } else { y.neg()? };
                }
                y.eval()?;
            }
        }
        Some(Problem::LaunchBound) => {
            let w = ones(&[8, 8], device)?.mul(0.125)?;
            let mut y = ones(&[8, 8], device)?;
            tensorlogic::eval::eval_all(&[&w])?;
            for _ in 0..steps {
                for _ in 0..24 {
                    y = y.matmul(&w)?;
                }
                y.eval()?;
            }
        }
        Some(other) => panic!("no program causes {other:?}"),
    }
    Ok(Vec::new())
}

/// The process of a program: this test does nothing in the other ones.
#[test]
fn program() {
    let Ok(name) = std::env::var(PROGRAM) else { return };
    let device = Device::open(&std::env::var(DEVICE).unwrap()).unwrap();
    device.set_adaptive(false);
    let held = cause(Problem::ALL.into_iter().find(|p| p.name() == name), &device).unwrap();
    for finding in device.diagnose().unwrap() {
        assert!(!finding.evidence.is_empty() && finding.cure == finding.what.cure());
        println!("\nFOUND {}\n{finding}", finding.what.name());
    }
    drop(held);
}

fn process(name: &str, device: &str) -> std::process::Command {
    let mut c = command(&std::env::args().next().expect("a program has a name"));
    c.args(["--exact", "program", "--nocapture", "--test-threads=1"]).env(PROGRAM, name).env(DEVICE, device);
    c.env_remove("TL_METRICS");
    c
}

/// Runs the program of a problem on a device; exactly that problem is found, or none.
#[track_caller]
fn check(problem: Option<Problem>, device: &str) {
    let name = problem.map_or("good", Problem::name);
    let mut c = process(name, device);
    match problem {
        Some(Problem::NoGpu) => drop(c.env("VK_DRIVER_FILES", "/nonexistent")),
        Some(Problem::DebugSetting) => drop(c.env("TL_NO_FUSION", "1")),
        _ => {}
    }
    let output = c.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name} on {device}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    let found: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("FOUND ")).collect();
    assert_eq!(found, problem.map_or(vec![], |p| vec![p.name()]), "{name} on {device}: {text}");
}

/// What only a device with a queue and memory of its own can have.
const OF_GPUS: [Problem; 5] =
    [Problem::F32Weights, Problem::ValuesCross, Problem::WaitsEachStep, Problem::SmallUploads, Problem::KernelsCompiled];

#[test]
fn each_problem_is_found_and_nothing_else() {
    let _alone = alone();
    check(None, "cpu");
    for problem in Problem::ALL.into_iter().filter(|p| !OF_GPUS.contains(p)) {
        // Only where nothing but Vulkan leads to a GPU can it be hidden.
        if problem != Problem::NoGpu {
            check(Some(problem), "cpu");
        } else if cfg!(target_os = "linux") {
            check(Some(problem), "auto");
        }
    }
}

#[test]
fn each_problem_is_found_on_a_gpu_and_nothing_else() {
    let _alone = alone();
    let Some(device) = gpu().and_then(|_| selector()) else { return };
    check(None, device);
    for problem in Problem::ALL.into_iter().filter(|p| *p != Problem::NoGpu) {
        check(Some(problem), device);
    }
}

#[test]
fn names_of_problems_are_unique() {
    let names: HashSet<_> = Problem::ALL.iter().map(|p| p.name()).collect();
    assert_eq!(names.len(), Problem::ALL.len());
}

#[test]
fn a_list_that_keeps_tensors_is_named_within_three_steps() {
    let _alone = alone();
    for d in devices() {
        let mut detector = LeakDetector::new(&d).tolerance(64 << 10);
        assert!(detector.check().is_none(), "there is no baseline");
        let x = ones(&[128, 128], &d).unwrap();
        detector.baseline();
        let mut kept = Vec::new();
        let mut found = None;
        for step in 0..3 {
            let y = x.add(step as f64).unwrap();
            let line = line!() - 1;
            y.eval().unwrap();
            kept.push(y);
            found = detector.check().map(|leak| (leak, line)).or(found);
        }
        let (leak, line) = found.expect("192 KiB are held");
        let first = &leak.by_line[0];
        assert_eq!((first.op, first.at.unwrap().line(), first.at.unwrap().file()), ("add", line, file!()), "{leak}");
        assert!(leak.grew >= 128 << 10 && leak.to_string().contains("diagnosis.rs"), "{leak}");
        kept.clear();
        d.synchronize().unwrap();
        assert!(detector.check().is_none(), "{}", d.name());
    }
}

#[test]
fn a_thousand_clean_steps_are_no_leak() {
    let _alone = alone();
    for d in devices() {
        let mut detector = LeakDetector::new(&d).tolerance(0);
        let mut x = ones(&[64], &d).unwrap();
        for step in 0..1000 {
            if step == 8 {
                detector.baseline();
            }
            x = x.mul(0.5).unwrap().add(step as f64).unwrap();
            x.eval().unwrap();
            // What waits for a submit holds memory for a moment.
            if step % 10 == 0 {
                d.synchronize().unwrap();
                assert_eq!(detector.check(), None, "step {step} on {}", d.name());
            }
        }
    }
}

#[test]
fn scopes_tell_what_outlives_them() {
    let _alone = alone();
    for d in devices() {
        let mut cache = Vec::new();
        let (kept, outlived) = d
            .scope(|s| {
                let x = ones(&[1000], &d)?;
                cache.push(x.exp()?);
                let line = line!() - 1;
                cache[0].eval()?;
                assert!(!s.held().is_empty());
                Ok((s.keep(&x.sum_all()?)?, line))
            })
            .unwrap();
        assert_eq!(kept.0.item().unwrap(), 1000.0);
        let lines: Vec<_> = outlived.iter().map(|h| (h.op, h.at.unwrap().line())).collect();
        assert_eq!(lines, [("exp", kept.1)], "{}", d.name());
        let ((), outlived) = d.scope(|_| ones(&[1000], &d)?.exp()?.eval().map(drop)).unwrap();
        assert_eq!(outlived, [], "{}", d.name());
    }
}

#[test]
fn metrics_count_what_happened_and_are_prometheus_text() {
    let _alone = alone();
    for d in devices() {
        let before = d.metrics();
        let x = ones(&[4096], &d).unwrap();
        for _ in 0..3 {
            x.add(1.0).unwrap().exp().unwrap().to_vec().unwrap();
        }
        let after = d.metrics();
        let moved = after.transfers.downloaded_bytes - before.transfers.downloaded_bytes;
        assert_eq!(moved, if d.is_cpu() { 0 } else { 3 * 4 * 4096 });
        let plans = (after.plans.evaluations - before.plans.evaluations, after.plans.reads - before.plans.reads);
        assert_eq!(plans, (4, 3), "the ones and three sums");
        assert!(after.plans.steps - before.plans.steps >= 4 && after.plans.elements > before.plans.elements);
        assert_eq!(after.queue.waits > before.queue.waits, !d.is_cpu());
        // Each number has its help and type before it, and a value.
        let text = after.to_prometheus();
        let mut known = HashSet::new();
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => assert!(known.insert(rest.split(' ').next().unwrap()), "{line}"),
                None if line.starts_with("# HELP ") => {}
                None => {
                    let (name, rest) = line.split_once('{').unwrap();
                    assert!(known.contains(name) && rest.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
                }
            }
        }
        assert!(known.len() > 30 && known.contains("tensorlogic_pool_in_use_bytes"));
        assert_eq!(after.to_json()["evaluations_total"], after.plans.evaluations as f64);
    }
}

#[test]
fn a_process_writes_its_metrics_and_problems() {
    let _alone = alone();
    let folder = std::env::temp_dir().join(format!("tl-metrics-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let run = |to: PathBuf| {
        let output = process(Problem::ChainsCut.name(), "cpu").env("TL_METRICS", &to).output().unwrap();
        assert!(output.status.success());
    };
    run(folder.join("run.json"));
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("run.json")).unwrap()).unwrap();
    let device = &value["devices"][0];
    assert_eq!((&value["ended"], &device["findings"][0]["name"]), (&true.into(), &"chains-cut".into()), "{value}");
    assert!(device["evaluations_total"].as_f64().unwrap() >= 200.0 && value["pid"].as_u64().is_some());
    run(folder.join("run.prom"));
    assert!(std::fs::read_to_string(folder.join("run.prom")).unwrap().contains("tensorlogic_evaluations_total{device=\"cpu"));
    // In a folder each process has a file.
    run(folder.clone());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3);
    std::fs::remove_dir_all(&folder).unwrap();
}
