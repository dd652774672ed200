//! `embed` and `score`, as a user or a script sees them, with the bundled model.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs `tl` without a network; compares the exit code and words of both streams, and gives stdout.
#[track_caller]
fn check(args: &[&str], code: i32, out: &str, err: &str) -> String {
    let cache = std::env::temp_dir().join(format!("tl-inference-{}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(args).env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").env("TL_CACHE_DIR", cache).stdin(Stdio::null());
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{args:?}: stdout {stdout:?}\nstderr {stderr}");
    assert!(stdout.contains(out) && stderr.contains(err) && !stderr.contains("panicked"), "{args:?}: stdout {stdout:?}\nstderr {stderr}");
    stdout
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&check(&[args, &["-m", "tiny", "--json"]].concat(), 0, "", "")).unwrap()
}

fn file(name: &str, content: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tl-inference-{}-{name}", std::process::id()));
    std::fs::write(&path, content).unwrap();
    path
}

fn vector(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn embed_gives_a_vector_per_text() {
    let out = check(&["embed", "-m", "tiny", "First Citizen:", "All:"], 0, "", "2 texts");
    let lines: Vec<Vec<f64>> = out.lines().map(|l| l.split(' ').map(|n| n.parse().unwrap()).collect()).collect();
    let both = json(&["embed", "First Citizen:", "All:"]);
    let width = both["width"].as_u64().unwrap() as usize;
    assert_eq!((lines.len(), lines[0].len(), lines[1].len()), (2, width, width));
    // Beside a longer text, from a file and in a batch of its own, a text has the same vector.
    let path = file("lines.txt", "First Citizen:\n\nAll:\n");
    let alone = json(&["embed", "--batch", "1", "-f", path.to_str().unwrap()]);
    std::fs::remove_file(path).unwrap();
    for n in 0..2 {
        let (a, b) = (vector(&both["texts"][n]["embedding"]), vector(&alone["texts"][n]["embedding"]));
        assert!(a.iter().zip(&b).zip(&lines[n]).all(|((a, b), c)| (a - b).abs() < 1e-5 && (a - c).abs() < 1e-6), "{a:?} {b:?}");
    }
    assert_eq!((&both["texts"][1]["text"], &both["texts"][1]["token_count"]), (&"All:".into(), &4.into()));
    let short = json(&["embed", "--normalize", "All:"]);
    let length: f64 = vector(&short["texts"][0]["embedding"]).iter().map(|v| v * v).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    // The mean of the tokens' vectors is the text's, and the last of them that of `--pooling last`.
    let tokens = json(&["embed", "--tokens", "All:"]);
    let tokens: Vec<Vec<f64>> = tokens["texts"][0]["tokens"].as_array().unwrap().iter().map(|t| vector(&t["embedding"])).collect();
    let last = vector(&json(&["embed", "--pooling", "last", "All:"])["texts"][0]["embedding"]);
    assert_eq!((tokens.len(), tokens.last().unwrap()), (4, &last));
    let want = vector(&both["texts"][1]["embedding"]);
    let mean = |i: usize| tokens.iter().map(|t| t[i]).sum::<f64>() / 4.0;
    assert!((0..width).all(|i| (mean(i) - want[i]).abs() < 1e-5));
}

#[test]
fn score_agrees_with_perplexity() {
    let text = "First Citizen: Before we proceed any further, hear me speak.";
    let path = file("text.txt", text);
    let perplexity = json(&["perplexity", "-f", path.to_str().unwrap()]);
    std::fs::remove_file(path).unwrap();
    let scores = json(&["score", text, "All:"]);
    let (one, tokens) = (&scores["texts"][0], scores["texts"][0]["tokens"].as_array().unwrap());
    assert_eq!(tokens.len() as u64, perplexity["predicted_tokens"].as_u64().unwrap());
    assert!((one["mean"].as_f64().unwrap() + perplexity["mean_nll"].as_f64().unwrap()).abs() < 1e-5, "{one} {perplexity}");
    assert!((one["perplexity"].as_f64().unwrap() / perplexity["perplexity"].as_f64().unwrap() - 1.0).abs() < 1e-4);
    let sum: f64 = tokens.iter().map(|t| t["log_prob"].as_f64().unwrap()).sum();
    assert!((sum - one["log_likelihood"].as_f64().unwrap()).abs() < 1e-9);
    // A continuation has what its tokens have in the whole text; letters are tokens here.
    let (start, rest) = text.split_at(20);
    let continued = json(&["score", "-p", start, rest]);
    let tail = &tokens[tokens.len() - rest.len()..];
    for (got, want) in continued["texts"][0]["tokens"].as_array().unwrap().iter().zip(tail) {
        assert_eq!(got["text"], want["text"]);
        assert!((got["log_prob"].as_f64().unwrap() - want["log_prob"].as_f64().unwrap()).abs() < 1e-4, "{got} {want}");
    }
    assert_eq!(continued["texts"][0]["tokens"].as_array().unwrap().len(), rest.len());
    let out = check(&["score", "-m", "tiny", "--tokens", "-q", "-p", "RO", "ME"], 0, "\"M\"", "");
    assert_eq!(out.lines().count(), 3);
    assert!(out.lines().last().unwrap().ends_with("\"ME\""), "{out}");
}

#[test]
fn wrong_usage_is_told() {
    for command in ["embed", "score"] {
        check(&[command, "-m", "tiny"], 2, "", "no text: give it as an argument");
        check(&[command, "-m", "tiny", "a", ""], 2, "", "text 2 is empty");
        check(&[command, "-m", "tiny", "--batch", "0", "a"], 2, "", "--batch");
        check(&[command, "-m", "tiny", "-f", "/no/such/file"], 1, "", "/no/such/file");
        check(&[command, "-m", "tiny", &"a".repeat(5000)], 1, "", "5000 tokens, and the model supports");
        check(&[command, "--help"], 0, "Examples:", "");
    }
    check(&["score", "-m", "tiny", "-p", "", "a"], 2, "", "--prompt is empty");
}
