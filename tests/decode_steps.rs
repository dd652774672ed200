//! One plan and at most one submit a token, and flat memory. Alone in its program: the counters are the device's.

mod common;

use common::gpu;
use tensorlogic::eval::{EvalStats, eval_stats};
use tensorlogic::io::{Gguf, GgufWriter};
use tensorlogic::models::{self, Sampler, Session, Weights};
use tensorlogic::{DType, Device};

/// A Llama of two small layers with random weights.
fn tiny(device: &Device) -> Box<dyn models::Model> {
    let (d, ff, vocab, layers) = (32usize, 64usize, 96usize, 2usize);
    let mut w = GgufWriter::new();
    w.set("general.architecture", "llama");
    for (k, v) in [
        ("block_count", layers),
        ("context_length", 2048),
        ("embedding_length", d),
        ("feed_forward_length", ff),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        w.set(&format!("llama.{k}"), v as u32);
    }
    w.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let mut state = 1u32;
    let mut values = |n: usize| -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        (0..n).flat_map(|_| next().to_le_bytes()).collect()
    };
    let mut add = |name: String, shape: &[usize]| {
        w.tensor(&name, DType::F32, shape, values(shape.iter().product())).unwrap();
    };
    add("token_embd.weight".into(), &[vocab, d]);
    add("output_norm.weight".into(), &[d]);
    for i in 0..layers {
        for (n, shape) in [
            ("attn_norm", vec![d]),
            ("attn_q", vec![d, d]),
            ("attn_k", vec![d / 2, d]),
            ("attn_v", vec![d / 2, d]),
            ("attn_output", vec![d, d]),
            ("ffn_norm", vec![d]),
            ("ffn_gate", vec![ff, d]),
            ("ffn_up", vec![ff, d]),
            ("ffn_down", vec![d, ff]),
        ] {
            add(format!("blk.{i}.{n}.weight"), &shape);
        }
    }
    let gguf = Gguf::from_bytes(w.to_bytes().unwrap()).unwrap();
    models::load(&Weights::from_gguf(gguf, device), Some(DType::F32)).unwrap()
}

/// Generates and checks plans, submits and memory on the way.
fn check_generation(device: &Device, tokens: usize) {
    let model = tiny(device);
    let mut session = Session::new(&*model, 1200, device).unwrap();
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
    // Steps of this model take less than half of what goes in a submit.
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

#[test]
fn a_token_is_one_cached_plan_and_at_most_one_submit_in_flat_memory() {
    check_generation(&Device::cpu(), 1000);
    if let Some(d) = gpu() {
        check_generation(&d, 100);
    }
}
