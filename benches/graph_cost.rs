//! What a decode step of SmolLM2's structure costs in addition to its arithmetic: building, matching, binding and dropping the graph.
//!
//! The layers are as many and as connected as SmolLM2's, but tiny, so that the figures are of the graph. `cargo bench --bench graph_cost`

use std::time::{Duration, Instant};
use tensorlogic::eval::{eval_all, eval_stats};
use tensorlogic::io::{Gguf, GgufWriter};
use tensorlogic::models::{self, KvCache, Weights};
use tensorlogic::{DType, Device, Tensor, TensorResult};

const LAYERS: usize = 30;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 32;
const FEED_FORWARD: usize = 64;
const VOCAB: usize = 64;
const CONTEXT: usize = 4096;
/// Steps that are measured; the first ones are not.
const STEPS: usize = 2000;
const WARM_UP: usize = 200;
/// The bounds: microseconds a node, milliseconds a step.
const LIMITS: (f64, f64) = (0.2, 0.2);

fn weights() -> TensorResult<Gguf> {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "llama");
    let numbers = [
        ("block_count", LAYERS),
        ("embedding_length", DIM),
        ("feed_forward_length", FEED_FORWARD),
        ("context_length", CONTEXT),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
    ];
    for (key, value) in numbers {
        w.set(&format!("llama.{key}"), value as u32);
    }
    let mut tensor = |name: String, shape: &[usize]| -> TensorResult<()> {
        let count = shape.iter().product::<usize>();
        let values = (0..count).flat_map(|i| (if shape.len() == 1 { 1.0 } else { ((i * 37 % 101) as f32 - 50.0) / 300.0 }).to_le_bytes());
        w.tensor(&format!("{name}.weight"), DType::F32, shape, values.collect::<Vec<u8>>())?;
        Ok(())
    };
    let kv = KV_HEADS * DIM / HEADS;
    tensor("token_embd".into(), &[VOCAB, DIM])?;
    tensor("output_norm".into(), &[DIM])?;
    for i in 0..LAYERS {
        for (name, shape) in [
            ("attn_norm", &[DIM][..]),
            ("attn_q", &[DIM, DIM]),
            ("attn_k", &[kv, DIM]),
            ("attn_v", &[kv, DIM]),
            ("attn_output", &[DIM, DIM]),
            ("ffn_norm", &[DIM]),
            ("ffn_gate", &[FEED_FORWARD, DIM]),
            ("ffn_up", &[FEED_FORWARD, DIM]),
            ("ffn_down", &[DIM, FEED_FORWARD]),
        ] {
            tensor(format!("blk.{i}.{name}"), shape)?;
        }
    }
    Gguf::from_bytes(w.to_bytes()?)
}

/// The time that half of the steps do not exceed.
fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() -> TensorResult<()> {
    let device = Device::cpu();
    let model = models::load(&Weights::from_gguf(weights()?, &device), Some(DType::F32))?;
    let mut cache = KvCache::new(&model.shape(), CONTEXT, &device)?;
    let (mut build, mut eval, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut token = Tensor::from_vec(vec![1i32], &[1], &device)?;
    let mut run = Vec::new();
    for step in 0..WARM_UP + STEPS {
        let start = Instant::now();
        let next = model.logits(&model.hidden(&token, &mut cache)?)?.flatten(0, -1)?.argmax(-1)?.reshape(&[1])?;
        let built = start.elapsed();
        eval_all(&[&next])?;
        token = next;
        let all = start.elapsed();
        if step >= WARM_UP {
            let overhead = eval_stats(&device).overhead;
            build.push(built);
            eval.push(overhead);
            whole.push(built + overhead);
            run.push(all.saturating_sub(built + overhead));
        }
    }
    let stats = eval_stats(&device);
    let (build, eval, whole, run) = (median(&mut build), median(&mut eval), median(&mut whole), median(&mut run));
    let per_node = whole / stats.nodes as f64;
    println!("{} nodes, {} dispatches, plan cache {} hits, {} misses", stats.nodes, stats.dispatches, stats.hits, stats.misses);
    println!("build                         {build:8.1} µs");
    println!("match, bind, store, drop      {eval:8.1} µs");
    println!("graph, in all                 {whole:8.1} µs   limit {:.0} µs", LIMITS.1 * 1e3);
    println!("                              {per_node:8.3} µs a node   limit {} µs", LIMITS.0);
    println!("run of the tiny kernels       {run:8.1} µs");
    Ok(())
}
