//! A fused operation of your own: WGSL for every GPU, a Rust function for the CPU, and its meaning in plain operations.
//!
//! `cargo run --example custom_kernel` runs both on what this machine has; `cargo test --example custom_kernel` compares fused with unfused.

use tensorlogic::ops::custom::CustomOp;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// gelu(scale · x + bias), with the tanh form of gelu: elementwise, `scale` is a run-time parameter.
static FUSED_MY_OP: CustomOp = CustomOp::elementwise("fused_my_op")
    .wgsl(
        "fn fused_my_op(x: f32, bias: f32, scale: f32) -> f32 {
           let v = fma(scale, x, bias);
           // tanh of large numbers overflows on some drivers, and is 1 from here on.
           let t = clamp(0.7978845608 * (v + 0.044715 * v * v * v), -9.0, 9.0);
           return 0.5 * v * (1.0 + tanh(t));
         }",
    )
    .cpu(|x, p, out| {
        for i in 0..out.len() {
            let v = p[0] * x[0][i] + x[1][i];
            out[i] = 0.5 * v * (1.0 + (0.797_884_6 * (v + 0.044715 * v * v * v)).tanh());
        }
    })
    .define(|x, p| x[0].mul(p[0])?.add(&x[1])?.gelu_tanh());

/// RMS norm of a row, its result through silu: row by row, `eps` is a run-time parameter.
static RMS_NORM_SILU: CustomOp = CustomOp::rows("rms_norm_silu")
    .wgsl(
        "fn rms_norm_silu(row: u32, cols: u32, lane: u32) {
           var sum = 0.0;
           for (var c = lane; c < cols; c += WORKGROUP) {
             let x = load_0(row * cols + c);
             sum += x * x;
           }
           let scale = inverseSqrt(row_sum(sum) / f32(cols) + param(0u));
           for (var c = lane; c < cols; c += WORKGROUP) {
             let v = load_0(row * cols + c) * scale * load_1(c);
             store_0(row * cols + c, v / (1.0 + exp(-v)));
           }
         }",
    )
    .cpu(|x, p, out| {
        let mean = x[0].iter().map(|v| v * v).sum::<f32>() / x[0].len() as f32;
        let scale = 1.0 / (mean + p[0]).sqrt();
        for i in 0..out.len() {
            let v = x[0][i] * scale * x[1][i];
            out[i] = v / (1.0 + (-v).exp());
        }
    })
    .define(|x, p| x[0].rms_norm(Some(&x[1]), p[0])?.silu());

/// The operations as methods, so that they read like the library's own.
trait MyOps {
    fn fused_my_op(&self, bias: &Tensor, scale: f64) -> TensorResult<Tensor>;
    fn rms_norm_silu(&self, weight: &Tensor, eps: f64) -> TensorResult<Tensor>;
}

impl MyOps for Tensor {
    #[track_caller]
    fn fused_my_op(&self, bias: &Tensor, scale: f64) -> TensorResult<Tensor> {
        FUSED_MY_OP.apply(&[self, bias], &[scale])
    }
    #[track_caller]
    fn rms_norm_silu(&self, weight: &Tensor, eps: f64) -> TensorResult<Tensor> {
        RMS_NORM_SILU.apply(&[self, weight], &[eps])
    }
}

fn main() -> TensorResult<()> {
    let mut devices = vec![Device::cpu()];
    devices.extend(["gpu", "vulkan", "metal", "dx12"].iter().find_map(|name| Device::open(name).ok()));
    for device in devices {
        let mut rng = Rng::new(7);
        let x = rng.normal(&[64, 256], DType::F32, &device)?;
        let weight = rng.normal(&[256], DType::F32, &device)?;

        println!("{}", device.name());
        // What stands around an operation fuses into it: one dispatch here, with the addition in its load and the product in its store.
        let y = x.add(1.0)?.fused_my_op(&weight, 0.5)?.mul(2.0)?;
        print!("{}", y.explain()?);
        let unfused = x.add(1.0)?.mul(0.5)?.add(&weight)?.gelu_tanh()?.mul(2.0)?;
        println!("largest difference from the unfused spelling: {:.1e}", difference(&y, &unfused)?);

        let y = x.rms_norm_silu(&weight, 1e-5)?;
        print!("{}", y.explain()?);
        let unfused = x.rms_norm(Some(&weight), 1e-5)?.silu()?;
        println!("largest difference from the unfused spelling: {:.1e}\n", difference(&y, &unfused)?);
    }
    Ok(())
}

/// The largest difference of two elements, in f32.
fn difference(a: &Tensor, b: &Tensor) -> TensorResult<f64> {
    a.cast(DType::F32)?.sub(&b.cast(DType::F32)?)?.abs()?.max(&[], false)?.item()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<Device> {
        let gpu = Device::open("gpu").or_else(|_| Device::open("vulkan")).ok();
        assert!(gpu.is_some() || std::env::var("TL_REQUIRE_GPU").is_err(), "there is no GPU");
        [Some(Device::cpu()), gpu].into_iter().flatten().collect()
    }

    #[track_caller]
    fn assert_tensors_close(a: &Tensor, b: &Tensor, tolerance: f64) {
        assert_eq!((a.dims(), a.dtype()), (b.dims(), b.dtype()));
        let scale = b.cast(DType::F32).unwrap().abs().unwrap().max(&[], false).unwrap().item().unwrap().max(1.0);
        let d = difference(a, b).unwrap();
        assert!(d <= tolerance * scale, "{d} of {scale} on {}", a.device().name());
    }

    #[test]
    fn test_fused_vs_unfused() {
        for device in devices() {
            for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 1e-3), (DType::BF16, 8e-3)] {
                for shape in [[4, 8], [7, 33], [1, 1], [3, 300]] {
                    let mut rng = Rng::new(3);
                    let x = rng.normal(&shape, dtype, &device).unwrap();
                    let w = rng.normal(&shape[1..], dtype, &device).unwrap();
                    let fused = x.fused_my_op(&w, 0.75).unwrap();
                    assert_tensors_close(&fused, &x.mul(0.75).unwrap().add(&w).unwrap().gelu_tanh().unwrap(), tolerance);
                    let fused = x.rms_norm_silu(&w, 1e-5).unwrap();
                    assert_tensors_close(&fused, &x.rms_norm(Some(&w), 1e-5).unwrap().silu().unwrap(), tolerance);
                }
            }
        }
    }
}
