//! The engine against sessions of their own: greedy and drawn answers, ragged prompts, little room, cancellation, one width for all.

use crate::common::devices;
use tensorlogic::models::{self, Model, Sampler, Session, Weights};
use tensorlogic::serving::{Answer, Engine, EngineOptions, Event, FinishReason, Refusal, Request, Sampling, Usage};
use tensorlogic::{DType, Device, Rng};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");

fn model(device: &Device) -> Box<dyn Model> {
    models::load(&Weights::open(FILE, device).unwrap(), Some(DType::F32)).unwrap()
}

fn engine(device: &Device, options: EngineOptions) -> Engine {
    Engine::start(model(device), device, EngineOptions { context: options.context.or(Some(256)), ..options }).unwrap()
}

/// The tiny model's vocabulary of characters.
fn prompt(len: usize, seed: usize) -> Vec<u32> {
    (0..len).map(|i| ((i * i * 7 + i * 3 + seed * 11) % 60) as u32).collect()
}

/// What a session of its own writes, and the smallest lead that the best token had over the next, where the best is taken.
fn alone(model: &dyn Model, device: &Device, request: &Request) -> (Vec<u32>, f32) {
    let mut session = Session::new(model, 256, device).unwrap();
    let mut logits = session.prompt(&request.prompt, || false).unwrap().unwrap();
    let s = &request.sampling;
    if s.temperature > 0.0 {
        let mut sampler = Sampler { temperature: s.temperature, rng: Rng::new(s.seed), ..Sampler::default() };
        let tokens = session.generate(logits, &mut sampler).unwrap().take(request.max_tokens).map(Result::unwrap);
        return (tokens.collect(), f32::INFINITY);
    }
    let (mut tokens, mut lead) = (Vec::new(), f32::INFINITY);
    loop {
        let values = logits.to_vec().unwrap();
        let best = (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap();
        let next = values.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, v)| *v).fold(f32::MIN, f32::max);
        lead = lead.min(values[best] - next);
        tokens.push(best as u32);
        if tokens.len() == request.max_tokens {
            return (tokens, lead);
        }
        logits = session.prompt(&[best as u32], || false).unwrap().unwrap();
    }
}

fn collect(answer: Answer) -> (Vec<u32>, Usage) {
    answer.collect().unwrap()
}

#[test]
fn answers_are_those_of_sessions_alone() {
    for device in devices() {
        let reference = model(&device);
        let engine = engine(&device, EngineOptions { rows: 8, ..Default::default() });
        let lens = [1, 5, 17, 64, 65, 100, 128, 130];
        let requests: Vec<Request> = lens.iter().enumerate().map(|(i, &n)| Request::new(&prompt(n, i), 10 + 7 * (i % 3))).collect();
        let answers: Vec<Answer> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        for (request, answer) in requests.iter().zip(answers) {
            let (tokens, usage) = collect(answer);
            let (want, lead) = alone(&*reference, &device, request);
            assert!(lead > 1e-4, "the test's prompts have a clear best token");
            assert_eq!(tokens, want, "{} tokens on {}", request.prompt.len(), device.name());
            assert_eq!(usage, Usage { prompt: request.prompt.len(), cached: 0, written: request.max_tokens });
        }
        let stats = engine.stats();
        assert_eq!(stats.written_tokens, requests.iter().map(|r| r.max_tokens as u64).sum::<u64>());
    }
}
