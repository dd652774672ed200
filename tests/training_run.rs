//! Whole training runs: memory stays flat, one seed gives the same bits, and checkpointed blocks need less memory for the same gradients.
//! A process of its own: the device's memory is measured, which other tests would change.

mod common;

use common::{alone, devices};
use std::time::Instant;
use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
use tensorlogic::ops::{AttentionDropout, AttentionOptions};
use tensorlogic::optim::{AdamW, Optimizer, decay_matrices};
use tensorlogic::{DType, Device, Rng, Tensor};

struct Training {
    model: Gpt,
    optimizer: Optimizer,
    rng: Rng,
    batch: usize,
    device: Device,
}

impl Training {
    fn new(config: GptConfig, batch: usize, device: &Device) -> Training {
        let model = Gpt::new(config, &mut Rng::new(5), device).unwrap();
        let groups = decay_matrices(model.named_parameters(), 0.1);
        let optimizer = Optimizer::with_groups(AdamW::default(), groups, 1e-3).unwrap().max_grad_norm(1.0);
        Training { model, optimizer, rng: Rng::new(6), batch, device: device.clone() }
    }
    /// The loss of a batch of random tokens.
    fn loss(&mut self) -> Tensor {
        let (vocab, context) = (self.model.config.vocab as i32, self.model.config.context);
        let tokens = self.rng.integers(0, vocab, &[self.batch, context + 1], &self.device).unwrap();
        self.model.loss(&tokens.narrow(1, 0, context).unwrap(), &tokens.narrow(1, 1, context).unwrap()).unwrap()
    }
    fn step(&mut self) -> f64 {
        self.optimizer.zero_grad().unwrap();
        let loss = self.loss();
        loss.backward().unwrap();
        self.optimizer.step_with(&[&loss]).unwrap();
        loss.item().unwrap()
    }
    fn bytes(&self) -> Vec<u8> {
        self.model.parameters().iter().flat_map(|p| p.get().to_bytes().unwrap()).collect()
    }
}

const TINY: GptConfig = GptConfig { vocab: 17, context: 16, layers: 2, heads: 2, width: 16, bias: true, dropout: 0.1 };

/// Live bytes after each of `steps` steps, once plans and pools are warm.
#[track_caller]
fn check_flat(device: &Device, steps: usize) {
    let mut t = Training::new(TINY, 2, device);
    let mut held = Vec::new();
    for step in 0..steps {
        t.step();
        if step >= 5 {
            let m = device.memory();
            held.push((m.in_use, m.in_use + m.pooled));
        }
    }
    let first = held[0];
    for (step, now) in held.iter().enumerate() {
        assert_eq!(now.0, first.0, "live bytes at step {} on {}", step + 5, device.name());
        assert!(now.1 <= first.1, "{} bytes held at step {} on {}, {} at step 5", now.1, step + 5, device.name(), first.1);
    }
}

#[test]
fn live_bytes_are_flat_over_a_thousand_steps() {
    let _alone = alone();
    for device in devices() {
        // A GPU driver emulated on the CPU takes its time.
        check_flat(&device, if device.is_cpu() { 1000 } else { 150 });
    }
}

#[test]
fn two_runs_with_one_seed_give_the_same_bits() {
    let _alone = alone();
    // Attention, norms and products of more than one block or piece; with dropout, in and outside of attention.
    let config = GptConfig { vocab: 33, context: 70, layers: 2, heads: 2, width: 48, bias: true, dropout: 0.1 };
    for device in devices() {
        for attention_dropout in [0.1, 0.0] {
            let run = || {
                let mut t = Training::new(config, 3, &device);
                t.model.set_attention_dropout(attention_dropout);
                let losses: Vec<u64> = (0..4).map(|_| t.step().to_bits()).collect();
                (losses, t.bytes())
            };
            let (a, b) = (run(), run());
            assert_eq!(a.0, b.0, "losses on {}", device.name());
            assert!(a.1 == b.1, "parameters on {}", device.name());
        }
    }
}

/// A step of attention with dropout: in the fused kernels, which draw again in the backward pass, and with the weights as tensors.
#[test]
fn dropout_inside_attention_stores_no_weights() {
    let _alone = alone();
    const SHAPE: [usize; 4] = [1, 4, 512, 64];
    let weights = SHAPE[1] * SHAPE[2] * SHAPE[2] * 4;
    for device in devices() {
        let mut rng = Rng::new(1);
        let leaves = [0; 3].map(|_| rng.normal(&SHAPE, DType::F32, &device).unwrap());
        tensorlogic::eval::eval_all(&leaves.iter().collect::<Vec<_>>()).unwrap();
        let run = |fused: bool, p: f64, seed: u64| -> Vec<Vec<f32>> {
            let x = leaves.clone().map(|t| t.requires_grad().unwrap());
            let mut rng = Rng::new(seed);
            let y = if fused {
                let dropout = (p > 0.0).then(|| AttentionDropout::new(p, &mut rng).unwrap());
                x[0].attention(&x[1], &x[2], None, &AttentionOptions { causal: false, dropout, ..Default::default() }).unwrap()
            } else {
                let scores = x[0].mul(1.0 / (SHAPE[3] as f64).sqrt()).unwrap().matmul(&x[1].transpose(-2, -1).unwrap()).unwrap();
                let draw = rng.uniform(&[1, SHAPE[1], SHAPE[2], SHAPE[2]], DType::F32, &device).unwrap();
                let kept = draw.ge(p).unwrap().where_(1.0 / (1.0 - p), 0.0).unwrap();
                scores.softmax(-1).unwrap().mul(&kept).unwrap().matmul(&x[2]).unwrap()
            };
            y.square().unwrap().sum_all().unwrap().backward().unwrap();
            let grads = x.map(|t| t.grad().unwrap());
            tensorlogic::eval::eval_all(&grads.iter().collect::<Vec<_>>()).unwrap();
            grads.iter().map(|g| g.to_vec().unwrap()).collect()
        };
        // What a step takes when its plan is there, and the median of five.
        let measured = |fused: bool, p: f64| {
            let grads = run(fused, p, 5);
            let before = device.memory().in_use;
            device.reset_peak_memory();
            run(fused, p, 6);
            let peak = device.memory().peak - before;
            let mut times: Vec<f64> = (0..5)
                .map(|seed| {
                    let began = Instant::now();
                    run(fused, p, seed);
                    began.elapsed().as_secs_f64() * 1e3
                })
                .collect();
            times.sort_by(f64::total_cmp);
            (grads, peak, times[2])
        };
        let (fused, stored, plain) = (measured(true, 0.1), measured(false, 0.1), measured(true, 0.0));
        for (a, b) in fused.0.iter().zip(&stored.0) {
            let size = b.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-4 * size), "on {}", device.name());
        }
        let line = |name: &str, (_, peak, ms): &(Vec<Vec<f32>>, usize, f64)| println!("{name}: {} KiB, {ms:.1} ms", peak >> 10);
        println!("{}, weights of {} KiB", device.name(), weights >> 10);
        line("fused", &fused);
        line("stored", &stored);
        line("without dropout", &plain);
        assert!(fused.1 < weights && stored.1 > weights, "{} and {} bytes for weights of {weights}", fused.1, stored.1);
    }
}

#[test]
fn checkpointed_blocks_need_less_memory_for_the_same_gradients() {
    let _alone = alone();
    let config = GptConfig { vocab: 33, context: 64, layers: 8, heads: 2, width: 64, bias: true, dropout: 0.1 };
    for device in devices() {
        let run = |on: bool| {
            let mut t = Training::new(config, 4, &device);
            t.model.set_checkpointing(on);
            t.loss().backward().unwrap();
            let grads: Vec<Tensor> = t.model.parameters().iter().map(|p| p.grad().unwrap()).collect();
            tensorlogic::eval::eval_all(&grads.iter().collect::<Vec<_>>()).unwrap();
            let grads: Vec<Vec<f32>> = grads.iter().map(|g| g.to_vec().unwrap()).collect();
            // Twice, so that the plan is there; then what a step takes.
            t.step();
            device.synchronize().unwrap();
            let before = device.memory().in_use;
            device.reset_peak_memory();
            let began = Instant::now();
            t.step();
            (grads, device.memory().peak - before, began.elapsed())
        };
        let (plain, kept) = (run(false), run(true));
        for (a, b) in plain.0.iter().zip(&kept.0) {
            let size = a.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-4 * size), "gradients on {}", device.name());
        }
        println!("{}: {} bytes in {:?}, checkpointed {} bytes in {:?}", device.name(), plain.1, plain.2, kept.1, kept.2);
        assert!(kept.1 * 2 < plain.1, "{} bytes of {} on {}", kept.1, plain.1, device.name());
    }
}
