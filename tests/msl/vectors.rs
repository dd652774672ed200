//! Every operation and gradient against the vectors of ONNX, PyTorch, NumPy and gguf-py, through the Metal form of its kernels.

use super::backend::MslBackend;
use super::common::open;
use super::toolchain::Mode;
use super::vectors_support::{Suite, Tally, judge, judge_gradients};
use std::time::Instant;

/// Judges a device twice, of which the first time only tells which kernels are needed, and prints what became of the cases.
fn check(what: &str, backend: &MslBackend, judge: impl Fn() -> Tally) -> Tally {
    let start = Instant::now();
    let before = backend.compiled();
    let tally = backend.with_kernels_of(|_| judge());
    let (compiled, [dispatches, kernels, compared]) = (backend.compiled(), backend.counts());
    println!(
        "{what}: {} pass, {} fail, {} unsupported, {} skipped; {:.0} s, of which {:.0} s for {} sources in {} calls of clang++; so far \
         {dispatches} dispatches of {kernels} kernels, {compared} of them in three orders of threads",
        tally.pass,
        tally.failures.len(),
        tally.unsupported,
        tally.skipped,
        start.elapsed().as_secs_f64(),
        (compiled.time - before.time).as_secs_f64(),
        compiled.sources - before.sources,
        compiled.calls - before.calls,
    );
    tally
}

/// Fails where a case did, or where too few ran.
fn require(tally: &Tally, least: usize) {
    let failed: Vec<String> = tally.failures.iter().map(|f| f.chars().take(1500).collect()).collect();
    assert!(failed.is_empty(), "{} cases:\n{}", failed.len(), failed.join("\n"));
    assert!(tally.pass >= least, "only {} cases ran", tally.pass);
}

fn operations(suite: &str, least: usize) {
    let Some((backend, device)) = open(Mode::Unoptimized, None) else { return };
    let suite_of = Suite::open(suite);
    // NaN, infinities and subnormals bind the CPU only.
    require(&check(suite, &backend, || judge(&suite_of, &device, suite == "special")), least);
}

#[test]
fn operations_of_onnx() {
    operations("onnx_node", 350);
}

#[test]
fn operations_of_pytorch() {
    operations("torch_opinfo", 1476);
}

#[test]
fn operations_of_special_values() {
    operations("special", 99);
}

#[test]
fn block_formats_of_gguf() {
    operations("gguf_quant", 50);
}

#[test]
fn gradients_of_pytorch() {
    let Some((backend, device)) = open(Mode::Unoptimized, None) else { return };
    let suite = Suite::open("torch_opinfo");
    require(&check("gradients of torch_opinfo", &backend, || judge_gradients(&suite, &device)), 660);
}

/// Arithmetic that may assume that there is neither NaN nor infinity, as Metal's compiler does by default: finite results stay right.
#[test]
fn special_values_with_fast_arithmetic() {
    let Some((backend, device)) = open(Mode::FastMath, None) else { return };
    let suite = Suite::open("special");
    require(&check("special, with -ffast-math", &backend, || judge(&suite, &device, true)), 99);
    // Not binding: how far NaN, infinities, subnormals and signed zeros survive it.
    let all = judge(&suite, &device, false);
    println!("special, with -ffast-math, all elements: {} pass, {} differ", all.pass, all.failures.len());
}

/// Nothing that C++ leaves undefined: shifts, alignment, indices of arrays, overflow.
#[test]
fn nothing_is_undefined() {
    let Some((backend, device)) = open(Mode::Checked, None) else { return };
    for (suite, least) in [("onnx_node", 350), ("gguf_quant", 50), ("special", 99)] {
        let suite_of = Suite::open(suite);
        let what = format!("{suite}, with checks for undefined behaviour");
        require(&check(&what, &backend, || judge(&suite_of, &device, suite == "special")), least);
    }
}
