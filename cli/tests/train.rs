//! `tl train` and `tl ckpt` as a user sees them: a model comes out, a run goes on bit for bit, nothing acknowledged is lost.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tensorlogic::Device;
use tensorlogic::measure::EnergyMeter;

/// A folder of the test's own with a text in it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        Place(common::folder_with_text(&format!("train-{name}")))
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const TINY: &str = "--layers 1 --heads 2 --width 16 --context 16 --batch 4 --dropout 0.1 --warmup 2 --lr 1e-2 --log-every 2";

fn tl(args: &str) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tl"));
    c.args(args.split_whitespace()).env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").env_remove("TL_MEM_LIMIT");
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

/// The same on the GPU under test, if there is one.
fn tl_gpu(args: &str) -> Option<Command> {
    let device = common::selector()?;
    let mut c = common::command(env!("CARGO_BIN_EXE_tl"));
    c.args(args.split_whitespace()).args(["--device", device]).env("TL_OFFLINE", "1").env_remove("TL_MEM_LIMIT");
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(c)
}

/// Runs a command and compares the exit code and words of both streams.
#[track_caller]
fn check(mut command: Command, code: i32, out: &str, err: &str) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert_eq!(status.code(), Some(code), "stdout {stdout:?}\nstderr {stderr}");
    assert!(stdout.contains(out), "stdout {stdout:?} lacks {out:?}");
    assert!(stderr.contains(err) && !stderr.contains("panicked"), "stderr {stderr:?} lacks {err:?}");
    if code != 0 && code != 130 {
        assert_eq!(stderr.lines().filter(|l| l.starts_with("tl: ")).count(), 1, "one line of error: {stderr}");
    }
    (stdout, stderr)
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn text_becomes_a_model_that_generates() {
    let p = Place::new("model");
    let (text, run) = (p.text("text.txt"), p.text("run"));
    let settings = format!("{TINY} --steps 60 --eval-every 20 --sample-every 30 --sample-tokens 8 --sample-prompt The");
    let (out, err) = check(tl(&format!("train {text} -o {run} {settings} --stats")), 0, "saved 60\n", "held-out loss");
    assert_eq!(out, "saved 20\nsaved 30\nsaved 40\nsaved 60\n");
    assert!(err.contains("sample at step 30:\nThe") && err.contains("sample at step 60:\nThe"), "{err}");
    // One plan for training, one for evaluation; a few for the beginning, samples and files.
    let misses: u64 = err.split(" hits, ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(misses < 30, "{err}");
    for file in ["config.json", "model.safetensors", "tokenizer.json", "loss.csv", "loss.svg", "train.toml", "tokens.bin"] {
        assert!(!bytes(&p.path("run").join(file)).is_empty(), "{file}");
    }
    let csv = String::from_utf8(bytes(&p.path("run/loss.csv"))).unwrap();
    let losses: Vec<f64> = csv.lines().skip(1).filter_map(|l| l.split(',').nth(2)?.parse().ok()).collect();
    assert!(losses.len() == 30 && losses[29] < losses[0] - 0.5, "{csv}");
    assert_eq!(csv.lines().filter(|l| l.contains(",,,")).count(), 3, "{csv}");
    check(tl(&format!("ckpt verify {run}")), 0, "60\n", "");
    check(tl(&format!("ckpt verify {run} --json")), 0, "\"step\":60", "");
    let (said, _) = check(tl(&format!("generate -m {run} --raw The -n 10")), 0, "", "generated");
    assert!(said.trim_end().chars().count() >= 8, "{said:?}");
    check(tl(&format!("inspect {run}/model.safetensors")), 0, "16 tensors", "");
    // What a user does wrong.
    check(tl(&format!("train {text} -o {} --lr -1", p.text("other"))), 2, "", "--lr: -1 is not a valid learning rate");
    check(tl(&format!("generate -m {run} --raw Thé€é -n 2")), 0, "", "not in the model's vocabulary, skipped: 'é', '€'");
    check(tl(&format!("perplexity -m {run} -f {text}")), 0, "perplexity", "");
    check(tl(&format!("train {text} -o {run} {settings}")), 2, "", "contains a run at step 60: use --resume");
    check(tl(&format!("train -o {run} --resume --width 32 --steps 70")), 2, "", "width was 16 and is 32");
    check(tl(&format!("train -o {}", p.text("other"))), 2, "", "no training text");
    check(tl(&format!("train {} -o {}", p.text("none.txt"), p.text("other"))), 1, "", "none.txt");
    check(tl(&format!("train {text} -o {} --context 4000", p.text("other"))), 1, "", "needs more (--context, --val)");
    check(tl(&format!("train {text} -o {} --heads 3", p.text("other"))), 2, "", "3 heads do not divide");
    assert!(!p.path("other").exists(), "a folder of a run that never began");
    let wild = TINY.replace("1e-2", "1e9").replace("--warmup 2", "--warmup 0").replace("--log-every 2", "--log-every 100");
    check(tl(&format!("train {text} -o {} --steps 3 {wild}", p.text("wild"))), 1, "", "held-out loss of step 3 is NaN; a lower --lr");
    check(
        tl(&format!("train {text} -o {} --device nowhere", p.text("other"))),
        2,
        "",
        "--device: unknown device \"nowhere\": expected auto, cpu",
    );
    check(tl(&format!("ckpt verify {}", p.text("nowhere"))), 1, "", "nowhere");
    // A run that never came to a checkpoint knows its settings all the same.
    std::fs::create_dir_all(p.path("early")).unwrap();
    std::fs::copy(p.path("run/train.toml"), p.path("early/train.toml")).unwrap();
    check(tl(&format!("train -o {} --resume --steps 4 --eval-every 0 --sample-every 0", p.text("early"))), 0, "saved 4\n", "held-out loss");
    // A finished run that is resumed has nothing to do, and can go on with more steps.
    check(tl(&format!("train -o {run} --resume")), 0, "", "the run is finished at step 60 of 60");
    check(tl(&format!("train -o {run} --resume --steps 62")), 0, "saved 62\n", "from step 60");
}

/// Two runs that end in the same model and the same curve: without a stop, and stopped again and again.
fn same_end(name: &str, settings: &str, text: &str, stops: &[&str]) {
    let p = Place::new(name);
    let text = if text.is_empty() { p.text("text.txt") } else { text.to_string() };
    let (a, b) = (p.text("a"), p.text("b"));
    check(tl(&format!("train {text} -o {a} {settings}")), 0, "saved", "");
    check(tl(&format!("train {text} -o {b} {settings} {}", stops[0])), 0, "saved", "");
    for stop in &stops[1..] {
        assert_ne!(bytes(&p.path("a/model.safetensors")), bytes(&p.path("b/model.safetensors")));
        check(tl(&format!("train -o {b} --resume {stop}")), 0, "saved", "from step");
    }
    for file in ["model.safetensors", "loss.csv", "tokenizer.json"] {
        assert!(bytes(&p.path("a").join(file)) == bytes(&p.path("b").join(file)), "{name}: {file} differs");
    }
    let last = |run: &str| {
        let mut steps: Vec<PathBuf> = std::fs::read_dir(p.path(run).join("checkpoints")).unwrap().map(|e| e.unwrap().path()).collect();
        steps.sort();
        bytes(&steps.last().unwrap().join("optimizer.safetensors"))
    };
    assert!(last("a") == last("b"), "{name}: the optimizer differs");
}

#[test]
fn a_resumed_run_is_the_run_that_never_stopped() {
    let common = format!("{TINY} --steps 24 --eval-every 8");
    same_end("plain", &common, "", &["--stop-after 12", ""]);
    same_end(
        "often",
        &format!("{common} --accumulate 2 --attention-dropout 0"),
        "",
        &["--stop-after 5", "--stop-after 1", "--stop-after 2", "--stop-after 7", ""],
    );
    same_end("half", &format!("{common} --dtype bf16 --clip 0 --schedule constant"), "", &["--stop-after 3", ""]);
    same_end("f16", &format!("{common} --dtype f16 --bias=false --val 0"), "", &["--stop-after 9", ""]);
    for optimizer in ["sgd", "adam", "lion", "muon"] {
        same_end(optimizer, &format!("{common} --optimizer {optimizer}"), "", &["--stop-after 9", ""]);
    }
}

/// Energy is there where the system counts it, and said to be absent elsewhere.
#[test]
fn energy_of_a_step_is_told_or_said_to_be_absent() {
    let p = Place::new("energy");
    let counted = EnergyMeter::of(&Device::cpu()).is_some();
    let words = if counted { "J a step above rest" } else { "energy: not reported by this system" };
    let (out, _) = check(tl(&format!("train {} -o {} {TINY} --steps 4 --energy --json", p.text("text.txt"), p.text("run"))), 0, "", words);
    let v: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(v["energy"]["joules_per_step"].is_number(), counted, "{v}");
}

/// Every optimizer learns with its own learning rate, and a run keeps the one that it began with.
#[test]
fn every_optimizer_learns() {
    let p = Place::new("optimizers");
    let text = p.text("text.txt");
    let shape = "--layers 1 --heads 2 --width 16 --context 16 --batch 8 --warmup 5 --steps 80 --eval-every 0 --log-every 1";
    for optimizer in ["adamw", "adam", "sgd", "lion", "muon"] {
        let run = p.text(optimizer);
        check(tl(&format!("train {text} -o {run} {shape} --optimizer {optimizer}")), 0, "saved 80", "held-out");
        let csv = String::from_utf8(bytes(&p.path(optimizer).join("loss.csv"))).unwrap();
        let losses: Vec<f64> = csv.lines().skip(1).filter_map(|l| l.split(',').nth(2)?.parse().ok()).collect();
        assert!(losses.len() == 80 && losses[79] < losses[0] - 0.1, "{optimizer}: {} to {}", losses[0], losses[79]);
    }
    let run = p.text("muon");
    check(tl(&format!("train -o {run} --resume --steps 90 --optimizer lion")), 2, "", "optimizer was \"muon\" and is \"lion\"");
    check(tl(&format!("train {text} -o {} --optimizer adamax", p.text("x"))), 2, "", "expected adamw, adam, sgd, lion, muon");
}

#[test]
fn kills_lose_nothing_that_was_acknowledged() {
    let p = Place::new("kill");
    let (text, a, b) = (p.text("text.txt"), p.text("a"), p.text("b"));
    let settings = format!("{TINY} --steps 60 --save-every 1 --eval-every 7");
    check(tl(&format!("train {text} -o {a} {settings}")), 0, "saved 60", "");
    std::fs::create_dir(p.path("b")).unwrap();
    let (mut acknowledged, mut kills) = (0u64, 0);
    loop {
        let mut child = tl(&format!("train {text} -o {b} {settings} --resume")).spawn().unwrap();
        // Longer each time, so that a slow machine gets to the end as well.
        std::thread::sleep(Duration::from_millis(15 + 12 * kills));
        let _ = child.kill();
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8_lossy(&stderr).to_string());
        let last = stdout.lines().filter_map(|l| l.strip_prefix("saved ")?.parse().ok()).max();
        acknowledged = acknowledged.max(last.unwrap_or(0));
        let (step, _) = check(tl(&format!("ckpt verify {b}")), 0, "", "");
        let step: u64 = step.trim().parse().unwrap();
        assert!((acknowledged..=acknowledged + 1).contains(&step), "{step} can be resumed, {acknowledged} was acknowledged");
        // What can be resumed from is known from now on, whether the kill came before its `saved` or after.
        acknowledged = step;
        if status.success() {
            break;
        }
        assert!(status.code().is_none(), "it failed by itself: {stderr}");
        kills += 1;
        assert!(kills < 400, "it gets nowhere: step {step}");
    }
    assert!(kills >= 3, "only {kills} kills");
    for file in ["model.safetensors", "loss.csv"] {
        assert!(bytes(&p.path("a").join(file)) == bytes(&p.path("b").join(file)), "{file} differs after {kills} kills");
    }
    let names: Vec<String> =
        std::fs::read_dir(p.path("b/checkpoints")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.len() == 2 && names.iter().all(|n| n.starts_with("step-")), "leftovers: {names:?}");
}

#[test]
fn a_run_killed_before_its_first_save_begins_anew() {
    let p = Place::new("early");
    let (text, whole) = (p.text("text.txt"), p.text("whole"));
    let settings = format!("{TINY} --steps 3 --eval-every 3");
    check(tl(&format!("train {text} -o {whole} {settings}")), 0, "saved 3\n", "");
    // What a kill leaves, from the first moment of a run to the last before its first checkpoint has its name.
    let partial =
        ["", ".lock", ".train.toml.7-0.tmp", "train.toml", "tokens.bin", "config.json", "checkpoints/.step-00000003.7-4.tmp/loss.csv"];
    for (n, last) in partial.iter().enumerate() {
        let (folder, run) = (p.path(&format!("run{n}")), p.text(&format!("run{n}")));
        std::fs::create_dir(&folder).unwrap();
        for file in &partial[1..=n] {
            std::fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
            let made = p.path("whole").join(file);
            std::fs::write(folder.join(file), if made.is_file() { bytes(&made) } else { b"half of i".to_vec() }).unwrap();
        }
        let (out, _) = check(tl(&format!("ckpt verify {run}")), 0, "", "nothing was saved yet");
        assert_eq!(out, "0\n", "killed behind {last:?}");
        check(tl(&format!("train {text} -o {run} {settings} --resume")), 0, "saved 3\n", "");
        check(tl(&format!("ckpt verify {run}")), 0, "3\n", "");
        for file in ["model.safetensors", "loss.csv"] {
            assert!(bytes(&p.path("whole").join(file)) == bytes(&folder.join(file)), "killed behind {last:?}: {file} differs");
        }
    }
}

#[test]
fn damage_is_found_and_the_one_before_is_taken() {
    let p = Place::new("damage");
    let (text, run) = (p.text("text.txt"), p.text("run"));
    check(tl(&format!("train {text} -o {run} {TINY} --steps 8 --save-every 4 --eval-every 4")), 0, "saved 8", "");
    let broken = p.path("run/checkpoints/step-00000008/optimizer.safetensors");
    let mut damaged = bytes(&broken);
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&broken, &damaged).unwrap();
    check(tl(&format!("ckpt verify {run}")), 0, "4\n", "damaged: ");
    check(tl(&format!("train -o {run} --resume")), 0, "saved 8\n", "skipped a damaged checkpoint");
    check(tl(&format!("ckpt verify {run}")), 0, "8\n", "");
    for step in ["4", "8"] {
        std::fs::remove_file(p.path(&format!("run/checkpoints/step-0000000{step}/manifest.json"))).unwrap();
    }
    check(tl(&format!("ckpt verify {run}")), 1, "", "every checkpoint is damaged");
    check(tl(&format!("train -o {run} --resume")), 1, "", "every checkpoint is damaged");
    std::fs::create_dir(p.path("empty")).unwrap();
    check(tl(&format!("ckpt verify {}", p.text("empty"))), 0, "0\n", "");
    std::fs::write(p.path("empty/letter"), "to nobody").unwrap();
    check(tl(&format!("ckpt verify {}", p.text("empty"))), 1, "", "no run of `tl train`");
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_and_ends() {
    use std::io::{BufRead, BufReader};
    let p = Place::new("ctrl-c");
    let (text, a, b) = (p.text("text.txt"), p.text("a"), p.text("b"));
    let settings = format!("{TINY} --steps 100000 --save-every 3 --eval-every 100000");
    let mut child = tl(&format!("train {text} -o {b} {settings}")).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert_eq!(first, "saved 3");
    // Another run in the same folder is refused while this one lives.
    check(tl(&format!("train {text} -o {b} {settings} --resume")), 1, "", "another tl train");
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let last: u64 = lines.map(|l| l.unwrap()).last().unwrap_or(first).strip_prefix("saved ").unwrap().parse().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    check(tl(&format!("ckpt verify {b}")), 0, &format!("{last}\n"), "");
    check(tl(&format!("train {text} -o {a} {settings} --stop-after {last}")), 0, "", "");
    assert!(bytes(&p.path("a/model.safetensors")) == bytes(&p.path("b/model.safetensors")));
}

/// Blocks that keep only their inputs: the same losses, also with dropout, in less memory. The wait for data is told.
#[test]
fn checkpointing_needs_less_memory_for_the_same_losses() {
    let p = Place::new("checkpointing");
    let text = p.text("text.txt");
    let settings =
        "--layers 8 --heads 2 --width 32 --context 64 --batch 16 --steps 6 --dropout 0.1 --warmup 2 --log-every 1 --eval-every 0 --json";
    let run = |name: &str, more: &str| -> (serde_json::Value, Vec<f64>) {
        let (out, _) = check(tl(&format!("train {text} -o {} {settings} {more}", p.text(name))), 0, "", "ms a step");
        let csv = String::from_utf8(bytes(&p.path(name).join("loss.csv"))).unwrap();
        let losses = csv.lines().skip(1).filter_map(|l| l.split(',').nth(2)?.parse().ok()).collect();
        (serde_json::from_str(&out).unwrap(), losses)
    };
    let (plain, kept) = (run("a", ""), run("b", "--checkpointing"));
    assert_eq!(plain.1.len(), 6);
    assert!(plain.1.iter().zip(&kept.1).all(|(a, b)| (a - b).abs() < 1e-4), "{:?}\n{:?}", plain.1, kept.1);
    let peak = |v: &serde_json::Value| v["peak_allocated_bytes"].as_u64().unwrap();
    println!("peak {} KiB, with --checkpointing {} KiB", peak(&plain.0) >> 10, peak(&kept.0) >> 10);
    assert!(peak(&kept.0) * 10 < peak(&plain.0) * 6, "{} {}", peak(&kept.0), peak(&plain.0));
    assert!(plain.0["data_stall_seconds"].as_f64().unwrap() >= 0.0);
}

#[test]
fn too_little_memory_means_smaller_parts() {
    let p = Place::new("memory");
    let text = p.text("text.txt");
    let settings =
        "--layers 2 --heads 2 --width 32 --context 64 --batch 32 --steps 12 --lr 3e-3 --warmup 2 --log-every 1 --eval-every 6 --json";
    let (out, _) = check(tl(&format!("train {text} -o {} {settings}", p.text("a"))), 0, "", "");
    let peak: u64 = out.split("\"peak_memory_bytes\":").nth(1).unwrap().split([',', '}']).next().unwrap().parse().unwrap();
    let mut less = tl(&format!("train {text} -o {} {settings}", p.text("b")));
    less.env("TL_MEM_LIMIT", (peak * 2 / 3).to_string());
    check(less, 0, "", "out of memory: a batch is now computed in ");
    let losses = |run: &str| -> Vec<f64> {
        let csv = String::from_utf8(bytes(&p.path(run).join("loss.csv"))).unwrap();
        csv.lines().skip(1).filter_map(|l| l.split(',').nth(2)?.parse().ok()).collect()
    };
    let (a, b) = (losses("a"), losses("b"));
    assert_eq!((a.len(), b.len()), (12, 12));
    // The same batches and the same sums, but for rounding.
    for (x, y) in a.iter().zip(&b) {
        assert!((x - y).abs() < 2e-3, "{a:?}\n{b:?}");
    }
    // A run that was given enough again goes on as it was.
    let mut none = tl(&format!("train {text} -o {} {settings}", p.text("c")));
    none.env("TL_MEM_LIMIT", (peak / 40).to_string());
    check(none, 1, "", "out of memory");
}

#[test]
fn folders_pairs_of_bytes_and_token_files() {
    let p = Place::new("sources");
    std::fs::create_dir_all(p.path("texts/more")).unwrap();
    for (name, text) in
        [("texts/b.txt", "second text "), ("texts/a.md", "first text "), ("texts/more/c.txt", "third text "), ("texts/.x.txt", "")]
    {
        std::fs::write(p.path(name), text.repeat(60)).unwrap();
    }
    std::fs::write(p.path("texts/more/skip.rs"), "not a text").unwrap();
    let (texts, a, b) = (p.text("texts"), p.text("a"), p.text("b"));
    let settings = format!("{TINY} --steps 6 --eval-every 3");
    check(tl(&format!("train {texts} -o {a} {settings} --tokenizer bpe:270")), 0, "saved 6", "vocabulary of 270");
    check(tl(&format!("generate -m {a} --raw first -n 4")), 0, "", "generated");
    // The tokens of one run and its tokenizer are enough for another: the same model.
    let (tokens, tokenizer) = (format!("{a}/tokens.bin"), format!("{a}/tokenizer.json"));
    check(tl(&format!("train {tokens} -o {b} {settings} --tokenizer {tokenizer}")), 0, "saved 6", "vocabulary of 270");
    assert!(bytes(&p.path("a/model.safetensors")) == bytes(&p.path("b/model.safetensors")));
    check(tl(&format!("train {tokens} -o {} {settings}", p.text("c"))), 2, "", "needs --tokenizer FILE");
    check(tl(&format!("train {texts} -o {} {settings} --tokenizer bpe:20", p.text("c"))), 1, "", "it needs at least 257");
    let (text, d) = (p.text("text.txt"), p.text("d"));
    check(tl(&format!("train {text} -o {d} {settings} --val-file {texts}/b.txt")), 0, "saved 6", "held-out loss");
    // Settings from a file, flags over them.
    std::fs::write(p.path("r.toml"), "layers = 1\nheads = 2\nwidth = 16\ncontext = 8\nbatch = 2\nsteps = 4\n").unwrap();
    let (e, toml) = (p.text("e"), p.text("r.toml"));
    check(tl(&format!("train {text} -o {e} --config {toml} --steps 5")), 0, "saved 5", "");
    assert!(String::from_utf8(bytes(&p.path("e/train.toml"))).unwrap().contains("context = 8"));
    std::fs::write(p.path("r.toml"), "layer = 1\n").unwrap();
    check(tl(&format!("train {text} -o {} --config {toml}", p.text("f"))), 2, "", "layer");
    std::fs::remove_dir_all(p.path("texts")).unwrap();
    std::fs::create_dir(p.path("texts")).unwrap();
    check(tl(&format!("train {texts} -o {}", p.text("f"))), 1, "", "has no .txt");
}

#[cfg(unix)]
#[test]
fn a_write_that_fails_is_one_line_and_loses_nothing() {
    let p = Place::new("full");
    let (text, run) = (p.text("text.txt"), p.text("run"));
    check(tl(&format!("train {text} -o {run} {TINY} --steps 9 --stop-after 4 --eval-every 3")), 0, "saved 4", "");
    let before = bytes(&p.path("run/model.safetensors"));
    // Files of more than a few KiB cannot be written: neither the model nor what the optimizer remembers.
    let mut full = Command::new("sh");
    let command = format!("trap '' XFSZ; ulimit -f 8; exec {} train -o {run} --resume", env!("CARGO_BIN_EXE_tl"));
    full.args(["-c", &command]).env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").stdin(Stdio::null());
    let (out, err) = check(full, 1, "", "model.safetensors");
    assert!(out.is_empty() && err.lines().last().unwrap().starts_with("tl: "), "{out}{err}");
    check(tl(&format!("ckpt verify {run}")), 0, "4\n", "");
    assert!(bytes(&p.path("run/model.safetensors")) == before);
    let names = || -> Vec<String> {
        std::fs::read_dir(p.path("run/checkpoints")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert!(names().iter().all(|n| n.starts_with("step-")), "{:?}", names());
    check(tl(&format!("train -o {run} --resume")), 0, "saved 9", "");
}

#[test]
fn the_same_seed_gives_the_same_bits_and_another_others() {
    let p = Place::new("seed");
    let text = p.text("text.txt");
    for (run, seed) in [("a", 3), ("b", 3), ("c", 4)] {
        check(tl(&format!("train {text} -o {} {TINY} --steps 10 --eval-every 5 --seed {seed}", p.text(run))), 0, "saved 10", "");
    }
    let model = |run: &str| bytes(&p.path(run).join("model.safetensors"));
    assert!(model("a") == model("b") && model("a") != model("c"));
}

#[test]
fn a_gpu_resumes_bit_for_bit_as_well() {
    let p = Place::new("gpu");
    let (text, a, b) = (p.text("text.txt"), p.text("a"), p.text("b"));
    let settings = format!("{TINY} --steps 12 --eval-every 4 --dtype f16");
    let Some(whole) = tl_gpu(&format!("train {text} -o {a} {settings}")) else { return };
    check(whole, 0, "saved 12", "held-out loss");
    for arguments in [
        format!("train {text} -o {b} {settings} --stop-after 3"),
        format!("train -o {b} --resume --stop-after 2"),
        format!("train -o {b} --resume"),
    ] {
        check(tl_gpu(&arguments).unwrap(), 0, "saved", "");
    }
    for file in ["model.safetensors", "loss.csv"] {
        assert!(bytes(&p.path("a").join(file)) == bytes(&p.path("b").join(file)), "{file} differs");
    }
    // What a GPU began a CPU can go on with, if not to the same bits.
    check(tl(&format!("train -o {b} --resume --steps 14")), 0, "saved 14", "from step 12");
}

#[cfg(unix)]
#[test]
fn ctrl_c_changes_nothing_wherever_it_comes() {
    let p = Place::new("anywhere");
    let (text, a) = (p.text("text.txt"), p.text("a"));
    // Most of the time goes into evaluations, which end early.
    let settings = "--val 0.8 --eval-batches 0 --eval-every 3 --steps 9 --layers 2 --heads 2 --width 48 --context 16 --batch 2 --warmup 1 --log-every 1";
    check(tl(&format!("train {text} -o {a} {settings}")), 0, "saved 9", "");
    for wait in [60u64, 120, 200, 320, 500] {
        let b = p.text("b");
        let mut child = tl(&format!("train {text} -o {b} {settings}")).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        child.wait().unwrap();
        check(tl(&format!("train {text} -o {b} {settings} --resume")), 0, "", "");
        for file in ["model.safetensors", "loss.csv"] {
            assert!(bytes(&p.path("a").join(file)) == bytes(&p.path("b").join(file)), "{file} differs after {wait} ms");
        }
        std::fs::remove_dir_all(p.path("b")).unwrap();
    }
}
