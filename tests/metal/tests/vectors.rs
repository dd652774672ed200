//! Every operation and gradient on the Metal backend against the vectors of ONNX, PyTorch, NumPy and gguf-py.

use fake_metal::compiler;
use fake_metal::metal::COUNTS;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;
use tensorlogic::Device;
use tensorlogic::tuning::Tuning;

#[path = "../../it/ops/vectors_support/mod.rs"]
mod vectors_support;

use vectors_support::{Suite, Tally, judge, judge_gradients};

/// A device of its own: names open the same one again. What was learned without results must not be kept.
fn device() -> Device {
    compiler::compile_unoptimized();
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    device
}

/// Fails where a case did, or where fewer ran than there are.
#[track_caller]
fn check(what: &str, least: usize, judge: impl Fn(&Device) -> Tally) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let start = Instant::now();
    let learning = device();
    let kernels = compiler::learn(|| judge(&learning));
    drop(learning);
    let learned = start.elapsed().as_secs_f64();
    let metal = device();
    let tally = judge(&metal);
    let counts = [&COUNTS.command_buffers, &COUNTS.dispatches, &COUNTS.barriers].map(|c| c.load(SeqCst));
    println!(
        "{what}: {} pass, {} fail, {} unsupported, {} skipped in {:.0} s, {learned:.0} of them for {kernels:?} kernels and new ones; so far \
         {counts:?} command buffers, dispatches and barriers",
        tally.pass,
        tally.failures.len(),
        tally.unsupported,
        tally.skipped,
        start.elapsed().as_secs_f64()
    );
    let failed: Vec<String> = tally.failures.iter().map(|f| f.chars().take(1500).collect()).collect();
    assert!(failed.is_empty(), "{} cases:\n{}", failed.len(), failed.join("\n"));
    assert!(tally.pass >= least, "only {} cases ran", tally.pass);
}

#[test]
fn operations_of_onnx() {
    check("onnx_node", 350, |d| judge(&Suite::open("onnx_node"), d, false));
}

#[test]
fn operations_of_pytorch() {
    check("torch_opinfo", 1476, |d| judge(&Suite::open("torch_opinfo"), d, false));
}

/// NaN, infinities and subnormals bind the CPU only.
#[test]
fn operations_of_special_values() {
    check("special", 99, |d| judge(&Suite::open("special"), d, true));
}

#[test]
fn block_formats_of_gguf() {
    check("gguf_quant", 50, |d| judge(&Suite::open("gguf_quant"), d, false));
}

#[test]
fn gradients_of_pytorch() {
    check("gradients of torch_opinfo", 660, |d| judge_gradients(&Suite::open("torch_opinfo"), d));
}
