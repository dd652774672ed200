//! Reductions of few long rows: right against f64, one dispatch, and the same bits in every run.

use crate::common::devices;
use tensorlogic::{DType, Rng, Tensor, TensorResult};

/// Runs `f` on random values of this shape and compares with `want`, rows by f64 over `[rows, cols]`.
fn check(shape: &[usize], dims: &[isize], rows: usize, f: fn(&Tensor, &[isize]) -> TensorResult<Tensor>, want: fn(&[f64]) -> f64) {
    for d in devices() {
        for dtype in [DType::F32, DType::F16] {
            let x = Rng::new(5).normal(shape, dtype, &d).unwrap();
            x.eval().unwrap();
            let run = || f(&x, dims).unwrap().cast(DType::F32).unwrap();
            let plan = run().explain().unwrap();
            assert!(plan.contains("1 dispatch"), "{plan}");
            // A transposed operand is reduced over its rows here.
            let values: Vec<f64> = x.to_vec().unwrap().iter().map(|v| *v as f64).collect();
            let cols = values.len() / rows;
            let by_rows = |r: usize| match dims {
                [0] => (0..cols).map(|c| values[c * rows + r]).collect::<Vec<f64>>(),
                _ => values[r * cols..(r + 1) * cols].to_vec(),
            };
            let first = run().to_vec().unwrap();
            for r in 0..rows {
                let row = by_rows(r);
                let (w, scale) = (want(&row), row.iter().map(|v| v.abs()).sum::<f64>().sqrt());
                let tolerance = 1e-6 * scale * (cols as f64).sqrt().max(1.0) + 1e-3 * w.abs();
                assert!((first[r] as f64 - w).abs() <= tolerance, "{} {dtype} {shape:?} row {r}: {} {w}", d.name(), first[r]);
            }
            for _ in 0..10 {
                let again = run().to_vec().unwrap();
                assert!(first.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()), "bits differ between runs");
            }
        }
    }
}

#[test]
fn long_rows_are_shared_by_workgroups() {
    let max = |r: &[f64]| r.iter().copied().fold(f64::MIN, f64::max);
    let argmin = |r: &[f64]| (0..r.len()).fold(0, |b, i| if r[i] < r[b] { i } else { b }) as f64;
    for (shape, dims, rows) in [
        (&[1 << 20][..], &[][..], 1),
        (&[250_003], &[], 1),
        (&[3, 50_001], &[1], 3),
        (&[7, 33_333], &[1], 7),
        (&[50_000, 8], &[0], 8),
        (&[20_001, 5], &[0], 5),
    ] {
        check(shape, dims, rows, |x, d| x.sum(d, false), |r| r.iter().sum());
        check(shape, dims, rows, |x, d| x.mean(d, false), |r| r.iter().sum::<f64>() / r.len() as f64);
        check(shape, dims, rows, |x, d| x.max(d, false), max);
    }
    check(&[1 << 20], &[0], 1, |x, _| x.argmin(0), argmin);
    check(&[4, 60_001], &[1], 4, |x, _| x.argmin(1), argmin);
}

#[test]
fn a_fused_chain_goes_into_the_sum_and_several_sums_follow_each_other() {
    for d in devices() {
        let x = Rng::new(9).uniform(&[300_000], DType::F32, &d).unwrap();
        x.eval().unwrap();
        // Sums one after the other share the counters: each must find them as it left them.
        let mut want = 0.0f64;
        let values = x.to_vec().unwrap();
        let mut sum = Tensor::zeros(&[], DType::F32, &d).unwrap();
        for i in 0..5 {
            sum = sum.add(&x.mul(i as f64).unwrap().sum_all().unwrap()).unwrap();
            want += values.iter().map(|v| *v as f64 * i as f64).sum::<f64>();
        }
        let got = sum.item().unwrap();
        assert!((got - want).abs() < 1e-5 * want, "{}: {got} {want}", d.name());
    }
}
