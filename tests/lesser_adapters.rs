//! A machine without the fast features runs everything: each is switched off in a process of its own, and what comes out compared with the CPU.

mod common;

use std::process::{Command, Stdio};
use tensorlogic::backends::Bytes;
use tensorlogic::models::{self, Sampler, Session, Weights};
use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
use tensorlogic::optim::{AdamW, Optimizer};
use tensorlogic::text::Tokenizer;
use tensorlogic::{DType, Device, Rng, Tensor, TensorError, TensorResult, quant};

/// Set in the processes that a test starts.
const CHILD: &str = "TL_TEST_LESSER_ADAPTER";

/// What has to be near the same on every machine: a name, numbers, and how far they may be from the CPU's, relative to the largest.
type Results = Vec<(&'static str, Vec<f32>, f32)>;

fn values(shape: &[usize], seed: usize, dtype: DType, device: &Device) -> TensorResult<Tensor> {
    let n: usize = shape.iter().product();
    let v: Vec<f32> = (0..n).map(|i| (((i + seed) * 2_654_435_761) >> 7 & 1023) as f32 / 512.0 - 1.0).collect();
    Tensor::from_vec(v, shape, device)?.cast(dtype)
}

/// The bytes of a weight that no one buffer of the GPU holds, where it has such a limit: the 128 MiB that every adapter can bind, or what
/// `TL_TEST_LARGE_BYTES` says of this machine's, with which this test alone can be run.
fn large_bytes() -> Option<usize> {
    let without = std::env::var("TL_GPU_WITHOUT").unwrap_or_default();
    let lesser = (without.contains("large bindings") || without.contains("limits")).then_some(128 << 20);
    std::env::var("TL_TEST_LARGE_BYTES").ok().map(|bytes| bytes.parse().expect("a number of bytes")).or(lesser)
}

/// Products with, and lookups in, a weight of more bytes than `limit`.
fn large_weight(limit: usize, device: &Device) -> TensorResult<Results> {
    let (n, k) = (1000, 224);
    let experts = 10 + limit / (n * k / 32 * 34);
    let rows = (experts * n) as i32;
    // Rows repeat after a prime number of them, so that none stands where one of another part would.
    let distinct = quant::quantize(DType::Q8_0, &values(&[1009, k], 20, DType::F32, &Device::cpu())?.to_vec()?)?;
    let bytes: Vec<u8> = distinct.iter().copied().cycle().take(experts * n * k / 32 * 34).collect();
    let bytes = Bytes::Owned(bytes.into());
    let weight = Tensor::from_bytes(bytes.clone(), DType::Q8_0, &[experts * n, k], device)?;
    let of_experts = Tensor::from_bytes(bytes, DType::Q8_0, &[experts, n, k], device)?;
    let ids = |v: &[i32]| Tensor::from_vec(v.to_vec(), &[2, v.len() / 2], device);
    let x = values(&[2, k], 21, DType::F32, device)?.requires_grad()?;
    let y = x.matmul(&weight.t()?)?;
    y.square()?.mean_all()?.backward()?;
    let chosen = x.detach().expert_matmul(&of_experts, &ids(&[0, experts as i32 - 1, experts as i32 / 2, experts as i32 * 11 / 12])?)?;
    let between = weight.narrow(0, experts * n * 9 / 10, 5000)?;
    for bad in [rows, -1] {
        let e = weight.embedding(&ids(&[0, bad])?)?.to_vec().unwrap_err();
        assert!(matches!(e, TensorError::Index { .. }), "{e}");
        let e = x.detach().expert_matmul(&of_experts, &ids(&[bad, 0])?)?.to_vec().unwrap_err();
        assert!(matches!(e, TensorError::Index { .. }), "{e}");
    }
    Ok(vec![
        ("product with a weight of several buffers", y.detach().to_vec()?, 1e-4),
        ("gradient through it", x.grad().expect("it has one").to_vec()?, 1e-3),
        ("rows of it", weight.embedding(&ids(&[0, rows - 1, rows / 2, 7, rows / 9 * 8, rows - 40_000])?)?.to_vec()?, 0.0),
        ("product with a range of it", x.detach().matmul(&between.t()?)?.to_vec()?, 1e-4),
        ("products with experts of it", chosen.to_vec()?, 1e-4),
    ])
}

fn work(device: &Device) -> TensorResult<Results> {
    let mut out: Results = Vec::new();
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 4e-3)] {
        let v = |shape: &[usize], seed| values(shape, seed, dtype, device);
        let mut add = |name, t: Tensor| -> TensorResult<()> {
            out.push((name, t.to_vec()?, tolerance));
            Ok(())
        };
        // Whole and ragged tiles, and a product with a vector.
        add("product", v(&[65, 130], 1)?.matmul(&v(&[130, 70], 2)?)?.add(&v(&[70], 3)?)?)?;
        add("product of tiles", v(&[128, 256], 1)?.matmul(&v(&[192, 256], 2)?.t()?)?.gelu_tanh()?)?;
        add("products of a batch", v(&[3, 33, 40], 4)?.matmul(&v(&[3, 40, 17], 5)?)?)?;
        add("product with a vector", v(&[1, 384], 6)?.matmul(&v(&[1000, 384], 7)?.t()?)?)?;
        let x = v(&[37, 515], 8)?;
        add("sum", x.sum(&[-1], false)?)?;
        add("sum of columns", x.sum(&[0], false)?)?;
        add("mean of all", v(&[300_000], 9)?.mean_all()?.reshape(&[1])?)?;
        add("largest", x.max(&[-1], false)?)?;
        add("place of the largest", x.argmax(-1)?.cast(DType::F32)?)?;
        add("in order", v(&[5, 100], 10)?.sort(-1, true)?.0)?;
        add("softmax", x.softmax(-1)?)?;
        add("softmax of long rows", v(&[3, 9000], 11)?.softmax(-1)?)?;
        add("layer_norm", x.layer_norm(Some(&v(&[515], 12)?), Some(&v(&[515], 13)?), 1e-5)?)?;
        let qkv = |seed| v(&[2, 4, 75, 32], seed);
        let causal = tensorlogic::ops::attention::AttentionOptions { causal: true, ..Default::default() };
        add("attention", qkv(14)?.attention(&qkv(15)?, &qkv(16)?, None, &causal)?)?;
        let leaf = x.requires_grad()?;
        let target = Tensor::from_vec((0..37).map(|i| i * 13).collect::<Vec<i32>>(), &[37], device)?;
        let loss = leaf.cross_entropy_wide(&target, &Default::default())?;
        loss.mul(64.0)?.backward()?;
        add("gradient of cross entropy", leaf.grad().expect("it has one"))?;
        add("cross entropy", loss.reshape(&[1])?)?;
    }
    let (n, k) = (1030, 8192);
    let weight = quant::quantize(DType::Q4_0, &values(&[n, k], 17, DType::F32, &Device::cpu())?.to_vec()?)?;
    let weight = Tensor::from_bytes(Bytes::Owned(weight.into()), DType::Q4_0, &[n, k], device)?;
    let x = values(&[1, k], 18, DType::F16, device)?;
    out.push(("product with a long weight in blocks", x.matmul(&weight.t()?)?.to_vec()?, 1e-3));
    if let Some(limit) = large_bytes() {
        out.extend(large_weight(limit, device)?);
    }
    // Six steps of training a small model.
    let config = GptConfig { vocab: 65, context: 32, layers: 2, heads: 2, width: 32, bias: true, dropout: 0.0 };
    let model = Gpt::new(config, &mut Rng::new(3), &Device::cpu())?;
    let own = Gpt::new(config, &mut Rng::new(3), device)?;
    for ((_, from), (_, to)) in model.named_parameters().iter().zip(own.named_parameters()) {
        to.set(&from.get().to_device(device)?)?;
    }
    let mut optimizer = Optimizer::new(AdamW::default(), own.named_parameters(), 3e-3)?.max_grad_norm(1.0);
    let mut losses = Vec::new();
    for step in 0..6 {
        let ids = |add: usize| -> Vec<i32> { (0..128).map(|i| ((i + add) * (i + step) % 65) as i32).collect() };
        let (x, y) = (Tensor::from_vec(ids(0), &[4, 32], device)?, Tensor::from_vec(ids(1), &[4, 32], device)?);
        let loss = own.loss(&x, &y)?;
        loss.backward()?;
        optimizer.step_with(&[&loss])?;
        optimizer.zero_grad()?;
        losses.push(loss.item()? as f32);
    }
    out.push(("losses while training", losses, 2e-4));
    // What the repository's own model writes, and what it thinks of it.
    let file = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");
    for (dtype, tolerance) in [(DType::F32, 2e-4), (DType::F16, 0.02)] {
        let weights = Weights::open(file, device)?;
        let tokenizer = Tokenizer::from_gguf(weights.gguf().expect("it is a GGUF file"))?;
        let model = models::load(&weights, Some(dtype))?;
        let mut session = Session::new(&*model, 128, device)?;
        let ids = tokenizer.encode("ROMEO:\nBut soft, what light", true)?;
        // More rows than those from which packed weights are unpacked first.
        let long: Vec<u32> = ids.iter().cycle().take(96).copied().collect();
        let logits = session.score(&long)?;
        out.push(("logits", logits.to_vec()?, tolerance));
        session.truncate(0);
        let Some(logits) = session.prompt(&ids, || false)? else { panic!("nothing interrupts") };
        let mut sampler = Sampler::default();
        let mut generation = session.generate(logits, &mut sampler)?;
        let mut written = Vec::new();
        while written.len() < 8 {
            written.extend(generation.token()?.map(|t| t as f32));
        }
        if dtype == DType::F32 {
            out.push(("tokens written", written, 0.0));
        }
    }
    Ok(out)
}

/// Runs in a process whose GPU lacks something.
#[test]
fn a_lesser_adapter_agrees_with_the_cpu() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let gpu = common::gpu().unwrap();
    let (want, got) = (work(&Device::cpu()).unwrap(), work(&gpu).unwrap());
    assert_eq!(want.len(), got.len());
    for ((name, want, tolerance), (_, got, _)) in want.iter().zip(&got) {
        assert_eq!(want.len(), got.len(), "{name}");
        let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        for (i, (a, b)) in want.iter().zip(got).enumerate() {
            assert!((a - b).abs() <= tolerance * size, "{name}: element {i} is {b}, on the CPU {a}");
        }
    }
    // Without timestamps there are times of the whole at least, and never an error.
    let x = values(&[64, 64], 1, DType::F32, &gpu).unwrap();
    gpu.profile(|| x.matmul(&x)?.to_vec()).unwrap();
    println!("{} results of {} agree", got.len(), gpu.name());
}

/// Switches off one feature after the other, then all of them.
#[test]
fn every_feature_can_be_missing() {
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    if common::gpu().is_none() {
        return;
    }
    let single = [
        "f16",
        "subgroup",
        "subgroup barrier",
        "cooperative matrix",
        "immediates",
        "timestamps,timestamps in passes",
        "coherent",
        "byte dots",
        "matrix elements",
        "shared buffers",
        "large bindings",
        "large workgroup memory",
        "limits",
    ];
    let all = format!("{},raw kernels,pipeline cache", single.join(","));
    let check = |without: &str, works: bool, say: &str| {
        let output = child(without).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() == works && text.contains(say), "without {without}: {text}");
    };
    for without in single.into_iter().chain([all.as_str()]) {
        check(without, true, "agree");
    }
    check("wings", false, "\"wings\" is unknown; allowed are f16, subgroup");
}

/// This program as a process without something, running the other test.
fn child(without: &str) -> Command {
    let program = std::env::args().next().expect("a program has a name");
    let mut command = common::command(&program);
    command.args(["--exact", "a_lesser_adapter_agrees_with_the_cpu", "--nocapture"]).env(CHILD, "1").env("TL_GPU_WITHOUT", without);
    command
}
