//! The model that is part of `tl`: it runs without a network, and takes the place of a model that cannot be had.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny");

/// Runs `tl` with an empty cache folder and no network; compares the exit code and words of both streams, and gives stdout.
#[track_caller]
fn check(cache: &Path, args: &[&str], code: i32, out: &str, err: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(args).env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").env("TL_CACHE_DIR", cache).stdin(Stdio::null());
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}: stdout {stdout:?}\nstderr {stderr}");
    assert!(stdout.contains(out) && stderr.contains(err) && !stderr.contains("panicked"), "{args:?}: stdout {stdout:?}\nstderr {stderr}");
    stdout
}

fn cache(name: &str) -> PathBuf {
    let p = std::env::temp_dir().join(format!("tl-tiny-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&p);
    p
}

#[test]
fn tiny_writes_text_without_a_network() {
    let folder = cache("runs");
    let known: Vec<char> = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz".chars().collect();
    for args in [&["-m", "tiny"][..], &["-m", "TINY", "--temp", "0.8", "--seed", "5"]] {
        let out = check(&folder, &[&["generate", "ROMEO:", "-n", "60"], args].concat(), 0, "", "generated: 60 tok");
        assert!(out.trim_end_matches('\n').chars().all(|c| known.contains(&c)) && out.len() > 50, "{out:?}");
    }
    // It has learnt more than how often each character occurs, which is worth 3.3 nats.
    let text = folder.join("text.txt");
    std::fs::write(&text, "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n").unwrap();
    let v: serde_json::Value =
        serde_json::from_str(&check(&folder, &["perplexity", "-m", "tiny", "-f", text.to_str().unwrap(), "--json"], 0, "", "")).unwrap();
    assert!(v["mean_nll"].as_f64().unwrap() < 2.8, "{v}");
    // Two texts count together, each by itself.
    let two = ["perplexity", "-m", "tiny", "--json", "-f", text.to_str().unwrap(), text.to_str().unwrap()];
    let w: serde_json::Value = serde_json::from_str(&check(&folder, &two, 0, "", "")).unwrap();
    assert_eq!(w["predicted_tokens"].as_u64().unwrap(), 2 * v["predicted_tokens"].as_u64().unwrap());
    assert!((w["mean_nll"].as_f64().unwrap() - v["mean_nll"].as_f64().unwrap()).abs() < 1e-9);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn tiny_stands_in_when_no_model_is_named_and_says_so() {
    let folder = cache("falls-back");
    check(&folder, &["generate", "ROMEO:", "-n", "8"], 0, "", "smollm2-135m-instruct is not in");
    check(&folder, &["generate", "ROMEO:", "-n", "8"], 0, "", "using the bundled model tiny");
    // Another model than was expected is not a detail that --quiet leaves out.
    check(&folder, &["generate", "ROMEO:", "-n", "8", "--quiet"], 0, "", "using the bundled model tiny");
    check(&folder, &["generate", "ROMEO:", "-n", "8", "--json"], 0, "tiny", "using the bundled model tiny");
    check(
        &folder,
        &["generate", "-m", "tiny", "ROMEO: 1+1=7#", "-n", "8"],
        0,
        "",
        "not in the model's vocabulary, skipped: '1', '+', '=', '7', '#'",
    );
    // A model that was named is not replaced, and measuring is not done on another model than was meant.
    check(&folder, &["generate", "-m", "smollm2-135m-instruct", "x"], 1, "", "TL_OFFLINE");
    check(&folder, &["bench", "decode"], 1, "", "TL_OFFLINE");
    check(&folder, &["pull", "--list"], 0, "tiny", "");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Adapters on its packed weights learn what it has never read, and it stays what it was.
#[test]
fn tiny_learns_more_by_adapters() {
    let folder = cache("learns");
    std::fs::create_dir_all(&folder).unwrap();
    let (text, adapter) = (folder.join("text.txt"), folder.join("adapter"));
    std::fs::write(&text, "The lazy dog sleeps, and the quick fox jumps over it.\n".repeat(40)).unwrap();
    let (text, adapter) = (text.to_str().unwrap(), adapter.to_str().unwrap());
    let before = std::fs::read(Path::new(HERE).join("tiny.gguf")).unwrap();
    let learn = ["finetune", text, "-m", "tiny", "-o", adapter, "-n", "12", "-c", "48", "-b", "2", "--lr", "3e-3", "--json"];
    let v: serde_json::Value = serde_json::from_str(&check(&folder, &learn, 0, "", "")).unwrap();
    assert!(v["held_out_after"].as_f64().unwrap() < 0.8 * v["held_out_before"].as_f64().unwrap(), "{v}");
    let nll = |args: &[&str]| -> f64 {
        let all = [&["perplexity", "-m", "tiny", "-f", text, "-n", "400", "--json"], args].concat();
        serde_json::from_str::<serde_json::Value>(&check(&folder, &all, 0, "", "")).unwrap()["mean_nll"].as_f64().unwrap()
    };
    assert!(nll(&["--adapter", adapter]) < 0.8 * nll(&[]));
    assert!(std::fs::read(Path::new(HERE).join("tiny.gguf")).unwrap() == before);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn its_page_is_about_this_file() {
    let folder = cache("page");
    let v: serde_json::Value = serde_json::from_str(&check(&folder, &["pull", "tiny", "--json"], 0, "", "")).unwrap();
    let bytes = v["bytes"].as_u64().unwrap();
    assert!(bytes > 0 && bytes <= 8_000_000, "{bytes} bytes");
    assert!(std::fs::read(v["path"].as_str().unwrap()).unwrap() == std::fs::read(format!("{HERE}/tiny.gguf")).unwrap());
    let page = std::fs::read_to_string(format!("{HERE}/README.md")).unwrap();
    assert!(page.contains(v["sha256"].as_str().unwrap()), "README.md lacks the file's SHA-256 {}", v["sha256"]);
    // Another version's file in the cache folder is replaced.
    std::fs::write(folder.join("models/tiny.gguf"), b"old").unwrap();
    check(&folder, &["generate", "-m", "tiny", "A", "-n", "4"], 0, "", "generated: 4 tok");
    std::fs::remove_dir_all(folder).unwrap();
}
