//! Softmax and its logarithm against f64 arithmetic: every variant of the kernel, gradients, every dimension, and what is not finite.

use super::gpu;
use crate::device::under_test::devices;
use crate::ops::tests::*;

/// Softmax, or its logarithm, of one row.
fn of_row(row: &[f64], log: bool) -> Vec<f64> {
    let m = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|v| (v - m).exp()).sum();
    row.iter().map(|v| if log { v - m - sum.ln() } else { (v - m).exp() / sum }).collect()
}

#[test]
fn every_variant_of_the_kernel() {
    for log in [false, true] {
        for (rows, cols) in ROW_SHAPES {
            for d in [F32, F16, DType::BF16] {
                let mut x = noise(rows * cols, 3);
                x.iter_mut().for_each(|v| *v *= 20.0);
                if d == F32 && cols > 6 {
                    x[2] = -3e38;
                }
                let x = Operand::new(d, &[rows, cols], x);
                let want: Vec<f64> = x.values.chunks(cols).flat_map(|row| of_row(row, log)).map(|v| v.max(-3e38)).collect();
                let name = format!("softmax log {log} {d} {rows}x{cols}");
                check(&name, move |s, a| gpu::softmax(log, s, a), &[x], (d, &[rows, cols]), &[], &want, tolerance(d, 2e-6));
            }
        }
    }
}

/// Both along dimension `dim`, and their gradients, on every device and over every kind of view.
#[track_caller]
fn check_along(shape: &[usize], dim: usize, dtype: DType) {
    let (cols, inner) = (shape[dim], shape[dim + 1..].iter().product::<usize>());
    let count = shape.iter().product::<usize>();
    // The elements of each row, which stand `inner` apart.
    let places: Vec<Vec<usize>> =
        (0..count / cols.max(1)).map(|r| (0..cols).map(|c| r / inner * cols * inner + c * inner + r % inner).collect()).collect();
    for device in devices().iter().filter(|d| d.supports(dtype)) {
        for log in [false, true] {
            for &lies in lies_of(usize::from(log) + count + dim, device) {
                let (x, values) = tensor(&noise(count, 1).iter().map(|v| v * 6.0).collect::<Vec<_>>(), shape, dtype, lies, device);
                let (g, slopes) = tensor(&noise(count, 2), shape, dtype, lies, device);
                let x = x.requires_grad().unwrap();
                let y = if log { x.log_softmax(dim) } else { x.softmax(dim) }.unwrap();
                y.mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
                let (mut want, mut slope) = (vec![0.0; count], vec![0.0; count]);
                for row in &places {
                    let (v, g): (Vec<f64>, Vec<f64>) = row.iter().map(|&i| (values[i], slopes[i])).unzip();
                    let (p, out) = (of_row(&v, false), of_row(&v, log));
                    let along: f64 = if log { g.iter().sum() } else { g.iter().zip(&p).map(|(g, p)| g * p).sum() };
                    for (k, &i) in row.iter().enumerate() {
                        want[i] = out[k];
                        slope[i] = if log { g[k] - p[k] * along } else { p[k] * (g[k] - along) };
                    }
                }
                let name = format!("softmax log {log} of {dtype} {shape:?} along {dim}, {lies:?}");
                assert_eq!((y.dims(), y.dtype()), (shape, dtype));
                let exact = if dtype == DType::F64 { 1e-14 } else { 3e-6 };
                assert_near(&name, &y, &want, tolerance(dtype, exact));
                // The gradient is made of results that were rounded.
                assert_near(&format!("gradient of {name}"), &x.grad().unwrap(), &slope, 3.0 * tolerance(dtype, exact));
            }
        }
    }
}

#[test]
fn every_dimension_with_its_gradient() {
    for dtype in [F32, F16, DType::BF16, DType::F64] {
        for (shape, dim) in [
            (&[0, 5][..], 1),
            (&[3, 0], 1),
            (&[1], 0),
            (&[7], 0),
            (&[5, 1], 1),
            (&[3, 6, 4], 0),
            (&[3, 6, 5], 1),
            (&[2, 3, 33], 2),
            (&[4, 1030], 1),
            (&[1030, 3], 0),
        ] {
            check_along(shape, dim, dtype);
        }
    }
}

#[test]
fn of_a_scalar() {
    for device in devices() {
        let x = tensor(&[3.5], &[], F32, Lies::Whole, &device).0.requires_grad().unwrap();
        let (y, log) = (x.softmax(0).unwrap(), x.log_softmax(-1).unwrap());
        assert_eq!((read(&y), read(&log)), (vec![1.0], vec![0.0]));
        y.backward().unwrap();
        assert_eq!(read(&x.grad().unwrap()), [0.0]);
    }
}

#[test]
fn what_is_not_finite() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    // Rows of 0 but for these, and what becomes of these and of the others. The rows beside them are not touched.
    for cols in [5, 130, 1028] {
        let others = 1.0 / (cols - 2) as f64;
        for (at, want, others) in [
            (vec![(3, nan)], nan, nan),
            (vec![(cols - 1, nan)], nan, nan),
            (vec![(0, -inf), (cols - 1, -inf)], 0.0, others),
            // An infinity less itself makes the sum NaN.
            (vec![(2, inf)], nan, nan),
        ] {
            let mut row = vec![0.0; cols];
            at.iter().for_each(|&(i, v)| row[i] = v);
            let even = vec![0.5; cols];
            let want = (0..cols).map(|i| if at.iter().any(|a| a.0 == i) { want } else { others });
            let want: Vec<f64> = of_row(&even, false).into_iter().chain(want).chain(of_row(&even, false)).collect();
            for device in devices() {
                let (x, _) = tensor(&[&even[..], &row, &even].concat(), &[3, cols], F32, Lies::Whole, &device);
                let name = format!("{:?} … in {cols}", &at[..1]);
                assert_near(&name, &x.softmax(-1).unwrap(), &want, 1e-6);
                let logs: Vec<f64> = want.iter().map(|v| v.ln()).collect();
                assert_near(&format!("the logarithm, {name}"), &x.log_softmax(-1).unwrap(), &logs, 1e-6);
            }
        }
    }
}

/// Of a row of which nothing is left the CPU makes NaN, and a GPU what its driver makes of 0 times the reciprocal of 0.
#[test]
fn a_row_of_minus_infinity() {
    for cols in [5, 130, 1028] {
        let even = vec![0.5; cols];
        for device in devices() {
            let x = tensor(&[&even[..], &vec![f64::NEG_INFINITY; cols], &even].concat(), &[3, cols], F32, Lies::Whole, &device).0;
            let y = read(&x.softmax(-1).unwrap());
            let beside = [&y[..cols], &y[2 * cols..]].concat();
            let near = beside.iter().all(|v| (v * cols as f64 - 1.0).abs() < 1e-6);
            let nothing = y[cols..2 * cols].iter().all(|&v| v.is_nan() || v == 0.0 && !device.is_cpu());
            assert!(near && nothing, "{cols} on {}: {y:?}", device.name());
        }
    }
}

#[test]
fn integers_are_taken_as_f32_and_wrong_dimensions_refused() {
    for device in devices() {
        let (x, values) = tensor(&[1.0, -2.0, 0.0, 3.0], &[4], DType::I32, Lies::Whole, &device);
        let y = x.softmax(0).unwrap();
        assert_eq!(y.dtype(), F32);
        assert_near("integers", &y, &of_row(&values, false), 1e-6);
        assert_refused(x.softmax(1), "softmax: ", "softmax/tests.rs");
        assert_refused(x.log_softmax(-2), "log_softmax: ", "softmax/tests.rs");
    }
}
