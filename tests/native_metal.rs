//! The native Metal backend executed on Linux: the programs of `tests/metal`, a workspace of its own, over a Metal that computes on the CPU.

#[cfg(target_os = "linux")]
#[path = "msl/clang.rs"]
mod clang;

/// Prints what those programs print, each of their tests by name and time, where it is shown (`--nocapture`) or one fails.
#[cfg(target_os = "linux")]
#[test]
fn the_metal_backend_passes_its_tests_over_the_fake_metal() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    if clang::clang().is_none() {
        return;
    }
    let script = concat!(env!("TENSORLOGIC_ROOT"), "/tests/metal/run.sh");
    // What Cargo says goes with what the programs print.
    let mut child = Command::new("bash").arg("-c").arg(format!("exec '{script}' 2>&1")).stdout(Stdio::piped()).spawn().expect("bash");
    for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
        println!("{}", line.expect("text"));
    }
    let status = child.wait().expect("a process that was started");
    assert!(status.success(), "{script}: {status}");
}
