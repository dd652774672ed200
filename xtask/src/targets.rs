//! `check-targets`: type-checks library and command for systems that this machine is not.

use std::path::Path;
use std::process::{Command, Stdio};

/// The variable that makes this program play a C compiler: build scripts of dependencies ask for one of each target.
const STAND_IN: &str = "TL_STAND_IN_COMPILER";

/// Target, the packages that exist there, and rustc's flags.
const TARGETS: [(&str, &[&str], &str); 3] = [
    ("aarch64-apple-darwin", &["tensorlogic", "tensorlogic-cli"], ""),
    ("x86_64-pc-windows-gnu", &["tensorlogic", "tensorlogic-cli"], ""),
    // A browser has no command line.
    ("wasm32-unknown-unknown", &["tensorlogic"], "--cfg getrandom_backend=\"wasm_js\""),
];

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

/// Checks every target and says of each what came out, on stderr. `true` when all passed.
pub fn check() -> Result<bool, String> {
    let own = std::env::current_exe().map_err(|e| format!("the path of this program: {e}"))?;
    let mut all = true;
    for (target, packages, flags) in TARGETS {
        let result = add(target).and_then(|()| packages.iter().try_for_each(|p| one(&own, target, p, flags)));
        match &result {
            Ok(()) => eprintln!("{target}: {} type-check", packages.join(" and ")),
            Err(e) => eprintln!("{target}: FAILED: {e}"),
        }
        all &= result.is_ok();
    }
    Ok(all)
}

/// Gets the target's standard library, unless it is there.
fn add(target: &str) -> Result<(), String> {
    let sysroot =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output().map_err(|e| format!("rustc: {e}"))?;
    let folder = String::from_utf8_lossy(&sysroot.stdout).trim().to_string();
    if sysroot.status.success() && Path::new(&folder).is_dir() {
        return Ok(());
    }
    match Command::new("rustup").args(["target", "add", target]).stdout(Stdio::null()).status() {
        Ok(s) if s.success() => Ok(()),
        Ok(_) => Err("its standard library is not installed, and `rustup target add` cannot get it".into()),
        Err(e) => Err(format!("its standard library is not installed, and rustup cannot be run: {e}")),
    }
}

fn one(own: &Path, target: &str, package: &str, flags: &str) -> Result<(), String> {
    let name = target.replace('-', "_");
    let mut cargo = Command::new("cargo");
    cargo.args(["check", "--quiet", "--target", target, "--package", package]);
    for tool in ["CC", "CXX", "AR"] {
        cargo.env(format!("{tool}_{name}"), own);
    }
    cargo.env(STAND_IN, "1");
    if !flags.is_empty() {
        cargo.env(format!("CARGO_TARGET_{}_RUSTFLAGS", name.to_uppercase()), flags);
    }
    match cargo.status() {
        Ok(s) if s.success() => Ok(()),
        Ok(_) => Err(format!("{package} does not type-check")),
        Err(e) => Err(format!("cargo: {e}")),
    }
}
