//! `tl entropy` as a user sees it: figures that can be computed by hand, borders of patches, files larger than a piece, plots.

use std::path::PathBuf;
use std::process::Command;

/// A file of the test's own.
struct File(PathBuf);

impl File {
    fn new(name: &str, bytes: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("tl-entropy-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        File(path)
    }
    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}
impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The command's stdout; it must end with `code` and say `err` on stderr.
#[track_caller]
fn check(args: &[&str], code: i32, err: &str) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_tl")).arg("entropy").args(args).env("TL_DEVICE", "cpu").output().unwrap();
    let (stdout, stderr) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert_eq!(out.status.code(), Some(code), "{stdout}{stderr}");
    assert!(stderr.contains(err) && !stderr.contains("panicked"), "{stderr:?} lacks {err:?}");
    stdout
}

#[test]
fn figures_borders_and_plots() {
    // 1000 equal bytes, then 1024 bytes of all values in turn.
    let bytes: Vec<u8> = std::iter::repeat_n(7, 1000).chain((0..1024).map(|i| i as u8)).collect();
    let file = File::new("steps", &bytes);
    let out = check(&[file.name()], 0, "2024 bytes in windows of 256");
    assert!(out.contains("0.0000 min, 1.0000 max"), "{out}");
    let json: serde_json::Value = serde_json::from_str(&check(&[file.name(), "--json", "--borders", "-t", "0.9"], 0, "")).unwrap();
    // Above 0.9 from somewhere in the transition to the end, where windows are cut off.
    let borders: Vec<u64> = json["borders"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
    assert_eq!((borders[0], json["patches"].as_u64(), json["bytes"].as_u64()), (0, Some(borders.len() as u64), Some(2024)));
    assert!((1050..1128).contains(&borders[1]) && borders[1..].windows(2).all(|w| w[1] == w[0] + 1), "{borders:?}");
    assert!((0.45..0.55).contains(&json["mean"].as_f64().unwrap()), "{json}");
    let lines = check(&[file.name(), "--borders", "--rise", "0.004", "-q"], 0, "");
    assert!(lines.starts_with("0\t0.0000\n") && lines.lines().count() > 1, "{lines}");

    let plot = File::new("plot.svg", b"");
    check(&[file.name(), "--plot", plot.name(), "-q"], 0, "");
    let svg = std::fs::read_to_string(&plot.0).unwrap();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("class=\"mean\"") && svg.contains("class=\"threshold\""));
    check(&[file.name(), "--plot", "/nowhere/a.svg"], 1, "/nowhere/a.svg");
}

#[test]
fn pieces_of_a_large_file_are_one_file() {
    // Ten bytes, of which five are equal, again and again: every whole window of 100 has the same entropy, across pieces too.
    let bytes: Vec<u8> = (0..17_000_000).map(|i| [1u8, 1, 1, 1, 1, 2, 3, 4, 5, 6][i % 10]).collect();
    let file = File::new("large", &bytes);
    let json: serde_json::Value = serde_json::from_str(&check(&[file.name(), "-w", "100", "--json"], 0, "")).unwrap();
    let want = (0.5 + 0.5 * 10f64.log2()) / 8.0;
    assert!((json["max"].as_f64().unwrap() - want).abs() < 2e-2 && (json["mean"].as_f64().unwrap() - want).abs() < 1e-5, "{json}, {want}");
    assert_eq!((json["patches"].as_u64(), json["bytes"].as_u64()), (Some(1), Some(17_000_000)));
    // A border anywhere inside would be a rise.
    let json: serde_json::Value =
        serde_json::from_str(&check(&[file.name(), "-w", "100", "--rise", "1e-6", "--json", "--borders"], 0, "")).unwrap();
    let inside = |b: &serde_json::Value| (60..16_999_940).contains(&b.as_u64().unwrap());
    assert!(!json["borders"].as_array().unwrap().iter().any(inside), "{json}");
}

#[test]
fn wrong_use_is_refused() {
    let (empty, one) = (File::new("empty", b""), File::new("one", b"x"));
    check(&[empty.name()], 1, "the file is empty");
    assert!(check(&[one.name()], 0, "1 bytes").contains("0.0000 mean"));
    check(&["/nowhere/at-all"], 1, "/nowhere/at-all");
    check(&[one.name(), "--window", "0"], 2, "--window 0: expected 1 to 65536 bytes");
    check(&[one.name(), "--window", "65537"], 2, "--window 65537");
    check(&[one.name(), "--threshold", "high"], 2, "--threshold");
}
