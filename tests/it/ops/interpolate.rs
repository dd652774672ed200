//! Interpolation against its definition in f64, one dimension after the other by plain loops.

use crate::common::{devices, noise};
use tensorlogic::ops::{Interpolation, Resize};
use tensorlogic::{DType, Device, Tensor};

/// Weights of the inputs for an output, by PyTorch's rules.
fn weights(inputs: usize, outputs: usize, o: usize, factor: Option<f64>, mode: Interpolation, corners: bool) -> Vec<f64> {
    let mut row = vec![0.0; inputs];
    let ratio = factor.map_or(inputs as f64 / outputs as f64, |f| 1.0 / f);
    let last = inputs as f64 - 1.0;
    let at = |i: f64| i.clamp(0.0, last) as usize;
    match mode {
        Interpolation::Nearest => row[at((o as f64 * ratio).floor())] = 1.0,
        Interpolation::NearestExact => row[at(((o as f64 + 0.5) * ratio).floor())] = 1.0,
        Interpolation::Linear | Interpolation::Cubic => {
            let place = match corners {
                true if outputs == 1 => 0.0,
                true => o as f64 * last / (outputs as f64 - 1.0),
                false => (o as f64 + 0.5) * ratio - 0.5,
            };
            if mode == Interpolation::Linear {
                let place = place.clamp(0.0, last);
                row[at(place.floor())] += 1.0 - place.fract();
                row[at(place.floor() + 1.0)] += place.fract();
            } else {
                // Keys' kernel with a = −0.75 at the distances of the four nearest inputs, edges repeated.
                let kernel = |d: f64| match d.abs() {
                    d if d <= 1.0 => 1.25 * d.powi(3) - 2.25 * d * d + 1.0,
                    d if d < 2.0 => -0.75 * (d.powi(3) - 5.0 * d * d + 8.0 * d - 4.0),
                    _ => 0.0,
                };
                for i in -1..=2 {
                    let i = place.floor() + f64::from(i);
                    row[at(i)] += kernel(place - i);
                }
            }
        }
    }
    row
}

/// One dimension of row-major values resized.
fn resized(x: &[f64], shape: &mut [usize], d: usize, matrix: &[Vec<f64>]) -> Vec<f64> {
    let (outer, n, inner): (usize, usize, usize) = (shape[..d].iter().product(), shape[d], shape[d + 1..].iter().product());
    let mut out = Vec::new();
    for a in 0..outer {
        for row in matrix {
            out.extend((0..inner).map(|c| (0..n).map(|i| row[i] * x[(a * n + i) * inner + c]).sum::<f64>()));
        }
    }
    shape[d] = matrix.len();
    out
}

#[test]
fn every_mode_is_what_its_definition_says() {
    use Interpolation::*;
    let shapes: [&[usize]; 4] = [&[2, 3, 7], &[2, 1, 5, 4], &[1, 2, 3, 4, 2], &[1, 1, 1, 6]];
    for device in devices() {
        for shape in shapes {
            let inner = shape.len() - 2;
            for mode in [Nearest, NearestExact, Linear, Cubic] {
                let kinds = if mode == Cubic && inner != 2 {
                    0
                } else if matches!(mode, Nearest | NearestExact) {
                    1
                } else {
                    2
                };
                for corners in [false, true].into_iter().take(kinds) {
                    for by in [Some(2.0), Some(1.7), Some(0.6), None] {
                        let sizes: Vec<usize> =
                            (0..inner).map(|i| by.map_or([1, 9, 4][i], |f: f64| (shape[i + 2] as f64 * f) as usize)).collect();
                        if sizes.contains(&0) {
                            continue;
                        }
                        let values: Vec<f32> = noise(shape.iter().product(), 5).iter().map(|v| *v as f32).collect();
                        let x = Tensor::from_vec(values.clone(), shape, &device).unwrap();
                        let factors = vec![by.unwrap_or(0.0); inner];
                        let to = if by.is_some() { Resize::By(&factors) } else { Resize::To(&sizes) };
                        let got = x.interpolate(to, mode, corners).unwrap();
                        let (mut want, mut dims) = (values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>(), shape.to_vec());
                        for (i, &size) in sizes.iter().enumerate() {
                            let n = shape[i + 2];
                            let matrix: Vec<Vec<f64>> = (0..size).map(|o| weights(n, size, o, by, mode, corners)).collect();
                            want = resized(&want, &mut dims, i + 2, &matrix);
                        }
                        assert_eq!(got.dims(), dims);
                        let worst = got.to_vec().unwrap().iter().zip(&want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
                        assert!(
                            worst < 2e-6,
                            "{mode:?} {shape:?} to {sizes:?} by {by:?}, corners {corners}, on {}: {worst:e}",
                            device.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn types_and_what_is_refused() {
    let cpu = Device::cpu();
    let x = Tensor::new(&[[[1, 2]]], &cpu).unwrap();
    assert_eq!(x.interpolate(Resize::To(&[4]), Interpolation::Nearest, false).unwrap().to_vec_of::<i32>().unwrap(), [1, 1, 2, 2]);
    let half = x.cast(DType::F16).unwrap().interpolate(Resize::By(&[2.0]), Interpolation::Linear, false).unwrap();
    assert_eq!((half.dtype(), half.cast(DType::F32).unwrap().to_vec().unwrap()), (DType::F16, vec![1.0, 1.25, 1.75, 2.0]));
    let refused = |x: &Tensor, to: Resize<'_>, mode, corners| x.interpolate(to, mode, corners).unwrap_err().to_string();
    use Interpolation::*;
    let f = x.cast(DType::F32).unwrap();
    for (message, want) in [
        (refused(&x, Resize::To(&[4]), Linear, false), "Linear of i32; cast it first"),
        (refused(&f, Resize::To(&[4]), Nearest, true), "align_corners is for linear and cubic"),
        (refused(&f, Resize::To(&[4]), Cubic, false), "followed by two dimensions"),
        (refused(&f, Resize::To(&[4, 4]), Linear, false), "2 new sizes for the 1 dimensions"),
        (refused(&f, Resize::To(&[0]), Linear, false), "both must be above 0"),
        (refused(&f, Resize::By(&[f64::NAN]), Linear, false), "a factor of NaN"),
        (refused(&f, Resize::By(&[-1.0]), Linear, false), "a factor of -1"),
        (refused(&f.select(0, 0).unwrap(), Resize::To(&[4]), Linear, false), "expected [N,C,…]"),
    ] {
        assert!(message.starts_with("interpolate: ") && message.contains(want), "{message}");
    }
    assert_eq!(
        Tensor::zeros(&[0, 2, 3], DType::F32, &cpu).unwrap().interpolate(Resize::To(&[5]), Linear, false).unwrap().dims(),
        [0, 2, 5]
    );
}
