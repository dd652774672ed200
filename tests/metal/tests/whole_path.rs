//! Tensors on the Metal backend against the CPU: a product, a fused chain, rows, over the fake Metal.

use fake_metal as _;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

fn metal() -> Device {
    let device = Device::open("metal").unwrap();
    device.set_adaptive(false);
    device
}

/// The same numbers on both devices, through `f`.
#[track_caller]
fn check(name: &str, shapes: &[&[usize]], dtype: DType, tolerance: f32, f: fn(&[Tensor]) -> TensorResult<Tensor>) {
    let cpu = Device::cpu();
    let on = |device: &Device| -> TensorResult<Vec<f32>> {
        let make = |(n, shape): (usize, &&[usize])| {
            let v = Rng::new(n as u64 + 7).normal(shape, DType::F32, &cpu)?.to_vec()?;
            let t = Tensor::from_vec(v, *shape, device)?.cast(dtype)?;
            t.eval()?;
            Ok(t)
        };
        let operands = shapes.iter().enumerate().map(make).collect::<TensorResult<Vec<_>>>()?;
        f(&operands)?.cast(DType::F32)?.to_vec()
    };
    let (want, got) = (on(&cpu).unwrap(), on(&metal()).unwrap());
    assert_eq!(want.len(), got.len());
    let worst = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{name}: largest difference {worst:e}");
}

#[test]
fn a_product() {
    check("a·bᵀ, relu", &[&[64, 96], &[64, 96]], DType::F16, 2e-2, |t| t[0].matmul(&t[1].t()?)?.relu());
    check("f32", &[&[33, 70], &[70, 21]], DType::F32, 1e-4, |t| t[0].matmul(&t[1]));
    check("one row", &[&[1, 256], &[256, 300]], DType::F16, 5e-2, |t| t[0].matmul(&t[1]));
}

#[test]
fn a_fused_chain() {
    check("tanh(relu(2a + b)²)", &[&[24, 40], &[24, 40]], DType::F16, 2e-3, |t| t[0].mul(2.0)?.add(&t[1])?.relu()?.square()?.tanh());
}

#[test]
fn rows() {
    check("softmax", &[&[5, 300]], DType::F32, 1e-6, |t| t[0].softmax(-1));
    check("sum of softmax of a product", &[&[20, 64], &[64, 48]], DType::F32, 1e-5, |t| t[0].matmul(&t[1])?.softmax(-1)?.sum(&[0], false));
}
