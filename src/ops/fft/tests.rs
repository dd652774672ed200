//! Fourier transforms against sums of exponentials in f64.

use crate::device::{Device, under_test::gpu};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::ops::tests::noise;
use crate::tensor::Tensor;

/// Σ x_j·exp(∓2πi·jk/n) of pairs, divided by n where it is the inverse.
fn exact(x: &[f64], inverse: bool) -> Vec<f64> {
    let n = x.len() / 2;
    let sign = if inverse { 1.0 } else { -1.0 };
    let scale = if inverse { 1.0 / n as f64 } else { 1.0 };
    let mut out = Vec::new();
    for k in 0..n {
        let (mut re, mut im) = (0.0, 0.0);
        for j in 0..n {
            let (s, c) = (sign * std::f64::consts::TAU * ((j * k) % n) as f64 / n as f64).sin_cos();
            re += x[2 * j] * c - x[2 * j + 1] * s;
            im += x[2 * j] * s + x[2 * j + 1] * c;
        }
        out.extend([re * scale, im * scale]);
    }
    out
}

fn close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
    let worst = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max) / size;
    assert!(worst <= tolerance, "{what}: {worst:e}");
}

fn wide(t: &Tensor) -> Vec<f64> {
    t.cast(DType::F64).unwrap().to_vec_of::<f64>().unwrap()
}

const SIZES: [usize; 9] = [1, 2, 3, 5, 8, 12, 31, 100, 1009];

#[test]
fn transforms_of_any_length_and_their_inverses() -> TensorResult<()> {
    let cpu = Device::cpu();
    for n in SIZES {
        let values = noise(3 * n * 2, n as u64);
        for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 2e-6)] {
            let x = Tensor::from_vec(values.clone(), &[3, n, 2], &cpu)?.cast(dtype)?;
            let rows = wide(&x);
            for inverse in [false, true] {
                let want: Vec<f64> = rows.chunks(2 * n).flat_map(|row| exact(row, inverse)).collect();
                let y = if inverse { x.ifft(-1)? } else { x.fft(1)? };
                assert_eq!((y.dims(), y.dtype()), (&[3, n, 2][..], dtype));
                close(&wide(&y), &want, tolerance, &format!("{n} {dtype} inverse {inverse}"));
                // Along another dimension.
                let across = x.transpose(0, 1)?;
                let y = if inverse { across.ifft(0)? } else { across.fft(-2)? };
                close(&wide(&y.transpose(0, 1)?), &want, tolerance, &format!("{n} {dtype} across"));
            }
            let real = x.select(-1, 0)?;
            let half = real.rfft(-1)?;
            assert_eq!(half.dims(), [3, n / 2 + 1, 2]);
            let pairs: Vec<f64> = rows.chunks(2).flat_map(|p| [p[0], 0.0]).collect();
            let want: Vec<f64> = pairs.chunks(2 * n).flat_map(|row| exact(row, false)[..2 * (n / 2 + 1)].to_vec()).collect();
            close(&wide(&half), &want, tolerance, &format!("{n} {dtype} of real numbers"));
            close(&wide(&half.irfft(n, 1)?), &wide(&real), tolerance, &format!("{n} {dtype} back to real numbers"));
        }
    }
    Ok(())
}

#[test]
fn gradients_are_those_of_finite_differences() -> TensorResult<()> {
    let cpu = Device::cpu();
    type Call = fn(&Tensor) -> TensorResult<Tensor>;
    let calls: [(&str, &[usize], Call); 6] = [
        ("fft", &[2, 5, 2], |x| x.fft(1)),
        ("ifft", &[2, 6, 2], |x| x.ifft(0)),
        ("rfft", &[2, 6], |x| x.rfft(1)),
        ("rfft of an odd length", &[7], |x| x.rfft(0)),
        ("irfft", &[2, 4, 2], |x| x.irfft(6, -1)),
        ("irfft of an odd length", &[4, 2], |x| x.irfft(7, 0)),
    ];
    for (name, shape, call) in calls {
        let x = Tensor::from_vec(noise(shape.iter().product(), 1), shape, &cpu)?;
        let c = Tensor::from_vec(noise(call(&x)?.numel(), 2), call(&x)?.dims(), &cpu)?;
        let of = |x: &Tensor| call(x)?.square()?.mul(&c)?.sum_all();
        let tracked = x.requires_grad()?;
        of(&tracked)?.backward()?;
        let (slope, values) = (wide(&tracked.grad().expect("collected")), wide(&x));
        for i in 0..values.len() {
            let moved = |by: f64| -> TensorResult<f64> {
                let mut v = values.clone();
                v[i] += by;
                of(&Tensor::from_vec(v, shape, &cpu)?)?.item()
            };
            let want = (moved(1e-6)? - moved(-1e-6)?) / 2e-6;
            assert!((slope[i] - want).abs() < 1e-6 * (1.0 + want.abs()), "{name}, element {i}: {} is not {want}", slope[i]);
        }
    }
    Ok(())
}

#[test]
fn what_is_refused() -> TensorResult<()> {
    let cpu = Device::cpu();
    let x = Tensor::zeros(&[4, 2], DType::F32, &cpu)?;
    for (e, want) in [
        (Tensor::zeros(&[4, 3], DType::F32, &cpu)?.fft(0), "a last dimension of 2"),
        (x.cast(DType::I32)?.fft(0), "expected floats"),
        (x.fft(1), "dim"),
        (x.irfft(4, 0), "whose transform has 3"),
        (Tensor::zeros(&[0, 2], DType::F32, &cpu)?.ifft(0), "is empty"),
    ] {
        let e = e.unwrap_err().to_string();
        assert!(e.contains(want), "{e} lacks {want}");
    }
    assert_eq!(Tensor::zeros(&[0, 3, 2], DType::F32, &cpu)?.fft(1)?.dims(), [0, 3, 2]);
    if let Some(gpu) = gpu() {
        let e = x.to_device(&gpu)?.fft(0).unwrap_err().to_string();
        assert!(e.contains("runs on the CPU"), "{e}");
    }
    Ok(())
}
