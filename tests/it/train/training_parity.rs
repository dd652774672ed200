//! The same training as PyTorch: from the same weights over the same batches, the loss follows PyTorch's at every step; so do gradients.
//!
//! The curves in `tests/vectors/training` are PyTorch's, written by `benches/peers/pytorch_gpt.py losses`. The full character GPT takes
//! minutes: `TL_SHAKESPEARE=tinyshakespeare.txt cargo test --release --test it the_character_gpt -- --ignored`.

use crate::common::{devices, on_gpu};
use flate2::read::GzDecoder;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use tensorlogic::io::SafeTensors;
use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
use tensorlogic::optim::{AdamW, Optimizer, decay_matrices};
use tensorlogic::{Device, Rng, Tensor};

/// How far a loss may be from PyTorch's.
const TOLERANCE: f64 = 0.005;

struct Shape {
    config: GptConfig,
    batch: usize,
    lr: f64,
}

const SMALL: Shape =
    Shape { config: GptConfig { vocab: 65, context: 64, layers: 2, heads: 2, width: 64, bias: false, dropout: 0.0 }, batch: 4, lr: 1e-3 };
const CHAR: Shape = Shape {
    config: GptConfig { vocab: 65, context: 256, layers: 6, heads: 6, width: 384, bias: false, dropout: 0.0 },
    batch: 12,
    lr: 1e-3,
};

fn vectors() -> PathBuf {
    Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/training")
}

/// splitmix64 (Steele et al., 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Parameter `number`: uniform numbers of this standard deviation.
fn spread(number: usize, count: usize, std: f64) -> Vec<f32> {
    let u = |i: u64| (mix(i + ((number as u64) << 32)) >> 40) as f64 / (1u64 << 24) as f64;
    (0..count as u64).map(|i| ((u(i) - 0.5) * 2.0 * 3f64.sqrt() * std) as f32).collect()
}

/// Trains on `text` and compares each step's loss with the curve's.
#[track_caller]
fn check(shape: &Shape, text: &str, curve: &str, steps: usize, device: &Device) {
    let want: Vec<f64> = std::fs::read_to_string(vectors().join(curve))
        .unwrap()
        .lines()
        .skip(1)
        .map(|l| l.split(',').nth(1).unwrap().parse().unwrap())
        .take(steps)
        .collect();
    assert_eq!(want.len(), steps);
    let letters: Vec<u8> = text.bytes().collect::<BTreeSet<u8>>().into_iter().collect();
    assert!(letters.len() <= shape.config.vocab);
    let data: Vec<i32> = text.bytes().map(|b| letters.binary_search(&b).unwrap() as i32).collect();
    let model = Gpt::new(shape.config, &mut Rng::new(0), device).unwrap();
    let params = model.named_parameters();
    for (n, (_, p)) in params.iter().enumerate() {
        let value = p.get();
        if value.rank() > 1 {
            p.set(&Tensor::from_vec(spread(n, value.numel(), 0.02), value.dims(), device).unwrap()).unwrap();
        }
    }
    let rule = AdamW { betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.0 };
    let mut o = Optimizer::with_groups(rule, decay_matrices(params, 0.1), shape.lr).unwrap().max_grad_norm(1.0);
    let (batch, context) = (shape.batch, shape.config.context);
    let mut worst = 0f64;
    for (step, want) in want.iter().enumerate() {
        let starts: Vec<usize> =
            (0..batch).map(|i| (mix((step * batch + i) as u64) % (data.len() - context - 1) as u64) as usize).collect();
        let rows = |shift: usize| {
            let tokens: Vec<i32> = starts.iter().flat_map(|&s| data[s + shift..s + shift + context].iter().copied()).collect();
            Tensor::from_vec(tokens, &[batch, context], device).unwrap()
        };
        o.zero_grad().unwrap();
        let loss = model.loss(&rows(0), &rows(1)).unwrap();
        loss.backward().unwrap();
        o.step_with(&[&loss]).unwrap();
        let got = loss.item().unwrap();
        worst = worst.max((got - want).abs() / want);
        assert!((got - want).abs() <= TOLERANCE * want, "step {step} on {}: the loss is {got}, PyTorch's is {want}", device.name());
    }
    println!("{curve}, {steps} steps on {}: at most {:.4} % from PyTorch's loss", device.name(), worst * 100.0);
}

fn shakespeare() -> String {
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(vectors().join("shakespeare.txt.gz")).unwrap()).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_small_gpt_follows_pytorch_on_the_cpu() {
    check(&SMALL, &shakespeare(), "small.csv", 200, &Device::cpu());
}

#[test]
fn a_small_gpt_follows_pytorch_on_a_gpu() {
    on_gpu(|device| check(&SMALL, &shakespeare(), "small.csv", 30, device));
}

/// A tiny GPT-2 with the weights of `tests/vectors/models/gpt2-odd`: every gradient, and ten steps, against PyTorch's.
#[track_caller]
fn check_gpt2(device: &Device) {
    let mut bytes = Vec::new();
    GzDecoder::new(std::fs::File::open(vectors().join("gpt2-odd.safetensors.gz")).unwrap()).read_to_end(&mut bytes).unwrap();
    let expected = SafeTensors::from_bytes(bytes).unwrap();
    let meta =
        |key: &str| -> serde_json::Value { serde_json::from_str(&expected.metadata().iter().find(|(k, _)| k == key).unwrap().1).unwrap() };
    let weights = vectors().join("../models/gpt2-odd/model.safetensors");
    let config = GptConfig { vocab: 317, context: 128, layers: 2, heads: 3, width: 60, bias: true, dropout: 0.0 };
    let model = Gpt::new(config, &mut Rng::new(0), device).unwrap();
    model.load_hub(&SafeTensors::open(weights).unwrap()).unwrap();
    // Each token's target is the next one.
    let loss = |name: &str| {
        let info = expected.tensor(name).unwrap();
        let ids: Vec<i32> = expected.bytes_of(info).chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect();
        let ids = Tensor::from_vec(ids, &info.shape, device).unwrap();
        let t = info.shape[1] - 1;
        model.loss(&ids.narrow(1, 0, t).unwrap(), &ids.narrow(1, 1, t).unwrap()).unwrap()
    };
    let first = loss("input_ids");
    first.backward().unwrap();
    let want = meta("loss").as_f64().unwrap();
    assert!((first.item().unwrap() - want).abs() < 1e-5 * want, "the loss is {}, not {want}", first.item().unwrap());
    for (name, p) in model.named_parameters() {
        let info = expected.tensor(&format!("grad.transformer.{name}")).unwrap();
        let want: Vec<f32> = expected.bytes_of(info).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let g = p.grad().unwrap();
        // The files hold weights of linear layers as [inputs, outputs].
        let g = if g.dims() == &info.shape[..] && !name.contains(".c_") || g.rank() == 1 { g } else { g.t().unwrap() };
        let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        for (i, (got, want)) in g.to_vec().unwrap().iter().zip(&want).enumerate() {
            assert!((got - want).abs() <= 2e-5 * size, "{name} on {}: gradient {i} is {got}, not {want}", device.name());
        }
    }
    let adamw = meta("adamw");
    let number = |key: &str| adamw[key].as_f64().unwrap();
    let betas = (adamw["betas"][0].as_f64().unwrap(), adamw["betas"][1].as_f64().unwrap());
    let rule = AdamW { betas, eps: number("eps"), weight_decay: number("weight_decay") };
    let mut o = Optimizer::new(rule, model.named_parameters(), number("lr")).unwrap().max_grad_norm(number("clip"));
    for (n, want) in adamw["trajectory_loss_gradnorm"].as_array().unwrap().iter().enumerate() {
        o.zero_grad().unwrap();
        let loss = loss(&format!("train.batch{n}"));
        loss.backward().unwrap();
        o.step_with(&[&loss]).unwrap();
        for (what, got, want) in [("loss", &loss, &want[0]), ("norm", o.grad_norm().unwrap(), &want[1])] {
            let (got, want) = (got.item().unwrap(), want.as_f64().unwrap());
            assert!((got - want).abs() <= 1e-4 * want, "{what} of step {n} on {}: {got}, not {want}", device.name());
        }
    }
}

#[test]
fn a_gpt2_has_pytorchs_gradients_and_takes_its_steps() {
    devices().iter().for_each(check_gpt2);
}

#[test]
#[ignore = "minutes in the release profile; TL_SHAKESPEARE names the text"]
fn the_character_gpt_follows_pytorch() {
    let path = std::env::var("TL_SHAKESPEARE").expect("TL_SHAKESPEARE names tinyshakespeare.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let device = Device::open(&std::env::var("TL_DEVICE").unwrap_or("cpu".into())).unwrap();
    check(&CHAR, &text, "char.csv", 200, &device);
}
