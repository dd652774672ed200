//! The native Metal backend executed on Linux: the programs of `tests/metal`, a workspace of its own, over a Metal that computes on the CPU.

#[cfg(target_os = "linux")]
#[path = "msl/clang.rs"]
mod clang;

/// Models and vectors that the programs at least compute right. `TL_MODELS` chooses models, and `TL_VECTORS` another set.
#[cfg(target_os = "linux")]
const LEAST: [usize; 2] = [24, 2_600];

/// How many models and vectors a line of theirs says are right; a program with a wrong one fails.
#[cfg(target_os = "linux")]
fn right(line: &str) -> [usize; 2] {
    [" models are right on ", " pass, 0 fail"].map(|what| {
        let number = line.split_once(what).and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
        number.unwrap_or(0)
    })
}

/// Prints what those programs print, each of their tests by name and time, where it is shown (`--nocapture`) or one fails; and always how many models
/// and vectors they computed right, and in which time.
#[cfg(target_os = "linux")]
#[test]
fn the_metal_backend_passes_its_tests_over_the_fake_metal() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    if clang::clang().is_none() {
        return;
    }
    let start = std::time::Instant::now();
    let script = concat!(env!("TENSORLOGIC_ROOT"), "/tests/metal/run.sh");
    // What Cargo says goes with what the programs print.
    let mut child = Command::new("bash").arg("-c").arg(format!("exec '{script}' 2>&1")).stdout(Stdio::piped()).spawn().expect("bash");
    let mut counts = [0, 0];
    for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
        let line = line.expect("text");
        let now = right(&line);
        counts = [0, 1].map(|n| counts[n] + now[n]);
        println!("{line}");
    }
    let status = child.wait().expect("a process that was started");
    assert!(status.success(), "{script}: {status}");
    let ([models, vectors], seconds) = (counts, start.elapsed().as_secs_f64());
    // Not by a macro, whose output is kept where a test passes.
    writeln!(std::io::stderr(), "{models} models and {vectors} vectors are right over the fake Metal, in {seconds:.0} s").expect("stderr");
    assert!(LEAST.iter().zip(counts).all(|(least, count)| count >= *least), "only {models} models and {vectors} vectors ran");
}

#[cfg(target_os = "linux")]
#[test]
fn lines_that_count_are_told_from_others() {
    assert_eq!(right("5 of 5 models are right on Fake M1 (metal)"), [5, 0]);
    assert_eq!(right("torch_opinfo: 1476 pass, 0 fail, 0 unsupported, 3 skipped in 9 s"), [0, 1476]);
    assert_eq!(right("test result: ok. 3 passed; 0 failed; 0 ignored"), [0, 0]);
}
