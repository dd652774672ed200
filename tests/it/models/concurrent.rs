//! Sessions on several threads of one process: each writes what it writes alone.

use crate::common::devices;
use std::sync::Barrier;
use tensorlogic::models::{self, Model, Sampler, Session, Weights};
use tensorlogic::{DType, Device, TensorResult};

const FILE: &str = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");
const THREADS: usize = 6;
const TOKENS: usize = 16;

/// The greedy continuation of a prompt whose length and content depend on the number of its thread.
fn write(model: &dyn Model, thread: usize, context: usize, device: &Device) -> Vec<u32> {
    let prompt: Vec<u32> = (0..3 + 2 * thread).map(|i| (7 * i + 5 * thread) as u32 % 60).collect();
    let mut session = Session::new(model, context, device).unwrap();
    let logits = session.prompt(&prompt, || false).unwrap().unwrap();
    let mut sampler = Sampler::default();
    session.generate(logits, &mut sampler).unwrap().take(TOKENS).collect::<TensorResult<_>>().unwrap()
}

/// The size of the context is part of a plan, so the threads of each round meet at plans that no session has used before: they compile,
/// record and replay the same ones at the same time.
#[test]
fn sessions_on_several_threads_write_what_each_writes_alone() {
    for device in devices() {
        let weights = Weights::open(FILE, &device).unwrap();
        let model = models::load(&weights, Some(DType::F32)).unwrap();
        let alone: Vec<Vec<u32>> = (0..THREADS).map(|t| write(&*model, t, 64, &device)).collect();
        // A GPU in software takes its time.
        let rounds = if device.is_cpu() { 8 } else { 2 };
        for round in 1..=rounds {
            let start = Barrier::new(THREADS);
            let together: Vec<Vec<u32>> = std::thread::scope(|s| {
                let work = |t| {
                    let (start, model, device) = (&start, &model, &device);
                    s.spawn(move || {
                        start.wait();
                        write(&**model, t, 64 + 8 * round, device)
                    })
                };
                (0..THREADS).map(work).collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert_eq!(together, alone, "round {round} on {}", device.name());
        }
    }
}
