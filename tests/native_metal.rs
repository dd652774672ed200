//! The native Metal backend executed on Linux: the programs of `tests/metal`, a workspace of its own, over a Metal that computes on the CPU.

/// Prints what those programs print, each of their tests by name and time, where it is shown (`--nocapture`) or one fails.
#[cfg(target_os = "linux")]
#[test]
fn the_metal_backend_passes_its_tests_over_the_fake_metal() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    let root = env!("TENSORLOGIC_ROOT");
    let compilers = [std::env::var("TL_CLANG").unwrap_or_default(), "clang++-19".into(), format!("{root}/target/clang/clang++")];
    let answers = |compiler: &String| Command::new(compiler).arg("--version").output().is_ok_and(|o| o.status.success());
    if !std::env::var("TL_REQUIRE_MSL").is_ok_and(|v| v == "1") && !compilers.iter().any(answers) {
        return println!("skipped: there is no clang++ of version 19; scripts/clang.sh gets one");
    }
    let script = format!("{root}/tests/metal/run.sh");
    // What Cargo says goes with what the programs print.
    let mut child = Command::new("bash").arg("-c").arg(format!("exec '{script}' 2>&1")).stdout(Stdio::piped()).spawn().expect("bash");
    for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
        println!("{}", line.expect("text"));
    }
    let status = child.wait().expect("a process that was started");
    assert!(status.success(), "{script}: {status}");
}
