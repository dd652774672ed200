//! Parts of kernels in Metal's language: used where their probe computes right, and left out with a reason where it does not, where Metal's compiler
//! refuses them, and where `TL_GPU_WITHOUT` names them. One test, since it changes variables and sources of the process.

use fake_metal::compiler;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tensorlogic::backends::Bytes;
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult, quant};

fn device() -> Device {
    // Products would have tensor operations, which `tensor_ops.rs` is about.
    let mut tuning = Tuning::apple();
    tuning.metal.tensor_ops = false;
    let device = Device::open_with_tuning("metal", tuning).unwrap();
    device.set_adaptive(false);
    device
}

fn noise(shape: &[usize], seed: u64, device: &Device) -> TensorResult<Tensor> {
    let values = Rng::new(seed).normal(shape, DType::F32, &Device::cpu())?.to_vec()?;
    Tensor::from_vec(values, shape, device)?.cast(DType::F16)
}

/// A product on matrix units, attention of many queries, and a row times weights in blocks.
fn work(device: &Device) -> TensorResult<Vec<f32>> {
    let product = noise(&[130, 64], 1, device)?.matmul(&noise(&[64, 128], 2, device)?)?.relu()?;
    let qkv = |seed| noise(&[1, 2, 40, 64], seed, device);
    let options = AttentionOptions { causal: true, ..Default::default() };
    let attention = qkv(3)?.attention(&qkv(4)?, &qkv(5)?, None, &options)?;
    let weights = Rng::new(6).normal(&[24, 256], DType::F32, &Device::cpu())?.to_vec()?;
    let blocks = Bytes::Owned(Arc::new(quant::quantize(DType::Q4_0, &weights)?));
    let row = noise(&[1, 256], 7, device)?.matmul(&Tensor::from_bytes(blocks, DType::Q4_0, &[24, 256], device)?.t()?)?;
    let mut all = vec![];
    for t in [product, attention, row] {
        all.extend(t.cast(DType::F32)?.to_vec()?);
    }
    Ok(all)
}

fn near(got: &[f32], want: &[f32]) -> bool {
    got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 5e-3 * (1.0 + b.abs()))
}

/// What sources have that hold bodies in Metal's language.
const MARKS: [&str; 2] = ["thread_elements()", "(device const ushort*)"];

#[test]
fn bodies_are_used_or_left_out_with_a_reason() {
    let want = work(&Device::cpu()).unwrap();
    // How many sources have a body, and what is made of sources besides.
    let count = Arc::new(AtomicUsize::new(0));
    let counting = |change: fn(&str) -> String| -> Option<compiler::Change> {
        let count = count.clone();
        Some(Box::new(move |source: &str| {
            count.fetch_add(usize::from(MARKS.iter().any(|mark| source.contains(mark))), SeqCst);
            change(source)
        }))
    };
    let used = |device: &Device| {
        count.store(0, SeqCst);
        let got = work(device).unwrap();
        assert!(near(&got, &want), "other results than the CPU's");
        count.load(SeqCst)
    };

    compiler::change(counting(str::to_string));
    let plain = device();
    assert_eq!(plain.lacks_metal_bodies(), None);
    assert_eq!(used(&plain), 3);

    // The probe's body gives twice what it reads.
    compiler::change(counting(|source| source.replace("return float(((device const half*)", "return 2.0f * float(((device const half*)")));
    let wrong = device();
    assert_eq!(wrong.lacks_metal_bodies().as_deref(), Some("their probe gives other results than its WGSL"));
    assert_eq!(used(&wrong), 0);

    // A compiler that refuses some of them when the device is open.
    compiler::change(counting(str::to_string));
    let refusing = device();
    compiler::EAGER.store(true, SeqCst);
    compiler::change(counting(|source| source.replace("thread_elements()", "elements_of_nobody()")));
    assert_eq!(refusing.lacks_metal_bodies(), None);
    assert_eq!(used(&refusing), 3);
    let refused = refusing.pipeline_stats().refused_bodies;
    assert!(refused.len() == 2 && refused.iter().all(|r| r.contains("elements_of_nobody")), "{refused:?}");
    assert!(["matmul: ", "attention: "].iter().all(|op| refused.iter().any(|r| r.starts_with(op))), "{refused:?}");
    assert_eq!(plain.pipeline_stats().refused_bodies, Vec::<String>::new());

    // A compiler that refuses what probes try: its message is the reason.
    compiler::change(counting(|source| source.replace("metal::simd_sum(", "metal::simd_sum_of_nobody(")));
    let narrow = device();
    let probes = narrow.failed_probes();
    assert!(
        probes.len() == 2
            && probes[0].starts_with("subgroups of 32 threads: it cannot be compiled: ")
            && probes[0].contains("simd_sum_of_nobody")
    );
    assert_eq!(used(&narrow), 0);
    assert_eq!(plain.failed_probes(), Vec::<String>::new());
    compiler::EAGER.store(false, SeqCst);

    compiler::change(counting(str::to_string));
    // SAFETY: no other thread of this program reads the environment now.
    unsafe { std::env::set_var("TL_GPU_WITHOUT", "metal bodies") };
    let without = device();
    assert_eq!(without.lacks_metal_bodies().as_deref(), Some("TL_GPU_WITHOUT names them"));
    assert_eq!(used(&without), 0);
    compiler::change(None);
}
