//! SmolLM2-135M-Instruct on the Metal backend: its first tokens are those of transformers, to which `tests/it/models/smollm2.rs` holds the CPU, and
//! each is one command buffer. Needs the model's file, which `TL_TEST_MODEL` names; with `TL_REQUIRE_MODEL=1` it fails without.

use fake_metal::metal::COUNTS;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;
use tensorlogic::io::SafeTensors;
use tensorlogic::models::{self, Model, Sampler, Session, Weights};
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device};

/// Tokens in f32, and in the device's default type.
const TOKENS: [usize; 2] = [16, 10];
/// Dispatches of a decode step: 30 layers of five, and three around them.
const STEP_DISPATCHES: u64 = 153;

/// Command buffers, dispatches, barriers and buffers so far.
fn counts() -> [u64; 4] {
    [&COUNTS.command_buffers, &COUNTS.dispatches, &COUNTS.barriers, &COUNTS.buffers].map(|c| c.load(SeqCst))
}

/// Numbers of the reference.
fn ids(reference: &SafeTensors, name: &str) -> Vec<u32> {
    let bytes = reference.bytes_of(reference.tensor(name).unwrap());
    bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}

/// The tokens that follow a prompt, and what was counted at each.
fn generate(device: &Device, model: &dyn Model, prompt: &[u32], most: usize) -> (Vec<u32>, Vec<[u64; 4]>) {
    let mut session = Session::new(model, 64, device).unwrap();
    let logits = session.prompt(prompt, || false).unwrap().unwrap();
    let mut sampler = Sampler::default();
    let mut generation = session.generate(logits, &mut sampler).unwrap().at_most(most);
    let (mut tokens, mut seen) = (vec![], vec![]);
    while let Some(token) = generation.token().unwrap() {
        tokens.push(token);
        seen.push(counts());
    }
    (tokens, seen)
}

#[test]
fn the_first_tokens_are_those_of_transformers() {
    let path = match std::env::var("TL_TEST_MODEL") {
        Ok(path) if !path.is_empty() => path,
        _ if std::env::var("TL_REQUIRE_MODEL").is_ok_and(|v| v == "1") => panic!("TL_TEST_MODEL names no model"),
        _ => return println!("skipped: TL_TEST_MODEL names no model"),
    };
    let reference = Path::new(env!("TENSORLOGIC_ROOT")).join("tests/reference/smollm2-135m-instruct-q4_1.safetensors");
    let reference = SafeTensors::open(reference).unwrap();
    let (prompt, want) = (ids(&reference, "prompt_0"), ids(&reference, "greedy_0"));
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    let weights = Weights::open(path, &device).unwrap();
    for (dtype, most) in [Some(DType::F32), None].into_iter().zip(TOKENS) {
        let start = Instant::now();
        let model = models::load(&weights, dtype).unwrap();
        let (got, seen) = generate(&device, &*model, &prompt, most);
        let (seconds, dtype) = (start.elapsed().as_secs_f64(), model.shape().dtype);
        println!("{dtype}: {} tokens behind {} in {seconds:.0} s: {got:?}; counted at each: {seen:?}", got.len(), prompt.len());
        assert_eq!(dtype, if most == TOKENS[0] { DType::F32 } else { DType::F16 });
        assert_eq!(got, want[..most], "{dtype}");
        let [first, .., last] = &seen[..] else { panic!("{} tokens", seen.len()) };
        let tokens = (seen.len() - 1) as u64;
        let [submits, dispatches, barriers, _]: [u64; 4] = std::array::from_fn(|n| last[n] - first[n]);
        assert!(submits <= tokens, "{dtype}: {submits} command buffers for {tokens} tokens");
        assert!(dispatches <= tokens * STEP_DISPATCHES && barriers <= dispatches, "{dtype}: {dispatches} dispatches, {barriers} barriers");
        // From the third token on until the last step is on its way, each token is a step of so many dispatches, with a barrier between any two.
        let (from, to) = (seen[2], seen[most - 2]);
        let steps = (most - 4) as u64;
        let counted = [to[1] - from[1], to[2] - from[2]];
        assert_eq!(counted, [steps * STEP_DISPATCHES, steps * (STEP_DISPATCHES - 1)], "{dtype}: dispatches and barriers");
        assert_eq!(last[3] - seen[1][3], 0, "{dtype}: memory was taken behind the second token");
    }
}
