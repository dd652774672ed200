//! Cross entropy against f64 arithmetic: every variant of the kernel, gradients, classes in any place, targets of every type, what is not finite.

use crate::device::Device;
use crate::device::under_test::{devices, gpu};
use crate::eval::plan_of;
use crate::ops::loss::{NllOptions, Reduction};
use crate::ops::random::Rng;
use crate::ops::tests::*;
use crate::tensor::Tensor;

/// Each row's own loss.
const EACH: NllOptions = NllOptions { weight: None, ignore_index: -100, reduction: Reduction::None, label_smoothing: 0.0 };

/// The logarithm of Σ e^logit.
fn log_sum(row: &[f64]) -> f64 {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + row.iter().map(|v| (v - top).exp()).sum::<f64>().ln()
}

#[test]
fn every_variant_of_the_kernel() {
    let Some(device) = gpu() else { return };
    for (rows, cols) in ROW_SHAPES {
        for d in [F32, F16] {
            let x = Operand::new(d, &[rows, cols], noise(rows * cols, 9).into_iter().map(|v| v * 12.0).collect());
            let classes: Vec<i32> = (0..rows).map(|r| if r % 5 == 3 { -100 } else { (r * 31 % cols) as i32 }).collect();
            let logits = tensor(&x.values, &[rows, cols], d, Lies::Whole, &device).0;
            logits.eval().unwrap();
            let target = Tensor::from_vec(classes.clone(), &[rows], &device).unwrap();
            let losses = logits.cross_entropy(&target, &EACH).unwrap();
            assert_eq!(plan_of(&[&losses]).unwrap().unwrap().steps.len(), 1);
            let got = losses.to_vec().unwrap();
            for (r, row) in x.values.chunks(cols).enumerate() {
                let want = if classes[r] < 0 { 0.0 } else { log_sum(row) - row[classes[r] as usize] };
                let near = tolerance(d, 1e-5) * (1.0 + want.abs());
                assert!((got[r] as f64 - want).abs() <= near, "cross entropy {d} {rows}x{cols}: row {r} is {}, should be {want}", got[r]);
            }
        }
    }
}

/// Losses of logits `[rows, classes]` or `[rows, classes, inner]` and their gradient, on every device and over every kind of view.
#[track_caller]
fn check_losses(shape: &[usize], dtype: DType, targets: DType, ignore_index: i64) {
    let (classes, inner) = (shape[1], shape[2..].iter().product::<usize>());
    let (count, rows) = (shape.iter().product::<usize>(), shape[0] * inner);
    let without: Vec<usize> = [&shape[..1], &shape[2..]].concat();
    for device in devices().iter().filter(|d| d.supports(dtype) && d.supports(targets)) {
        for &lies in lies_of(count + shape.len(), device) {
            let (x, values) = tensor(&noise(count, 1).iter().map(|v| v * 8.0).collect::<Vec<_>>(), shape, dtype, lies, device);
            let class = |r: usize| if r % 5 == 3 { ignore_index as f64 } else { (r * 31 % classes) as f64 };
            let target = tensor(&(0..rows).map(class).collect::<Vec<_>>(), &without, targets, Lies::Whole, device).0;
            let (g, slopes) = tensor(&noise(rows, 2), &without, if dtype == DType::F64 { dtype } else { F32 }, Lies::Whole, device);
            let x = x.requires_grad().unwrap();
            let losses = x.cross_entropy_wide(&target, &NllOptions { ignore_index, ..EACH }).unwrap();
            losses.mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
            let (mut want, mut slope) = (vec![], vec![0.0; count]);
            for r in 0..rows {
                let place = |c: usize| r / inner * classes * inner + c * inner + r % inner;
                let row: Vec<f64> = (0..classes).map(|c| values[place(c)]).collect();
                let (sum, hot) = (log_sum(&row), class(r));
                let counts = hot != ignore_index as f64;
                want.push(if counts { sum - row[hot as usize] } else { 0.0 });
                for c in (0..classes).filter(|_| counts) {
                    slope[place(c)] = ((row[c] - sum).exp() - f64::from(c as f64 == hot)) * slopes[r];
                }
            }
            let name = format!("cross entropy of {dtype} {shape:?} by {targets}, {lies:?}");
            assert_eq!(losses.dims(), without, "{name}");
            let exact = if dtype == DType::F64 { 1e-13 } else { 3e-6 };
            // Of f16 logits the losses are f32.
            assert_near(&name, &losses, &want, exact);
            assert_near(&format!("gradient of {name}"), &x.grad().unwrap(), &slope, tolerance(dtype, 2.0 * exact));
        }
    }
}

#[test]
fn classes_in_any_place_with_their_gradient() {
    for dtype in [F32, F16, DType::BF16, DType::F64] {
        for shape in [&[0, 5][..], &[1, 1], &[7, 3], &[70, 6], &[5, 130], &[3, 1030], &[2, 5, 3], &[3, 33, 4]] {
            check_losses(shape, dtype, DType::I32, -100);
        }
    }
}

#[test]
fn targets_of_every_type() {
    for (targets, ignore) in [(DType::I64, -100), (DType::U32, 2), (DType::U8, 0), (DType::I16, -1), (DType::U64, 3), (DType::I32, 2)] {
        check_losses(&[9, 5], F32, targets, ignore);
        check_losses(&[4, 7, 3], F32, targets, ignore);
    }
}

#[test]
fn what_is_not_finite() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for cols in [5, 130, 1028] {
        let ln = |n: usize| (n as f64).ln();
        // Rows of 0 but for one element; the loss of class 0, and the row after it, which is not touched.
        for (at, value, want) in
            [(3, nan, nan), (0, nan, nan), (3, -inf, ln(cols - 1)), (0, -inf, inf), (3, inf, nan), (0, inf, nan), (3, -3e38, ln(cols - 1))]
        {
            let mut rows = vec![0.0; 2 * cols];
            rows[at] = value;
            for device in devices() {
                let x = tensor(&rows, &[2, cols], F32, Lies::Whole, &device).0;
                let target = Tensor::zeros(&[2], DType::I32, &device).unwrap();
                let got = x.cross_entropy(&target, &EACH).unwrap();
                assert_near(&format!("{value} at {at} of {cols}"), &got, &[want, ln(cols)], 1e-6);
                let ignored = x.cross_entropy(&target, &NllOptions { ignore_index: 0, ..EACH }).unwrap();
                assert_near(&format!("{value} at {at} of {cols}, ignored"), &ignored, &[0.0, 0.0], 0.0);
            }
        }
    }
}

/// Whatever the targets are: no plan of the loss and its gradient stores a number for each class of each row but the gradient itself.
#[test]
fn no_probabilities_are_stored() {
    let (rows, classes) = (48, 1000);
    let check = |device: &Device, what: &str, soft: bool, weighted: bool, label_smoothing: f64| {
        let mut rng = Rng::new(3);
        let mut leaf = |shape: &[usize]| {
            let t = rng.uniform(shape, F32, device).unwrap();
            t.eval().unwrap();
            t
        };
        let (x, shares, weight) = (leaf(&[rows, classes]).requires_grad().unwrap(), leaf(&[rows, classes]), leaf(&[classes]));
        let picks: Vec<i32> = (0..rows as i32).map(|i| i * 17 % classes as i32).collect();
        let target = if soft { shares } else { Tensor::from_vec(picks, &[rows], device).unwrap() };
        let options = NllOptions { weight: weighted.then_some(&weight), label_smoothing, ..Default::default() };
        let loss = x.cross_entropy(&target, &options).unwrap();
        loss.backward().unwrap();
        let plan = plan_of(&[&loss, &x.grad().unwrap()]).unwrap().unwrap();
        for slot in &plan.slots {
            assert!(*slot < 4 * rows * classes, "{what} on {}: a slot of {slot} bytes in\n{plan}", device.name());
        }
    };
    for device in devices() {
        check(&device, "classes", false, false, 0.0);
        check(&device, "classes with smoothing", false, false, 0.1);
        check(&device, "classes with weights and smoothing", false, true, 0.1);
        check(&device, "probabilities", true, false, 0.0);
    }
}

#[test]
fn what_is_refused() {
    for device in devices() {
        let logits = |shape: &[usize]| Tensor::ones(shape, F32, &device).unwrap();
        let classes = |shape: &[usize]| Tensor::zeros(shape, DType::I32, &device).unwrap();
        let file = "cross_entropy/tests.rs";
        assert_refused(
            logits(&[2, 4]).cross_entropy(&classes(&[3]), &EACH),
            "i32[3] for [2,4]: expected integers, one per row of classes",
            file,
        );
        assert_refused(logits(&[2, 4]).cross_entropy(&classes(&[2, 4]), &EACH), "i32[2,4] for [2,4]", file);
        assert_refused(logits(&[2, 0]).cross_entropy(&classes(&[2]), &EACH), "no classes (shape [2,0])", file);
        let weight = logits(&[3]);
        let weighted = logits(&[2, 4]).cross_entropy(&classes(&[2]), &NllOptions { weight: Some(&weight), ..EACH });
        assert_refused(weighted, "weights of [3] for 4 classes", file);
    }
}
