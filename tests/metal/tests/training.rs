//! A training step on the Metal backend: the loss and every weight after it, as on the CPU, in memory of heaps.

use fake_metal::metal::COUNTS;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::data::{DataLoader, LoaderOptions, Order, TokenFile, TokenWindows};
use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
use tensorlogic::optim::{AdamW, Optimizer, decay_matrices};
use tensorlogic::{DType, Device, Rng};

const CONFIG: GptConfig = GptConfig { vocab: 29, context: 16, layers: 2, heads: 2, width: 24, bias: false, dropout: 0.0 };

/// The losses of two steps, and the weights after them.
fn train(precision: DType, device: &Device) -> (Vec<f32>, Vec<(String, Vec<f32>)>) {
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
    let mut losses = vec![];
    for _ in 0..2 {
        let b = loader.next_batch().unwrap();
        let loss = model.loss(&b[0], &b[1]).unwrap();
        optimizer.scale_loss(&loss).unwrap().backward().unwrap();
        let loss = loss.detach();
        optimizer.step_with(&[&loss]).unwrap();
        optimizer.zero_grad().unwrap();
        losses.push(loss.cast(DType::F32).unwrap().to_vec().unwrap()[0]);
    }
    let weights = model.named_parameters().into_iter().map(|(name, t)| (name, t.get().cast(DType::F32).unwrap().to_vec().unwrap()));
    (losses, weights.collect())
}

/// Steps on both devices. AdamW moves a weight by at most about the learning rate, 1e-3, in each of the two steps, whatever its gradient's size: where
/// a gradient is rounding only, its sign may differ.
#[track_caller]
fn check(precision: DType, loss_tolerance: f32, far: f64) {
    let metal = Device::open("metal").unwrap();
    metal.set_adaptive(false);
    let (losses, weights) = train(precision, &Device::cpu());
    let counts = || [&COUNTS.device_buffers, &COUNTS.heap_buffers].map(|c| c.load(SeqCst));
    let before = counts();
    let (got_losses, got_weights) = train(precision, &metal);
    let [alone, in_heaps] = std::array::from_fn(|n| counts()[n] - before[n]);
    println!("{precision}: {in_heaps} buffers of heaps and {alone} others were made");
    assert!(alone == 0 && in_heaps > 20, "{in_heaps} buffers of heaps and {alone} others were made, all of which are small");
    for (a, b) in losses.iter().zip(&got_losses) {
        assert!((a - b).abs() <= loss_tolerance * a.abs(), "{precision}: losses {losses:?} and {got_losses:?}");
    }
    let (mut count, mut differ) = (0usize, 0usize);
    for ((name, a), (_, b)) in weights.iter().zip(&got_weights) {
        let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
        assert!(worst <= 4.1e-3, "{precision} {name}: a weight is {worst:e} away");
        count += a.len();
        differ += a.iter().zip(b).filter(|(a, b)| (*a - *b).abs() > 1e-4).count();
    }
    println!("{precision}: losses {losses:?} and {got_losses:?}; {differ} of {count} weights differ by more than 1e-4");
    assert!(differ as f64 <= far * count as f64, "{precision}: {differ} of {count} weights differ by more than 1e-4");
}

#[test]
fn two_steps_in_f32() {
    check(DType::F32, 1e-5, 0.001);
}

#[test]
fn two_steps_in_f16() {
    check(DType::F16, 5e-3, 0.1);
}
