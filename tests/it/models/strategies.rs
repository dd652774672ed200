//! Pipeline strategies: the same tokens and states from every one, and plans of their own where they need them.

use crate::common::{devices, gpu};
use std::sync::Arc;
use tensorlogic::models::inference::{Inference, Inputs, Padding};
use tensorlogic::models::{self, Model, Sampler, Session, Weights, pacing_for};
use tensorlogic::strategy::{Pacing, with_pacing};
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, PipelineStrategy, Rng, Tensor};

/// Enough that a step is known, and several share a submit.
const TOKENS: usize = 16;

const FILE: &str = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");

fn load(device: &Device) -> Box<dyn Model> {
    models::load(&Weights::open(FILE, device).unwrap(), Some(DType::F32)).unwrap()
}

/// Tokens behind a prompt of `len` tokens.
fn written(model: &dyn Model, device: &Device, strategy: PipelineStrategy, len: usize, sampler: &Sampler) -> Vec<u32> {
    let mut session = Session::new(model, 128, device).unwrap().strategy(strategy);
    let ids: Vec<u32> = (0..len as u32).map(|i| (i * 7 + 3) % model.shape().vocab as u32).collect();
    let logits = session.prompt(&ids, || false).unwrap().unwrap();
    let mut sampler = sampler.clone();
    let tokens: Vec<u32> = session.generate(logits, &mut sampler).unwrap().at_most(TOKENS).map(Result::unwrap).collect();
    assert_eq!(tokens.len(), TOKENS);
    tokens
}

#[test]
fn every_strategy_writes_the_same_tokens() {
    for device in devices() {
        let model = load(&device);
        let warm = Sampler { temperature: 0.9, rng: Rng::new(5), ..Sampler::default() };
        for (sampler, len) in [(Sampler::default(), 1), (warm, 33)] {
            let of = |strategy| written(&*model, &device, strategy, len, &sampler);
            let standard = of(PipelineStrategy::Standard);
            for strategy in PipelineStrategy::ALL {
                assert_eq!(of(strategy), standard, "{strategy} behind {len} tokens on {}", device.name());
            }
        }
    }
}

#[test]
fn a_session_changes_its_strategy_between_answers() {
    for device in devices() {
        let model = load(&device);
        let alone = written(&*model, &device, PipelineStrategy::Standard, 9, &Sampler::default());
        let mut session = Session::new(&*model, 128, &device).unwrap();
        let ids: Vec<u32> = (0..9u32).map(|i| (i * 7 + 3) % model.shape().vocab as u32).collect();
        for strategy in PipelineStrategy::ALL {
            session.truncate(0);
            session.set_strategy(strategy);
            let logits = session.prompt(&ids, || false).unwrap().unwrap();
            let mut sampler = Sampler::default();
            let tokens: Vec<u32> = session.generate(logits, &mut sampler).unwrap().at_most(TOKENS).map(Result::unwrap).collect();
            assert_eq!(tokens, alone, "{strategy} on {}", device.name());
        }
    }
}

#[test]
fn inference_gives_the_same_under_every_strategy_and_says_which() {
    for device in devices() {
        let model = load(&device);
        let inputs = Inputs::padded(&[vec![5, 6, 7, 8], vec![9, 10]], Padding::Right).unwrap();
        let run = |strategy| Inference::new(&*model).strategy(strategy).run(&inputs).unwrap();
        let standard = run(PipelineStrategy::Standard);
        for strategy in PipelineStrategy::ALL {
            let outputs = run(strategy);
            assert_eq!(outputs.logits.to_vec().unwrap(), standard.logits.to_vec().unwrap(), "{strategy} on {}", device.name());
            // Two rows are no load.
            let expected = if strategy == PipelineStrategy::Auto { PipelineStrategy::Standard } else { strategy };
            assert_eq!(outputs.strategy, expected, "on {}", device.name());
        }
        let many = Inputs::padded(&[vec![1], vec![2], vec![3], vec![4]], Padding::Right).unwrap();
        let outputs = Inference::new(&*model).strategy(PipelineStrategy::Auto).run(&many).unwrap();
        let expected = if device.is_cpu() { PipelineStrategy::Standard } else { PipelineStrategy::HighThroughput };
        assert_eq!(outputs.strategy, expected, "four rows on {}", device.name());
    }
}

#[test]
fn auto_is_for_throughput_while_four_generations_run() {
    let Some(device) = gpu() else { return };
    let model = load(&device);
    // Other tests generate on this device too.
    let at_least = |expected| {
        let session = Session::new(&*model, 64, &device).unwrap().strategy(PipelineStrategy::Auto);
        (0..50).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            session.pacing(100).strategy == expected
        })
    };
    let mut sessions: Vec<Session> = (0..4).map(|_| Session::new(&*model, 64, &device).unwrap()).collect();
    let mut samplers = vec![Sampler::default(); 4];
    let running: Vec<_> = sessions
        .iter_mut()
        .zip(&mut samplers)
        .map(|(session, sampler)| {
            let logits = session.prompt(&[1, 2, 3], || false).unwrap().unwrap();
            session.generate(logits, sampler).unwrap()
        })
        .collect();
    assert!(at_least(PipelineStrategy::HighThroughput), "four generations run");
    drop(running);
    assert!(at_least(PipelineStrategy::Standard), "none of these runs");
}

#[test]
fn a_table_of_a_strategy_serves_its_own_plans_only() {
    let Some(device) = gpu() else { return };
    let values = |n: usize, seed| crate::common::noise_f32(n, seed, 1.0);
    let x = Tensor::from_vec(values(64 * 96, 1), &[64, 96], &device).unwrap();
    let w = Tensor::from_vec(values(96 * 160, 2), &[96, 160], &device).unwrap();
    let product = || x.matmul(&w).unwrap().sum(&[-1], false).unwrap().to_vec().unwrap();
    let before = product();
    let table = Arc::new(Pacing::optimized(Arc::new(Tuning::by_formula("of the test", 2, 1 << 20))));
    let other = with_pacing(&table, product);
    for (a, b) in before.iter().zip(&other) {
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }
    assert_eq!(product(), before, "the device's own table is back");
    // Without a table measured for the model, Optimized is Standard.
    let model = load(&device);
    assert_eq!(pacing_for(PipelineStrategy::Optimized, &*model, &device, 1).strategy, PipelineStrategy::Optimized);
}
