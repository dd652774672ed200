//! The compiler that stands for Metal's: which clang++ there is, and what happens where there is none.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of Cargo's outputs. `tests/metal`, whose package lies deeper in the repository, shares what is compiled.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(env!("TENSORLOGIC_ROOT")).join("target"), PathBuf::from)
}

/// `TL_CLANG`, an installed clang++ of version 19, or that of `scripts/clang.sh`, with what it says of its version; `None`, with a message, where none of
/// them runs and `TL_REQUIRE_MSL` is not 1.
pub fn clang() -> Option<(PathBuf, String)> {
    let own = target().join("clang/clang++");
    let candidates = std::env::var_os("TL_CLANG").map(PathBuf::from).into_iter().chain(["clang++-19".into(), own]);
    for candidate in candidates {
        if let Ok(version) = Command::new(&candidate).arg("--version").output()
            && version.status.success()
        {
            return Some((candidate, String::from_utf8_lossy(&version.stdout).into_owned()));
        }
    }
    let why = "Metal kernels are not executed without clang++ 19; scripts/clang.sh installs one";
    assert!(!std::env::var("TL_REQUIRE_MSL").is_ok_and(|v| v == "1"), "{why}");
    println!("skipped: {why}");
    None
}
