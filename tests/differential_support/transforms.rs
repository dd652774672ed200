//! Fourier transforms, by their definition.

use super::graph::Call;
use super::ops::{List, is_float};
use crate::conformance_support::Array;
use std::f64::consts::TAU;
use tensorlogic::{Device, Tensor, TensorResult};

/// The imaginary parts of complex numbers that are made of real ones, as a multiple of these.
const IMAGINARY: f64 = 0.5;

/// `x + 0.5·x·i` as pairs on the CPU, where transforms run.
fn pairs(x: &Tensor) -> TensorResult<Tensor> {
    let x = x.to_device(&Device::cpu())?;
    Tensor::stack(&[x.clone(), x.mul(IMAGINARY)?], -1)
}

/// The sum over `j` of `x[j]·exp(direction·2πi·j·k / n)` along dimension `d`, where `k` is the index's entry there; `x` gives complex numbers.
fn sum(index: &[usize], d: usize, n: usize, direction: f64, x: impl Fn(&[usize]) -> (f64, f64)) -> (f64, f64) {
    let mut at = index.to_vec();
    (0..n).fold((0.0, 0.0), |(re, im), j| {
        at[d] = j;
        let ((a, b), (sin, cos)) = (x(&at), (direction * TAU * ((j * index[d]) % n) as f64 / n as f64).sin_cos());
        (re + a * cos - b * sin, im + a * sin + b * cos)
    })
}

/// An array of pairs, where `f` gives each complex number.
fn complex(shape: &[usize], f: impl Fn(&[usize]) -> (f64, f64)) -> Array {
    let pairs: Vec<usize> = shape.iter().copied().chain([2]).collect();
    Array::from_fn(&pairs, |i| {
        let (re, im) = f(&i[..shape.len()]);
        if i[shape.len()] == 0 { re } else { im }
    })
}

pub fn list(l: &mut List) {
    const PAIRS: &str = "Tensor::stack(&[{0}.to_device(&cpu)?, {0}.to_device(&cpu)?.mul(0.5)?], -1)?";
    for (name, call, direction) in
        [("fft", (|t, d| t.fft(d)) as fn(&Tensor, isize) -> TensorResult<Tensor>, -1.0), ("ifft", |t, d| t.ifft(d), 1.0)]
    {
        l.add(name, move |p| {
            let x = p.value(|v| is_float(v) && v.rank() > 0)?;
            let d = p.dim(x)?;
            let n = p.shape(x)[d];
            let s = p.signed(d, p.of(x).rank());
            let text = format!("{PAIRS}.{name}({s})?.to_device(&device)");
            let c = Call::new(text, &[x], move |t| call(&pairs(&t[0])?, s)?.to_device(t[0].device()));
            let scale = if name == "ifft" { 1.0 / n as f64 } else { 1.0 };
            (n > 0).then(|| {
                c.reference(move |a| {
                    complex(&a[0].shape, |i| {
                        let (re, im) = sum(i, d, n, direction, |at| (a[0].at(at), IMAGINARY * a[0].at(at)));
                        (re * scale, im * scale)
                    })
                })
            })
        });
    }
    l.add("rfft", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let d = p.dim(x)?;
        let n = p.shape(x)[d];
        let s = p.signed(d, p.of(x).rank());
        let text = format!("{{0}}.to_device(&cpu)?.rfft({s})?.to_device(&device)");
        let c = Call::new(text, &[x], move |t| t[0].to_device(&Device::cpu())?.rfft(s)?.to_device(t[0].device()));
        (n > 0).then(|| {
            c.reference(move |a| {
                let mut shape = a[0].shape.clone();
                shape[d] = n / 2 + 1;
                complex(&shape, |i| sum(i, d, n, -1.0, |at| (a[0].at(at), 0.0)))
            })
        })
    });
    l.add("irfft", |p| {
        let x = p.value(|v| is_float(v) && v.rank() > 0)?;
        let (d, odd) = (p.dim(x)?, p.flag());
        let half = p.shape(x)[d];
        // Of both lengths with so many numbers, of which 0 is none.
        let n = if odd { 2 * half.max(1) - 1 } else { 2 * half.max(2) - 2 };
        let s = p.signed(d, p.of(x).rank());
        let text = format!("{PAIRS}.irfft({n}, {s})?.to_device(&device)");
        let c = Call::new(text, &[x], move |t| pairs(&t[0])?.irfft(n, s)?.to_device(t[0].device()));
        (half == n / 2 + 1).then(|| {
            c.reference(move |a| {
                let mut shape = a[0].shape.clone();
                shape[d] = n;
                Array::from_fn(&shape, |i| {
                    // The second half of the spectrum is the first one's conjugate.
                    let spectrum = |at: &[usize]| {
                        let (mut own, mirrored) = (at.to_vec(), at[d] >= half);
                        own[d] = if mirrored { n - at[d] } else { at[d] };
                        let v = a[0].at(&own);
                        (v, if mirrored { -IMAGINARY * v } else { IMAGINARY * v })
                    };
                    sum(i, d, n, 1.0, spectrum).0 / n as f64
                })
            })
        })
    });
}
