//! Every operation against vectors made by ONNX, PyTorch, NumPy and gguf-py: results in f64, by the vectors' own tolerances.
//!
//! `tests/vectors/ops` holds the cases of the operations that the library has. Each suite is a list of cases, one JSON object a line, and
//! a safetensors file of its tensors.

use super::vectors_support::{Suite, Tally, judge, judge_gradients};
use crate::common;
use tensorlogic::Device;

const SUITES: [&str; 5] = ["onnx_node", "torch_opinfo", "special", "gguf_quant", "ggml_quant2"];

/// Runs the suites and fails where one case does.
fn check(device: &Device) {
    let mut failures = Vec::new();
    for name in SUITES {
        // NaN, infinities and subnormals bind the CPU only.
        let tally = judge(&Suite::open(name), device, name == "special" && !device.is_cpu());
        let Tally { pass, unsupported, skipped, failures: wrong, unsupported_ops } = tally;
        println!(
            "{name} on {}: {pass} pass, {} fail, {unsupported} unsupported, {skipped} skipped {unsupported_ops:?}",
            device.name(),
            wrong.len()
        );
        failures.extend(wrong);
        assert!(pass > 30, "{name}: only {pass} cases ran");
        assert!(name != "torch_opinfo" || unsupported == 0, "{name}: {unsupported_ops:?}");
    }
    let name = "torch_opinfo";
    let Tally { pass, unsupported, skipped, failures: wrong, unsupported_ops } = judge_gradients(&Suite::open(name), device);
    println!(
        "gradients of {name} on {}: {pass} pass, {} fail, {unsupported} unsupported, {skipped} skipped {unsupported_ops:?}",
        device.name(),
        wrong.len()
    );
    failures.extend(wrong);
    assert!(pass > 650 && unsupported == 0, "only {pass} gradients ran, {unsupported_ops:?} did not");
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn cpu() {
    check(&Device::cpu());
}

#[test]
fn gpu() {
    common::gpu().iter().for_each(check);
}
