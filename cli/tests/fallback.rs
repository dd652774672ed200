//! `tl generate`, `tl embed`, `tl score`, `tl perplexity`, `tl train` and `tl finetune` on a device that is lost or full while they run: they go on with
//! the next one of the list, unless that is forbidden.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::path::PathBuf;
use std::process::{Command, Stdio};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny/tiny.gguf");

/// Runs `tl` on the GPU under test followed by the CPU, which is lost at this submit; gives the exit code and both streams. `None` without a GPU.
fn tl(args: &[&str], lost_after: u64, fallback: Option<&str>) -> Option<(Option<i32>, String, String)> {
    on_a_gpu(args, ("TL_TEST_LOSE_DEVICE_AFTER", lost_after.to_string()), fallback)
}

/// As [`tl`], with a setting that says what happens to the GPU.
fn on_a_gpu(args: &[&str], what: (&str, String), fallback: Option<&str>) -> Option<(Option<i32>, String, String)> {
    let device = format!("{},cpu", common::selector()?);
    let mut command: Command = common::command(env!("CARGO_BIN_EXE_tl"));
    command.args(args).args(["--device", &device]).env("TL_OFFLINE", "1").env_remove("TL_FALLBACK").env_remove("TL_MEM_LIMIT");
    command.env(what.0, what.1).stdin(Stdio::null());
    command.envs(fallback.map(|v| ("TL_FALLBACK", v)));
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Some((output.status.code(), text(output.stdout), text(output.stderr)))
}

fn notes(stderr: &str) -> usize {
    stderr.lines().filter(|line| line.contains("; going on with cpu")).count()
}

#[test]
fn generate_writes_what_the_cpu_writes_and_says_so_once() {
    let args = ["generate", "-m", MODEL, "--raw", "--dtype", "f32", "-n", "40", "ROMEO:"];
    let cpu = Command::new(env!("CARGO_BIN_EXE_tl")).args(args).args(["--device", "cpu"]).env("TL_OFFLINE", "1").output().unwrap();
    let expected = String::from_utf8(cpu.stdout).unwrap();
    for lost_after in [2, 9, 20] {
        let Some((code, out, err)) = tl(&args, lost_after, None) else { return };
        assert_eq!((code, &out, notes(&err)), (Some(0), &expected, 1), "lost after {lost_after} submits: {err}");
        assert!(err.contains("the device was lost ("), "{err}");
    }
    let Some((code, _, err)) = tl(&args, 9, Some("error")) else { return };
    assert_eq!((code, notes(&err)), (Some(1), 0), "{err}");
    assert!(err.contains("tl: device lost: "), "{err}");
    let Some((code, _, err)) = tl(&args, 9, Some("maybe")) else { return };
    assert!(code == Some(2) && err.contains("TL_FALLBACK is \"maybe\""), "{err}");
}

/// The numbers of a command's output, in order.
fn numbers(out: &str) -> Vec<f64> {
    out.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// What follows a loss comes from the CPU, what was printed before is not printed again.
#[test]
fn embed_score_and_perplexity_go_on_behind_what_they_have() {
    let (folder, text) = folder("texts");
    let lines = folder.join("lines.txt");
    let line = |n: usize| format!("{} to be, or not to be: that is line {n}\n", "So ".repeat(n % 5));
    std::fs::write(&lines, (0..12).map(line).collect::<String>()).unwrap();
    let (lines, text) = (lines.to_str().unwrap(), text.to_str().unwrap());
    let model = ["-m", MODEL, "--dtype", "f32"];
    let embed = ["embed", "--batch", "2", "-f", lines];
    let tokens = ["embed", "--tokens", "--batch", "2", "-f", lines];
    let score = ["score", "--tokens", "--batch", "2", "-f", lines];
    let perplexity = ["perplexity", "--ctx", "32", "-f", text];
    for command in [&embed[..], &tokens, &score, &perplexity] {
        let args: Vec<&str> = command.iter().chain(&model).copied().collect();
        let cpu = Command::new(env!("CARGO_BIN_EXE_tl")).args(&args).args(["--device", "cpu"]).env("TL_OFFLINE", "1").output().unwrap();
        let expected = numbers(std::str::from_utf8(&cpu.stdout).unwrap());
        assert!(cpu.status.success() && !expected.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&cpu.stderr));
        for lost_after in [1, 5] {
            let Some((code, out, err)) = tl(&args, lost_after, None) else { return };
            assert_eq!((code, notes(&err)), (Some(0), 1), "{args:?} lost after {lost_after} submits: {err}");
            let found = numbers(&out);
            let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 2e-3 * b.abs().max(1.0);
            assert!(found.len() == expected.len() && found.iter().zip(&expected).all(close), "{args:?}:\n{out}");
        }
        let Some((code, _, err)) = tl(&args, 5, Some("error")) else { return };
        assert_eq!((code, notes(&err)), (Some(1), 0), "{args:?}: {err}");
        assert!(err.contains("tl: device lost: "), "{args:?}: {err}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A folder of a test's own, and a text in it.
fn folder(name: &str) -> (PathBuf, PathBuf) {
    let folder: PathBuf = std::env::temp_dir().join(format!("tl-fallback-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let text = folder.join("text.txt");
    std::fs::write(&text, "To be, or not to be, that is the question:\n".repeat(40)).unwrap();
    (folder, text)
}

/// One example whose layers need more than the GPU may take: it cannot be computed in parts. The parameters, and what the optimizer remembers, fit.
#[test]
fn training_leaves_a_full_device() {
    let (folder, text) = folder("full");
    // The part that is held out has to fill a context, too.
    std::fs::write(&text, "To be, or not to be, that is the question:\n".repeat(200)).unwrap();
    let settings = "--layers 2 --heads 2 --width 16 --context 512 --batch 1 --steps 6 --save-every 2 --eval-every 0 --log-every 2";
    let run = folder.join("run");
    let mut args = vec!["train", text.to_str().unwrap(), "-o", run.to_str().unwrap()];
    args.extend(settings.split(' '));
    let limit = ("TL_TEST_GPU_MEM_LIMIT", (700 << 10).to_string());
    let Some((code, out, err)) = on_a_gpu(&args, limit.clone(), None) else { return };
    assert_eq!((code, notes(&err)), (Some(0), 1), "{out} {err}");
    assert!(out.contains("saved 6") && err.contains("out of memory (") && err.contains("training continues from step 0"), "{out} {err}");
    let other = folder.join("other");
    args[3] = other.to_str().unwrap();
    let Some((code, _, err)) = on_a_gpu(&args, limit, Some("error")) else { return };
    assert!(code == Some(1) && notes(&err) == 0 && err.contains("out of memory"), "{err}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn finetuning_begins_again_on_the_next_device() {
    let (folder, text) = folder("finetune");
    let adapter = folder.join("adapter");
    let args =
        ["finetune", text.to_str().unwrap(), "-m", MODEL, "-o", adapter.to_str().unwrap(), "-n", "6", "-c", "32", "-b", "2", "--json"];
    let Some((code, out, err)) = tl(&args, 12, None) else { return };
    assert_eq!((code, notes(&err)), (Some(0), 1), "{out} {err}");
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(v["steps"] == 6 && v["device"].as_str().unwrap().starts_with("cpu"), "{v}");
    assert!(adapter.join("adapter_model.safetensors").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn training_goes_on_from_its_newest_checkpoint() {
    let (folder, text) = folder("lost");
    let settings = "--layers 1 --heads 2 --width 16 --context 16 --batch 4 --steps 24 --save-every 4 --eval-every 8 --log-every 2";
    // Before the first checkpoint, and behind it.
    for (name, lost_after, from) in [("early", 6, "from step 0"), ("late", 60, "from step ")] {
        let run = folder.join(name);
        let mut args = vec!["train", text.to_str().unwrap(), "-o", run.to_str().unwrap()];
        args.extend(settings.split(' '));
        let Some((code, out, err)) = tl(&args, lost_after, None) else { return };
        assert_eq!((code, notes(&err)), (Some(0), 1), "{name}: {out} {err}");
        assert!(out.contains("saved 24") && err.contains(&format!("training continues {from}")), "{name}: {out} {err}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
