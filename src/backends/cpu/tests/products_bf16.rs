//! Products of bf16 with bf16 against f64 and against the plain path, where the processor multiplies such numbers and where it does not.

use super::*;
use crate::backends::cpu::dot;
use crate::backends::cpu::path::{Path, current};

/// Few rows and many, whole tiles and parts of tiles, several panels, slabs and parts of k.
const SIZES: [[usize; 4]; 9] = [
    [1, 1, 70, 75],
    [2, 3, 20, 8],
    [1, 8, 33, 37],
    [1, 9, 9, 1],
    [1, 33, 17, 3],
    [2, 12, 300, 37],
    [1, 40, 130, 70],
    [1, 10, 12, 2100],
    [1, 300, 9, 5],
];

/// A matrix of these values, row by row.
fn matrix(dtype: DType, dims: &[usize], values: Vec<f64>) -> Operand {
    let shape = Shape::of(dims);
    Operand { dtype, bytes: encode(dtype, &values), layout: Layout::contiguous(shape).simplified(), shape, values }
}

/// Each result in f64, and the sum of the sizes of its products.
fn exact(a: &Operand, b: &Operand, [batch, m, n, k]: [usize; 4]) -> Vec<(f64, f64)> {
    let one = |i: usize| {
        let (x, y) = (&a.values[i / n * k..][..k], &b.values[(i / (m * n) * n + i % n) * k..][..k]);
        x.iter().zip(y).fold((0.0, 0.0), |(sum, size), (x, y)| (sum + x * y, size + (x * y).abs()))
    };
    (0..batch * m * n).map(one).collect()
}

/// How far from f64 a sum may be, relative to the sizes of its products. By the Arm Architecture Reference Manual (`BFDotAdd` without
/// FPCR.EBF) two products are added, then both to the sum. Products of bf16 are exact in f32; each addition rounds to odd, which changes its
/// result by less than a unit in the last place, 2^-23. So a product is in one rounded sum of two, in at most k / 2 sums, and in three
/// parts of k at most here. x86's `vdpbf16ps` rounds to the nearest, as sums of f32 elsewhere do: half of it for each of k additions.
fn bound(k: usize) -> f64 {
    (k.div_ceil(2) + 4) as f64 * 2f64.powi(-23)
}

#[test]
fn products_of_bf16_are_within_their_rounding_of_f64() {
    let mut noise = Noise(41);
    for (n, sizes) in SIZES.into_iter().enumerate() {
        let [batch, m, cols, k] = sizes;
        for (la, lb) in [
            ("contiguous", "transposed"),
            ("contiguous", "contiguous"),
            ("transposed", "contiguous"),
            ("reversed", "sliced"),
            ("rows repeated", "offset"),
        ] {
            let a = operand(BF16, &[batch, m, k], la, &mut noise, -1.0, 1.0);
            let b = operand(BF16, &[batch, cols, k], lb, &mut noise, -1.0, 1.0);
            let want = exact(&a, &b, sizes);
            let bias = operand(F32, &[batch, m, cols], "rows repeated", &mut noise, -2.0, 2.0);
            let stores = [plain_store(&[batch, m, cols], F32), plain_store(&[batch, m, cols], BF16), adding_store(&bias, 2)];
            for (s, store) in stores.into_iter().enumerate() {
                let out = store.target.dtype;
                let got = kernel(MatMulKernel, &[&a, &b, &bias][..if s == 2 { 3 } else { 2 }], 2, store, &[]);
                for (i, (got, (want, size))) in got.into_iter().zip(&want).enumerate() {
                    let want = want + if s == 2 { bias.values[i] } else { 0.0 };
                    let rounding = if out == F32 { 1.2e-7 } else { 1.01 * epsilon(BF16) } * want.abs();
                    let error = (got - want).abs();
                    assert!(
                        error <= bound(k) * size + rounding,
                        "{n}: {sizes:?} {la} {lb} to {out}, {s}: element {i} is {got}, not {want}"
                    );
                }
            }
        }
    }
}

/// Sums of small integers are exact in f32, however they are rounded: a result that lacks or repeats a product is not.
#[test]
fn products_of_small_integers_in_bf16_are_exact_as_on_the_plain_path() {
    let mut noise = Noise(42);
    let mut rounding = Program::identity(F32);
    rounding.push(Inst { op: Prim::Cast, args: [0; 3], dtype: BF16 });
    rounding.push(Inst { op: Prim::Cast, args: [1, 0, 0], dtype: F32 });
    for sizes in SIZES {
        let [batch, m, n, k] = sizes;
        let mut integers = |count: usize| noise.values(count, -9.0, 9.0).into_iter().map(f64::trunc).collect::<Vec<f64>>();
        let (a, b) = (matrix(BF16, &[batch, m, k], integers(batch * m * k)), matrix(BF16, &[batch, n, k], integers(batch * n * k)));
        let got = kernel(MatMulKernel, &[&a, &b], 2, plain_store(&[batch, m, n], F32), &[]);
        let want: Vec<f64> = exact(&a, &b, sizes).into_iter().map(|(sum, _)| sum).collect();
        assert_eq!(got, want, "{sizes:?}");
        assert_eq!(got, plain(&a, &b, sizes), "{sizes:?}");
        // In f32, and rounded to bf16 on its way into the product; either side.
        let wide = matrix(F32, &[batch, m, k], a.values.clone());
        let loads = vec![Load { program: rounding.clone(), ..wide.load(0) }, b.load(1)];
        let work = Work::Kernel(Arc::new(MatMulKernel));
        let store = vec![plain_store(&[batch, m, n], F32)];
        assert_eq!(run(step("rounded", work, loads, store, vec![]), &[&wide, &b], &[(F32, batch * m * n)], &[])[0], want, "{sizes:?}");
        let loads = vec![b.load(1), Load { program: rounding.clone(), ..wide.load(0) }];
        let work = Work::Kernel(Arc::new(MatMulKernel));
        let store = vec![plain_store(&[batch, n, m], F32)];
        let transposed = &run(step("rounded", work, loads, store, vec![]), &[&wide, &b], &[(F32, batch * m * n)], &[])[0];
        let at = |i: usize| (i / (m * n) * m + i % m) * n + i % (m * n) / m;
        assert!(transposed.iter().enumerate().all(|(i, &got)| got == want[at(i)]), "{sizes:?}, the sides exchanged");
    }
}

/// The products of the plain path.
fn plain(a: &Operand, b: &Operand, [batch, m, n, k]: [usize; 4]) -> Vec<f64> {
    let x: Vec<f32> = a.values.iter().map(|&x| x as f32).collect();
    let mut y = vec![f32::NAN; batch * m * n];
    for (i, y) in y.chunks_exact_mut(m * n).enumerate() {
        dot::gemv_multi(Path::Plain, BF16, &b.bytes[2 * i * n * k..], 2 * k, &x[i * m * k..][..m * k], y, [m, n]);
    }
    y.into_iter().map(f64::from).collect()
}

/// NaN, infinity and overflow give what they give on the plain path, and leave other rows and columns alone.
#[test]
fn bf16_that_is_not_finite_or_subnormal() {
    let mut noise = Noise(43);
    let (n, k, large) = (14, 43, round(BF16, 3e38));
    for m in [6, 11] {
        let sizes = [1, m, n, k];
        let mut a = matrix(BF16, &[1, m, k], noise.values(m * k, 0.5, 1.0).into_iter().map(|x| round(BF16, x)).collect());
        let mut b = matrix(BF16, &[1, n, k], noise.values(n * k, 0.5, 1.0).into_iter().map(|x| round(BF16, x)).collect());
        let mut put = |row: usize, col: usize, x: f64| a.values[row * k + col] = round(BF16, x);
        put(0, 3, f64::NAN);
        put(1, 42, f64::INFINITY);
        put(2, 5, f64::INFINITY);
        put(2, 40, f64::NEG_INFINITY);
        put(3, 0, large);
        (0..k).for_each(|i| put(4, i, 0.0));
        // Infinity meets zero in one column, overflow in another; this row's product with the last one is subnormal times large.
        b.values[2 * k + 42] = 0.0;
        b.values[3 * k] = round(BF16, 5.0);
        let tiny = round(BF16, 1e-39);
        for i in 0..k {
            a.values[5 * k + i] = if i == 7 { large } else { 0.0 };
            b.values[13 * k + i] = if i == 7 { tiny } else { 0.0 };
        }
        (a, b) = (matrix(BF16, &[1, m, k], a.values), matrix(BF16, &[1, n, k], b.values));
        let got = kernel(MatMulKernel, &[&a, &b], 2, plain_store(&[1, m, n], F32), &[]);
        let mut want = plain(&a, &b, sizes);
        assert!(want[0].is_nan() && want[n] == f64::INFINITY && want[n + 2].is_nan() && want[2 * n].is_nan(), "{want:?}");
        assert!(want[3 * n + 3] == f64::INFINITY && want[3 * n + 4].is_finite() && want[4 * n] == 0.0, "{want:?}");
        // Instructions for bf16 take subnormal numbers for zero; with AVX-512 some processors have them.
        let subnormal = &mut want[5 * n + 13];
        assert!(*subnormal > 0.1);
        if current() == Path::Bf16 || current() == Path::Avx512 && got[5 * n + 13] == 0.0 {
            *subnormal = 0.0;
        }
        check(&format!("{m} rows"), &got, &want, 2.0 * bound(k), k as f64 * 2f64.powi(-126));
    }
}

/// Up to eight rows are multiplied by other instructions than more, and each of both the same way whatever their number; more than eight only where
/// instructions for bf16 multiply.
#[test]
fn a_row_of_bf16_has_the_same_bits_among_many_rows_and_among_few() {
    let mut noise = Noise(44);
    let (n, k) = (21, 1130);
    let b = operand(BF16, &[1, n, k], "contiguous", &mut noise, -1.0, 1.0);
    for (most, fewer) in [(8, [2, 5]), (70, [9, 41])] {
        let many = operand(BF16, &[1, most, k], "contiguous", &mut noise, -1.0, 1.0);
        let all = kernel(MatMulKernel, &[&many, &b], 2, plain_store(&[1, most, n], F32), &[]);
        for rows in fewer.into_iter().filter(|&rows| rows <= 8 || current() == Path::Bf16) {
            let shape = Shape::of(&[1, rows, k]);
            let few = Operand { layout: Layout::contiguous(shape).simplified(), shape, ..many.clone() };
            let some = kernel(MatMulKernel, &[&few, &b], 2, plain_store(&[1, rows, n], F32), &[]);
            assert!(all[..rows * n] == some, "{rows} of {most} rows");
        }
    }
}
