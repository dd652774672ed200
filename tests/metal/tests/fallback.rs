//! What stands in where the native backend cannot be opened: wgpu, opened by the same call, with the reason. On a Mac that is Metal through wgpu.
//! Here wgpu has Vulkan, on Mesa's lavapipe, to which of the names of the native backend `gpu` leads.

use fake_metal::compiler;
use fake_metal::metal::FAULTS;
use serde_json::Value;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::{DType, Device, Rng, Tensor, TensorError, TensorResult};

#[path = "../../../cli/src/device_facts.rs"]
mod device_facts;

fn computed(device: &Device) -> TensorResult<Vec<f32>> {
    let make = |seed, shape: &[usize]| Tensor::from_vec(Rng::new(seed).normal(shape, DType::F32, &Device::cpu())?.to_vec()?, shape, device);
    make(1, &[16, 32])?.matmul(&make(2, &[32, 24])?)?.softmax(-1)?.to_vec()
}

/// Opens a device where the native backend cannot be; it computes, and tells why it is there.
fn check_what_stands_in(name: &str, why: &str) {
    let d = Device::open(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(d.name().contains("llvmpipe"), "{name} opens {}", d.name());
    let told = d.stands_in().expect("a reason");
    assert!(told.contains(why), "{told}");
    assert_eq!(device_facts::device_facts(&d)["stands_in"], Value::from(told));
    d.set_adaptive(false);
    let (got, want) = (computed(&d).unwrap(), computed(&Device::cpu()).unwrap());
    let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(got.len() == want.len() && far <= 1e-5, "{name}: largest difference {far:e}");
    assert!(d.pipeline_stats().pipelines > 0, "{name}: nothing was computed there");
}

/// Runs only with a Vulkan driver.
#[test]
#[ignore = "needs a Vulkan driver; the test below starts it with one"]
fn wgpu_stands_in_with_the_reason() {
    FAULTS.no_device.store(true, SeqCst);
    check_what_stands_in("gpu", "Metal gives no device");
    // By its own name only a Metal of wgpu may stand in, which is not here: both reasons are told.
    match Device::open("metal") {
        Err(TensorError::UnsupportedDevice(why)) => assert!(why.contains("metal") && why.contains("Metal gives no device"), "{why}"),
        other => panic!("{other:?}"),
    }
    FAULTS.no_device.store(false, SeqCst);
    compiler::change(Some(Box::new(|source| source.replace("(2.0 * ", "(2.5 * "))));
    check_what_stands_in("gpu:0", "Metal computes values one by one wrong");
    compiler::change(None);
    let native = Device::open("auto").unwrap();
    assert!(native.name().contains("Fake M1") && native.stands_in().is_none(), "{}", native.name());
}

#[test]
fn what_stands_in_is_opened_by_the_same_call() {
    let with = concat!(env!("TENSORLOGIC_ROOT"), "/scripts/with-lavapipe.sh");
    let run = Command::new(with)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "wgpu_stands_in_with_the_reason", "--ignored", "--nocapture"])
        .env("TL_ALLOW_SOFTWARE", "1")
        .output()
        .unwrap();
    let said = [run.stdout, run.stderr].map(|s| String::from_utf8_lossy(&s).into_owned()).concat();
    assert!(run.status.success() && said.contains("1 passed"), "{said}");
}
