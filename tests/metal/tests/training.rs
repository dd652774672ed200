//! Training on the Metal backend: the loss and every gradient of a step, and the weights after two, as on the CPU, in memory of heaps. Each
//! barrier is needed.

use fake_metal::metal::COUNTS;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::data::{DataLoader, LoaderOptions, Order, TokenFile, TokenWindows};
use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
use tensorlogic::optim::{AdamW, Optimizer, decay_matrices};
use tensorlogic::{DType, Device, Rng};

fake_metal::judge_until_exit!();

const CONFIG: GptConfig = GptConfig { vocab: 29, context: 16, layers: 2, heads: 2, width: 24, bias: false, dropout: 0.0 };

/// Numbers of each parameter.
type Named = Vec<(String, Vec<f32>)>;

/// What training gave.
struct Trained {
    losses: Vec<f32>,
    /// Those of the first step, times the loss's scale.
    gradients: Named,
    weights: Named,
}

/// Two steps.
fn train(precision: DType, device: &Device) -> Trained {
    let model = Gpt::new(CONFIG, &mut Rng::new(3), device).unwrap();
    let groups = decay_matrices(model.named_parameters(), 0.1);
    let mut optimizer = Optimizer::with_groups(AdamW::default(), groups, 1e-3).unwrap().max_grad_norm(1.0);
    if precision != DType::F32 {
        optimizer = optimizer.mixed_precision(precision).unwrap();
    }
    let tokens = Arc::new(TokenFile::from_tokens(&(0..400).map(|i| (i * i + i / 7) % 29).collect::<Vec<u32>>()));
    let windows = TokenWindows::new(tokens, 0..400, CONFIG.context, 4).unwrap();
    let options = LoaderOptions { batch: 4, order: Order::Shuffled, seed: 5, ..LoaderOptions::default() };
    let mut loader = DataLoader::new(windows, options, device).unwrap();
    let (mut losses, mut gradients) = (vec![], vec![]);
    for step in 0..2 {
        let b = loader.next_batch().unwrap();
        let loss = model.loss(&b[0], &b[1]).unwrap();
        optimizer.scale_loss(&loss).unwrap().backward().unwrap();
        if step == 0 {
            let all = model.named_parameters().into_iter();
            gradients = all.map(|(name, p)| (name, p.grad().unwrap().cast(DType::F32).unwrap().to_vec().unwrap())).collect();
        }
        let loss = loss.detach();
        optimizer.step_with(&[&loss]).unwrap();
        optimizer.zero_grad().unwrap();
        losses.push(loss.cast(DType::F32).unwrap().to_vec().unwrap()[0]);
    }
    let weights = model.named_parameters().into_iter().map(|(name, t)| (name, t.get().cast(DType::F32).unwrap().to_vec().unwrap()));
    let weights = weights.collect();
    assert!(optimizer.loss_scaler().is_none_or(|s| s.skipped().unwrap() == 0), "a step was skipped");
    Trained { losses, gradients, weights }
}

/// The largest difference between two tensors, as a part of the second one's largest value, which is finite and not zero.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert!(a.len() == b.len() && a.iter().chain(b).all(|v| v.is_finite()));
    let largest = b.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(largest > 0.0);
    a.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

/// Steps on both devices: gradients differ by at most `rounding`, as a part of the largest of their tensor. Of the weights only few may differ: AdamW moves
/// each by about the learning rate, 1e-3, whatever its gradient's size, and where a gradient is rounding only, its sign may differ.
#[track_caller]
fn check(precision: DType, loss_tolerance: f32, rounding: f32, far: f64) {
    let metal = Device::open("metal").unwrap();
    metal.set_adaptive(false);
    let Trained { losses, gradients, weights } = train(precision, &Device::cpu());
    let counts = || [&COUNTS.device_buffers, &COUNTS.heap_buffers].map(|c| c.load(SeqCst));
    let before = counts();
    let got = train(precision, &metal);
    let [alone, in_heaps] = std::array::from_fn(|n| counts()[n] - before[n]);
    println!("{precision}: {in_heaps} buffers of heaps and {alone} others were made");
    assert!(alone == 0 && in_heaps > 20, "{in_heaps} buffers of heaps and {alone} others were made, all of which are small");
    for (a, b) in losses.iter().zip(&got.losses) {
        assert!((a - b).abs() <= loss_tolerance * a.abs(), "{precision}: losses {losses:?} and {:?}", got.losses);
    }
    let off = gradients.iter().zip(&got.gradients).map(|((name, want), (_, got))| (difference(got, want), name));
    let (off, name) = off.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("{precision}: of {} gradients, {name}'s differs most, by {off:.1e} of its largest value", gradients.len());
    assert!(off <= rounding, "{precision}: the gradient of {name} differs by {off:e} of its largest value");
    let (mut count, mut differ) = (0usize, 0usize);
    for ((name, a), (_, b)) in weights.iter().zip(&got.weights) {
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).is_finite()), "{precision} {name}");
        count += a.len();
        differ += a.iter().zip(b).filter(|(a, b)| (*a - *b).abs() > 1e-4).count();
    }
    println!("{precision}: losses {losses:?} and {:?}; {differ} of {count} weights differ by more than 1e-4", got.losses);
    assert!(differ as f64 <= far * count as f64, "{precision}: {differ} of {count} weights differ by more than 1e-4");
}

#[test]
fn two_steps_in_f32() {
    check(DType::F32, 1e-5, 4e-6, 0.001);
}

#[test]
fn two_steps_in_f16() {
    check(DType::F16, 5e-3, 3e-3, 0.005);
}
