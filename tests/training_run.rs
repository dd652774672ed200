//! Whole training runs: memory stays flat, one seed gives the same bits, and checkpointed blocks need less memory for the same gradients.

mod common;

use common::{alone, devices};
use std::time::Instant;
use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
use tensorlogic::optim::{AdamW, Optimizer, decay_matrices};
use tensorlogic::{Device, Rng, Tensor};

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

#[test]
fn checkpointed_blocks_need_less_memory_for_the_same_gradients() {
    let _alone = alone();
    let config = GptConfig { vocab: 33, context: 64, layers: 8, heads: 2, width: 64, bias: true, dropout: 0.1 };
    for device in devices() {
        let run = |on: bool| {
            let mut t = Training::new(config, 4, &device);
            t.model.set_attention_dropout(0.0);
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
