//! Adapters on frozen, quantized models: the gradient of a product with packed weights, training, files, merging.

use tensorlogic::quant;
use tensorlogic::{DType, Device, Rng, Tensor};

fn devices() -> Vec<Device> {
    match Device::open("vulkan") {
        Ok(gpu) => vec![Device::cpu(), gpu],
        Err(e) if std::env::var("TL_REQUIRE_GPU").is_ok_and(|v| v == "1") => panic!("{e}"),
        Err(_) => vec![Device::cpu()],
    }
}

/// A weight `[n, k]` in a block format, and its values.
fn packed(dtype: DType, n: usize, k: usize, rng: &mut Rng, device: &Device) -> (Tensor, Vec<f32>) {
    let values = rng.normal(&[n, k], DType::F32, &Device::cpu()).unwrap().to_vec().unwrap();
    let bytes = quant::quantize(dtype, &values).unwrap();
    let mut exact = vec![0f32; n * k];
    quant::dequantize(dtype, &bytes, &mut exact).unwrap();
    let bytes = tensorlogic::backends::Bytes::Owned(std::sync::Arc::new(bytes));
    (Tensor::from_bytes(bytes, dtype, &[n, k], device).unwrap(), exact)
}

/// The gradient of Σ c·(x·wᵀ) for x `[m, k]` against a loop in f64.
#[track_caller]
fn check_gradient(dtype: DType, m: usize, n: usize, k: usize, device: &Device) {
    let mut rng = Rng::new((m * n + k) as u64);
    let (w, exact) = packed(dtype, n, k, &mut rng, device);
    let x = rng.normal(&[m, k], DType::F32, device).unwrap().requires_grad().unwrap();
    let c = rng.normal(&[m, n], DType::F32, device).unwrap();
    x.matmul(&w.t().unwrap()).unwrap().mul(&c).unwrap().sum_all().unwrap().backward().unwrap();
    let got = x.grad().unwrap().to_vec().unwrap();
    let c = c.to_vec().unwrap();
    for i in 0..m {
        for j in 0..k {
            let terms = (0..n).map(|r| c[i * n + r] as f64 * exact[r * k + j] as f64);
            let (want, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
            let g = got[i * k + j] as f64;
            assert!((g - want).abs() <= 1e-5 * size, "{dtype} {m}×{n}×{k} on {}: {g} is not {want} at {i}, {j}", device.name());
        }
    }
}

#[test]
fn a_packed_weight_passes_gradients_to_its_input() {
    for device in devices() {
        for dtype in quant::FORMATS.map(|f| f.dtype()) {
            for m in [1, 5, 12, 40] {
                check_gradient(dtype, m, 96, 512, &device);
            }
        }
        check_gradient(DType::Q8_0, 33, 30, 96, &device);
        check_gradient(DType::Q4_K, 33, 30, 768, &device);
    }
}

#[test]
fn the_packed_weight_is_never_stored_unpacked() {
    for device in devices() {
        let (m, n, k) = (32, 1024, 1024);
        let mut rng = Rng::new(1);
        let (w, _) = packed(DType::Q4_0, n, k, &mut rng, &device);
        let x = rng.normal(&[m, k], DType::F32, &device).unwrap();
        x.eval().unwrap();
        w.narrow(0, 0, 1).unwrap().cast(DType::F32).unwrap().eval().unwrap();
        let x = x.requires_grad().unwrap();
        device.reset_peak_memory();
        let before = device.memory().in_use;
        x.matmul(&w.t().unwrap()).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap();
        x.grad().unwrap().eval().unwrap();
        let more = device.memory().peak - before;
        assert!(more < n * k * 4 / 2, "{more} bytes more on {}", device.name());
    }
}
