//! The engine against sessions of their own: greedy and drawn answers, ragged prompts, little room, cancellation, one width for all.

use crate::common::{devices, tiny_llama_file};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tensorlogic::models::{self, Model, Sampler, Session, Weights};
use tensorlogic::serving::{
    Answer, Constraint, Distribution, Engine, EngineOptions, Event, FinishReason, Refusal, Request, Sampling, Usage,
};
use tensorlogic::{DType, Device, Rng, TensorError, TensorResult};

const TRAINED: &str = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");

/// The repository's trained model.
fn trained(device: &Device) -> Box<dyn Model> {
    models::load(&Weights::open(TRAINED, device).unwrap(), Some(DType::F32)).unwrap()
}

/// The weights of [`model`]: the trained model's on the CPU, a small Llama's on a GPU, which may be software.
pub(super) fn weights(device: &Device) -> Weights {
    if device.is_cpu() {
        return Weights::open(TRAINED, device).unwrap();
    }
    Weights::from_gguf(tiny_llama_file(DType::F32, |_, _| ()), device)
}

pub(super) fn model(device: &Device) -> Box<dyn Model> {
    models::load(&weights(device), Some(DType::F32)).unwrap()
}

pub(super) fn engine(device: &Device, options: EngineOptions) -> Engine {
    let (context, chunk) = (options.context.or(Some(256)), options.chunk.or(Some(64)));
    Engine::start(model(device), device, EngineOptions { context, chunk, ..options }).unwrap()
}

/// Tokens of the trained model's vocabulary of characters.
pub(super) fn prompt(len: usize, seed: usize) -> Vec<u32> {
    (0..len).map(|i| ((i * i * 7 + i * 3 + seed * 11) % 60) as u32).collect()
}

/// What a session of its own writes, and the smallest lead that the best token had over the next, where the best is taken.
pub(super) fn alone(model: &dyn Model, device: &Device, request: &Request) -> (Vec<u32>, f32) {
    let mut session = Session::new(model, model.shape().context.min(256), device).unwrap();
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

pub(super) fn collect(answer: Answer) -> (Vec<u32>, Usage) {
    answer.wait().unwrap()
}

/// The tokens of an answer with their log-probabilities, and how many tokens of the prompt were cached.
pub(super) fn scored(answer: Answer) -> (Vec<u32>, Vec<f32>, usize) {
    let (mut tokens, mut scores) = (Vec::new(), Vec::new());
    for event in answer {
        match event {
            Event::Token(t) => tokens.push(t),
            Event::LogProbs(l) => scores.push(l.chosen),
            Event::Finished(_, usage) => return (tokens, scores, usage.cached),
            Event::Failed(e) => panic!("{e}"),
        }
    }
    panic!("the answer has no end")
}

#[test]
fn answers_are_those_of_sessions_alone() {
    for device in devices() {
        let reference = trained(&device);
        let options = EngineOptions { rows: 8, context: Some(256), chunk: Some(64), ..Default::default() };
        let engine = Engine::start(trained(&device), &device, options).unwrap();
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

/// Sinks, windows in every other layer, experts with biases.
#[test]
fn a_gpt_oss_is_served() {
    is_served("models2/gpt_oss-base");
}

/// Capped scores, windows in every other layer.
#[test]
fn a_gemma_2_is_served() {
    is_served("models2_gguf/gemma2.F32.gguf");
}

/// Answers of a model of the tests' vectors are those of sessions alone.
fn is_served(model: &str) {
    let file = std::path::Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors").join(model);
    let load = |device: &Device| models::load(&Weights::open(&file, device).unwrap(), Some(DType::F32)).unwrap();
    for device in devices() {
        let reference = load(&device);
        let options = EngineOptions { rows: 4, context: Some(64), chunk: Some(32), ..Default::default() };
        let engine = Engine::start(load(&device), &device, options).unwrap();
        let requests: Vec<Request> = [1, 9, 33, 50].iter().enumerate().map(|(i, &n)| Request::new(&prompt(n, i), 12)).collect();
        let answers: Vec<Answer> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        for (request, answer) in requests.iter().zip(answers) {
            let (want, lead) = alone(&*reference, &device, request);
            assert!(lead > 1e-5, "the best token of {} leads by {lead}", request.prompt.len());
            assert_eq!(collect(answer).0, want, "{} tokens on {}", request.prompt.len(), device.name());
        }
    }
}

#[test]
fn drawn_answers_are_those_of_sessions_with_the_same_seed() {
    for device in devices() {
        let reference = model(&device);
        let engine = engine(&device, EngineOptions { rows: 6, ..Default::default() });
        // Greedy rows, and rows of several temperatures, in the same steps.
        let requests: Vec<Request> = (0..6)
            .map(|i| {
                let sampling = Sampling { temperature: [0.0, 0.7, 1.3][i % 3], seed: i as u64 * 77 + 5, ..Default::default() };
                Request { sampling, ..Request::new(&prompt(9 + 20 * i, i), 24) }
            })
            .collect();
        let answers: Vec<Answer> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        for (request, answer) in requests.iter().zip(answers) {
            assert_eq!(collect(answer).0, alone(&*reference, &device, request).0, "{:?} on {}", request.sampling, device.name());
        }
    }
}

#[test]
fn answers_by_drafts_are_those_without() {
    for device in devices() {
        let reference = model(&device);
        // Drafts are checked wherever there is one, be it faster or not.
        // A GPU in software takes its time.
        let (numbers_of_rows, longest, least) = if device.is_cpu() { (&[1, 2, 4][..], 256, 40) } else { (&[2][..], 60, 0) };
        for &rows in numbers_of_rows {
            let engine = engine(&device, EngineOptions { rows, lookup: Some(0.0), ..Default::default() });
            let requests: Vec<Request> = (0..3 * rows)
                .map(|i| {
                    let period = 3 + i % 5;
                    let sampling = Sampling { temperature: [0.0, 0.6, 0.0, 1.2][i % 4], seed: i as u64 * 31 + 7, ..Default::default() };
                    let text: Vec<u32> = (0..20 + 29 * i % 130).map(|t| ((t % period) * 7 + i) as u32 % 60).collect();
                    // The last ones have other rows' steps in between, and end where the context does.
                    let most = if i % 3 == 2 { longest } else { 30 + i };
                    Request { sampling, ..Request::new(&text, most) }
                })
                .collect();
            let answers: Vec<Answer> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
            for (request, answer) in requests.iter().zip(answers) {
                let most = request.max_tokens.min(256 - request.prompt.len());
                let (want, lead) = alone(&*reference, &device, &Request { max_tokens: most, ..request.clone() });
                let (got, _) = collect(answer);
                // Where two tokens are nearly as likely, either may be chosen.
                assert!(got == want || lead < 1e-4 && got.len() == want.len(), "{got:?} {want:?} {lead} on {}", device.name());
            }
            let s = engine.stats();
            // How many tokens a step checks is chosen by the times that were measured; so the number of steps differs, not what they find.
            assert!(s.check_steps > 5 && s.accepted_tokens > least && s.drafted_tokens > s.accepted_tokens, "{s:?}");
            idle(&engine);
        }
    }
}

#[test]
fn answers_whose_choice_depends_on_each_token_have_no_drafts() {
    for device in devices() {
        let engine = engine(&device, EngineOptions { rows: 1, lookup: Some(0.0), ..Default::default() });
        let text: Vec<u32> = (0..60).map(|t| t % 4).collect();
        let penalty = Sampling { frequency_penalty: 0.1, ..Default::default() };
        let requests = [
            Request { logprobs: Some(2), ..Request::new(&text, 20) },
            Request { sampling: penalty, ..Request::new(&text, 20) },
            Request { constraint: Some(Box::new(Sevens)), ..Request::new(&text, 20) },
        ];
        for request in requests {
            assert_eq!(collect(engine.submit(request).unwrap()).0.len(), 20);
        }
        assert_eq!(engine.stats().check_steps, 0);
        let deterministic = EngineOptions { rows: 1, deterministic: true, lookup: Some(0.0), ..Default::default() };
        let engine = self::engine(&device, deterministic);
        engine.submit(Request::new(&text, 20)).unwrap().wait().unwrap();
        assert_eq!(engine.stats().check_steps, 0);
    }
}

/// Token 7, again and again.
#[derive(Clone, Debug)]
struct Sevens;

impl Constraint for Sevens {
    fn allow(&mut self, tokens: &mut [u32]) -> TensorResult<bool> {
        tokens[0] |= 1 << 7;
        Ok(false)
    }
    fn wrote(&mut self, _: u32) -> TensorResult<()> {
        Ok(())
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Sevens)
    }
}

#[test]
fn each_row_draws_from_what_its_own_settings_leave() {
    for device in devices() {
        let engine = engine(&device, EngineOptions { rows: 4, ..Default::default() });
        let text = prompt(30, 1);
        let with = |sampling: Sampling| Request { sampling, ..Request::new(&text, 40) };
        let hot = Sampling { temperature: 5.0, seed: 3, ..Default::default() };
        let settings = [
            Sampling::default(),
            Sampling { top_k: 1, ..hot.clone() },
            Sampling { top_p: 1e-6, ..hot.clone() },
            Sampling { min_p: 1.0, ..hot.clone() },
        ];
        let answers: Vec<Answer> = settings.iter().map(|s| engine.submit(with(s.clone())).unwrap()).collect();
        let tokens: Vec<Vec<u32>> = answers.into_iter().map(|a| collect(a).0).collect();
        // Each leaves only the best token, which the first row takes.
        assert!(tokens.iter().all(|t| *t == tokens[0]), "{tokens:?} on {}", device.name());
        let free = [hot.clone(), Sampling { top_k: 3, ..hot.clone() }, Sampling { seed: 4, ..hot.clone() }, hot];
        let answers: Vec<Answer> = free.iter().map(|s| engine.submit(with(s.clone())).unwrap()).collect();
        let tokens: Vec<Vec<u32>> = answers.into_iter().map(|a| collect(a).0).collect();
        assert!(tokens[0] == tokens[3] && tokens[0] != tokens[1] && tokens[0] != tokens[2], "{tokens:?} on {}", device.name());
    }
}

/// Waits until nobody has pages or waits.
pub(super) fn idle(engine: &Engine) {
    let start = std::time::Instant::now();
    loop {
        let s = engine.stats();
        if s.running == 0 && s.waiting == 0 && s.pages_available == s.pages {
            return;
        }
        assert!(start.elapsed().as_secs() < 60, "{s:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn cancelled_requests_free_their_pages_in_every_state() {
    for device in devices() {
        let reference = model(&device);
        let engine = engine(&device, EngineOptions { rows: 2, chunk: Some(16), lookup: None, ..Default::default() });
        let mut took = Vec::new();
        for round in 0..5 {
            // One is written, one is read or written, and one waits.
            let mut written = engine.submit(Request::new(&prompt(20, round), 230)).unwrap();
            assert!(matches!(written.next_event(), Some(Event::Token(_))));
            let read = engine.submit(Request::new(&prompt(200, 10 + round), 50)).unwrap();
            let waits = engine.submit(Request::new(&prompt(100, 20 + round), 50)).unwrap();
            for answer in [waits, read, written] {
                drop(answer);
            }
            let start = Instant::now();
            idle(&engine);
            took.push(start.elapsed());
        }
        assert_eq!(engine.stats().cancelled, 15, "on {}", device.name());
        // At once or after one step: the median, since this machine runs other tests.
        took.sort();
        let s = engine.stats();
        let step = |d: &Distribution| d.sum() / d.counts().iter().sum::<u64>().max(1) as f64;
        let bound = (2.0 * step(&s.read_time).max(step(&s.write_time))).max(0.2);
        assert!(took[2].as_secs_f64() < bound, "{took:?}, not {bound} s on {}", device.name());
        let kept = engine.submit(Request::new(&prompt(20, 9), 12)).unwrap();
        assert_eq!(collect(kept).0, alone(&*reference, &device, &Request::new(&prompt(20, 9), 12)).0);
    }
}

#[test]
fn rows_that_find_no_page_are_read_again_and_go_on() {
    // Hundreds of steps: a software GPU takes minutes.
    for device in devices().into_iter().filter(|d| d.is_cpu()) {
        let reference = model(&device);
        // As many pages as one text may have: four of 64.
        let engine = engine(&device, EngineOptions { rows: 4, kv_bytes: 0, ..Default::default() });
        assert_eq!(engine.stats().pages, 4);
        let requests: Vec<Request> = (0..6).map(|i| Request::new(&prompt(40 + i, i), 80)).collect();
        let answers: Vec<Answer> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        for (request, answer) in requests.iter().zip(answers) {
            let (want, lead) = alone(&*reference, &device, request);
            assert!(lead > 1e-4);
            assert_eq!(collect(answer).0, want, "on {}", device.name());
        }
        idle(&engine);
    }
}

#[test]
fn a_prompt_that_begins_as_an_earlier_one_is_not_read_again() {
    for device in devices() {
        let engine = engine(&device, EngineOptions::default());
        let ask = |text: &[u32], name: &str| {
            let request = Request { cache_name: name.into(), ..Request::new(text, 10) };
            collect(engine.submit(request).unwrap())
        };
        let text = prompt(150, 2);
        let (first, usage) = ask(&text, "one");
        assert_eq!(usage.cached, 0);
        let (again, usage) = ask(&text, "one");
        assert_eq!((again == first, usage.cached), (true, 128), "on {}", device.name());
        // Another name's prompts are not looked at.
        let (other, usage) = ask(&text, "two");
        assert_eq!((other == first, usage.cached), (true, 0), "on {}", device.name());
        // What was written is a beginning too.
        let longer = [&text[..], &first].concat();
        assert_eq!(ask(&longer, "one").1.cached, 128);
        idle(&engine);
    }
}

#[test]
fn equal_prompts_are_read_once() {
    for device in devices() {
        let reference = model(&device);
        let engine = engine(&device, EngineOptions { rows: 4, ..Default::default() });
        let text = prompt(150, 2);
        // Equal up to the end, and up to the first page.
        let mut other = text.clone();
        other[100] += 1;
        let requests: Vec<Request> = [&text, &text, &text, &other].map(|t| Request::new(t, 6)).to_vec();
        let answers: Vec<Answer> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        let mut cached = Vec::new();
        for (request, answer) in requests.iter().zip(answers) {
            let (want, lead) = alone(&*reference, &device, request);
            let (tokens, usage) = collect(answer);
            assert!(tokens == want || lead < 1e-4, "{tokens:?}, not {want:?} on {}", device.name());
            cached.push(usage.cached);
        }
        assert_eq!(cached, [0, 128, 128, 64], "on {}", device.name());
        assert_eq!(engine.stats().read_tokens, 150 + 2 * 22 + 86);
        idle(&engine);
    }
}

#[test]
fn in_one_shape_answers_have_the_same_bits_alone_and_among_others() {
    for device in devices() {
        // A software GPU takes minutes for hundreds of steps.
        let (count, tokens) = if device.is_cpu() { (64, 20) } else { (8, 8) };
        let third = count / 3;
        // Drawn at a temperature at which any difference is seen sooner or later; and log-probabilities have all bits.
        let options = EngineOptions { rows: count, chunk: Some(32), deterministic: true, ..Default::default() };
        let sampling = |seed| Sampling { temperature: 1.5, seed, ..Default::default() };
        let request = |i: usize| {
            // So long that many are written together; some begin as those of the round before.
            let len = if i.is_multiple_of(third) { 70 + i } else { 5 + i % 20 };
            Request { sampling: sampling(i as u64), logprobs: Some(2), ..Request::new(&prompt(len, i), tokens) }
        };
        let ask = |order: &[usize], engine: &Engine| -> Vec<(usize, Vec<u32>, Vec<u32>)> {
            let answers: Vec<(usize, Answer)> = order.iter().map(|&i| (i, engine.submit(request(i)).unwrap())).collect();
            let bits = |(i, answer): (usize, Answer)| {
                let (tokens, scores, _) = scored(answer);
                (i, tokens, scores.into_iter().map(f32::to_bits).collect())
            };
            let mut all: Vec<_> = answers.into_iter().map(bits).collect();
            all.sort();
            all
        };
        let of = |all: Vec<(usize, Vec<u32>, Vec<u32>)>| -> Vec<_> { all.into_iter().filter(|(i, ..)| i.is_multiple_of(third)).collect() };
        let first = engine(&device, options.clone());
        let alone: Vec<_> = (0..count).step_by(third).flat_map(|i| ask(&[i], &first)).collect();
        // Begun anew; among all others; in another order; with the prompts' beginnings in the cache.
        let second = engine(&device, options);
        let order: Vec<usize> = (0..count).collect();
        let other: Vec<usize> = (0..count).map(|i| i * 37 % count).collect();
        for order in [order, other] {
            assert_eq!(of(ask(&order, &second)), alone, "on {}", device.name());
        }
        assert!(second.stats().cached_tokens > 0);
        // Prompts are read one at a time between the steps that write.
        let sizes = second.stats().batch_size;
        let large: u64 = sizes.counts()[count.ilog2() as usize - 1..].iter().sum();
        assert!(large > 0, "more than a quarter of them were written together: {sizes:?}");
    }
}

#[test]
fn what_cannot_be_answered_is_refused() {
    let device = Device::cpu();
    let engine = engine(&device, EngineOptions { rows: 1, waiting: 2, ..Default::default() });
    assert_eq!(engine.longest(), 256);
    let refusal = |request: Request| engine.submit(request).err().unwrap();
    assert!(matches!(refusal(Request::new(&prompt(256, 0), 1)), Refusal::TooLong { prompt: 256, longest: 256 }));
    assert!(matches!(refusal(Request::new(&[], 1)), Refusal::Invalid(_)));
    assert!(matches!(refusal(Request::new(&[1], 0)), Refusal::Invalid(_)));
    assert!(matches!(refusal(Request::new(&[1 << 30], 1)), Refusal::Invalid(_)));
    let nan = Sampling { temperature: f64::NAN, ..Default::default() };
    assert!(matches!(refusal(Request { sampling: nan, ..Request::new(&[1], 1) }), Refusal::Invalid(_)));
    let answers: Vec<Answer> = (0..3).map(|_| engine.submit(Request::new(&prompt(30, 0), 200)).unwrap()).collect();
    assert!(matches!(refusal(Request::new(&[1], 1)), Refusal::QueueFull));
    drop(answers);
    idle(&engine);
    // An answer is as long as there is room; a token that ends it is not part of it.
    let (tokens, usage) = collect(engine.submit(Request::new(&prompt(250, 0), 1000)).unwrap());
    assert_eq!((tokens.len(), usage.written), (6, 6));
    let whole = Request::new(&prompt(30, 4), 30);
    let (tokens, _) = collect(engine.submit(whole.clone()).unwrap());
    let end = tokens[12];
    let first = tokens.iter().position(|t| *t == end).unwrap();
    let events: Vec<Event> = engine.submit(Request { ends: vec![end], ..whole }).unwrap().collect();
    assert_eq!(events.len(), first + 1);
    assert!(matches!(events.last(), Some(Event::Finished(FinishReason::Stop, Usage { written, .. })) if *written == first));
}

/// Allows every token, and holds the engine as long as it is closed.
#[derive(Clone, Debug)]
struct Gate(Arc<AtomicBool>);

impl Gate {
    /// A request of 230 tokens that has begun, and behind which the gate is closed.
    fn close_behind_a_request(engine: &Engine) -> (Gate, Answer) {
        let gate = Gate(Arc::new(AtomicBool::new(true)));
        let mut running = engine.submit(Request { constraint: Some(gate.fork()), ..Request::new(&prompt(20, 0), 230) }).unwrap();
        assert!(matches!(running.next_event(), Some(Event::Token(_))));
        gate.0.store(false, Relaxed);
        (gate, running)
    }

    fn open(&self) {
        self.0.store(true, Relaxed);
    }
}

impl Constraint for Gate {
    fn allow(&mut self, tokens: &mut [u32]) -> TensorResult<bool> {
        while !self.0.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        (0..60).for_each(|t| tokens[t / 32] |= 1 << (t % 32));
        Ok(true)
    }

    fn wrote(&mut self, _token: u32) -> TensorResult<()> {
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn queues_are_bounded_in_tokens_and_in_time() {
    let device = Device::cpu();
    let narrow = |options: EngineOptions| engine(&device, EngineOptions { rows: 1, lookup: None, ..options });
    let request = |tokens: usize| Request::new(&prompt(tokens, 1), 1);
    let engine = narrow(EngineOptions { waiting_tokens: 100, ..Default::default() });
    let (gate, running) = Gate::close_behind_a_request(&engine);
    // The first may always wait.
    let long = engine.submit(request(200)).unwrap();
    assert!(matches!(engine.submit(request(1)), Err(Refusal::QueueFull)));
    drop(long);
    gate.open();
    assert_eq!(collect(running).0.len(), 229);
    idle(&engine);
    // Further ones may where all are short enough; one that was cancelled does not count.
    let (gate, running) = Gate::close_behind_a_request(&engine);
    let first = engine.submit(request(60)).unwrap();
    assert!(matches!(engine.submit(request(41)), Err(Refusal::QueueFull)));
    let second = engine.submit(request(40)).unwrap();
    gate.open();
    assert_eq!([running, first, second].map(|answer| collect(answer).0.len()), [229, 1, 1]);

    // Whatever has to wait at all fails, before it costs a step, and nothing else does.
    let engine = narrow(EngineOptions { max_wait: Some(Duration::ZERO), ..Default::default() });
    let (gate, running) = Gate::close_behind_a_request(&engine);
    let late = engine.submit(request(60)).unwrap();
    gate.open();
    let late = late.wait().unwrap_err().to_string();
    assert!(late.contains("has waited"), "{late}");
    assert_eq!(collect(running).0.len(), 229);
    assert_eq!(engine.stats().read_tokens, 20);
    assert_eq!(collect(engine.submit(request(60)).unwrap()).0.len(), 1);
}

#[test]
fn options_that_cannot_be_are_errors() {
    let device = Device::cpu();
    let start = |options: EngineOptions| Engine::start(model(&device), &device, options).err().map(|e| e.to_string());
    assert!(start(EngineOptions { rows: 0, ..Default::default() }).is_some_and(|e| e.contains("at least one row")));
    assert!(
        start(EngineOptions { context: Some(1 << 20), ..Default::default() }).is_some_and(|e| e.contains("a context of 1048576 tokens"))
    );
}

/// Greedy tokens of a session of its own, with penalties and biases computed here, and log-probabilities; and the smallest lead of a best token.
fn alone_with_penalties(model: &dyn Model, device: &Device, request: &Request) -> (Vec<u32>, Vec<f64>, f64) {
    let mut session = Session::new(model, 256, device).unwrap();
    let mut logits = session.prompt(&request.prompt, || false).unwrap().unwrap();
    let s = &request.sampling;
    let (mut tokens, mut scores, mut lead) = (Vec::<u32>::new(), Vec::new(), f64::INFINITY);
    while tokens.len() < request.max_tokens {
        let raw: Vec<f64> = logits.to_vec().unwrap().into_iter().map(f64::from).collect();
        let sum: f64 = raw.iter().map(|l| l.exp()).sum();
        let changed: Vec<f64> = (0..raw.len() as u32)
            .map(|t| {
                let times = tokens.iter().filter(|w| **w == t).count() as f64;
                let seen = times > 0.0 || request.prompt.contains(&t);
                let divided =
                    if raw[t as usize] > 0.0 { raw[t as usize] / s.repetition_penalty } else { raw[t as usize] * s.repetition_penalty };
                let bias: f64 = s.bias.iter().filter(|b| b.0 == t).map(|b| f64::from(b.1)).sum();
                let presence = if times > 0.0 { s.presence_penalty } else { 0.0 };
                (if seen { divided } else { raw[t as usize] }) - presence - times * s.frequency_penalty + bias
            })
            .collect();
        let best = (0..changed.len()).max_by(|&a, &b| changed[a].total_cmp(&changed[b])).unwrap();
        let next = changed.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, v)| *v).fold(f64::MIN, f64::max);
        lead = lead.min(changed[best] - next);
        scores.push(raw[best] - sum.ln());
        tokens.push(best as u32);
        logits = session.prompt(&[best as u32], || false).unwrap().unwrap();
    }
    (tokens, scores, lead)
}

#[test]
fn penalties_biases_and_log_probabilities_are_those_of_the_logits() {
    for device in devices() {
        let reference = model(&device);
        let engine = engine(&device, EngineOptions { rows: 8, ..Default::default() });
        let settings = [
            Sampling { frequency_penalty: 0.7, ..Default::default() },
            Sampling { presence_penalty: 1.5, ..Default::default() },
            Sampling { repetition_penalty: 1.3, ..Default::default() },
            Sampling { bias: vec![(20, 4.0), (43, -100.0)], ..Default::default() },
            Sampling {
                frequency_penalty: -0.3,
                presence_penalty: 0.4,
                repetition_penalty: 1.1,
                bias: vec![(5, 1.0)],
                ..Default::default()
            },
            Sampling::default(),
        ];
        let request = |(i, sampling): (usize, &Sampling)| Request {
            sampling: sampling.clone(),
            logprobs: (i % 2 == 1).then_some(3),
            ..Request::new(&prompt(5 + 20 * i, i), 24)
        };
        let requests: Vec<Request> = settings.iter().enumerate().map(request).collect();
        let answers: Vec<Answer> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        let mut compared = 0;
        for (request, answer) in requests.iter().zip(answers) {
            let (mut tokens, mut scores) = (Vec::new(), Vec::new());
            for event in answer {
                match event {
                    Event::Token(t) => tokens.push(t),
                    Event::LogProbs(l) => scores.push(l),
                    Event::Finished(..) => break,
                    Event::Failed(e) => panic!("{e}"),
                }
            }
            let (want, log_probs, lead) = alone_with_penalties(&*reference, &device, request);
            assert_eq!(scores.len(), request.logprobs.map_or(0, |_| 24), "{request:?}");
            if lead < 1e-3 {
                continue;
            }
            compared += 1;
            assert_eq!(tokens, want, "{:?} on {}", request.sampling, device.name());
            for (got, want) in scores.iter().zip(&log_probs) {
                assert!((f64::from(got.chosen) - want).abs() < 1e-3 && got.top.len() == 3, "{got:?}, not {want}");
                assert!(got.top[0].1 >= got.top[1].1 && got.top[1].1 >= got.top[2].1 && got.top[0].1 >= got.chosen);
            }
        }
        assert!(compared >= 4, "{compared} of {} had clear choices", requests.len());
        let far = Sampling { bias: vec![(1 << 20, 1.0)], ..Default::default() };
        let refused = engine.submit(Request { sampling: far, ..Request::new(&[1], 1) }).err().unwrap();
        assert!(refused.to_string().contains("the bias is for token 1048576"), "{refused}");
    }
}

#[test]
fn a_stopped_engine_ends_its_requests_and_takes_no_more() {
    let device = Device::cpu();
    let engine = engine(&device, EngineOptions { rows: 2, ..Default::default() });
    let answers: Vec<Answer> = (0..4).map(|i| engine.submit(Request::new(&prompt(40, i), 200)).unwrap()).collect();
    assert!(engine.is_running());
    engine.stop();
    for answer in answers {
        assert!(answer.wait().unwrap_err().to_string().contains("the engine has stopped"));
    }
    while engine.is_running() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(matches!(engine.submit(Request::new(&[1], 1)), Err(Refusal::Stopped)));
}

/// Tokens in rising order from a step on; fails or panics where it is told to.
#[derive(Clone, Debug)]
struct Rising {
    next: u32,
    left: usize,
    fails_at: usize,
    panics_at: usize,
}

impl Constraint for Rising {
    fn allow(&mut self, tokens: &mut [u32]) -> TensorResult<bool> {
        assert!(self.left != self.panics_at, "told to");
        if self.left == self.fails_at {
            return Err(TensorError::Value("no way on".into()));
        }
        let allowed = if self.left > 0 { self.next..self.next + 4 } else { 0..0 };
        allowed.for_each(|t| tokens[t as usize / 32] |= 1 << (t % 32));
        Ok(self.left == 0)
    }

    fn wrote(&mut self, token: u32) -> TensorResult<()> {
        if !(self.next..self.next + 4).contains(&token) {
            return Err(TensorError::Value(format!("token {token} was not allowed")));
        }
        (self.next, self.left) = (token + 1, self.left - 1);
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn constraints_hold_for_their_own_requests() {
    const NEVER: usize = usize::MAX;
    for device in devices() {
        let engine = engine(&device, EngineOptions { rows: 8, ..Default::default() });
        let free: Vec<Request> = (0..3).map(|i| Request::new(&prompt(9 + 20 * i, i), 30)).collect();
        let want: Vec<Vec<u32>> = free.iter().map(|r| collect(engine.submit(r.clone()).unwrap()).0).collect();
        let rising = |fails_at, panics_at, sampling: Sampling| {
            let constraint: Box<dyn Constraint> = Box::new(Rising { next: 2, left: 12, fails_at, panics_at });
            Request { constraint: Some(constraint), sampling, ..Request::new(&prompt(30, 7), 50) }
        };
        let draws = |top_k, top_p| Sampling { temperature: 1.5, seed: 3, top_k, top_p, ..Default::default() };
        let held =
            [Sampling::default(), draws(0, 1.0), draws(2, 1.0), draws(0, 0.6), Sampling { repetition_penalty: 1.5, ..draws(0, 1.0) }];
        let held: Vec<Answer> = held.into_iter().map(|s| engine.submit(rising(NEVER, NEVER, s)).unwrap()).collect();
        let broken = [rising(5, NEVER, Sampling::default()), rising(NEVER, 4, Sampling::default()), rising(12, NEVER, Sampling::default())];
        let broken: Vec<Answer> = broken.into_iter().map(|r| engine.submit(r).unwrap()).collect();
        let others: Vec<Answer> = free.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        for answer in held {
            // It ends where the constraint has nothing more, though there are no tokens for an end.
            let tokens = collect(answer).0;
            assert!(tokens.len() == 12 && tokens.windows(2).all(|t| t[0] < t[1]) && tokens[11] < 60, "{tokens:?}");
        }
        for (answer, words) in broken.into_iter().zip(["no way on", "panicked", "no way on"]) {
            let error = answer.wait().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        for (answer, want) in others.into_iter().zip(&want) {
            assert_eq!(collect(answer).0, *want);
        }
        idle(&engine);
    }
}
