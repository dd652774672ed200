//! What a user sees of a running command: its log, its profile, its metrics and its problems.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny/tiny.gguf");

fn tl(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(args).env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").env_remove("TL_LOG").env_remove("TL_METRICS");
    command
}

/// Generates some tokens with further flags; the text is that of a plain run.
#[track_caller]
fn generate(flags: &[&str], change: impl FnOnce(&mut Command)) -> Output {
    let base = ["generate", "--raw", "-q", "-n", "40", "-m", MODEL, "ROMEO:"];
    let plain = tl(&base).output().unwrap();
    let mut command = tl(&[&base[..], flags].concat());
    change(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!plain.stdout.is_empty() && plain.stdout == output.stdout, "results stay on stdout, and are the same");
    output
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8(output.stderr.clone()).unwrap().lines().map(String::from).collect()
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tl-observe-{}-{name}", std::process::id()))
}

#[test]
fn logs_go_to_stderr_by_level() {
    let has = |lines: &[String], name: &str| lines.iter().any(|l| l.contains(&format!(" {name} ")));
    assert!(lines(&generate(&[], |_| {})).is_empty());
    let info = lines(&generate(&["-v"], |_| {}));
    assert!(has(&info, "model.loaded") && !has(&info, "plan.missed"), "{info:?}");
    let debug = lines(&generate(&["-vv"], |_| {}));
    assert!(has(&debug, "plan.missed") && has(&debug, "prompt.chunk") && !has(&debug, "plan.hit"), "{debug:?}");
    assert!(debug.iter().any(|l| l.contains(" compile ") && l.contains("took=")), "{debug:?}");
    let trace = lines(&generate(&["-vvv"], |_| {}));
    assert!(has(&trace, "buffer.reused") && trace.iter().filter(|l| l.contains(" token ")).count() == 40, "{trace:?}");
    let some = lines(&generate(&[], |c| {
        c.env("TL_LOG", "off,models=debug");
    }));
    assert!(has(&some, "prompt.chunk") && some.iter().all(|l| !l.contains(" plan.")), "{some:?}");
    let wrong = tl(&["devices"]).env("TL_LOG", "loud").output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("TL_LOG: \"loud\" is not a level"));
}

#[test]
fn a_log_file_holds_one_json_object_a_line() {
    let file = temporary("log.jsonl");
    assert!(lines(&generate(&["--log-json", file.to_str().unwrap()], |_| {})).is_empty());
    let text = std::fs::read_to_string(&file).unwrap();
    let all: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let named = |name: &str| all.iter().filter(|v| v["name"] == name).collect::<Vec<_>>();
    let loaded = named("model.loaded");
    assert_eq!((loaded.len(), &loaded[0]["level"], &loaded[0]["target"]), (1, &"info".into(), &"models".into()));
    assert!(loaded[0]["layers"].as_u64().unwrap() > 0 && loaded[0]["time"].as_f64().unwrap() > 1e9);
    assert!(named("compile").iter().any(|v| v["seconds"].as_f64().unwrap() > 0.0));
    assert!(named("plan.hit").is_empty(), "which are of level trace");
    std::fs::remove_file(&file).unwrap();
    let folder = std::env::temp_dir();
    let wrong = tl(&["devices", "--log-json", folder.to_str().unwrap()]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1));
}

#[test]
fn profiles_of_steps_are_written() {
    let folder = temporary("profile");
    generate(&["--profile", folder.to_str().unwrap()], |_| {});
    check_profile(&folder);

    // So do training steps.
    let place = temporary("profile-train");
    std::fs::create_dir_all(&place).unwrap();
    let text = place.join("text.txt");
    std::fs::write(&text, "the quick brown fox jumps over the lazy dog. ".repeat(40)).unwrap();
    let shape = "--layers 1 --heads 2 --width 16 --context 16 --batch 4 --steps 30 --eval-every 0 --quiet";
    let mut train = tl(&["train", text.to_str().unwrap(), "-o", place.join("run").to_str().unwrap()]);
    let output = train.args(shape.split(' ')).args(["--profile", folder.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    check_profile(&folder);
    std::fs::remove_dir_all(&place).unwrap();
}

/// Two cycles, each with a table and a trace of memory, the device and the host; the folder is removed.
#[track_caller]
fn check_profile(folder: &Path) {
    for name in ["trace-0.json", "table-0.txt", "trace-1.json", "table-1.txt"] {
        assert!(folder.join(name).exists(), "{name}");
    }
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("trace-0.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for (ph, name) in [("C", "memory in use"), ("X", "run")] {
        assert!(events.iter().any(|e| e["ph"] == ph && e["name"] == name), "{name}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A program that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn top_shows_a_running_program() {
    let file = temporary("running.json");
    // More than a test lasts; it ends with the test.
    let mut command = tl(&["bench", "decode", "-m", MODEL, "-p", "8", "-n", "200", "-r", "1000000"]);
    command.env("TL_METRICS", &file).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    let start = Instant::now();
    // The first look may come before a program has written anything, or tokens.
    let row = loop {
        let top = tl(&["top", "--json", file.to_str().unwrap()]).output().unwrap();
        let rows = serde_json::from_slice::<serde_json::Value>(&top.stdout).unwrap_or_default();
        if rows[0]["tokens_per_s"].as_f64() > Some(0.0) {
            break rows[0].clone();
        }
        let ended = running.0.try_wait().unwrap();
        assert!(ended.is_none() && start.elapsed() < Duration::from_secs(60), "{rows} {ended:?}");
    };
    assert_eq!((&row["ended"], &row["pid"]), (&false.into(), &running.0.id().into()), "{row}");
    let busy = row["metrics"]["utilization"].as_f64();
    assert!(busy > Some(0.0) && busy <= Some(1.0), "{row}");
    assert!(row["evaluations_per_s"].as_f64() > Some(0.0) && row["metrics"]["pool_in_use_bytes"].as_f64() > Some(0.0), "{row}");
    let text = tl(&["top", "--once", file.to_str().unwrap()]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("cpu (") && !text.contains("(ended)"), "{text}");
    drop(running);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn metrics_of_a_program_are_shown_and_its_problems_named() {
    let file = temporary("metrics.json");
    generate(&[], |c| {
        c.env("TL_METRICS", &file);
    });
    let top = tl(&["top", file.to_str().unwrap()]).output().unwrap();
    let text = String::from_utf8(top.stdout).unwrap();
    assert!(top.status.success() && text.contains("tok/s") && text.contains("(ended)") && text.contains("cpu ("), "{text}");
    let json = tl(&["top", "--json", file.to_str().unwrap()]).output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(value[0]["metrics"]["tokens_total"], 40.0, "{value}");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(tl(&["top", file.to_str().unwrap()]).output().unwrap().status.code(), Some(1));

    let own = env!("CARGO_BIN_EXE_tl");
    let command = ["doctor", "--while", own, "generate", "--raw", "-q", "-n", "150", "-m", MODEL, "ROMEO:"];
    let doctor = tl(&command).env("TL_NO_FUSION", "1").output().unwrap();
    let (out, err) = (String::from_utf8(doctor.stdout).unwrap(), String::from_utf8(doctor.stderr).unwrap());
    assert!(doctor.status.success() && out.contains("TL_NO_FUSION=1") && out.contains("→ unset it"), "{out}{err}");
    assert!(!err.is_empty(), "the program's own output");
    let nothing = tl(&["doctor", "--while", own, "--version"]).output().unwrap();
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("evaluated no tensors"));
}
