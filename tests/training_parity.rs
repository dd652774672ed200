//! The same training as PyTorch: from the same weights over the same batches, the loss follows PyTorch's at every step.
//!
//! The curves in `tests/vectors/training` are PyTorch's, written by `benches/peers/pytorch_gpt.py losses`. The full character GPT takes
//! minutes: `TL_SHAKESPEARE=tinyshakespeare.txt cargo test --release --test training_parity -- --ignored`.

use flate2::read::GzDecoder;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
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
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/training")
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
    match Device::open("vulkan") {
        Ok(device) => check(&SMALL, &shakespeare(), "small.csv", 30, &device),
        Err(e) if std::env::var("TL_REQUIRE_GPU").is_ok_and(|v| v == "1") => panic!("{e}"),
        Err(e) => println!("skipped: {e}"),
    }
}

#[test]
#[ignore = "minutes in the release profile; TL_SHAKESPEARE names the text"]
fn the_character_gpt_follows_pytorch() {
    let path = std::env::var("TL_SHAKESPEARE").expect("TL_SHAKESPEARE names tinyshakespeare.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let device = Device::open(&std::env::var("TL_DEVICE").unwrap_or("cpu".into())).unwrap();
    check(&CHAR, &text, "char.csv", 200, &device);
}
