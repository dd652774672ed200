//! Products on matrix units and attention in all their shapes, through the Metal form of their kernels, against the CPU's.

use super::backend::{MslBackend, apple};
use super::common::open;
use super::msl_kernel::translate;
use super::samples::generated;
use super::toolchain::{Mode, Toolchain};
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

fn noise(shape: &[usize], dtype: DType, seed: u64, device: &Device) -> TensorResult<Tensor> {
    let values = Rng::new(seed).normal(shape, DType::F32, &Device::cpu())?.to_vec()?;
    Tensor::from_vec(values, shape, device)?.cast(dtype)
}

fn values(t: TensorResult<Tensor>) -> Vec<f32> {
    t.and_then(|t| t.cast(DType::F32)?.to_vec()).unwrap()
}

/// Compares with the CPU's; `unit` is the distance of two numbers of the type at 1.
#[track_caller]
fn near(what: &str, got: &[f32], want: &[f32], unit: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!((a - b).abs() <= 2.0 * unit * size, "{what}: element {i} is {a}, not {b}");
    }
}

fn unit(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 1.0 / 1024.0,
        DType::BF16 => 1.0 / 128.0,
        _ => 1e-6,
    }
}

/// How many kernels so far have this in their Metal source.
fn with(backend: &MslBackend, word: &str) -> usize {
    backend.sources().iter().filter(|t| t.contains(word)).count()
}

#[test]
fn products_on_matrix_units() {
    let Some((backend, device)) = open(Mode::Plain, None) else { return };
    let shapes = [[8, 8, 8], [64, 64, 64], [33, 70, 40], [130, 96, 72], [257, 129, 100], [40, 512, 33], [64, 64, 4096]];
    backend.with_kernels_of(|learning| {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            for [m, n, k] in shapes {
                let product = |d: &Device| values(noise(&[m, k], dtype, 1, d).and_then(|a| a.matmul(&noise(&[n, k], dtype, 2, d)?.t()?)));
                let with_epilogue = |d: &Device| {
                    let (a, b) = (noise(&[m, k], dtype, 1, d).unwrap(), noise(&[k, n], dtype, 2, d).unwrap());
                    let (bias, rest) = (noise(&[n], dtype, 3, d).unwrap(), noise(&[m, n], dtype, 4, d).unwrap());
                    values(a.matmul(&b).and_then(|c| c.add(&bias)?.gelu_tanh()?.add(&rest)))
                };
                let got = [product(&device), with_epilogue(&device)];
                if !learning {
                    let cpu = Device::cpu();
                    // Sums of f32 over k terms, rounded once.
                    let unit = unit(dtype).max(1e-7 * k as f32);
                    near(&format!("{dtype} {m}x{n}x{k}"), &got[0], &product(&cpu), unit);
                    near(&format!("{dtype} {m}x{n}x{k} with bias, gelu and residual"), &got[1], &with_epilogue(&cpu), unit);
                }
            }
        }
    });
    let kernels = with(&backend, "simdgroup_multiply_accumulate(");
    println!("{kernels} kernels multiply on matrix units");
    assert!(kernels >= 4, "only {kernels} kernels multiply on matrix units");
}

#[test]
fn attention_in_all_shapes() {
    let Some((backend, device)) = open(Mode::Plain, None) else { return };
    let causal = AttentionOptions { causal: true, ..Default::default() };
    let window = AttentionOptions { causal: true, window: Some(21), ..Default::default() };
    // Queries, keys, head size, options: prefill, a part of one, decoding over short and long caches, several tokens at once.
    let shapes = [
        (40, 40, 64, &causal),
        (70, 70, 80, &window),
        (33, 130, 64, &causal),
        (40, 40, 256, &causal),
        (1, 40, 64, &causal),
        (1, 1500, 128, &causal),
        (4, 700, 80, &causal),
        (2, 300, 256, &AttentionOptions::default()),
    ];
    backend.with_kernels_of(|learning| {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            for (queries, keys, head, options) in shapes {
                let attention = |d: &Device| {
                    let (q, k) = (noise(&[1, 4, queries, head], dtype, 1, d).unwrap(), noise(&[1, 2, keys, head], dtype, 2, d).unwrap());
                    values(q.attention(&k, &noise(&[1, 2, keys, head], dtype, 3, d).unwrap(), None, options))
                };
                let got = attention(&device);
                if !learning {
                    let want = attention(&Device::cpu());
                    near(&format!("{dtype} {queries} queries, {keys} keys of {head}"), &got, &want, unit(dtype).max(2e-6));
                }
            }
        }
    });
    assert!(with(&backend, "simd_") > 0 && with(&backend, "simdgroup_multiply_accumulate(") > 0);
}

/// Every kernel of the sample plans compiles, in all element types and block formats.
#[test]
fn every_text_compiles() {
    let Some(toolchain) = Toolchain::get(Mode::Unoptimized) else { return };
    let sources: Vec<_> = generated(&apple())
        .unwrap()
        .into_iter()
        .map(|(name, k)| {
            let bindings = k.wgsl.matches("@binding(").count();
            (name, translate(&k.wgsl, bindings).unwrap())
        })
        .collect();
    let made = toolchain.kernels(&sources.iter().map(|t| &t.1).collect::<Vec<_>>());
    let failed: Vec<String> =
        sources.iter().zip(&made).filter_map(|((name, _), made)| made.as_ref().err().map(|e| format!("{name}: {e}"))).collect();
    assert!(failed.is_empty(), "{} of {} sources:\n{}", failed.len(), sources.len(), failed.join("\n"));
    assert!(made.len() > 400, "only {} sources", made.len());
}
