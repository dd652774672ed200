//! Gradients where a function has a kink or its definition a case, at that very place: PyTorch's choice. And what it makes of rank 0.
//!
//! `tests/reference/make_kinks.py` made the vectors.

use crate::common::devices;
use serde_json::Value;
use tensorlogic::autograd::{GradOptions, grad};
use tensorlogic::{Device, Tensor, TensorResult};

/// The function that PyTorch calls so, with the numbers that the script gives it.
fn apply(name: &str, x: &[Tensor]) -> TensorResult<Tensor> {
    let a = &x[0];
    match name {
        "abs" => a.abs(),
        "sign" => a.sign(),
        "floor" => a.floor(),
        "round" => a.round(),
        "frac" => a.frac(),
        "square" => a.square(),
        "relu" => a.relu(),
        "relu6" => a.relu6(),
        "leaky_relu" => a.leaky_relu(0.25),
        "elu" => a.elu(2.0),
        "celu" => a.celu(2.0),
        "selu" => a.selu(),
        "silu" => a.silu(),
        "gelu" => a.gelu(),
        "gelu_tanh" => a.gelu_tanh(),
        "mish" => a.mish(),
        "softplus" => a.softplus(),
        "softplus_with" => a.softplus_with(2.0, 6.0),
        "log_sigmoid" => a.log_sigmoid(),
        "softsign" => a.softsign(),
        "hardsigmoid" => a.hardsigmoid(),
        "hardswish" => a.hardswish(),
        "hardtanh" => a.hardtanh(-1.0, 2.0),
        "hardshrink" => a.hardshrink(0.5),
        "softshrink" => a.softshrink(0.5),
        "threshold" => a.threshold(1.0, -2.0),
        "clamp" => a.clamp(Some(-1.0), Some(2.0)),
        "clamp_min" => a.clamp(Some(-1.0), None),
        "clamp_max" => a.clamp(None, Some(2.0)),
        "clamp_tensors" => a.clamp_tensors(Some(&x[1]), Some(&x[2])),
        "clamp_min_tensor" => a.clamp_tensors(Some(&x[1]), None),
        "clamp_max_tensor" => a.clamp_tensors(None, Some(&x[1])),
        "maximum" => a.maximum(&x[1]),
        "minimum" => a.minimum(&x[1]),
        "fmax" => a.fmax(&x[1]),
        "fmin" => a.fmin(&x[1]),
        "logaddexp" => a.logaddexp(&x[1]),
        "copysign" => a.copysign(&x[1]),
        "lerp" => a.lerp(&x[1], 0.5),
        "atan2" => a.atan2(&x[1]),
        "pow" => a.pow(2.0),
        "pow_1" => a.pow(1.0),
        "norm_3" => a.norm(3.0, &[], false)?.reshape(&[1]),
        "norm_1_5" => a.norm(1.5, &[], false)?.reshape(&[1]),
        "norm" => a.norm(2.0, &[], false)?.reshape(&[1]),
        other => panic!("no function for {other}"),
    }
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Where two lists differ by more than f32's rounding, in words.
fn check(case: &str, device: &Device, inputs: &[Vec<f64>], got: &[f32], want: &[f64]) -> Vec<String> {
    let mut wrong = Vec::new();
    if got.len() != want.len() {
        wrong.push(format!("{case} on {}: {} numbers, not {}", device.name(), got.len(), want.len()));
    }
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let right = (f64::from(g) - w).abs() <= 3e-6 * w.abs().max(1.0);
        if !right {
            let at: Vec<_> = inputs.iter().map(|x| x[i]).collect();
            wrong.push(format!("{case} on {} at {at:?}: {g}, not {w}", device.name()));
        }
    }
    wrong
}

#[test]
fn gradients_at_kinks_are_pytorchs() {
    let file: Value = serde_json::from_str(include_str!("../../vectors/kinks.json")).unwrap();
    let mut wrong = Vec::new();
    for device in devices() {
        for case in file["cases"].as_array().unwrap() {
            let name = case["name"].as_str().unwrap();
            let inputs: Vec<Vec<f64>> = case["inputs"].as_array().unwrap().iter().map(numbers).collect();
            let tensor = |v: &Vec<f64>| Tensor::from_vec(v.iter().map(|x| *x as f32).collect::<Vec<_>>(), &[v.len()], &device).unwrap();
            let x: Vec<Tensor> = inputs.iter().map(|v| tensor(v).requires_grad().unwrap()).collect();
            let y = apply(name, &x).unwrap();
            wrong.extend(check(name, &device, &inputs, &y.to_vec().unwrap(), &numbers(&case["value"])));
            let refs: Vec<&Tensor> = x.iter().collect();
            // So that each input takes part, also where the derivative is 0 everywhere.
            let sum = x.iter().fold(y.sum_all().unwrap(), |s, x| s.add(&x.mul(0.0).unwrap().sum_all().unwrap()).unwrap());
            let gradients = grad(&[&sum], &refs, &GradOptions::default()).unwrap();
            for (k, g) in gradients.into_iter().enumerate() {
                let got = g.to_vec().unwrap();
                let want = numbers(&case["gradients"][k]);
                wrong.extend(check(&format!("gradient {k} of {name}"), &device, &inputs, &got, &want));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `torch.gather` and `torch.index_select` take a tensor of no dimensions as one of one element; the result has the index's dimensions, or none.
#[test]
fn rank_0_is_indexed_as_by_pytorch() {
    for device in devices() {
        let single = |shape: &[usize]| Tensor::from_vec(vec![3.0f32], shape, &device).unwrap().requires_grad().unwrap();
        let index = |n: usize, shape: &[usize]| Tensor::from_vec(vec![0i32; n], shape, &device).unwrap();
        for (table, n, shape) in [(&[][..], 1, &[][..]), (&[], 1, &[1]), (&[], 2, &[2]), (&[], 0, &[0]), (&[1], 1, &[])] {
            for d in [0, -1] {
                let x = single(table);
                let y = x.gather(d, &index(n, shape)).unwrap();
                assert_eq!((y.dims(), y.to_vec().unwrap()), (shape, vec![3.0; n]), "gather of {table:?} on {}", device.name());
                let g = grad(&[&y.sum_all().unwrap()], &[&x], &GradOptions::default()).unwrap().remove(0);
                assert_eq!((g.dims(), g.to_vec().unwrap()), (table, vec![n as f32]));
            }
        }
        for shape in [&[][..], &[1]] {
            let y = single(&[]).index_select(0, &index(1, shape)).unwrap();
            assert_eq!((y.rank(), y.to_vec().unwrap()), (0, vec![3.0]));
        }
        assert!(single(&[]).gather(0, &index(1, &[1, 1])).is_err() && single(&[]).gather(1, &index(1, &[1])).is_err());
    }
}

/// Of a table's rows each gets the sum of the gradients that came to it, but the padding's none: `torch.nn.functional.embedding`.
#[test]
fn no_gradient_reaches_the_row_of_padding() {
    for device in devices() {
        let table = Tensor::from_vec((0..8).map(|i| i as f32).collect::<Vec<_>>(), &[4, 2], &device).unwrap();
        let index = Tensor::from_vec(vec![0i32, 1, 3, 1, 0, 2], &[2, 3], &device).unwrap();
        for padding in [0isize, 1, 3, -1, -3] {
            let w = table.requires_grad().unwrap();
            let y = w.embedding_with_padding(&index, padding).unwrap();
            assert_eq!(y.to_vec().unwrap(), [0.0, 1.0, 2.0, 3.0, 6.0, 7.0, 2.0, 3.0, 0.0, 1.0, 4.0, 5.0]);
            // An infinite gradient too is kept out, not multiplied by 0.
            let by = y.mul(f64::INFINITY).unwrap().sum_all().unwrap();
            let g = grad(&[&by], &[&w], &GradOptions::default()).unwrap().remove(0).to_vec().unwrap();
            let row = padding.rem_euclid(4) as usize;
            for (i, g) in g.into_iter().enumerate() {
                let want = if i / 2 == row { 0.0 } else { f32::INFINITY };
                assert_eq!(g, want, "row {} with padding {padding} on {}", i / 2, device.name());
            }
        }
    }
}
