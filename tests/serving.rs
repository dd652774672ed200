//! After its start an engine builds no graph, makes no plan and compiles no kernel, whatever it is asked. A program of its own, since it counts what a
//! device does.

mod common;

use common::devices;
use tensorlogic::DType;
use tensorlogic::eval::eval_stats;
use tensorlogic::models::{self, Weights};
use tensorlogic::serving::{Answer, Engine, EngineOptions, Request, Sampling};

#[test]
fn no_request_makes_a_plan_or_compiles_a_kernel() {
    let file = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");
    for device in devices() {
        let model = models::load(&Weights::open(file, &device).unwrap(), Some(DType::F32)).unwrap();
        let options = EngineOptions { rows: 8, context: Some(256), chunk: Some(64), ..Default::default() };
        let engine = Engine::start(model, &device, options).unwrap();
        let (before, compiled) = (eval_stats(&device), device.pipeline_stats().pipelines);
        for round in 0..4 {
            let answers: Vec<Answer> = (0..3 * round + 1)
                .map(|i| {
                    let prompt: Vec<u32> = (0..1 + 37 * i % 200).map(|t| (t * 7 + i) as u32 % 60).collect();
                    let temperature = (i % 3) as f64;
                    let mut sampling = Sampling { temperature, top_k: i % 2 * 5, top_p: 0.9, seed: i as u64, ..Default::default() };
                    (sampling.presence_penalty, sampling.bias) = ((i % 4 / 3) as f64, vec![(i as u32, 1.0); i % 5 / 4]);
                    let logprobs = (i % 3 == 1).then_some(5);
                    engine.submit(Request { sampling, logprobs, ..Request::new(&prompt, 5 + i) }).unwrap()
                })
                .collect();
            for answer in answers {
                answer.wait().unwrap();
            }
        }
        let after = eval_stats(&device);
        assert_eq!(after.misses, before.misses, "plans on {}", device.name());
        assert_eq!(device.pipeline_stats().pipelines, compiled, "kernels on {}", device.name());
        // Every evaluation was a prepared step.
        assert_eq!(after.repeats - before.repeats, after.evaluations - before.evaluations);
        assert!(after.repeats > before.repeats + 40);
    }
}
