//! Blocks whose scales are at the ends of f16's range, on every way that reads them, against the rule of the format in f64.

use crate::common::devices;
use half::f16;
use std::sync::Arc;
use tensorlogic::backends::Bytes;
use tensorlogic::quant::dequantize;
use tensorlogic::{DType, Tensor};

/// Bits of f16: both zeros, the smallest and largest subnormal and normal ones, both infinities, NaN.
const SCALES: [u16; 13] = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x8400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00];

/// The formats of integers under scales, whose scales are halves.
fn linear() -> impl Iterator<Item = DType> {
    DType::BLOCKS.into_iter().filter(|d| d.format().unwrap().linear().is_some())
}

/// Where a format keeps its scale, and the scale of its minima if it has them.
fn places(d: DType) -> (usize, Option<usize>) {
    let fields = d.format().unwrap().linear().unwrap();
    (fields.d, fields.dmin)
}

/// Blocks of every scale with every other, the rest of their bytes mixed, with 0 and the largest among them.
fn blocks(d: DType) -> Vec<u8> {
    let (scale, min) = places(d);
    let mut out = Vec::new();
    let mut state = 1u32;
    for s in SCALES {
        for m in SCALES.iter().take(if min.is_some() { SCALES.len() } else { 1 }) {
            let mut block: Vec<u8> = (0..d.block_bytes())
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    [(state >> 24) as u8, 0, 0xFF, 0x80, 0x08, 0x10][(state >> 8) as usize % 6]
                })
                .collect();
            block[scale..scale + 2].copy_from_slice(&s.to_le_bytes());
            if let Some(at) = min {
                block[at..at + 2].copy_from_slice(&m.to_le_bytes());
            }
            out.extend(block);
        }
    }
    out
}

/// Compares what was read with the formulas: infinities and NaN where they have them, else f32's rounding of product and sum.
#[track_caller]
fn check(case: &str, d: DType, bytes: &[u8], got: &[f32]) {
    let mut wrong = Vec::new();
    for (b, (block, got)) in bytes.chunks_exact(d.block_bytes()).zip(got.chunks_exact(d.block())).enumerate() {
        let (scale, min) = places(d);
        let size = |at: usize| f64::from(f16::from_le_bytes([block[at], block[at + 1]]).to_f32()).abs();
        // The largest that the terms can be.
        let terms = 4096.0 * (size(scale) + min.map_or(0.0, size));
        for (i, &g) in got.iter().enumerate() {
            let want = d.format().unwrap().exact(block, i);
            let right = if want.is_finite() {
                (f64::from(g) - want).abs() <= 2f64.powi(-23) * terms
            } else {
                f64::from(g).to_bits() == want.to_bits() || g.is_nan() && want.is_nan()
            };
            if !right {
                wrong.push(format!("block {b}, element {i}: {g}, not {want}"));
            }
        }
    }
    let n = wrong.len();
    wrong.truncate(4);
    assert!(n == 0, "{d}, {case}: {n} of {}:\n{}", got.len(), wrong.join("\n"));
}

#[test]
fn scales_at_the_ends_of_their_range() {
    for d in linear() {
        let bytes = blocks(d);
        let rows = bytes.len() / d.block_bytes();
        let mut values = vec![0f32; rows * d.block()];
        dequantize(d, &bytes, &mut values).unwrap();
        check("dequantize", d, &bytes, &values);
        for device in devices() {
            let t = Tensor::from_bytes(Bytes::Owned(Arc::new(bytes.clone())), d, &[rows, d.block()], &device).unwrap();
            let case = |way: &str| format!("{way} on {}", device.name());
            check(&case("cast"), d, &bytes, &t.cast(DType::F32).unwrap().to_vec().unwrap());
            check(&case("add"), d, &bytes, &t.add(0.0).unwrap().to_vec().unwrap());
            let all = Tensor::arange(0.0, rows as f64, 1.0, DType::I32, &device).unwrap();
            check(&case("embedding"), d, &bytes, &t.embedding(&all).unwrap().to_vec().unwrap());
        }
    }
}

/// Products read blocks in other ways. A row of ones times an infinite scale is infinite where the sum of the integers is not 0, NaN at 0
/// or where infinities of both signs meet; finite scales give the sum of the formulas' values.
#[test]
fn products_with_scales_at_the_ends_of_their_range() {
    let mut wrong = Vec::new();
    for d in linear() {
        let bytes = blocks(d);
        let rows = bytes.len() / d.block_bytes();
        for device in devices() {
            let t = Tensor::from_bytes(Bytes::Owned(Arc::new(bytes.clone())), d, &[rows, d.block()], &device).unwrap();
            for m in [1usize, 9, 70] {
                // 1 for one element of each kind of place in a block, else 0 would make NaN of every infinity.
                let x = Tensor::ones(&[m, d.block()], DType::F32, &device).unwrap();
                let got = x.matmul(&t.t().unwrap()).unwrap().to_vec().unwrap();
                for (r, block) in bytes.chunks_exact(d.block_bytes()).enumerate() {
                    let values: Vec<f64> = (0..d.block()).map(|i| d.format().unwrap().exact(block, i)).collect();
                    let (want, mass) = (values.iter().sum::<f64>(), values.iter().map(|v| v.abs()).sum::<f64>());
                    for row in [0, m - 1] {
                        let g = f64::from(got[row * rows + r]);
                        // An infinity may also come out as NaN: products that are formed of integers meet it with other signs.
                        let right = if want.is_finite() { (g - want).abs() <= mass * 8e-3 + 1e-12 } else { !g.is_finite() };
                        if !right {
                            wrong.push(format!("{d}, {m} rows on {}, row {row} of block {r}: {g}, not {want} ± {mass}", device.name()));
                        }
                    }
                }
            }
        }
    }
    let n = wrong.len();
    wrong.truncate(12);
    assert!(n == 0, "{n}:\n{}", wrong.join("\n"));
}
