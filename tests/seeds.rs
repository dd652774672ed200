//! Every code block of the five documents that the project was created from, as a test named after the heading above it, in their
//! order; what docs/seed-coverage.md claims beside them; and that page itself.
//!
//! What differs from the documents, and why: `?` stands after calls that can fail here (`to_vec`, `stack`, `zero_grad` …) since the library never
//! panics; values are asked for (`eval`, `synchronize`) where a block times them, since nothing runs before; types of the `metal` crate are
//! ours of the same name; Metal source is given as WGSL, which is translated to it; Python is given as Rust. What a block leaves open (a model, some
//! data) is put in front of it. Each test compares with plain loops in f64.

mod common;

#[path = "seeds/benchmark_log.rs"]
mod benchmark_log;
#[path = "seeds/claims.rs"]
mod claims;
#[path = "seeds/coverage.rs"]
mod coverage;
#[path = "seeds/engine_backend.rs"]
#[cfg(feature = "gpu")]
mod engine_backend;
#[path = "seeds/gpu_module.rs"]
#[cfg(all(feature = "gpu", feature = "text"))]
mod gpu_module;
#[path = "seeds/metal_guide.rs"]
#[cfg(feature = "gpu")]
mod metal_guide;
#[path = "seeds/shvayambhu.rs"]
#[cfg(feature = "gpu")]
mod shvayambhu;

use half::f16;
use std::sync::{Mutex, MutexGuard};
use tensorlogic::{Device, Element, Tensor};

/// The blocks take turns: some of them count the requests that a device's pool gets.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// What `MetalDevice::new()?` gives where there is Metal. Elsewhere it must say so, and the test goes on with Vulkan; `None` where there is no
/// GPU at all and none is required.
#[cfg(feature = "gpu")]
fn metal_device() -> Option<Device> {
    use tensorlogic::device::MetalDevice;
    match MetalDevice::new() {
        Ok(device) => {
            // The blocks are so small that the CPU would do them.
            device.set_adaptive(false);
            Some(device.into())
        }
        Err(e) => {
            let text = e.to_string();
            assert!(text.contains("Metal is not available here") && text.contains("GpuDevice::new()"), "{text}");
            common::gpu()
        }
    }
}

/// Every device of the tests: the CPU and the GPU.
fn devices() -> Vec<Device> {
    #[cfg(feature = "gpu")]
    return std::iter::once(Device::cpu()).chain(metal_device()).collect();
    #[cfg(not(feature = "gpu"))]
    vec![Device::cpu()]
}

/// Numbers between −2 and 2, another row for each seed.
fn numbers(count: usize, seed: f64) -> Vec<f16> {
    (0..count).map(|i| f16::from_f64(((i as f64 + 1.0) * (0.7 + seed)).sin() * 2.0)).collect()
}

/// A stored f16 tensor of such numbers.
fn random(shape: &[usize], seed: f64, device: &Device) -> Tensor {
    Tensor::from_vec(numbers(shape.iter().product(), seed), shape, device).unwrap()
}

fn wide<T: Element + Into<f64>>(t: &Tensor) -> Vec<f64> {
    t.to_vec_of::<T>().unwrap().into_iter().map(Into::into).collect()
}

/// The values of an f16 tensor in f64.
fn f64s(t: &Tensor) -> Vec<f64> {
    wide::<f16>(t)
}

/// a `[m, k]` × b `[k, n]` in f64.
fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    (0..m * n).map(|p| (0..k).map(|e| a[p / n * k + e] * b[e * n + p % n]).sum()).collect()
}

/// The guide's approximation of GELU, as it writes it.
fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// Compares a tensor with f64 values, within a part in a thousand: f16 holds 11 bits.
#[track_caller]
fn check(got: &Tensor, want: &[f64]) {
    let values = got.to_vec().unwrap();
    assert_eq!(values.len(), want.len(), "on {}", got.device().name());
    for (i, (g, w)) in values.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() <= 1e-3 * (1.0 + w.abs()), "element {i}: {g} for {w} on {}", got.device().name());
    }
}

/// The dispatches that asking for the tensor takes.
fn dispatches(t: &Tensor) -> usize {
    tensorlogic::eval::plan_of(&[t]).unwrap().map_or(0, |p| p.steps.len())
}
