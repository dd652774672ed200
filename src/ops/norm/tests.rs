//! Layer norm and RMS norm against f64 arithmetic: every variant of the kernels, gradients, every kind of view, and what is not finite.

use super::{gpu, grad_gpu};
use crate::device::under_test::devices;
use crate::ops::tests::*;
use crate::tensor::Tensor;

/// Which norm, and what it is given: RMS, a weight, a bias.
const NORMS: [(bool, bool, bool); 4] = [(false, true, true), (false, false, false), (true, true, false), (true, false, true)];

/// Mean and inverse deviation of one row.
fn moments(row: &[f64], rms: bool, eps: f64) -> (f64, f64) {
    let n = row.len() as f64;
    let mean = if rms { 0.0 } else { row.iter().sum::<f64>() / n };
    let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    (mean, 1.0 / (var + eps).sqrt())
}

fn of_row(row: &[f64], rms: bool, eps: f64, weight: Option<&[f64]>, bias: Option<&[f64]>) -> Vec<f64> {
    let (mean, scale) = moments(row, rms, eps);
    (0..row.len()).map(|c| (row[c] - mean) * scale * weight.map_or(1.0, |w| w[c]) + bias.map_or(0.0, |b| b[c])).collect()
}

/// The gradient of a row, whose result has the gradient `g`.
fn grad_of_row(row: &[f64], g: &[f64], rms: bool, eps: f64, weight: Option<&[f64]>) -> Vec<f64> {
    let (n, (mean, scale)) = (row.len() as f64, moments(row, rms, eps));
    let unit: Vec<f64> = row.iter().map(|v| (v - mean) * scale).collect();
    let h: Vec<f64> = (0..row.len()).map(|c| g[c] * weight.map_or(1.0, |w| w[c])).collect();
    let along = h.iter().zip(&unit).map(|(h, u)| h * u).sum::<f64>() / n;
    let shift = if rms { 0.0 } else { h.iter().sum::<f64>() / n };
    h.iter().zip(&unit).map(|(h, u)| (h - shift - u * along) * scale).collect()
}

#[test]
fn every_variant_of_the_kernel() {
    for (rms, weight, bias) in NORMS {
        for (n, (rows, cols)) in ROW_SHAPES.into_iter().enumerate() {
            for d in [F32, [F16, DType::BF16][n % 2]] {
                let x = Operand::new(d, &[rows, cols], noise(rows * cols, 4).into_iter().map(|v| v * 3.0 + 5.0).collect());
                let (w, b) = (Operand::random(d, &[cols], 5), Operand::random(F32, &[cols], 6));
                let (wv, bv) = (weight.then_some(&w.values[..]), bias.then_some(&b.values[..]));
                let want: Vec<f64> = x.values.chunks(cols).flat_map(|row| of_row(row, rms, 1e-3f32 as f64, wv, bv)).collect();
                let loads: Vec<Operand> = [Some(x), weight.then(|| w.clone()), bias.then(|| b.clone())].into_iter().flatten().collect();
                let make = move |s: &Step, a: &AdapterInfo| gpu::norm(rms, 1e-3, weight, bias, s, a);
                let name = format!("norm rms {rms} {d} {rows}x{cols}");
                check(&name, make, &loads, (d, &[rows, cols]), &[], &want, tolerance(d, 5e-6));
            }
        }
    }
}

#[test]
fn every_variant_of_the_gradients_kernel() {
    for (rms, weight, _) in NORMS {
        for (rows, cols) in [(1, 1), (3, 7), (70, 6), (130, 8), (9, 100), (5, 768), (3, 1027), (2, 9000), (2, 9001), (1100, 96)] {
            let x = Operand::new(F32, &[rows, cols], noise(rows * cols, 4).into_iter().map(|v| v * 3.0 + 0.5).collect());
            let (g, w) = (Operand::random(F32, &[rows, cols], 5), Operand::random(F32, &[cols], 6));
            let eps = 1e-3f32 as f64;
            let both = x.values.chunks(cols).zip(g.values.chunks(cols));
            let want: Vec<f64> = both.flat_map(|(x, g)| grad_of_row(x, g, rms, eps, weight.then_some(&w.values[..]))).collect();
            let (means, scales): (Vec<f64>, Vec<f64>) = x.values.chunks(cols).map(|row| moments(row, rms, eps)).unzip();
            let loads: Vec<Operand> = [Some(x), Some(g), weight.then_some(w)].into_iter().flatten().collect();
            let outs: [(DType, &[usize], &[f64]); 3] = [(F32, &[rows, cols], &want), (F32, &[rows], &means), (F32, &[rows], &scales)];
            let name = format!("norm_grad rms {rms} weight {weight} {rows}x{cols}");
            let make = move |s: &Step, a: &AdapterInfo| grad_gpu::norm_grad(rms, 1e-3, weight, s, a);
            check_all(&name, make, &loads, &outs, &[], 2e-5);
            let least = move |s: &Step, a: &AdapterInfo| {
                make(s, &AdapterInfo { subgroup: 0, workgroup_bytes: 16384, workgroup_threads: 256, coop: 0, ..a.clone() })
            };
            check_all(&format!("{name}, least"), least, &loads, &outs, &[], 2e-5);
        }
    }
}

/// A norm of a tensor, with its weight and bias and the number that is added to the variance.
fn norm(x: &Tensor, rms: bool, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> crate::error::TensorResult<Tensor> {
    match (rms, bias) {
        (false, _) => x.layer_norm(weight, bias, eps),
        (true, None) => x.rms_norm(weight, eps),
        (true, Some(bias)) => x.rms_norm(weight, eps)?.add(bias),
    }
}

/// Each norm and its gradients, on every device and over every kind of view.
#[track_caller]
fn check_norms(shape: &[usize], dtype: DType) {
    let (cols, count) = (shape[shape.len() - 1], shape.iter().product::<usize>());
    let eps = 1e-3;
    for device in devices().iter().filter(|d| d.supports(dtype)) {
        for (nth, (rms, weight, bias)) in NORMS.into_iter().enumerate() {
            for &lies in lies_of(nth + count, device) {
                let values: Vec<f64> = noise(count, 1).iter().map(|v| v * 3.0 + 0.5).collect();
                let (x, xv) = tensor(&values, shape, dtype, lies, device);
                let (g, gv) = tensor(&noise(count, 2), shape, dtype, lies, device);
                let (w, wv) = tensor(&noise(cols, 3), &[cols], dtype, Lies::Whole, device);
                let (b, bv) = tensor(&noise(cols, 4), &[cols], dtype, Lies::Whole, device);
                let [x, w, b] = [x, w, b].map(|t| t.requires_grad().unwrap());
                let y = norm(&x, rms, weight.then_some(&w), bias.then_some(&b), eps).unwrap();
                y.mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
                let name = format!("norm rms {rms} weight {weight} bias {bias} of {dtype} {shape:?}, {lies:?}");
                assert_eq!((y.dims(), y.dtype()), (shape, dtype), "{name}");
                let (mut want, mut slope, mut by_weight, mut by_bias) = (vec![], vec![], vec![0.0; cols], vec![0.0; cols]);
                // The largest term of the row's gradient: a sum of both signs is as exact as its terms.
                let mut largest = 0f64;
                for (row, g) in xv.chunks(cols.max(1)).zip(gv.chunks(cols.max(1))) {
                    let (w, b) = (weight.then_some(&wv[..]), bias.then_some(&bv[..]));
                    want.extend(of_row(row, rms, eps, w, b));
                    slope.extend(grad_of_row(row, g, rms, eps, w));
                    largest = g.iter().fold(largest, |m, g| m.max(g.abs() * moments(row, rms, eps).1));
                    for (c, unit) in of_row(row, rms, eps, None, None).into_iter().enumerate() {
                        by_weight[c] += g[c] * unit;
                        by_bias[c] += g[c];
                    }
                }
                let near = tolerance(dtype, if dtype == DType::F64 { 1e-12 } else { 5e-6 });
                assert_near(&name, &y, &want, near);
                let size = slope.iter().fold(1e-30f64, |m, v| m.max(v.abs()));
                assert_near(&format!("gradient of {name}"), &x.grad().unwrap(), &slope, 4.0 * near * (largest / size).max(1.0));
                if weight {
                    assert_near(&format!("gradient of the weight, {name}"), &w.grad().unwrap(), &by_weight, 4.0 * near);
                }
                if bias {
                    assert_near(&format!("gradient of the bias, {name}"), &b.grad().unwrap(), &by_bias, 4.0 * near);
                }
            }
        }
    }
}

#[test]
fn rows_of_every_size_with_their_gradients() {
    for dtype in [F32, F16, DType::BF16, DType::F64] {
        for shape in [&[0, 5][..], &[3, 0], &[1], &[6], &[3, 1], &[2, 3, 7], &[70, 9], &[2, 1032], &[300, 12]] {
            check_norms(shape, dtype);
        }
    }
}

#[test]
fn what_is_not_finite_and_rows_without_variance() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for cols in [6, 130, 1028] {
        // Between two rows that are not touched: a row with one of these makes all its elements NaN, but RMS norm of a row with an infinity, whose
        // finite elements are divided by it.
        let even: Vec<f64> = noise(cols, 1);
        for special in [nan, inf, -inf] {
            let row: Vec<f64> = (0..cols).map(|c| if c == cols - 2 { special } else { 0.5 }).collect();
            for device in devices() {
                let (x, _) = tensor(&[&even[..], &row, &even].concat(), &[3, cols], F32, Lies::Whole, &device);
                for rms in [false, true] {
                    let finite = if rms && special.is_infinite() { 0.0 } else { nan };
                    let middle = (0..cols).map(|c| if c == cols - 2 { nan } else { finite });
                    let outer = of_row(&read(&x)[..cols], rms, 1e-5, None, None);
                    let want: Vec<f64> = outer.iter().copied().chain(middle).chain(outer.iter().copied()).collect();
                    let got = norm(&x, rms, None, None, 1e-5).unwrap();
                    assert_near(&format!("rms {rms}: {special} in {cols}"), &got, &want, 5e-6);
                }
            }
        }
        for device in devices() {
            let x = Tensor::full(3.0, &[2, cols], F32, &device).unwrap();
            let want = vec![0.0; 2 * cols];
            assert_near("equal elements", &x.layer_norm(None, None, 1e-5).unwrap(), &want, 1e-5);
            let unit = vec![3.0 / (9.0f64 + 1e-5).sqrt(); 2 * cols];
            assert_near("equal elements", &x.rms_norm(None, 1e-5).unwrap(), &unit, 5e-6);
        }
    }
}

#[test]
fn what_is_refused() {
    for device in devices() {
        let of = |shape: &[usize]| Tensor::ones(shape, F32, &device).unwrap();
        let (x, file) = (of(&[2, 4]), "norm/tests.rs");
        assert_refused(x.layer_norm(Some(&of(&[3])), None, 1e-5), "weight [3] does not match the last dimension of [2,4]", file);
        assert_refused(x.layer_norm(None, Some(&of(&[1, 4])), 1e-5), "bias [1,4] does not match the last dimension of [2,4]", file);
        assert_refused(x.rms_norm(Some(&of(&[2])), 1e-5), "weight [2] does not match", file);
        assert_refused(of(&[]).layer_norm(None, None, 1e-5), "a scalar has no last dimension", file);
        assert_refused(of(&[]).rms_norm(None, 1e-5), "a scalar has no last dimension", file);
    }
}
