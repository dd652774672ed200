//! Products of matrices against plain loops in f64: on the CPU every edge of a tile, every order of operands, the same bits each time; on a GPU what
//! results are combined with on their way.

use crate::common::{devices, gpu};
use tensorlogic::quant;
use tensorlogic::{DType, Device, Rng, Tensor};

/// Batches, M, N, K and the types of the operands.
type Case = (usize, usize, usize, usize, DType, DType);

fn values(t: &Tensor) -> Vec<f64> {
    t.to_vec().unwrap().into_iter().map(f64::from).collect()
}

fn random(shape: &[usize], dtype: DType, seed: u64, device: &Device) -> Tensor {
    let x = Rng::new(seed).uniform(shape, DType::F32, device).unwrap().sub(0.5).unwrap();
    let t = if dtype.is_block() {
        let bytes = quant::quantize(dtype, &x.to_vec().unwrap()).unwrap();
        Tensor::from_bytes(tensorlogic::backends::Bytes::Owned(std::sync::Arc::new(bytes)), dtype, shape, device).unwrap()
    } else {
        x.cast(dtype).unwrap()
    };
    t.eval().unwrap();
    t
}

/// Each of the four orders in which the operands may lie in memory, plain and with a bias, a residual and an activation in the store.
fn check((batch, m, n, k, left, right): Case) {
    let device = Device::cpu();
    for order in ["nn", "nt", "tn", "tt"] {
        let what = format!("{batch} × {left}[{m},{k}] · {right}[{k},{n}] {order}");
        let (transposed_left, transposed_right) = (order.starts_with('t'), order.ends_with('t'));
        if right.is_block() && !transposed_right {
            continue;
        }
        let a = random(&if transposed_left { [batch, k, m] } else { [batch, m, k] }, left, 1, &device);
        let b = random(&if transposed_right { [batch, n, k] } else { [batch, k, n] }, right, 2, &device);
        let (a, b) =
            (if transposed_left { a.transpose(1, 2).unwrap() } else { a }, if transposed_right { b.transpose(1, 2).unwrap() } else { b });
        let y = a.matmul(&b).unwrap();
        let got = values(&y);
        let (x, w) = (values(&a.contiguous().unwrap()), {
            let plain =
                if right.is_block() { b.transpose(1, 2).unwrap().cast(DType::F32).unwrap().transpose(1, 2).unwrap() } else { b.clone() };
            values(&plain.contiguous().unwrap())
        });
        // The rounding of the result, and that of sums in f32.
        let rounding = match y.dtype() {
            DType::BF16 => 4e-3,
            DType::F16 => 5e-4,
            _ => 0.0,
        };
        let mut want = vec![(0.0, 0.0); batch * m * n];
        for (i, (sum, size)) in want.iter_mut().enumerate() {
            let (z, row, column) = (i / n / m, i / n % m, i % n);
            for j in 0..k {
                let product = x[(z * m + row) * k + j] * w[(z * k + j) * n + column];
                *sum += product;
                *size += product.abs();
            }
        }
        let near = |got: f64, want: f64, size: f64| (got - want).abs() <= rounding * want.abs() + 2e-6 * size + 1e-7;
        for (i, (&got, &(want, size))) in got.iter().zip(&want).enumerate() {
            assert!(near(got, want, size), "{what}: element {i} is {got}, not {want}");
        }
        assert_eq!(a.matmul(&b).unwrap().to_bytes().unwrap(), y.to_bytes().unwrap(), "{what}: not the same bits");
        if y.dtype() == DType::F32 {
            let bias = random(&[n], DType::F32, 3, &device);
            let rest = random(&[batch, m, n], DType::F32, 4, &device);
            let fused = values(&a.matmul(&b).unwrap().add(&bias).unwrap().relu().unwrap().add(&rest).unwrap());
            let (bias, rest) = (values(&bias), values(&rest));
            for (i, (&got, &(want, size))) in fused.iter().zip(&want).enumerate() {
                let want = (want + bias[i % n]).max(0.0) + rest[i];
                assert!(near(got, want, size + 2.0), "{what}, fused: element {i} is {got}, not {want}");
            }
        }
    }
}

#[test]
fn every_edge_of_a_tile() {
    for (m, n) in [(9, 9), (13, 33), (14, 32), (15, 31), (29, 16), (16, 100), (97, 70), (130, 47)] {
        for k in [1, 2, 65, 300] {
            check((1, m, n, k, DType::F32, DType::F32));
        }
    }
}

#[test]
fn types_and_their_mixtures() {
    for (left, right) in [(DType::F16, DType::F16), (DType::BF16, DType::BF16), (DType::F32, DType::BF16), (DType::F16, DType::F32)] {
        check((1, 40, 70, 129, left, right));
        check((1, 70, 40, 64, left, right));
        check((2, 17, 33, 31, left, right));
    }
    check((1, 33, 100, 256, DType::F32, DType::Q4_K));
    check((1, 100, 48, 96, DType::F32, DType::Q8_0));
}

#[test]
fn long_sums_and_batches() {
    check((1, 20, 40, 2500, DType::F32, DType::F32));
    check((1, 20, 40, 9000, DType::F32, DType::F32));
    check((1, 20, 40, 2501, DType::BF16, DType::BF16));
    check((5, 20, 40, 64, DType::F32, DType::F32));
    check((1, 12, 600, 1024, DType::F32, DType::F32));
    check((1, 600, 12, 1024, DType::F32, DType::F32));
}

/// A left side in f32 that is rounded to bf16 on its way, alone or behind other work, and a right side in bf16.
fn check_rounded(device: &Device, [m, n, k]: [usize; 3], flipped: bool) {
    let what = format!("[{m},{k}]·[{k},{n}], {flipped}, on {}", device.name());
    let (a, w) = (random(&[m, k], DType::F32, 1, device), random(&[n, k], DType::BF16, 2, device));
    for more in [false, true] {
        let a = if more { a.mul(1.5).unwrap().relu().unwrap() } else { a.clone() };
        let rounded = a.cast(DType::BF16).unwrap().cast(DType::F32).unwrap();
        let y = match flipped {
            true => w.matmul(&rounded.t().unwrap()).unwrap().t().unwrap(),
            false => rounded.matmul(&w.t().unwrap()).unwrap(),
        };
        assert_eq!(y.dtype(), DType::F32);
        let (x, w) = (values(&rounded), values(&w));
        assert!(x.iter().all(|&v| v == f64::from(half::bf16::from_f64(v))), "{what}");
        for (i, got) in values(&y).into_iter().enumerate() {
            let products = (0..k).map(|j| x[i / n * k + j] * w[i % n * k + j]);
            let (want, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            assert!((got - want).abs() <= 4e-6 * size + 1e-7, "{what}, {more}: element {i} is {got}, not {want}");
        }
    }
}

#[test]
fn rounded_operands() {
    for device in devices() {
        let sizes = [[40, 70, 128], [33, 17, 129], [7, 300, 64], [100, 48, 1], [14, 32, 2500]];
        for (n, sizes) in sizes.into_iter().take(if device.is_cpu() { 5 } else { 2 }).enumerate() {
            check_rounded(&device, sizes, n % 2 == 1);
            check_rounded(&device, sizes, n % 2 == 0);
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let device = Device::cpu();
    let (a, w) = (random(&[100, 700], DType::F32, 1, &device), random(&[90, 700], DType::F32, 2, &device).t().unwrap());
    let all = a.matmul(&w).unwrap().narrow(0, 30, 20).unwrap().contiguous().unwrap().to_bytes().unwrap();
    let few = a.narrow(0, 30, 20).unwrap().contiguous().unwrap().matmul(&w).unwrap().to_bytes().unwrap();
    assert_eq!(all, few);
}

/// A product of f16 on a GPU whose results are combined with a bias and a residual of these types before they are stored, against f64.
fn check_combined(device: &Device, [m, n, k]: [usize; 3], bias: DType, rest: DType) {
    let what = format!("[{m},{k}]·[{k},{n}] with {bias} and {rest}");
    let (a, w) = (random(&[m, k], DType::F16, 1, device), random(&[n, k], DType::F16, 2, device));
    let (bias, rest) = (random(&[n], bias, 3, device), random(&[m, n], rest, 4, device));
    let y = a.matmul(&w.t().unwrap()).unwrap().add(&bias).unwrap().gelu_tanh().unwrap().add(&rest).unwrap().cast(DType::F16).unwrap();
    let [a, w, bias, rest] = [&a, &w, &bias, &rest].map(values);
    for (i, got) in values(&y).into_iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let x = (0..k).map(|j| a[row * k + j] * w[column * k + j]).sum::<f64>() + bias[column];
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        let want = 0.5 * x * (1.0 + inner.tanh()) + rest[i];
        assert!((got - want).abs() <= 2e-3 * want.abs() + 1e-3, "{what}: element {i} is {got}, not {want}");
    }
}

#[test]
fn combined_before_they_are_stored() {
    let Some(device) = gpu() else { return };
    use DType::{BF16, F16, F32};
    for (shape, bias, rest) in [
        ([64, 64, 48], F16, F16),
        ([33, 72, 48], BF16, F16),
        ([20, 40, 48], F32, BF16),
        ([70, 12, 48], F16, BF16),
        ([40, 7, 48], F16, F16),
        ([17, 136, 48], BF16, F32),
        // Other tiles, which take more of k at once.
        ([3, 64, 520], F16, F16),
        ([16, 256, 700], F32, F16),
        ([70, 128, 300], BF16, F16),
        ([300, 512, 64], F16, F16),
    ] {
        check_combined(&device, shape, bias, rest);
    }
}
