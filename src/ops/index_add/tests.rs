//! Rows combined with those of a table against plain loops: every way to combine, types, dimensions, gradients, what is not finite.

use super::Combine::{self, Add, Max, Min, Mul, Set};
use super::gpu;
use crate::device::Device;
use crate::device::under_test::devices;
use crate::error::TensorResult;
use crate::ops::tests::*;
use crate::tensor::Tensor;

const ALL: [Combine; 5] = [Add, Set, Mul, Min, Max];

/// Entries of the table with those of `rows` whose index names them, one after the other.
fn combined(how: Combine, table: &[f64], index: &[usize], rows: &[f64], inner: usize) -> Vec<f64> {
    let mut out = table.to_vec();
    for (i, &t) in index.iter().enumerate() {
        for c in 0..inner {
            let (y, x) = (&mut out[t * inner + c], rows[i * inner + c]);
            *y = match how {
                Add => *y + x,
                Set => x,
                Mul => *y * x,
                _ if y.is_nan() || x.is_nan() => f64::NAN,
                Min => y.min(x),
                Max => y.max(x),
            };
        }
    }
    out
}

/// Indices of which some are equal and some rows are never named.
fn picks(n: usize, count: usize) -> Vec<usize> {
    (0..count).map(|i| (i * 7919 + i * i % 5) % n / 2 * 2 % n).collect()
}

#[test]
fn every_variant_of_the_kernel() {
    for how in ALL {
        for dtype in [F32, F16, DType::I32, DType::U32] {
            // A piece of a row per workgroup, a row, and several rows.
            for (n, inner, count) in [(1, 1, 5), (7, 3, 300), (50, 600, 90), (300, 8, 3), (4, 1030, 70), (3001, 5, 900), (503, 12, 401)] {
                let whole = !dtype.is_float();
                // Products stay in range: factors near 1, or small ones of which some are 0.
                let value = |v: f64| match (whole, how) {
                    (true, Mul) => v.round() + 1.0,
                    (true, _) => (v * 3.0).round() + 3.0,
                    (false, Mul) => 1.0 + v / 64.0,
                    (false, _) => v,
                };
                let values = |count: usize, seed| noise(count, seed).into_iter().map(value).collect();
                let (table, rows) = (
                    Operand::new(dtype, &[n, inner], values(n * inner, 1)),
                    Operand::new(dtype, &[count, inner], values(count * inner, 2)),
                );
                let index = picks(n, count);
                let want = combined(how, &table.values, &index, &rows.values, inner);
                assert!(want.iter().all(|v| v.abs() < 2e9), "{how:?} {dtype}: integers wrap");
                let loads = [table, Operand::new(DType::I32, &[count], index.iter().map(|&i| i as f64).collect()), rows];
                let make = move |s: &Step, a: &AdapterInfo| gpu::index_add(how, s, a);
                let name = format!("{how:?} {dtype} {n}x{inner} by {count}");
                check(&name, make, &loads, (dtype.compute(), &[n, inner]), &[], &want, if whole { 0.0 } else { 1e-5 });
            }
        }
    }
}

/// What combines entries along a dimension, as users call it.
fn by(how: Combine, x: &Tensor, d: usize, index: &Tensor, rows: &Tensor) -> TensorResult<Tensor> {
    match how {
        Add => x.index_add(d, index, rows),
        Set => x.index_copy(d, index, rows),
        _ => x.combine(d, index, rows, how),
    }
}

/// Entries along dimension `dim` of a table `[a, n, b]`, on every device and over every kind of view.
#[track_caller]
fn check_along(how: Combine, dim: usize, dtype: DType, targets: DType) {
    let (mut shape, count) = ([3, 4, 6], 7);
    let n = shape[dim];
    let index = picks(n, count);
    // Row-major order with the dimension first, for the loops.
    let first = |values: &[f64], shape: [usize; 3]| -> Vec<f64> {
        let mut order: Vec<usize> = (0..3).filter(|&d| d != dim).collect();
        order.insert(0, dim);
        let t = Tensor::from_vec(values.to_vec(), &shape, &Device::cpu()).unwrap();
        t.permute(&order).unwrap().to_vec_of::<f64>().unwrap()
    };
    for device in devices().iter().filter(|d| d.supports(dtype) && d.supports(targets)) {
        for &lies in lies_of(how as usize + dim, device) {
            let whole = |v: &f64| if dtype.is_float() { 1.0 + v / 3.0 } else { (v * 3.0).round().abs() };
            let (x, table) = tensor(&noise(72, 1).iter().map(whole).collect::<Vec<_>>(), &shape, dtype, lies, device);
            let outer = shape;
            shape[dim] = count;
            let (rows, row_values) =
                tensor(&noise(shape.iter().product(), 2).iter().map(whole).collect::<Vec<_>>(), &shape, dtype, lies, device);
            let want = combined(how, &first(&table, outer), &index, &first(&row_values, shape), 72 / n);
            shape[dim] = n;
            let at = tensor(&index.iter().map(|&i| i as f64).collect::<Vec<_>>(), &[count], targets, Lies::Whole, device).0;
            let got = by(how, &x, dim, &at, &rows).unwrap();
            assert_eq!((got.dims(), got.dtype()), (&outer[..], dtype));
            let got = Tensor::from_vec(first(&read(&got), outer), &[72], &Device::cpu()).unwrap();
            let near = tolerance(dtype, if dtype.is_float() { 1e-6 } else { 0.0 });
            assert_near(&format!("{how:?} along {dim} of {dtype}, {lies:?} on {}", device.name()), &got, &want, near);
        }
    }
}

#[test]
fn every_dimension_and_type() {
    for how in ALL {
        for dim in 0..3 {
            for dtype in [F32, F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U8] {
                check_along(how, dim, dtype, DType::I32);
            }
        }
        for targets in [DType::I64, DType::U32, DType::U8] {
            check_along(how, 1, F32, targets);
        }
    }
}

#[test]
fn many_rows_are_added_in_order() {
    for device in devices() {
        // Tables of many short rows too, several of which a workgroup takes.
        for (n, inner, count) in [(1, 1, 5), (50, 600, 1000), (60_000, 1, 100_000), (3001, 5, 9000), (5003, 12, 4001)] {
            let (x, table) = tensor(&noise(n * inner, 1), &[n, inner], F32, Lies::Whole, &device);
            let (rows, row_values) = tensor(&noise(count * inner, 2), &[count, inner], F32, Lies::Whole, &device);
            let index = picks(n, count);
            let at = Tensor::from_vec(index.iter().map(|&i| i as i32).collect(), &[count], &device).unwrap();
            let want = combined(Add, &table, &index, &row_values, inner);
            assert_near(&format!("{n} {inner} {count}"), &x.index_add(0, &at, &rows).unwrap(), &want, 1e-5);
        }
    }
}

#[test]
fn gradients() {
    for device in devices() {
        // Row 2 is never named, row 0 twice.
        let index = Tensor::from_vec(vec![0, 3, 0, 1], &[4], &device).unwrap();
        let (g, slopes) = tensor(&noise(12, 3), &[4, 3], F32, Lies::Whole, &device);
        let run = |how: Combine, table: &[f64], rows: &[f64]| {
            let x = tensor(table, &[4, 3], F32, Lies::Within, &device).0.requires_grad().unwrap();
            let r = tensor(rows, &[4, 3], F32, Lies::Backwards, &device).0.requires_grad().unwrap();
            by(how, &x, 0, &index, &r).unwrap().mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
            (x.grad().unwrap(), r.grad().unwrap())
        };
        let row = |r: usize| &slopes[3 * r..3 * r + 3];
        let (table, rows) = (noise(12, 4), noise(12, 5));
        let (x, r) = run(Add, &table, &rows);
        assert_near("sum: the table", &x, &slopes, 1e-6);
        assert_near("sum: the rows", &r, &[row(0), row(3), row(0), row(1)].concat(), 1e-6);
        // Of what is replaced nothing comes through.
        let (x, _) = run(Set, &table, &rows);
        assert_near("replaced: the table", &x, &[&[0.0; 6][..], row(2), &[0.0; 3]].concat(), 1e-6);
        // The gradient of the largest goes to whom it came from, in equal parts where there are several.
        let (table, rows) =
            ([1.0, 5.0, 2.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 4.0, 4.0, 4.0], [3.0, 5.0, 1.0, 4.0, 9.0, 0.0, 2.0, 1.0, 2.0, -1.0, 0.0, 1.0]);
        let (x, r) = run(Max, &table, &rows);
        let at = |r: usize, c: usize| slopes[3 * r + c];
        let want = [
            0.0,
            at(0, 1) / 2.0,
            at(0, 2) / 2.0,
            at(1, 0),
            at(1, 1) / 2.0,
            0.0,
            at(2, 0),
            at(2, 1),
            at(2, 2),
            at(3, 0) / 2.0,
            0.0,
            at(3, 2),
        ];
        assert_near("largest: the table", &x, &want, 1e-6);
        let want = [at(0, 0), at(0, 1) / 2.0, 0.0, at(3, 0) / 2.0, at(3, 1), 0.0, 0.0, 0.0, at(0, 2) / 2.0, 0.0, at(1, 1) / 2.0, at(1, 2)];
        assert_near("largest: the rows", &r, &want, 1e-6);
        // Of a product the other factors, also where one of them is 0.
        let (table, rows) =
            ([2.0, 0.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5], [3.0, 4.0, 0.0, 2.0, 0.0, 2.0, 5.0, 2.0, 0.0, 1.0, 2.0, 0.0]);
        let (x, r) = run(Mul, &table, &rows);
        let named = [vec![0, 2], vec![3], vec![], vec![1]];
        let (mut by_table, mut by_rows) = (vec![], vec![0.0; 12]);
        for t in 0..4 {
            for c in 0..3 {
                let others =
                    |but: Option<usize>| -> f64 { named[t].iter().filter(|&&i| Some(i) != but).map(|&i| rows[3 * i + c]).product() };
                by_table.push(at(t, c) * others(None));
                named[t].iter().for_each(|&i| by_rows[3 * i + c] = at(t, c) * table[3 * t + c] * others(Some(i)));
            }
        }
        assert_near("product: the table", &x, &by_table, 1e-6);
        assert_near("product: the rows", &r, &by_rows, 1e-6);
    }
}

#[test]
fn what_is_not_finite() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for device in devices() {
        let (table, rows) = ([nan, inf, -inf, 1.0, 2.0, 0.0], [1.0, -inf, inf, nan, inf, inf, 5.0, 1.0, 2.0]);
        let index = [0, 1, 0];
        for how in ALL {
            let x = tensor(&table, &[2, 3], F32, Lies::Whole, &device).0;
            let r = tensor(&rows, &[3, 3], F32, Lies::Whole, &device).0;
            let at = Tensor::from_vec(index.map(|i| i as i32).to_vec(), &[3], &device).unwrap();
            assert_near(&format!("{how:?}"), &by(how, &x, 0, &at, &r).unwrap(), &combined(how, &table, &index, &rows, 3), 1e-6);
        }
    }
}

#[test]
fn nothing_is_added_by_no_indices_and_to_no_rows() {
    for device in devices() {
        let of = |shape: &[usize]| Tensor::ones(shape, F32, &device).unwrap();
        let none = Tensor::zeros(&[0], DType::I32, &device).unwrap();
        for how in ALL {
            assert_eq!(read(&by(how, &of(&[2, 3]), 0, &none, &of(&[0, 3])).unwrap()), [1.0; 6], "{how:?}");
            assert_eq!(by(how, &of(&[2, 0]), 0, &Tensor::zeros(&[4], DType::I32, &device).unwrap(), &of(&[4, 0])).unwrap().dims(), [2, 0]);
        }
        // A scalar is one entry.
        let x = of(&[]).index_add(0, &Tensor::zeros(&[1], DType::I32, &device).unwrap(), &of(&[])).unwrap();
        assert_eq!((x.rank(), read(&x)), (0, vec![2.0]));
    }
}

#[test]
fn what_is_refused() {
    for device in devices() {
        let of = |shape: &[usize]| Tensor::ones(shape, F32, &device).unwrap();
        let index = |shape: &[usize]| Tensor::zeros(shape, DType::I32, &device).unwrap();
        let file = "index_add/tests.rs";
        assert_refused(of(&[2, 3]).index_add(0, &index(&[2]), &of(&[3, 3])), "2 entries of [3,3] by [2] do not fit [2,3]", file);
        assert_refused(of(&[2, 3]).index_add(1, &index(&[2]), &of(&[2, 3])), "do not fit [2,3]", file);
        assert_refused(
            of(&[2, 3]).index_copy(0, &index(&[1, 2]), &of(&[2, 3])),
            "expected numbers and a one-dimensional integer index",
            file,
        );
        assert_refused(of(&[2, 3]).index_add(0, &of(&[2]), &of(&[2, 3])), "f32 by f32[2]: expected numbers", file);
        assert_refused(of(&[2, 3]).index_add(2, &index(&[2]), &of(&[2, 3])), "index_add: ", file);
        assert_refused(of(&[2, 3]).scatter(0, &index(&[2, 4]), &of(&[2, 3]), Max), "expected integers of a matching shape", file);
        // What a kernel finds out of range is told to whoever reads next on that device: see tests/bad_indices.rs.
    }
}
