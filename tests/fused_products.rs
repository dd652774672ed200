//! Products of few rows that a GPU does in one dispatch, with the normalization before them, against plain loops in f64.
//! A process of its own: dispatches are counted, which other tests on the same device would add to.

mod common;

use common::alone;
use std::sync::MutexGuard;
use tensorlogic::backends::Bytes;
use tensorlogic::eval::eval_all;
use tensorlogic::ops::rope::{RopePairs, rope_tables};
use tensorlogic::quant::{dequantize, quantize, random_blocks};
use tensorlogic::{DType, Device, Tensor};

/// The GPU of the tests, one test at a time (they count dispatches), or `None` where there is none and none is required.
fn gpu() -> Option<(Device, MutexGuard<'static, ()>)> {
    let turn = alone();
    common::gpu().map(|d| (d, turn))
}

fn noise(n: usize, seed: u32) -> Vec<f32> {
    common::noise_f32(n, seed.into(), 1.0)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Norm {
    None,
    Rms,
    Layer,
}

/// A normalised left side and right sides as a model has them.
struct Case {
    m: usize,
    k: usize,
    columns: &'static [usize],
    dtype: DType,
    activations: DType,
    norm: Norm,
    /// What the left side's mean is about.
    offset: f32,
    /// Whether the two products are a gate and what it lets through.
    gated: bool,
    /// Dispatches.
    expect: usize,
}

fn check(device: &Device, c: &Case) {
    let what = format!("{} × {} of {:?} in {}, {:?}, {}", c.m, c.k, c.columns, c.dtype, c.norm, if c.gated { "gated" } else { "each" });
    let x: Vec<f32> = noise(c.m * c.k, 1).iter().map(|v| v + c.offset).collect();
    let (gain, shift) = (noise(c.k, 2), noise(c.k, 3));
    let tensor = |v: Vec<f32>, shape: &[usize]| Tensor::from_vec(v, shape, device).unwrap();
    let a = tensor(x.clone(), &[1, c.m, c.k]).cast(c.activations).unwrap();
    let (w, b) = (tensor(gain.clone(), &[c.k]), tensor(shift.clone(), &[c.k]));
    eval_all(&[&a, &w, &b]).unwrap();
    let left = match c.norm {
        Norm::None => a.clone(),
        Norm::Rms => a.rms_norm(Some(&w), 1e-5).unwrap(),
        Norm::Layer => a.layer_norm(Some(&w), Some(&b), 1e-5).unwrap(),
    };
    // What the left side is, in f64 from the values that the device holds.
    let held = a.to_vec().unwrap();
    let mut rows: Vec<f64> = held.iter().map(|v| *v as f64).collect();
    for row in rows.chunks_exact_mut(c.k).filter(|_| c.norm != Norm::None) {
        let mean = if c.norm == Norm::Layer { row.iter().sum::<f64>() / c.k as f64 } else { 0.0 };
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / c.k as f64;
        for (i, v) in row.iter_mut().enumerate() {
            *v = (*v - mean) / (variance + 1e-5).sqrt() * gain[i] as f64 + if c.norm == Norm::Layer { shift[i] as f64 } else { 0.0 };
        }
    }
    let mut results = Vec::new();
    let mut expected: Vec<Vec<f64>> = Vec::new();
    for (p, &n) in c.columns.iter().enumerate() {
        let seed = 10 + p as u32;
        let bytes = match c.dtype.format() {
            Some(format) if !format.is_encoded() => random_blocks(c.dtype, n * c.k, 1.0, seed.into()).unwrap(),
            _ => quantize(c.dtype, &noise(n * c.k, seed)).unwrap(),
        };
        let mut values = vec![0.0; n * c.k];
        dequantize(c.dtype, &bytes, &mut values).unwrap();
        let right = Tensor::from_bytes(Bytes::Owned(bytes.into()), c.dtype, &[n, c.k], device).unwrap();
        results.push(left.matmul(&right.t().unwrap()).unwrap());
        let dot = |m: usize, n: usize| (0..c.k).map(|k| rows[m * c.k + k] * values[n * c.k + k] as f64).sum();
        expected.push((0..c.m * n).map(|i| dot(i / n, i % n)).collect());
    }
    if c.gated {
        let (through, gate) = (results.remove(1), results.remove(0));
        results = vec![gate.silu().unwrap().mul(&through).unwrap()];
        let silu = |x: f64| x / (1.0 + (-x).exp());
        expected = vec![expected[0].iter().zip(&expected[1]).map(|(g, u)| silu(*g) * u).collect()];
    }
    let all: Vec<&Tensor> = results.iter().collect();
    eval_all(&all).unwrap();
    assert_eq!(tensorlogic::eval::eval_stats(device).dispatches, c.expect, "{what}: dispatches");
    for (p, (r, e)) in results.iter().zip(&expected).enumerate() {
        let got = r.to_vec().unwrap();
        let size = (e.iter().map(|v| v * v).sum::<f64>() / e.len() as f64).sqrt();
        // Products of f16 results are rounded to f16.
        let tolerance = if c.activations == DType::F32 { 2e-5 } else { 3e-3 };
        for (i, (g, e)) in got.iter().zip(e).enumerate() {
            assert!((*g as f64 - e).abs() <= tolerance * (size + e.abs()), "{what}: product {p}, element {i}: {g}, not {e}");
        }
    }
}

#[test]
fn products_of_one_left_side_are_one_dispatch() {
    let Some((device, _turn)) = gpu() else { return };
    let plain = Case {
        m: 1,
        k: 256,
        columns: &[96, 32, 40],
        dtype: DType::F32,
        activations: DType::F32,
        norm: Norm::None,
        offset: 0.0,
        gated: false,
        expect: 1,
    };
    check(&device, &plain);
    for norm in [Norm::Rms, Norm::Layer] {
        check(&device, &Case { norm, ..plain });
        check(&device, &Case { norm, columns: &[33], ..plain });
        check(&device, &Case { norm, columns: &[33], offset: 300.0, k: 1000, ..plain });
        check(&device, &Case { norm, gated: true, columns: &[72, 72], ..plain });
        check(&device, &Case { norm, m: 3, activations: DType::F16, ..plain });
        check(&device, &Case { norm, k: 768, m: 2, dtype: DType::F16, activations: DType::F16, columns: &[48, 7], ..plain });
        check(&device, &Case { norm, k: 2048, dtype: DType::Q4_0, columns: &[9, 8, 64], ..plain });
        check(&device, &Case { norm, k: 576, dtype: DType::Q4_1, columns: &[576, 192, 192], ..plain });
    }
    for &dtype in &DType::WEIGHTS[1..] {
        check(&device, &Case { dtype, ..plain });
        check(&device, &Case { dtype, norm: Norm::Rms, ..plain });
        check(&device, &Case { dtype, gated: true, columns: &[50, 50], ..plain });
    }
    // Many rows of the right side: several rows for each group of threads.
    check(&device, &Case { columns: &[8200, 4100], k: 64, dtype: DType::Q8_0, norm: Norm::Rms, ..plain });
    check(&device, &Case { columns: &[8200, 8200], k: 64, dtype: DType::Q8_0, norm: Norm::Rms, gated: true, ..plain });
    // Long weights in blocks, whose rows are walked; layer norm, ragged columns, another kernel for f32 activations.
    let long = Case { k: 2048, dtype: DType::Q4_K, activations: DType::F16, norm: Norm::Rms, columns: &[3000, 600, 600], ..plain };
    check(&device, &long);
    check(&device, &Case { norm: Norm::Layer, dtype: DType::Q8_0, columns: &[4096, 33], ..long });
    check(&device, &Case { norm: Norm::None, k: 2112, dtype: DType::Q5_0, ..long });
    check(&device, &Case { gated: true, columns: &[2100, 2100], ..long });
    check(&device, &Case { gated: true, dtype: DType::Q4_0, columns: &[2053, 2053], ..long });
    check(&device, &Case { activations: DType::F32, ..long });
    // Five products are a dispatch of four and one of one, each with the normalization.
    check(&device, &Case { columns: &[8, 8, 8, 8, 8], norm: Norm::Rms, expect: 2, ..plain });
    // A left side that is too long for workgroup memory is normalised by itself; many rows are multiplied as ever.
    check(&device, &Case { norm: Norm::Rms, k: 4096, expect: 2, ..plain });
    check(&device, &Case { norm: Norm::Rms, m: 16, columns: &[32, 64], expect: 3, ..plain });
}

#[test]
fn a_rotary_embedding_is_done_where_its_product_is() {
    let Some((device, _turn)) = gpu() else { return };
    let (k, heads, d) = (256, 3, 64);
    for (m, pairs, dtype, expect) in [
        (1, RopePairs::Adjacent, DType::F32, 1),
        (1, RopePairs::Adjacent, DType::Q4_1, 1),
        // Halves of a head are made by different threads, and more rows lie in another order.
        (1, RopePairs::Halves, DType::Q8_0, 2),
        (2, RopePairs::Adjacent, DType::Q8_0, 2),
    ] {
        let what = format!("{m} rows, {pairs:?}, {dtype}");
        let x = Tensor::from_vec(noise(m * k, 1), &[1, m, k], &device).unwrap();
        let freqs: Vec<f64> = (0..d / 2).map(|i| 1.0 / (i + 1) as f64).collect();
        let (cos, sin) = rope_tables(m + 5, &freqs, pairs);
        let row = |t: &[f32]| Tensor::from_vec(t[5 * d..].to_vec(), &[1, 1, m, d], &device).unwrap();
        let (cos_t, sin_t) = (row(&cos), row(&sin));
        let mut weights = Vec::new();
        let mut products = Vec::new();
        for (p, n) in [heads * d, 32].into_iter().enumerate() {
            let bytes = quantize(dtype, &noise(n * k, 20 + p as u32)).unwrap();
            let mut values = vec![0.0; n * k];
            dequantize(dtype, &bytes, &mut values).unwrap();
            let w = Tensor::from_bytes(Bytes::Owned(bytes.into()), dtype, &[n, k], &device).unwrap();
            products.push(x.matmul(&w.t().unwrap()).unwrap());
            weights.push(values);
        }
        eval_all(&[&x, &cos_t, &sin_t]).unwrap();
        let split = products[0].reshape(&[1, m as isize, heads as isize, d as isize]).unwrap().transpose(1, 2).unwrap();
        let rotated = split.rope(&cos_t, &sin_t, pairs).unwrap();
        eval_all(&[&rotated, &products[1]]).unwrap();
        assert_eq!(tensorlogic::eval::eval_stats(&device).dispatches, expect, "{what}: dispatches");
        let held = x.to_vec().unwrap();
        let dot = |m: usize, n: usize| (0..k).map(|i| held[m * k + i] as f64 * weights[0][n * k + i] as f64).sum::<f64>();
        let got = rotated.to_vec().unwrap();
        for (i, g) in got.iter().enumerate() {
            let (h, t, c) = (i / (m * d), i / d % m, i % d);
            let partner = if pairs == RopePairs::Adjacent { c ^ 1 } else { (c + d / 2) % d };
            let at = (t + 5) * d + c;
            let e = dot(t, h * d + c) * cos[at] as f64 + dot(t, h * d + partner) * sin[at] as f64;
            assert!((*g as f64 - e).abs() <= 5e-5 * (4.0 + e.abs()), "{what}: element {i}: {g}, not {e}");
        }
    }
}

#[test]
fn a_normalised_value_that_others_read_stays() {
    let Some((device, _turn)) = gpu() else { return };
    let x = Tensor::from_vec(noise(64, 5), &[1, 64], &device).unwrap();
    let w = Tensor::from_vec(noise(64 * 64, 6), &[64, 64], &device).unwrap();
    eval_all(&[&x, &w]).unwrap();
    let run = |cpu: bool| {
        let here = if cpu { Device::cpu() } else { device.clone() };
        let on = |t: &Tensor| t.to_device(&here).unwrap();
        let h = on(&x).rms_norm(None, 1e-6).unwrap();
        let y = h.matmul(&on(&w).t().unwrap()).unwrap();
        // The value is added again, and the product's own input is read by something after it.
        let z = y.add(&h).unwrap().softmax(-1).unwrap();
        eval_all(&[&z, &h]).unwrap();
        (z.to_vec().unwrap(), h.to_vec().unwrap())
    };
    let (got, expect) = (run(false), run(true));
    for (g, e) in got.0.iter().zip(&expect.0).chain(got.1.iter().zip(&expect.1)) {
        assert!((g - e).abs() <= 1e-5 * (1.0 + e.abs()), "{g}, not {e}");
    }
}
