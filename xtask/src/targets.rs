//! `check-targets`: type-checks library and command for systems that this machine is not.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that makes this program play a C compiler: build scripts of dependencies ask for one of each target.
const STAND_IN: &str = "TL_STAND_IN_COMPILER";

/// The time that a standard library may take to arrive.
const DOWNLOAD: Duration = Duration::from_secs(60);

/// Target, the packages that exist there, and rustc's flags.
type Target = (&'static str, &'static [&'static str], &'static str);

const TARGETS: [Target; 5] = [
    ("aarch64-apple-darwin", &["tensorlogic", "tensorlogic-cli"], ""),
    ("x86_64-apple-darwin", &["tensorlogic", "tensorlogic-cli"], ""),
    // A phone has no command line.
    ("aarch64-apple-ios", &["tensorlogic"], ""),
    ("x86_64-pc-windows-gnu", &["tensorlogic", "tensorlogic-cli"], ""),
    // A browser has no command line.
    ("wasm32-unknown-unknown", &["tensorlogic"], "--cfg getrandom_backend=\"wasm_js\""),
];

/// A build with the native Metal backend and without wgpu, which no other check has.
const METAL_ALONE: [&str; 3] = ["--no-default-features", "--features", "metal"];
/// The target for which it is checked.
const METAL_ALONE_TARGET: &str = TARGETS[0].0;

/// Plays the C compiler or archiver, if that is what this program was started as: type-checking links nothing, so an empty file
/// serves as any object or library.
pub fn stand_in() -> bool {
    if std::env::var_os(STAND_IN).is_none() {
        return false;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let object = args.iter().position(|a| a == "-o").and_then(|at| args.get(at + 1));
    let library = args.iter().find(|a| a.ends_with(".a") || a.ends_with(".lib"));
    if let Some(file) = object.or(library) {
        // A failure shows when the build script looks for the file.
        let _ = std::fs::write(file, []);
    }
    true
}

/// What `check-targets` is asked for.
#[derive(Default)]
pub struct TargetOptions {
    /// Leaves out the command.
    pub library: bool,
    /// A target whose standard library cannot be had is reported and passed over, where it otherwise fails.
    pub allow_missing: bool,
}

/// Type-checks every target and prints a line of each. `true` when nothing failed.
pub fn check(options: &TargetOptions) -> Result<bool, String> {
    let own = std::env::current_exe().map_err(|e| format!("the path of this program: {e}"))?;
    let mut missing = Vec::new();
    let mut targets = Vec::new();
    for target in &TARGETS {
        match install(target.0) {
            Ok(()) => targets.push(target),
            Err(reason) => missing.push((target.0, reason)),
        }
    }
    let mut failed = false;
    for package in ["tensorlogic", "tensorlogic-cli"].into_iter().filter(|p| !options.library || *p == "tensorlogic") {
        let has: Vec<_> = targets.iter().copied().filter(|t| t.1.contains(&package)).collect();
        // In one run of Cargo they share the cores. Where it fails each is named by a run of its own.
        let together = !has.is_empty() && cargo_check(&own, &has, package, &[])?;
        for target in has {
            let passed = together || cargo_check(&own, &[target], package, &[])?;
            println!("{}: {}: {package}", if passed { "type-checked" } else { "FAILED" }, target.0);
            failed |= !passed;
        }
    }
    for target in targets.iter().filter(|t| t.0 == METAL_ALONE_TARGET) {
        let passed = cargo_check(&own, &[target], "tensorlogic", &METAL_ALONE)?;
        println!("{}: {}: tensorlogic with Metal alone", if passed { "type-checked" } else { "FAILED" }, target.0);
        failed |= !passed;
    }
    for (target, reason) in &missing {
        println!("not checked: {target}: {reason}");
    }
    Ok(!failed && (missing.is_empty() || options.allow_missing))
}

/// Gets the target's standard library, unless it is there. The error says why it cannot be had.
fn install(target: &str) -> Result<(), String> {
    let libraries =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output().map_err(|e| format!("rustc: {e}"))?;
    let folder = String::from_utf8_lossy(&libraries.stdout).trim().to_string();
    if libraries.status.success() && Path::new(&folder).is_dir() {
        return Ok(());
    }
    let rustup = Command::new("rustup")
        .args(["target", "add", target])
        .env("RUSTUP_MAX_RETRIES", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut rustup = rustup.map_err(|e| format!("its standard library is not installed, and rustup cannot be run: {e}"))?;
    let start = Instant::now();
    while rustup.try_wait().map_err(|e| format!("rustup: {e}"))?.is_none() {
        if start.elapsed() > DOWNLOAD {
            rustup.kill().and_then(|()| rustup.wait()).map_err(|e| format!("rustup: {e}"))?;
            return Err(format!(
                "its standard library is not installed; `rustup target add` had not got it after {} s",
                DOWNLOAD.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let output = rustup.wait_with_output().map_err(|e| format!("rustup: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.lines().find(|l| l.starts_with("error")).unwrap_or("no reason is given").trim();
    Err(format!("its standard library is not installed, and `rustup target add` cannot get it: {reason}"))
}

/// Runs `cargo check` of a package for some targets, with these features. `true` when it passes for all.
fn cargo_check(own: &Path, targets: &[&Target], package: &str, features: &[&str]) -> Result<bool, String> {
    let mut cargo = Command::new("cargo");
    // The release profile, so that build scripts and macros are those of the builds before it.
    cargo.args(["check", "--quiet", "--locked", "--release", "--package", package]).args(features).env(STAND_IN, "1");
    for (target, _, flags) in targets {
        let name = target.replace('-', "_");
        cargo.args(["--target", target]);
        for tool in ["CC", "CXX", "AR"] {
            cargo.env(format!("{tool}_{name}"), own);
        }
        // Warnings are errors there too; Cargo leaves dependencies' warnings out.
        cargo.env(format!("CARGO_TARGET_{}_RUSTFLAGS", name.to_uppercase()), format!("{flags} -Dwarnings"));
    }
    Ok(cargo.status().map_err(|e| format!("cargo: {e}"))?.success())
}
