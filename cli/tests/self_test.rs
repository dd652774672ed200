//! `tl doctor --self-test`: its bundle is there whatever ends the test, says what failed, and names nobody.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A folder of a test's own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tl-self-test-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The self-test of a device by these cases, with the bundle and the built-in model in this folder.
fn self_test(device: &str, cases: &str, folder: &Path) -> Command {
    let mut command = common::command(env!("CARGO_BIN_EXE_tl"));
    command
        .args(["doctor", "--self-test", "--seconds", "900", "--device", device, "--cases", cases, "--bundle"])
        .arg(folder.join("report.tar"));
    command.env("TL_CACHE_DIR", folder.join("cache")).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What `--read-bundle` shows: the text, and the report.
fn shown(folder: &Path) -> (String, serde_json::Value) {
    let read = |flags: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tl")).args(["doctor", "--read-bundle"]).arg(folder.join("report.tar")).args(flags).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    (read(&[]), serde_json::from_str(&read(&["--json"])).unwrap())
}

/// Names of this machine and its user, as the system tells them, but for such that are a part of other words.
fn names() -> Vec<String> {
    let told = |command: &str| Command::new(command).output().ok().map(|o| text(&o.stdout).trim().to_string());
    let variable = |name: &str| std::env::var(name).ok();
    [told("hostname"), variable("HOME"), variable("USER")].into_iter().flatten().filter(|n| n.len() > 4).collect()
}

/// The bytes of the bundle as text, which names nobody and lists its two files.
#[track_caller]
fn names_nobody(folder: &Path) {
    let bundle = text(&std::fs::read(folder.join("report.tar")).unwrap());
    for name in names().iter().chain([&folder.display().to_string()]) {
        assert!(!bundle.contains(name.as_str()), "{name} is in the bundle");
    }
    // A system without tar has nothing to compare with.
    if let Ok(listed) = Command::new("tar").arg("-tf").arg(folder.join("report.tar")).output() {
        assert_eq!(text(&listed.stdout).lines().collect::<Vec<_>>(), ["report.json", "report.txt"]);
    }
}

fn code(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), text(&output.stderr))
}

#[test]
fn results_that_are_right_end_well_and_are_in_the_bundle() {
    let folder = folder("right");
    let output = self_test("cpu", "rows", &folder).output().unwrap();
    assert_eq!(code(&output).0, Some(0), "{}", code(&output).1);
    let (shown, report) = shown(&folder);
    assert_eq!(shown, text(&output.stdout));
    let device = &report["devices"][0];
    assert!(device["doing"].is_null() && device["report"]["rows"].as_array().unwrap().len() > 50, "{device}");
    assert!(shown.contains("cpu = cpu (") && !shown.contains("FAILED") && !shown.contains("UNFINISHED"), "{shown}");
    // Progress, a line for each kind.
    assert!(text(&output.stderr).contains("cpu: rows, after 0 results"), "{}", text(&output.stderr));
    names_nobody(&folder);
    assert!(!folder.join("report.tar.part").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

/// The built-in model cannot be unpacked where its folder is a file.
#[test]
fn a_measurement_that_fails_is_in_the_bundle() {
    let folder = folder("model");
    std::fs::write(folder.join("cache"), "").unwrap();
    let output = self_test("cpu", "bench: ", &folder).output().unwrap();
    assert_eq!(code(&output).0, Some(1), "{}", code(&output).1);
    let (shown, report) = shown(&folder);
    assert!(shown.contains("FAILED bench: a token of the built-in model: ") && shown.contains("$TL_CACHE_DIR"), "{shown}");
    assert_eq!(report["devices"][0]["report"]["rows"].as_array().unwrap().len(), 1);
    names_nobody(&folder);
    std::fs::remove_file(folder.join("cache")).unwrap();
    let output = self_test("cpu", "bench: ", &folder).output().unwrap();
    assert_eq!(code(&output).0, Some(0), "{}", code(&output).1);
    assert!(text(&output.stdout).contains("  a token of the built-in model"), "{}", text(&output.stdout));
    std::fs::remove_dir_all(folder).unwrap();
}

/// As by a driver that crashes or hangs.
#[test]
fn a_test_that_is_ended_leaves_what_it_found() {
    let folder = folder("ended");
    let mut child = self_test("cpu", "", &folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = |folder: &Path| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tl")).args(["doctor", "--json", "--read-bundle"]).arg(folder.join("report.tar")).output();
        let report: Option<serde_json::Value> = serde_json::from_slice(&output.unwrap().stdout).ok();
        report.and_then(|r| r["devices"][0]["report"]["rows"].as_array().map(Vec::len)).is_some_and(|rows| rows >= 5)
    };
    let start = Instant::now();
    while !begun(&folder) {
        assert!(start.elapsed() < Duration::from_secs(120) && child.try_wait().unwrap().is_none(), "no bundle while the test runs");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // If it was ended while it wrote, its last bundle lies beside the one before.
    let (shown, report) = shown(&folder);
    let device = &report["devices"][0];
    let (rows, doing) = (device["report"]["rows"].as_array().unwrap(), device["doing"].as_str().unwrap());
    assert!(shown.contains(&format!("UNFINISHED: it ended, or was ended, while it did this: {doing}")), "{shown}");
    assert!(rows.iter().all(|row| row["failed"].is_null() && row["name"] != doing), "{doing}");
    names_nobody(&folder);
    std::fs::remove_dir_all(folder).unwrap();
}

/// One result is missing; the others come from the device that was opened again.
#[test]
fn a_device_that_is_lost_is_opened_again() {
    let Some(device) = common::selector() else { return };
    let folder = folder("lost");
    let output = self_test(device, "gather", &folder).env("TL_TEST_LOSE_DEVICE_AFTER", "2").output().unwrap();
    assert_eq!(code(&output).0, Some(1), "{}", code(&output).1);
    let (shown, report) = shown(&folder);
    let rows = report["devices"][0]["report"]["rows"].as_array().unwrap();
    let failed: Vec<&str> = rows.iter().filter_map(|row| row["failed"].as_str()).collect();
    assert!(failed.len() == 1 && failed[0].contains("device lost") && rows.len() > 3, "{shown}");
    assert!(shown.contains("FAILED gather ") && shown.contains(&format!("{} of {} right", rows.len() - 1, rows.len())), "{shown}");
    names_nobody(&folder);
    std::fs::remove_dir_all(folder).unwrap();
}
