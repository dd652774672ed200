//! Where small work is done. Alone in its program, one test at a time: submits and transfers are counted on the device.

mod common;

use std::sync::MutexGuard;
use tensorlogic::eval::eval_all;
use tensorlogic::ops::custom::CustomOp;
use tensorlogic::{DType, Device, Tensor, TensorError};

/// The GPU of the tests with adaptive execution on, or `None` where there is none and none is required.
fn gpu() -> (MutexGuard<'static, ()>, Option<Device>) {
    (common::alone(), common::gpu().inspect(|d| d.set_adaptive(true)))
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 97) as f32 - 48.0).collect()
}
fn relu(v: &[f32]) -> Vec<f32> {
    v.iter().map(|v| v.max(0.0)).collect()
}

#[test]
fn small_work_on_host_values_never_goes_to_the_gpu_and_large_work_does() {
    let (_turn, Some(d)) = gpu() else { return };
    let c = d.measure_crossover().unwrap();
    println!("{c:?}: {} elements", c.elements());
    assert!(c.round_trip > 0.0 && c.submit > 0.0 && c.submit <= c.round_trip && c.host > 0.0 && c.host_element > 0.0 && c.host_op > 0.0);
    assert_eq!(d.crossover().unwrap(), c);
    let (submits, moved) = (d.submits(), d.transfers());
    let x = Tensor::from_vec(values(64), &[8, 8], &d).unwrap();
    assert_eq!(x.relu().unwrap().to_vec().unwrap(), relu(&values(64)));
    // A result that stayed with the host is an input like any other.
    let y = x.matmul(&x).unwrap().sum_all().unwrap();
    let z = y.add(1.0).unwrap().item().unwrap();
    let v = values(64);
    let sum: f32 = (0..8).map(|i| (0..8).map(|j| (0..8).map(|k| v[i * 8 + k] * v[k * 8 + j]).sum::<f32>()).sum::<f32>()).sum();
    assert_eq!(z, sum as f64 + 1.0);
    assert_eq!((d.submits(), d.transfers()), (submits, moved), "small host values went to the GPU");
    assert_eq!(x.device(), &d);

    // More work than the way to the GPU costs.
    let n = 1 << 22;
    let big = Tensor::from_vec(values(n), &[n], &d).unwrap();
    assert_eq!(big.relu().unwrap().to_vec().unwrap(), relu(&values(n)));
    assert_eq!(d.submits(), submits + 1);

    // Off: everything goes to the GPU.
    d.set_adaptive(false);
    let x = Tensor::from_vec(values(64), &[64], &d).unwrap();
    assert_eq!(x.relu().unwrap().to_vec().unwrap(), relu(&values(64)));
    assert_eq!(d.submits(), submits + 2);
}

#[test]
fn what_is_on_the_device_is_never_fetched() {
    let (_turn, Some(d)) = gpu() else { return };
    d.crossover().unwrap();
    let n = 1 << 22;
    let big = Tensor::from_vec(values(n), &[n], &d).unwrap();
    // One element, but on the device.
    let sum = big.sum_all().unwrap();
    sum.eval().unwrap();
    let small = Tensor::from_vec(vec![2.0f32], &[], &d).unwrap();
    let (submits, moved) = (d.submits(), d.transfers());
    let y = sum.mul(&small).unwrap();
    let z = small.add(3.0).unwrap();
    eval_all(&[&y, &z]).unwrap();
    let after = d.transfers();
    assert_eq!(after.downloads, moved.downloads, "a value was fetched from the device");
    assert_eq!((d.submits() - submits, after.uploads - moved.uploads), (1, 1));
    assert_eq!(y.item().unwrap(), values(n).iter().map(|v| *v as f64).sum::<f64>() * 2.0);
    assert_eq!(z.item().unwrap(), 5.0);
}

#[test]
fn an_operation_that_only_the_gpu_knows_runs_there() {
    static TWICE: CustomOp = CustomOp::elementwise("twice").wgsl("fn twice(x: f32) -> f32 { return x + x; }");
    let (_turn, Some(d)) = gpu() else { return };
    d.crossover().unwrap();
    let submits = d.submits();
    let x = Tensor::from_vec(values(64), &[64], &d).unwrap();
    assert_eq!(TWICE.apply(&[&x], &[]).unwrap().to_vec().unwrap(), values(64).iter().map(|v| v * 2.0).collect::<Vec<_>>());
    assert_eq!(d.submits(), submits + 1);
}

#[test]
fn results_of_the_host_serve_the_device() {
    let (_turn, Some(d)) = gpu() else { return };
    d.crossover().unwrap();
    let scale = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], &[4], &d).unwrap().square().unwrap();
    let submits = d.submits();
    scale.to_vec().unwrap();
    assert_eq!(d.submits(), submits);
    let n = 1 << 20;
    let big = Tensor::from_vec(values(4 * n), &[n, 4], &d).unwrap();
    let expected: Vec<f32> = values(4 * n).iter().enumerate().map(|(i, v)| v * ((i % 4 + 1) * (i % 4 + 1)) as f32).collect();
    assert_eq!(big.mul(&scale).unwrap().to_vec().unwrap(), expected);
    assert_eq!(d.submits(), submits + 1);
    // Writes to such values leave other handles alone.
    let old = scale.clone();
    let new = scale.write(&Tensor::zeros(&[1], DType::F32, &d).unwrap(), 0, 1).unwrap();
    drop(scale);
    assert_eq!(new.to_vec().unwrap(), [1.0, 0.0, 9.0, 16.0]);
    assert_eq!(old.to_vec().unwrap(), [1.0, 4.0, 9.0, 16.0]);
    // f16, whose arithmetic the host does in f32 as the device does.
    let h = old.cast(DType::F16).unwrap().mul(0.1).unwrap();
    let f: Vec<f32> = [1.0f32, 4.0, 9.0, 16.0].iter().map(|v| half(v * half(0.1))).collect();
    let got = h.to_vec().unwrap();
    assert!(got.iter().zip(&f).all(|(a, b)| (a - b).abs() <= 2e-3 * b.abs()), "{got:?} {f:?}");
    // An index outside its dimension is found.
    let index = Tensor::from_vec(vec![9i32], &[1], &d).unwrap();
    let error = old.index_select(0, &index).unwrap().to_vec().unwrap_err();
    assert!(matches!(error, TensorError::Index { .. }), "{error}");
    assert_eq!(old.to_vec().unwrap(), [1.0, 4.0, 9.0, 16.0]);
}

/// An f32 with a mantissa of 10 bits, as f16 has for these sizes.
fn half(v: f32) -> f32 {
    let unit = 2f32.powi(v.abs().log2().floor() as i32 - 10);
    (v / unit).round() * unit
}

#[test]
fn the_serving_engine_keeps_its_pages_on_the_device() {
    use tensorlogic::models::{self, Weights};
    use tensorlogic::serving::{Engine, EngineOptions, Request};
    let (_turn, Some(d)) = gpu() else { return };
    d.crossover().unwrap();
    let file = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");
    let model = models::load(&Weights::open(file, &d).unwrap(), None).unwrap();
    // Pages for one short text: zeros that the CPU would make faster.
    let engine =
        Engine::start(model, &d, EngineOptions { rows: 1, context: Some(64), kv_bytes: 0, chunk: Some(16), ..Default::default() }).unwrap();
    assert_eq!(engine.submit(Request::new(&[1, 2, 3], 4)).unwrap().wait().unwrap().0.len(), 4);
}
