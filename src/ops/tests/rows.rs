//! Kernels over rows against f64 arithmetic: short, long and many rows, odd sizes, element types.

use super::*;
use crate::device::{Device, under_test::gpu};
use crate::ops::attention::AttentionOptions;
use crate::ops::loss::{NllOptions, Reduction};
use crate::ops::{cutoff::gpu::cutoff, norm::gpu::norm, softmax::gpu::softmax};
use crate::tensor::Tensor;

/// Rows and columns: a thread, a subgroup or a workgroup a row, several rows at once, rows that are held and those that are not.
const SHAPES: [(usize, usize); 20] = [
    (1, 1),
    (3, 7),
    (70, 6),
    (65, 32),
    (130, 8),
    (2, 64),
    (9, 100),
    (5, 768),
    (1, 576),
    (5, 1000),
    (3, 1024),
    (2, 9000),
    (2, 9001),
    (1, 12_288),
    (1, 40_000),
    (2, 50_304),
    (1, 70_000),
    (1100, 96),
    (4101, 72),
    (4097, 75),
];

fn tolerance(d: DType, exact: f64) -> f64 {
    match d {
        F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => exact,
    }
}

#[test]
fn softmax_of_rows() {
    for log in [false, true] {
        for (rows, cols) in SHAPES {
            for d in [F32, F16, DType::BF16] {
                let mut x = noise(rows * cols, 3);
                x.iter_mut().for_each(|v| *v *= 20.0);
                if d == F32 && cols > 6 {
                    x[2] = -3e38;
                }
                let x = Operand::new(d, &[rows, cols], x);
                let want: Vec<f64> = x
                    .values
                    .chunks(cols)
                    .flat_map(|row| {
                        let m = row.iter().copied().fold(f64::MIN, f64::max);
                        let sum: f64 = row.iter().map(|v| (v - m).exp()).sum();
                        row.iter().map(move |v| if log { (v - m - sum.ln()).max(-3e38) } else { (v - m).exp() / sum }).collect::<Vec<_>>()
                    })
                    .collect();
                let name = format!("softmax log {log} {d} {rows}x{cols}");
                check(&name, move |s, a| softmax(log, s, a), &[x], (d, &[rows, cols]), &[], &want, tolerance(d, 2e-6));
            }
        }
    }
}

#[test]
fn norms_of_rows() {
    for (rms, weight, bias) in [(false, true, true), (false, false, false), (true, true, false), (true, false, true)] {
        for (n, (rows, cols)) in SHAPES.into_iter().enumerate() {
            for d in [F32, [F16, DType::BF16][n % 2]] {
                let x = Operand::new(d, &[rows, cols], noise(rows * cols, 4).into_iter().map(|v| v * 3.0 + 5.0).collect());
                let (w, b) = (Operand::random(d, &[cols], 5), Operand::random(F32, &[cols], 6));
                let want: Vec<f64> = x
                    .values
                    .chunks(cols)
                    .flat_map(|row| {
                        let n = cols as f64;
                        let mean = if rms { 0.0 } else { row.iter().sum::<f64>() / n };
                        let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
                        let scale = 1.0 / (var + 1e-3f32 as f64).sqrt();
                        (0..cols)
                            .map(|c| {
                                (row[c] - mean) * scale * if weight { w.values[c] } else { 1.0 } + if bias { b.values[c] } else { 0.0 }
                            })
                            .collect::<Vec<_>>()
                    })
                    .collect();
                let mut loads = vec![x];
                if weight {
                    loads.push(w);
                }
                if bias {
                    loads.push(b);
                }
                let make = move |s: &Step, a: &AdapterInfo| norm(rms, 1e-3, weight, bias, s, a);
                let name = format!("norm rms {rms} {d} {rows}x{cols}");
                check(&name, make, &loads, (d, &[rows, cols]), &[], &want, tolerance(d, 5e-6));
            }
        }
    }
}

#[test]
fn losses_of_rows() {
    let Some(device) = gpu() else { return };
    for (rows, cols) in SHAPES {
        for d in [F32, F16] {
            let x = Operand::new(d, &[rows, cols], noise(rows * cols, 9).into_iter().map(|v| v * 12.0).collect());
            let classes: Vec<i32> = (0..rows).map(|r| if r % 5 == 3 { -100 } else { (r * 31 % cols) as i32 }).collect();
            let logits = Tensor::from_vec(x.values.iter().map(|v| *v as f32).collect(), &[rows, cols], &device).unwrap().cast(d).unwrap();
            logits.eval().unwrap();
            let target = Tensor::from_vec(classes.clone(), &[rows], &device).unwrap();
            let options = NllOptions { reduction: Reduction::None, ..Default::default() };
            let losses = logits.cross_entropy(&target, &options).unwrap();
            assert_eq!(crate::eval::plan_of(&[&losses]).unwrap().unwrap().steps.len(), 1);
            let got = losses.to_vec().unwrap();
            for (r, row) in x.values.chunks(cols).enumerate() {
                let top = row.iter().copied().fold(f64::MIN, f64::max);
                let all = top + row.iter().map(|v| (v - top).exp()).sum::<f64>().ln();
                let want = if classes[r] < 0 { 0.0 } else { all - row[classes[r] as usize] };
                let near = tolerance(d, 1e-5) * (1.0 + want.abs());
                assert!((got[r] as f64 - want).abs() <= near, "cross entropy {d} {rows}x{cols}: row {r} is {}, should be {want}", got[r]);
            }
        }
    }
}

#[test]
fn gradients_of_few_queries_use_their_sums() {
    let Some(device) = gpu() else { return };
    let run = |device: &Device| -> Vec<Vec<f32>> {
        let part = |shape: &[usize], seed| {
            let values: Vec<f32> = noise(shape.iter().product(), seed).into_iter().map(|v| v as f32).collect();
            Tensor::from_vec(values, shape, device).unwrap().requires_grad().unwrap()
        };
        // Keys that are shared out among workgroups, which leave the logarithm of the weights' sum.
        let (q, k, v) = (part(&[2, 4, 3, 32], 1), part(&[2, 2, 1700, 32], 2), part(&[2, 2, 1700, 32], 3));
        let options = AttentionOptions { kv_len: Some(1650), ..Default::default() };
        q.attention(&k, &v, None, &options).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap();
        [q, k, v].iter().map(|t| t.grad().unwrap().to_vec().unwrap()).collect()
    };
    for (want, got) in run(&Device::cpu()).iter().zip(run(&device)) {
        let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert!(want.iter().zip(&got).all(|(a, b)| (a - b).abs() <= 1e-4 * size));
    }
}

#[test]
fn cutoffs_of_logits() {
    use crate::ops::cutoff::Cutoff;
    for (n, top_k, top_p, min_p) in
        [(1, 0, 0.5, 0.0), (300, 7, 1.0, 0.0), (5003, 0, 0.9, 0.0), (50_257, 50, 0.8, 0.0), (999, 0, 0.99, 0.02)]
    {
        let x = Operand::new(F32, &[n], noise(n, 5).into_iter().map(|v| v * 9.0).collect());
        let of = Cutoff { temperature: 0.9, top_k, top_p, min_p };
        let want = of.of(&mut x.values.iter().map(|v| *v as f32).collect::<Vec<_>>());
        let name = format!("cutoff of {n} {of:?}");
        check(&name, move |s, a| cutoff(&of, s, a), &[x], (F32, &[1]), &[], &[want as f64], 1e-6);
    }
}
