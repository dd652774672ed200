//! Every operation against vectors made by ONNX, PyTorch, NumPy and gguf-py: results in f64, by the vectors' own tolerances.
//!
//! `tests/vectors/ops` holds the cases of the operations that the library has. Each suite is a list of cases, one JSON object a line, and
//! a safetensors file of its tensors.

use super::vectors_support::{Suite, Tally, judge, judge_gradients};
use crate::common::devices;
use tensorlogic::Device;

/// Fails where a case of a suite fails on a device, where fewer than `least` ran, or, with `all`, where one has a kind that tensors lack.
fn check(suite: &str, least: usize, all: bool, judge: impl Fn(&Suite, &Device) -> Tally) {
    let cases = Suite::open(suite);
    for device in devices() {
        let Tally { pass, unsupported, skipped, failures, unsupported_ops } = judge(&cases, &device);
        let (name, failed) = (device.name(), failures.len());
        println!("{suite} on {name}: {pass} pass, {failed} fail, {unsupported} unsupported, {skipped} skipped {unsupported_ops:?}");
        assert!(failures.is_empty(), "{failed} cases on {name}:\n{}", failures.join("\n"));
        assert!(pass >= least && (!all || unsupported == 0), "{suite} on {name}: {pass} cases ran, {unsupported_ops:?} did not");
    }
}

#[test]
fn block_formats_of_ggml() {
    check("ggml_quant2", 31, false, |suite, device| judge(suite, device, false));
}

#[test]
fn block_formats_of_gguf() {
    check("gguf_quant", 31, false, |suite, device| judge(suite, device, false));
}

#[test]
fn gradients_of_pytorch() {
    check("torch_opinfo", 651, true, judge_gradients);
}

#[test]
fn operations_of_pytorch() {
    check("torch_opinfo", 1400, true, |suite, device| judge(suite, device, false));
}

/// NaN, infinities and subnormals bind the CPU only.
#[test]
fn special_values() {
    check("special", 31, false, |suite, device| judge(suite, device, !device.is_cpu()));
}

#[test]
fn the_operators_of_onnx() {
    check("onnx_node", 300, false, |suite, device| judge(suite, device, false));
}
