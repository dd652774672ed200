//! Every operation against vectors made by ONNX, PyTorch, NumPy and gguf-py: results in f64, by the vectors' own tolerances.
//!
//! `tests/vectors/ops` holds the cases of the operations that the library has. Each suite is a list of cases, one JSON object a line, and
//! a safetensors file of its tensors.

mod vectors_support;

use tensorlogic::Device;
use vectors_support::{Case, Suite, Tally, judge};

const SUITES: [&str; 4] = ["onnx_node", "torch_opinfo", "special", "gguf_quant"];

/// Runs the suites and fails where one case does.
fn check(device: &Device, choose: impl Fn(&str, &Case) -> bool) {
    let mut failures = Vec::new();
    for name in SUITES {
        let Tally { pass, unsupported, failures: wrong, unsupported_ops } = judge(&Suite::open(name), device, |c| choose(name, c));
        println!("{name} on {}: {pass} pass, {} fail, {unsupported} unsupported {unsupported_ops:?}", device.name(), wrong.len());
        failures.extend(wrong);
        assert!(pass > 30, "{name}: only {pass} cases ran");
    }
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn cpu() {
    check(&Device::cpu(), |_, _| true);
}

/// A GPU may treat NaN and infinity freely: cases that hold any are binding on the CPU only.
#[test]
fn gpu() {
    let device = match Device::open("vulkan") {
        Ok(d) => d,
        Err(e) if std::env::var("TL_REQUIRE_GPU").is_ok_and(|v| v == "1") => panic!("{e}"),
        Err(e) => return println!("skipped: {e}"),
    };
    let finite = |c: &Case| c.inputs.iter().flatten().chain(&c.expect).all(|r| r.values().iter().all(|v| v.is_finite()));
    check(&device, |suite, c| suite != "special" || finite(c));
}
