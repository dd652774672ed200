//! Functions of kernels whose body is written in Metal's language: executed, against the CPU, and so is their WGSL form, which is their oracle.

use super::backend::{apple, apple_with_tensor_ops};
use super::common::{open, open_as};
use super::toolchain::Mode;
use std::sync::Arc;
use tensorlogic::backends::Bytes;
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::plan::AdapterInfo;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult, quant};

/// A case: its name, and what is computed.
type Case<'c> = (String, Box<dyn Fn(&Device) -> TensorResult<Tensor> + 'c>);

fn noise(shape: &[usize], dtype: DType, seed: u64, device: &Device) -> TensorResult<Tensor> {
    let values = Rng::new(seed).normal(shape, DType::F32, &Device::cpu())?.to_vec()?;
    Tensor::from_vec(values, shape, device)?.cast(dtype)
}

/// Weights `[n, k]` in any format.
fn weights(shape: [usize; 2], dtype: DType, device: &Device) -> TensorResult<Tensor> {
    weights_of(2, shape, dtype, device)
}

/// The same from another seed.
fn weights_of(seed: u64, shape: [usize; 2], dtype: DType, device: &Device) -> TensorResult<Tensor> {
    if dtype.format().is_none() {
        return noise(&shape, dtype, seed, device);
    }
    let values = Rng::new(seed).normal(&shape, DType::F32, &Device::cpu())?.to_vec()?;
    Tensor::from_bytes(Bytes::Owned(Arc::new(quant::quantize(dtype, &values)?)), dtype, &shape, device)
}

fn values(t: TensorResult<Tensor>) -> Vec<f32> {
    t.and_then(|t| t.cast(DType::F32)?.to_vec()).unwrap()
}

/// Checks the cases with the bodies in Metal's language, with the WGSL forms, and with bodies and checks for undefined behaviour, on results of which `unit` is the distance of two at 1; at least
/// `least` kernels have `marks` in their Metal source with bodies, and none without.
fn check(cases: &[Case], marks: &[&str], least: usize, unit: f32) {
    check_as(&apple(), cases, marks, least, unit);
}

/// The same on a GPU that answers so.
fn check_as(info: &AdapterInfo, cases: &[Case], marks: &[&str], least: usize, unit: f32) {
    let want: Vec<Vec<f32>> = cases.iter().map(|c| values(c.1(&Device::cpu()))).collect();
    for (mode, bodies) in [(Mode::Unoptimized, true), (Mode::Unoptimized, false), (Mode::Checked, true)] {
        let Some((backend, device)) = open_as(info.clone(), mode, None) else { return };
        backend.use_bodies(bodies);
        backend.with_kernels_of(|learning| {
            for ((name, f), want) in cases.iter().zip(&want) {
                let got = values(f(&device));
                assert_eq!(got.len(), want.len(), "{name}");
                let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
                let wrong = got.iter().zip(want).position(|(a, b)| !((a - b).abs() <= 2.0 * unit * size)).filter(|_| !learning);
                let wrong = wrong.map(|i| format!("{name}, {mode:?}, bodies {bodies}: element {i} is {}, not {}", got[i], want[i]));
                assert_eq!(wrong, None);
            }
        });
        let marked = backend.sources().iter().filter(|t| marks.iter().all(|mark| t.contains(mark))).count();
        println!("{mode:?}, {marks:?}: {marked} of {} kernels, {} cases", backend.sources().len(), cases.len());
        assert!(if bodies { marked >= least } else { marked == 0 }, "{marked} kernels have {marks:?} with bodies {bodies}");
    }
}

/// Whole and ragged tiles, both sides stored in either order, fused prologues and epilogues.
#[test]
fn products_leave_from_elements() {
    let mut cases: Vec<Case> = vec![];
    for [m, n, k] in [[8, 8, 8], [64, 64, 64], [33, 72, 40], [130, 96, 72], [257, 128, 100], [40, 512, 33], [70, 36, 64]] {
        let of = move |d: &Device| Ok((noise(&[m, k], DType::F16, 1, d)?, noise(&[k, n], DType::F16, 2, d)?));
        cases.push((format!("{m}x{n}x{k}"), Box::new(move |d| of(d).and_then(|(a, b)| a.matmul(&b)))));
        cases.push((
            format!("{m}x{n}x{k} transposed"),
            Box::new(move |d| noise(&[k, m], DType::F16, 1, d)?.t()?.matmul(&noise(&[n, k], DType::F16, 2, d)?.t()?)),
        ));
        let epilogue = move |d: &Device| {
            let (a, b) = of(d)?;
            let (bias, rest) = (noise(&[n], DType::F16, 3, d)?, noise(&[m, n], DType::F16, 4, d)?);
            a.relu()?.matmul(&b)?.add(&bias)?.gelu_tanh()?.add(&rest)
        };
        cases.push((format!("{m}x{n}x{k} of relu, with bias, gelu and residual"), Box::new(epilogue)));
    }
    check(&cases, &["thread_elements()"], 3, 1.0 / 1024.0);
}

/// Such values in f16, stored: a product reads them where they lie.
fn stored(shape: &[usize], seed: u64, device: &Device) -> TensorResult<Tensor> {
    let x = noise(shape, DType::F16, seed, device)?;
    x.eval()?;
    Ok(x)
}

/// Sides of products that tensor operations compute: whole tiles, and tiles and columns of which parts are missing.
const TENSOR_SIDES: [[usize; 3]; 8] =
    [[9, 8, 8], [64, 64, 64], [33, 72, 40], [130, 96, 72], [257, 129, 104], [40, 512, 32], [70, 35, 8], [128, 256, 136]];

/// Both sides stored in either order, batches, what follows a product, and products that have none: of other types, or in lines that are no whole eights.
#[test]
fn products_by_tensor_operations() {
    let mut cases: Vec<Case> = vec![];
    for [m, n, k] in TENSOR_SIDES {
        let left = move |d: &Device| stored(&[m, k], 1, d);
        let weights = move |d: &Device| stored(&[n, k], 2, d)?.t();
        cases.push((format!("{m}x{n}x{k}"), Box::new(move |d| left(d)?.matmul(&weights(d)?))));
        let fused = move |d: &Device| {
            let (bias, rest) = (stored(&[n], 3, d)?, stored(&[m, n], 4, d)?);
            left(d)?.matmul(&weights(d)?)?.add(&bias)?.gelu_tanh()?.add(&rest)
        };
        cases.push((format!("{m}x{n}x{k} with bias, gelu and residual"), Box::new(fused)));
        cases.push((format!("{m}x{n}x{k}, right side in columns"), Box::new(move |d| left(d)?.matmul(&stored(&[k, n], 2, d)?))));
        cases.push((format!("{m}x{n}x{k}, left side in columns"), Box::new(move |d| stored(&[k, m], 1, d)?.t()?.matmul(&weights(d)?))));
    }
    for [m, n, k] in [[72, 40, 16], [24, 136, 56]] {
        let both = move |d: &Device| {
            let (left, right) = (stored(&[3, k, m], 1, d)?, stored(&[3, k, n], 2, d)?);
            left.transpose(1, 2)?.matmul(&right)
        };
        cases.push((format!("3x{m}x{n}x{k}, both in columns"), Box::new(both)));
        let part = move |d: &Device| stored(&[m, 2 * k], 1, d)?.narrow(1, k, k)?.matmul(&stored(&[n, k], 2, d)?.t()?);
        cases.push((format!("{m}x{n}x{k} of a part"), Box::new(part)));
    }
    check_as(&apple_with_tensor_ops(), &cases, &["mpp::tensor_ops::matmul2d<"], 7, 1.0 / 1024.0);
    let others: Vec<Case> = vec![
        ("odd columns".into(), Box::new(|d| stored(&[40, 33], 1, d)?.matmul(&stored(&[16, 33], 2, d)?.t()?))),
        ("f32".into(), Box::new(|d| noise(&[40, 32], DType::F32, 1, d)?.matmul(&noise(&[16, 32], DType::F32, 2, d)?.t()?))),
        ("of relu".into(), Box::new(|d| stored(&[40, 32], 1, d)?.relu()?.matmul(&stored(&[16, 32], 2, d)?.t()?))),
        ("of blocks".into(), Box::new(|d| stored(&[40, 64], 1, d)?.matmul(&weights([16, 64], DType::Q4_0, d)?.t()?))),
    ];
    let Some((backend, device)) = open_as(apple_with_tensor_ops(), Mode::Unoptimized, None) else { return };
    for (name, f) in &others {
        let (got, want) = (values(f(&device)), values(f(&Device::cpu())));
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 2e-2 * (1.0 + b.abs())), "{name}");
    }
    assert!(!backend.sources().iter().any(|t| t.contains("mpp::")), "a product that has no lines of eights has tensor operations");
}

/// Products against sums in f64: what is off is the rounding of the result to f16, and that of sums in f32.
#[test]
fn tensor_operations_round_as_sums_in_f32() {
    let Some((backend, device)) = open_as(apple_with_tensor_ops(), Mode::Unoptimized, None) else { return };
    for [m, n, k] in TENSOR_SIDES {
        let (a, b) = (stored(&[m, k], 1, &Device::cpu()).unwrap(), stored(&[n, k], 2, &Device::cpu()).unwrap());
        let got = values(stored(&[m, k], 1, &device).and_then(|a| a.matmul(&stored(&[n, k], 2, &device)?.t()?)));
        let (a, b) = (values(Ok(a)), values(Ok(b)));
        for (i, got) in got.iter().enumerate() {
            let terms = (0..k).map(|j| f64::from(a[i / n * k + j]) * f64::from(b[i % n * k + j]));
            let [sum, size] = terms.fold([0.0; 2], |[sum, size]: [f64; 2], t| [sum + t, size + t.abs()]);
            let off = sum.abs() / 2048.0 + size * k as f64 * f64::from(f32::EPSILON) + 1e-7;
            assert!((f64::from(*got) - sum).abs() <= off, "{m}x{n}x{k}: element {i} is {got}, not {sum}");
        }
    }
    let sources = backend.sources();
    assert!(!sources.is_empty() && sources.iter().filter(|t| t.contains("kernel void")).any(|t| t.contains("mpp::tensor_ops::matmul2d<")));
}

/// Faults in the source are found: columns of which the last ones are left out, and a side of which less is said to be there than there is.
#[test]
fn a_wrong_tensor_operation_is_found() {
    let f = |d: &Device| stored(&[70, 40], 1, d)?.matmul(&stored(&[36, 40], 2, d)?.t()?);
    let want = values(f(&Device::cpu()));
    for (from, to) in [
        ("metal::dextents<int, 2>(int(k), int(a_rows))", "metal::dextents<int, 2>(int(k), 3)"),
        ("int(8u * b_line)}", "int(8u * b_line) + 8}"),
    ] {
        let changed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = changed.clone();
        let change = move |source: &str| {
            count.fetch_add(source.matches(from).count(), std::sync::atomic::Ordering::SeqCst);
            source.replace(from, to)
        };
        let Some((_, device)) = open_as(apple_with_tensor_ops(), Mode::Unoptimized, Some(Box::new(change))) else { return };
        // Wrong values, or an access behind the end of a buffer.
        let got = f(&device).and_then(|t| t.cast(DType::F32)?.to_vec());
        assert_eq!(changed.load(std::sync::atomic::Ordering::SeqCst), 1, "{from}");
        assert!(got.is_err() || got.unwrap().iter().zip(&want).any(|(a, b)| (a - b).abs() >= 1e-2), "{to} is not found");
    }
}

/// Prefill over whole and ragged tiles, with and without windows, and the sums that gradients ask for.
#[test]
fn attention_keeps_scores_in_elements() {
    let causal = AttentionOptions { causal: true, ..Default::default() };
    let window = AttentionOptions { causal: true, window: Some(21), ..Default::default() };
    let all = AttentionOptions::default();
    let mut cases: Vec<Case> = vec![];
    for (queries, keys, head, options) in [
        (40, 40, 64, causal.clone()),
        (70, 70, 80, window.clone()),
        (33, 130, 64, causal.clone()),
        (40, 300, 128, all.clone()),
        (96, 96, 32, window),
    ] {
        let qkv = move |d: &Device| {
            let kv = |seed| noise(&[1, 2, keys, head], DType::F16, seed, d);
            Ok((noise(&[1, 4, queries, head], DType::F16, 1, d)?.mul(4.0)?, kv(2)?, kv(3)?))
        };
        cases.push((
            format!("{queries} queries, {keys} keys of {head}"),
            Box::new(move |d| qkv(d).and_then(|(q, k, v)| q.attention(&k, &v, None, &options))),
        ));
    }
    for options in [causal, all] {
        let grad = move |d: &Device| {
            let q = noise(&[1, 2, 48, 64], DType::F16, 1, d)?.requires_grad()?;
            let kv = |seed| noise(&[1, 2, 48, 64], DType::F16, seed, d);
            let y = q.attention(&kv(2)?, &kv(3)?, None, &options)?.mul(&kv(4)?)?.cast(DType::F32)?.sum(&[], false)?;
            y.backward()?;
            q.grad().ok_or_else(|| tensorlogic::TensorError::Internal("no gradient".into()))
        };
        cases.push(("gradient".into(), Box::new(grad)));
    }
    check(&cases, &["thread_elements()"], 3, 2.0 / 1024.0);
}

/// Formats that have an inner loop of their own for one row.
fn formats() -> Vec<DType> {
    const BEGINNINGS: [&str; 8] = ["q2", "q3", "q4", "q5", "q6", "q8", "iq4", "mxfp4"];
    let has_loop = |d: &DType| BEGINNINGS.iter().any(|b| d.name().starts_with(b));
    let all: Vec<DType> = [DType::F16].into_iter().chain(DType::BLOCKS.into_iter().filter(has_loop)).collect();
    assert_eq!(all.len(), 14, "{all:?}");
    all
}

/// One row times weights in every format that has an inner loop of its own, with fused prologues and epilogues, and rows that end a group early.
#[test]
fn rows_times_weights_by_words() {
    let mut cases: Vec<Case> = vec![];
    for dtype in formats() {
        for (n, k) in [(37, 256), (64, 768), (7, 2304)] {
            for left in [DType::F32, DType::F16] {
                let product = move |d: &Device| noise(&[1, k], left, 1, d)?.matmul(&weights([n, k], dtype, d)?.t()?);
                cases.push((format!("{left}·{dtype} {n}x{k}"), Box::new(product)));
            }
            let fused = move |d: &Device| {
                let x = noise(&[1, k], DType::F32, 1, d)?.silu()?;
                x.matmul(&weights([n, k], dtype, d)?.t()?)?.add(&noise(&[n], DType::F32, 4, d)?)?.relu()
            };
            cases.push((format!("silu·{dtype} {n}x{k} with bias and relu"), Box::new(fused)));
        }
    }
    check(&cases, &["(device const "], 14, 1.0 / 1024.0);
}

/// A row that is normalised, times three weights of different sizes as of queries, keys and values, and times two whose results are combined row by row.
#[test]
fn joined_rows_times_weights_by_words() {
    let (mut three, mut gated): (Vec<Case>, Vec<Case>) = (vec![], vec![]);
    for dtype in formats() {
        for (sizes, k, left) in [([40, 24, 28], 256, DType::F32), ([37, 5, 64], 768, DType::F16)] {
            let row = move |d: &Device| noise(&[1, k], left, 1, d)?.rms_norm(Some(&noise(&[k], left, 5, d)?), 1e-5);
            let product = move |x: &Tensor, n: usize, d: &Device| x.matmul(&weights([n, k], dtype, d)?.t()?);
            let all = move |d: &Device| {
                let x = row(d)?;
                // Sums along the row, so that no product writes into what the others do: those are not joined.
                let parts = sizes.into_iter().map(|n| product(&x, n, d)?.cumsum(1)).collect::<TensorResult<Vec<_>>>()?;
                Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)
            };
            three.push((format!("{left}·{dtype} {sizes:?}x{k}"), Box::new(all)));
            let n = sizes[0];
            let pair = move |d: &Device| {
                let x = row(d)?;
                let up = x.matmul(&weights_of(3, [n, k], dtype, d)?.t()?)?;
                product(&x, n, d)?.silu()?.mul(&up)
            };
            gated.push((format!("silu({left}·{dtype}) {n}x{k}"), Box::new(pair)));
        }
    }
    check(&three, &["(device const ", "row_products_2"], 13, 1.0 / 1024.0);
    check(&gated, &["(device const ", "row_products_1"], 13, 1.0 / 1024.0);
}

/// A fault in a body is found: each word of weights is taken for the next one.
#[test]
fn a_wrong_body_is_found() {
    let f = |d: &Device| noise(&[1, 256], DType::F32, 1, d)?.matmul(&weights([16, 256], DType::Q4_0, d)?.t()?);
    let change = |source: &str| source.replace("const uint a = l[0];", "const uint a = l[1];");
    let Some((_, device)) = open(Mode::Unoptimized, Some(Box::new(change))) else { return };
    let (got, want) = (f(&device).and_then(|t| t.to_vec()), values(f(&Device::cpu())));
    // It compiles and runs: what is found are its results.
    let got = got.unwrap();
    assert!(got.iter().zip(&want).any(|(a, b)| (a - b).abs() >= 1e-3), "a wrong word is not found");
}

/// A body that names no function of its kernel is an error, and so is one without an end.
#[test]
fn a_body_needs_its_function() {
    let wgsl = |body: &str| {
        format!(
            "@group(0) @binding(0) var<storage, read_write> y: array<u32>;\nfn twice(v: u32) -> u32 {{ return v + v; }}\n{body}\n\
             @compute @workgroup_size(64)\nfn main(@builtin(local_invocation_index) lid: u32) {{ y[lid] = twice(lid); }}\n"
        )
    };
    let translated = |body: &str| super::msl_kernel::translate(&wgsl(body), 1);
    assert!(translated("").unwrap().source.contains("v + v"));
    let source = translated("/* metal: twice\n    return v << 1u;\n*/").unwrap().source;
    assert!(source.contains("return v << 1u;") && !source.contains("v + v"), "{source}");
    let refused = |body: &str| translated(body).err().unwrap_or_default();
    assert!(refused("/* metal: thrice\n    return 3u * v;\n*/").contains("no function thrice"));
    assert!(!refused("/* metal: twice\n    return v << 1u;\n").is_empty());
}
