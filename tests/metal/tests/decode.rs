//! Decode on the Metal backend: the CPU's tokens, one command buffer a token, barriers only where steps meet and are needed, no allocation once it
//! runs.

#[path = "../../common/mod.rs"]
mod common;

use common::{gpu, tiny_llama};
use fake_metal::metal::COUNTS;
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::Device;
use tensorlogic::models::{Sampler, Session};

fake_metal::judge_until_exit!();

/// Command buffers, dispatches, barriers and buffers so far.
fn counts() -> [u64; 4] {
    [&COUNTS.command_buffers, &COUNTS.dispatches, &COUNTS.barriers, &COUNTS.buffers].map(|c| c.load(SeqCst))
}

/// The tokens that follow a prompt, and what was counted at each.
fn generate(device: &Device, tokens: usize) -> (Vec<u32>, Vec<[u64; 4]>) {
    let model = tiny_llama(device);
    let mut session = Session::new(&*model, 256, device).unwrap();
    let logits = session.prompt(&[1, 2, 3], || false).unwrap().unwrap();
    let mut sampler = Sampler::default();
    let mut generation = session.generate(logits, &mut sampler).unwrap().at_most(tokens);
    let mut seen = vec![];
    while generation.token().unwrap().is_some() {
        seen.push(counts());
    }
    generation.finish();
    (session.tokens().to_vec(), seen)
}

#[test]
fn a_token_is_one_command_buffer_and_the_same_as_on_the_cpu() {
    const TOKENS: usize = 24;
    let (want, _) = generate(&Device::cpu(), TOKENS);
    let (got, seen) = generate(&gpu().unwrap(), TOKENS);
    assert_eq!(got, want);
    // Some steps are on their way before their token is taken.
    let (from, to) = (seen[3], seen[TOKENS - 9]);
    let [submits, dispatches, barriers, buffers] = std::array::from_fn(|n| to[n] - from[n]);
    let steps = (TOKENS - 9 - 3) as u64;
    println!("{steps} tokens: {submits} command buffers, {dispatches} dispatches, {barriers} barriers, {buffers} buffers made");
    assert!(submits <= steps + 8, "{submits} command buffers for {steps} tokens");
    assert!(dispatches <= (steps + 8) * (2 * 11 + 7), "{dispatches} dispatches for {steps} tokens of two layers");
    assert!(barriers > 0 && barriers < dispatches, "{barriers} barriers between {dispatches} dispatches");
    assert_eq!(buffers, 0, "memory was taken while it ran");
}
