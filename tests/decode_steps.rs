//! One plan and at most one submit a token, and flat memory. Alone in its program: the counters are the device's.

mod common;

use std::time::Duration;

use common::{gpu, tiny_llama};
use tensorlogic::eval::{EvalStats, eval_stats};
use tensorlogic::models::{self, Sampler, Session, Weights};
use tensorlogic::strategy::Pacing;
use tensorlogic::{Device, PipelineStrategy};

/// Generates and checks plans, submits and memory on the way.
fn check_generation(device: &Device, tokens: usize) {
    let model = tiny_llama(device);
    let mut session = Session::new(&*model, 1200, device).unwrap();
    // How many steps go in a submit does not depend on the time that a driver takes for one.
    let mut pacing = Pacing::of(PipelineStrategy::Standard);
    pacing.max_submit_time = Duration::from_secs(60);
    session.set_pacing(pacing);
    let logits = session.prompt(&[1, 2, 3], || false).unwrap().unwrap();
    let mut sampler = Sampler::default();
    let mut generation = session.generate(logits, &mut sampler).unwrap().at_most(tokens);
    for _ in 0..10 {
        generation.token().unwrap().unwrap();
    }
    // Some steps are submitted already.
    let ahead = if device.is_cpu() { 1 } else { 16 };
    let (stats, memory, submits) = (eval_stats(device), device.memory(), device.submits());
    for _ in 10..tokens {
        generation.token().unwrap().unwrap();
    }
    assert_eq!(generation.token().unwrap(), None, "a token more than was asked for");
    let steps = (tokens - 10) as u64;
    let done = eval_stats(device);
    assert_eq!(done.misses, stats.misses, "a step was compiled again");
    assert!((steps - ahead..=steps).contains(&(done.hits - stats.hits)), "{} steps for {steps} tokens", done.hits - stats.hits);
    assert_eq!(done.repeats - stats.repeats, done.hits - stats.hits, "a step built its graph");
    let submits = device.submits() - submits;
    assert!(submits <= done.hits - stats.hits, "a token took more than one submit");
    // Several go in a submit as soon as it is known what a step is.
    assert!(device.is_cpu() || submits <= steps / 2, "{submits} submits for {steps} tokens");
    assert!(device.memory().in_use <= memory.in_use + 16 * 256, "memory in use grew");
    assert!(done.dispatches <= 2 * 11 + 7, "{} dispatches for two layers", done.dispatches);
    generation.finish();
    assert_eq!(session.tokens().len(), tokens + 3);

    // Another generation knows from its first step what the others are.
    let written = session.tokens()[..33].to_vec();
    session.truncate(0);
    let logits = session.prompt(&[1, 2, 3], || false).unwrap().unwrap();
    let mut sampler = Sampler::default();
    let stats = eval_stats(device);
    let mut generation = session.generate(logits, &mut sampler).unwrap().at_most(30);
    while generation.token().unwrap().is_some() {}
    generation.finish();
    let done = eval_stats(device);
    let graphs = |s: &EvalStats| s.evaluations - s.repeats;
    assert!(graphs(&done) - graphs(&stats) <= 2, "{} graphs", graphs(&done) - graphs(&stats));
    assert_eq!(session.tokens(), written);
}

/// States are overwritten in place on the device: steps of models that have them are repeated as well.
fn check_states(device: &Device) {
    // Heads of 16 elements: of other sizes, every other position has another alignment, and another plan.
    for name in ["lfm3-base", "mamba2-base", "qwen3_5_text-two"] {
        let folder = std::path::Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/models2").join(name);
        let model = models::load(&Weights::open(folder, device).unwrap(), None).unwrap();
        let mut session = Session::new(&*model, 64, device).unwrap();
        let logits = session.prompt(&[1, 2, 3], || false).unwrap().unwrap();
        let mut sampler = Sampler::default();
        let mut generation = session.generate(logits, &mut sampler).unwrap().at_most(40);
        for _ in 0..10 {
            generation.token().unwrap().unwrap();
        }
        let (stats, memory) = (eval_stats(device), device.memory());
        for _ in 10..40 {
            generation.token().unwrap().unwrap();
        }
        let done = eval_stats(device);
        assert_eq!(done.misses, stats.misses, "{name}: a step was compiled again");
        assert_eq!(done.repeats - stats.repeats, done.hits - stats.hits, "{name}: a step built its graph");
        assert!(done.repeats - stats.repeats >= 29, "{name}: {} steps", done.repeats - stats.repeats);
        assert!(device.memory().in_use <= memory.in_use + 16 * 256, "{name}: memory in use grew");
    }
}

#[test]
fn a_token_is_one_cached_plan_and_at_most_one_submit_in_flat_memory() {
    check_generation(&Device::cpu(), 1000);
    check_states(&Device::cpu());
    if let Some(d) = gpu() {
        check_generation(&d, 100);
    }
}
