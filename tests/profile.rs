//! Profiles: which steps they hold and that their times hang together; the same of the stages of an inference. Fusion switched off:
//! dispatches counted by hand, results compared.

mod common;

#[allow(dead_code)]
#[path = "../examples/gpt2_inference.rs"]
mod inference_example;

use common::{alone, devices};
use std::time::Instant;
use tensorlogic::eval::{eval_all, plan_of, without_fusion};
use tensorlogic::models::inference::{Inference, Inputs, Padding};
use tensorlogic::plan::Step;
use tensorlogic::profile::{Profile, ProfileOptions, Schedule, SortBy, trace_files};
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

fn random(shape: &[usize], device: &Device) -> Tensor {
    let t = Rng::new(3).uniform(shape, DType::F32, device).unwrap();
    t.eval().unwrap();
    t
}

/// Profiles `work` and compares the steps with `expect`, each as `op count`.
#[track_caller]
fn check(device: &Device, expect: &[&str], work: impl FnOnce() -> TensorResult<()>) -> Profile {
    let ((), profile) = device.profile(work).unwrap();
    let mut got: Vec<String> = profile.rows().iter().map(|r| format!("{} {}", r.op, r.count)).collect();
    got.sort();
    assert_eq!(got, expect, "{profile}");
    profile
}

#[test]
fn steps_are_named_counted_and_timed() {
    let _alone = alone();
    for d in devices() {
        let (a, b) = (random(&[256, 256], &d), random(&[256, 256], &d));
        let p = check(&d, &["add +1 1", "matmul +1 2"], || {
            a.mul(2.0)?.add(&b)?.eval()?;
            for _ in 0..2 {
                a.matmul(&b)?.relu()?.eval()?;
            }
            Ok(())
        });
        assert_eq!(p.runs(), 3);
        let all = p.seconds().expect("both devices have a clock");
        // The parts make up the whole, and the whole fits into the wall's time.
        let sum: f64 = p.rows().iter().map(|r| r.seconds.unwrap()).sum();
        assert!((sum - all).abs() < 1e-9 && all > 0.0 && all <= p.wall.as_secs_f64(), "{sum} {all} {:?}", p.wall);
        assert!((p.rows().iter().map(|r| r.share.unwrap()).sum::<f64>() - 1.0).abs() < 1e-9);
        let row = |op: &str| p.rows().into_iter().find(|r| r.op.starts_with(op)).unwrap();
        assert_eq!((row("add").bytes, row("add").operations), (3 * 4 * 65536, 2 * 65536));
        // 2·n³ and a relu each; three matrices each.
        assert_eq!((row("matmul").bytes, row("matmul").operations), (2 * 3 * 4 * 65536, 2 * (2 * 256 * 65536 + 65536)));
        assert!(row("add").at.file().ends_with("profile.rs"), "the user's line is kept");
        // Two thirds of the limit in bytes, one in operations: the larger counts.
        let r = row("add");
        let limits = [r.bandwidth().unwrap() * 1.5, r.rate().unwrap() * 4.0];
        assert!((r.fraction(limits).unwrap() - 1.0 / 1.5).abs() < 1e-9);
        let text = p.clone().with_limits(limits[0], limits[1]).to_string();
        assert!(text.contains("67 %") && text.contains(&d.name()), "{text}");
    }
}

#[test]
fn steps_are_labelled_with_op_and_line() {
    let device = Device::cpu();
    let (a, b) = (random(&[8, 8], &device), random(&[8, 8], &device));
    let line = line!() + 1;
    let product = a.matmul(&b).unwrap();
    let sum = product.relu().unwrap().sum_all().unwrap();
    let plan = plan_of(&[&product, &sum]).unwrap().expect("pending work");
    let labels: Vec<String> = plan.steps.iter().map(Step::label).collect();
    assert_eq!(labels, [format!("matmul tests/profile.rs:{line}"), format!("sum tests/profile.rs:{}", line + 1)]);
}

#[test]
fn traces_are_json_with_every_step() {
    let _alone = alone();
    for d in devices() {
        let x = random(&[1000], &d);
        let (_, p) = d.profile(|| x.exp()?.sum_all()?.item()).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&p.chrome_trace()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let named = |n: &str| events.iter().filter(|e| e["name"] == n).collect::<Vec<_>>();
        assert_eq!((named("thread_name").len(), named("run").len(), named("sum +1").len()), (2, 1, 1), "{events:?}");
        let (run, step) = (named("run")[0], named("sum +1")[0]);
        assert!(step["ts"].as_f64() >= run["ts"].as_f64() && step["dur"].as_f64().unwrap() > 0.0);
        assert!(step["args"]["line"].as_str().unwrap().contains("profile.rs:"));
    }
}

#[test]
fn nothing_is_measured_outside_of_a_profile() {
    let _alone = alone();
    let d = Device::cpu();
    let profiler = d.profiler().unwrap();
    assert!(d.profiler().is_err(), "a second measurement must be refused");
    drop(profiler);
    random(&[10], &d).exp().unwrap().eval().unwrap();
    let (_, p) = d.profile(|| Ok(())).unwrap();
    assert!(p.seconds().is_none() && p.rows().is_empty());
    assert!(p.to_string().contains("nothing ran"), "{p}");
}

/// Dispatches of `f` when nothing fuses, and the results of both ways.
#[track_caller]
fn unfused(expect: usize, f: impl Fn(&Device) -> TensorResult<Tensor>) {
    for d in devices() {
        let fused = f(&d).unwrap();
        let plain = f(&d).unwrap();
        let dispatches = |t: &Tensor| t.explain().unwrap().lines().last().unwrap().split(' ').next().unwrap().parse::<usize>().unwrap();
        let before = dispatches(&fused);
        let got = without_fusion(|| {
            let n = dispatches(&plain);
            eval_all(&[&plain]).unwrap();
            n
        });
        assert_eq!(got, expect, "{}: fused it takes {before}", d.name());
        assert!(before < got);
        // The switch ends with the scope, and its plans are not taken for the fused ones.
        assert_eq!(dispatches(&f(&d).unwrap()), before);
        let (x, y) = (fused.to_vec().unwrap(), plain.to_vec().unwrap());
        if d.is_cpu() {
            assert_eq!(x, y);
        } else {
            // A GPU's compiler may contract a product and a sum of one kernel into one operation.
            x.iter().zip(&y).for_each(|(x, y)| assert!((x - y).abs() <= 1e-5 * (1.0 + y.abs()), "{x} {y}"));
        }
    }
}

#[test]
fn without_fusion_each_operation_is_a_dispatch() {
    let _alone = alone();
    // Counted by hand: scale, bias, relu, square, add, tanh, multiply, clamp's two sides.
    unfused(9, |d| {
        let x = random(&[64, 64], d);
        x.mul(1.5)?.add(0.25)?.relu()?.square()?.add(&x)?.tanh()?.mul(&x)?.clamp(Some(-0.5), Some(0.5))
    });
    // Product, bias, relu, sum, root.
    unfused(5, |d| random(&[8, 8], d).matmul(&random(&[8, 8], d))?.add(&random(&[8], d))?.relu()?.sum(&[1], false)?.sqrt());
    // Two maps and two copies into the whole.
    unfused(4, |d| {
        let x = random(&[4, 4], d);
        Tensor::cat(&[&x.exp()?, &x.neg()?], 0)
    });
    // Independent neighbours stay apart.
    unfused(3, |d| {
        let x = random(&[4, 4], d);
        x.exp()?.add(&x.t()?.neg()?)
    });
}

#[test]
fn long_plans_are_submitted_piece_by_piece() {
    let _alone = alone();
    for d in devices().into_iter().filter(|d| !d.is_cpu()) {
        for (count, submits) in [(500, 1), (1000, 4)] {
            let x = random(&[64], &d);
            let mut y = x.clone();
            for _ in 0..count {
                y = y.add(1.0).unwrap();
            }
            let before = d.submits();
            without_fusion(|| y.eval().map(drop)).unwrap();
            assert_eq!(d.submits() - before, submits, "{count}");
            let (a, b) = (x.to_vec().unwrap()[0] as f64, y.to_vec().unwrap()[0] as f64);
            assert!((b - a - count as f64).abs() < 0.1, "{a} {b}");
        }
    }
}

/// The stages of an inference add up to the time on the wall; the first run compiles and later ones do not; the GPU's clock is within the
/// wall's; and what is told to be moved is moved.
#[test]
fn stages_of_an_inference_add_up_to_the_wall() {
    let _alone = alone();
    for d in devices() {
        let model = tensorlogic::models::load(&inference_example::random_weights(1, &d).unwrap(), Some(DType::F32)).unwrap();
        let tokens: Vec<i32> = (0..96).collect();
        let timed = || {
            let (before, start) = (d.transfers(), Instant::now());
            let outputs = inference_example::run(&*model, &tokens).unwrap();
            (start.elapsed(), outputs, before, d.transfers())
        };
        let (_, first, ..) = timed();
        // A thread that the system puts to sleep behind the last stage is no fault of the clock: one run of a few is undisturbed.
        let undisturbed = (0..5).any(|_| {
            let (wall, outputs, before, after) = timed();
            let times = outputs.times;
            assert!(times.total() <= wall, "{times} of {wall:?} on {}", d.name());
            assert!(times.compile < first.times.compile / 2, "{times} after {} on {}", first.times, d.name());
            assert!([times.prepare, times.encode, times.execute].iter().all(|t| !t.is_zero()), "{times} on {}", d.name());
            assert_eq!((times.submit.is_zero(), times.gpu.is_none()), (d.is_cpu(), d.is_cpu()), "{times} on {}", d.name());
            assert!(times.gpu.is_none_or(|gpu| !gpu.is_zero() && gpu < wall), "{times} of {wall:?} on {}", d.name());
            if !d.is_cpu() {
                assert_eq!(after.downloaded_bytes - before.downloaded_bytes, outputs.bytes_out);
                assert_eq!(after.uploaded_bytes - before.uploaded_bytes, outputs.bytes_in);
            }
            times.total() >= wall.mul_f64(0.95)
        });
        assert!(undisturbed, "stages do not add up on {}", d.name());
        // Without timestamps, and while the device is profiled, there is no time of the GPU.
        let inputs = Inputs::padded(&[[1u32, 2]], Padding::Right).unwrap();
        let inference = Inference::new(&*model);
        assert!(inference.timestamps(false).run(&inputs).unwrap().times.gpu.is_none());
        let (outputs, profile) = d.profile(|| inference.run(&inputs)).unwrap();
        assert!(outputs.times.gpu.is_none() && profile.seconds().is_some_and(|s| s > 0.0));
    }
}

/// The phases of a trace's events, with their names.
fn events(trace: &str) -> Vec<(String, String, serde_json::Value)> {
    let trace: serde_json::Value = serde_json::from_str(trace).unwrap();
    let text = |v: &serde_json::Value| v.as_str().unwrap().to_string();
    let list = trace["traceEvents"].as_array().unwrap();
    list.iter().map(|e| (text(&e["ph"]), text(&e["name"]), e.clone())).collect()
}

/// As the guide for Apple's GPUs has it: one step waits, one warms up, three are recorded, twice.
#[test]
fn a_schedule_records_its_steps_with_every_track() {
    let _alone = alone();
    for d in devices() {
        let folder = std::env::temp_dir().join(format!("tl-trace-{}", std::process::id()));
        let (a, b) = (random(&[64, 64], &d), random(&[64, 64], &d));
        let mut files = trace_files(&folder).unwrap();
        let mut cycles = Vec::new();
        let schedule = Schedule { wait: 1, warmup: 1, active: 3, repeat: 2 };
        let handler = |cycle, profile: &Profile| {
            cycles.push((cycle, profile.runs()));
            files(cycle, profile)
        };
        let mut profiler = d.profile_steps(schedule, ProfileOptions::all(), handler).unwrap();
        for _ in 0..12 {
            a.matmul(&b).unwrap().relu().unwrap().eval().unwrap();
            a.add(&b).unwrap().eval().unwrap();
            profiler.step().unwrap();
        }
        let last = profiler.finish().unwrap().unwrap();
        assert_eq!(cycles, [(0, 6), (1, 6)], "{}", d.name());
        let table = last.table(SortBy::Operations, 1);
        assert!(table.contains("[64,64]·[64,64] → [64,64]") && table.contains("and 1 more rows"), "{table}");
        assert!(table.contains("memory:") && !table.contains("add"), "{table}");
        assert!(last.table(SortBy::Name, 9).find("add") < last.table(SortBy::Name, 9).find("matmul"));
        for cycle in 0..2 {
            let text = std::fs::read_to_string(folder.join(format!("trace-{cycle}.json"))).unwrap();
            let events = events(&text);
            let count = |ph: &str, name: &str| events.iter().filter(|e| e.0 == ph && e.1 == name).count();
            // Tracks: the host's runs, the device's steps, the host's spans, the memory.
            assert_eq!((count("X", "run"), count("X", "matmul +1")), (6, 3), "{}", d.name());
            assert_eq!((count("X", "evaluation"), count("X", "collect")), (6, 6), "{}", d.name());
            assert!(count("X", "encode") >= 6 && count("C", "memory in use") > 6 && count("M", "thread_name") >= 3);
            for (ph, name, e) in &events {
                let number = |key: &str| e[key].as_f64().is_some_and(|v| v >= 0.0);
                let whole = match ph.as_str() {
                    "X" => number("ts") && number("dur") && number("tid"),
                    "C" => number("ts") && e["args"]["bytes"].as_u64().is_some(),
                    "M" => e["args"]["name"].is_string(),
                    _ => false,
                };
                assert!(whole, "{name}: {e}");
            }
            assert!(folder.join(format!("table-{cycle}.txt")).exists());
        }
        std::fs::remove_dir_all(&folder).unwrap();
        // A loop that ends early still gives what was recorded; one that is shorter than the warm-up gives nothing.
        for (steps, expect) in [(3, Some(1)), (1, None)] {
            let mut profiler = d.profile_steps(schedule, ProfileOptions::default(), |_, _| Ok(())).unwrap();
            for _ in 0..steps {
                a.neg().unwrap().eval().unwrap();
                profiler.step().unwrap();
            }
            assert_eq!(profiler.finish().unwrap().map(|p| p.runs()), expect);
        }
        let empty = Schedule { active: 0, ..schedule };
        assert!(d.profile_steps(empty, ProfileOptions::default(), |_, _| Ok(())).is_err());
    }
}
