//! Steps that read more positions than a prompt has: what they read beyond its end, and what earlier requests left there, must not count.

use super::engine::{alone, collect, engine, idle, model, prompt, scored, weights};
use crate::common::devices;
use std::time::Duration;
use tensorlogic::models::{KvCache, Layer, Model, ModelShape, Pass, Session};
use tensorlogic::serving::{Answer, Engine, EngineOptions, Request};
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// So long that no shape is left out on a slow machine.
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn prompts_near_the_end_of_the_context_are_read_whole() {
    for device in devices() {
        let reference = model(&device);
        let near = Request::new(&prompt(250, 0), 6);
        // The second chunk of 160 reaches to 320, and beside a short prompt the last of 64 may.
        for (rows, chunk, others) in [(1, 160, vec![]), (2, 64, vec![Request::new(&prompt(10, 3), 6)])] {
            let engine = engine(&device, EngineOptions { rows, chunk: Some(chunk), itl_budget: LONG, ..Default::default() });
            let requests: Vec<Request> = others.into_iter().chain([near.clone()]).collect();
            let answers: Vec<Answer> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
            for (request, answer) in requests.iter().zip(answers) {
                let (want, lead) = alone(&*reference, &device, request);
                assert!(lead > 1e-4, "the test's prompts have a clear best token");
                assert_eq!(collect(answer).0, want, "{} tokens in chunks of {chunk} on {}", request.prompt.len(), device.name());
            }
        }
    }
}

/// Numbers that look random, and are those of a seed.
struct Draw(u64);

impl Draw {
    /// One of `from..=to`.
    fn size(&mut self, from: usize, to: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        from + (self.0 >> 11) as usize % (to - from + 1)
    }
}

/// Fails unless a session that reads the same tokens finds each of them best, and as likely.
fn check_against_session(model: &dyn Model, device: &Device, request: &Request, tokens: &[u32], scores: &[f32], case: &str) {
    assert_eq!((tokens.len(), scores.len()), (request.max_tokens, request.max_tokens), "{case}");
    let mut session = Session::new(model, 256, device).unwrap();
    let mut logits = session.prompt(&request.prompt, || false).unwrap().unwrap();
    for (n, (&token, &score)) in tokens.iter().zip(scores).enumerate() {
        let values: Vec<f64> = logits.to_vec().unwrap().into_iter().map(f64::from).collect();
        let (best, own) = (values.iter().copied().fold(f64::MIN, f64::max), values[token as usize]);
        assert!(best - own < 2e-5, "{case}: token {n} is {token}, whose logit is {own}; the best is {best}");
        let want = own - best - values.iter().map(|v| (v - best).exp()).sum::<f64>().ln();
        assert!((f64::from(score) - want).abs() < 1e-5, "{case}: token {n} has log-probability {score}, not {want}");
        if n + 1 < tokens.len() {
            logits = session.prompt(&[token], || false).unwrap().unwrap();
        }
    }
}

#[test]
fn ragged_requests_in_random_shapes_are_sessions_alone() {
    let seed = std::env::var("TL_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0x5eed_2026);
    for device in devices() {
        let reference = model(&device);
        let mut draw = Draw(seed);
        let mut hits = 0;
        // A software GPU compiles every shape of every case.
        for case in 0..if device.is_cpu() { 40 } else { 3 } {
            let (context, chunk, rows) = (draw.size(20, 256), draw.size(1, 200), draw.size(1, if device.is_cpu() { 6 } else { 2 }));
            let options =
                EngineOptions { rows, context: Some(context), chunk: Some(chunk), lookup: None, itl_budget: LONG, ..Default::default() };
            let engine = engine(&device, options);
            let text = prompt(256, draw.size(0, 50));
            // Some begin as those of the first wave do.
            for _ in 0..2 {
                let requests: Vec<Request> = (0..draw.size(1, rows + 1))
                    .map(|_| {
                        let most = draw.size(1, 6);
                        let len = draw.size(1, context - most);
                        let common = draw.size(0, len);
                        let mut own = prompt(len, draw.size(51, 99));
                        own[..common].copy_from_slice(&text[..common]);
                        Request { logprobs: Some(0), ..Request::new(&own, most) }
                    })
                    .collect();
                let answers: Vec<Answer> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
                for (request, answer) in requests.iter().zip(answers) {
                    let (tokens, scores, cached) = scored(answer);
                    hits += usize::from(cached > 0);
                    let case = format!(
                        "seed {seed}, case {case} on {}: context {context}, chunk {chunk}, {rows} rows, {} tokens, {cached} cached",
                        device.name(),
                        request.prompt.len()
                    );
                    check_against_session(&*reference, &device, request, &tokens, &scores, &case);
                }
            }
            idle(&engine);
        }
        println!("seed {seed}: {hits} requests on {} began as earlier ones", device.name());
        assert!(hits > if device.is_cpu() { 10 } else { 0 });
    }
}

/// The tiny model, in which the embedding of one token is NaN.
struct Poisoned {
    inner: Box<dyn Model>,
    table: Tensor,
}

/// The token whose embedding is NaN.
const POISON: u32 = 61;

impl Model for Poisoned {
    fn shape(&self) -> ModelShape {
        self.inner.shape()
    }
    fn forward(&self, pass: &mut Pass<'_>, cache: &mut KvCache) -> TensorResult<Tensor> {
        let embed = |ids: &Tensor| {
            let (dims, flat) = (ids.dims().to_vec(), ids.reshape(&[-1])?);
            let rows = self.table.index_select(0, &flat)?.reshape(&[dims[0] as isize, dims[1] as isize, -1])?;
            let poison = ids.eq(f64::from(POISON))?.unsqueeze(2)?;
            let nan = Tensor::full(f64::NAN, &[1, 1, 1], DType::F32, ids.device())?;
            poison.where_(&nan, &rows)
        };
        let (embedded, _) = pass.embed(DType::F32, embed)?;
        let mut own = Pass::embeddings(&embedded);
        own.positions = pass.positions;
        self.inner.forward(&mut own, cache)
    }
    fn norm(&self, residual: &Tensor) -> TensorResult<Tensor> {
        self.inner.norm(residual)
    }
    fn head(&self, normed: &Tensor) -> TensorResult<Tensor> {
        self.inner.head(normed)
    }
    fn weights(&self) -> Vec<&Tensor> {
        self.inner.weights()
    }
    fn layers(&mut self) -> Vec<Layer<'_>> {
        self.inner.layers()
    }
}

#[test]
fn what_a_poisoned_request_leaves_in_its_pages_harms_nobody() {
    for device in devices() {
        let inner = model(&device);
        let table = weights(&device).any("token_embd.weight").unwrap().cast(DType::F32).unwrap();
        let options = EngineOptions { rows: 1, context: Some(256), chunk: Some(64), itl_budget: LONG, ..Default::default() };
        let engine = Engine::start(Box::new(Poisoned { inner, table }) as Box<dyn Model>, &device, options).unwrap();
        let lens = if device.is_cpu() { &[20, 63, 70][..] } else { &[63] };
        for &len in lens {
            let plain = Request { logprobs: Some(0), ..Request::new(&prompt(len, 5), 4) };
            let ask = |name: &str| scored(engine.submit(Request { cache_name: name.into(), ..plain.clone() }).unwrap());
            let before = ask(&format!("before {len}"));
            // Every value is NaN, in all pages.
            let poisoned: Vec<u32> = vec![POISON; 240];
            let error = engine.submit(Request { cache_name: "poison".into(), ..Request::new(&poisoned, 8) }).unwrap().wait().unwrap_err();
            assert!(error.to_string().contains("NaN"), "{error}");
            assert_eq!(ask(&format!("after {len}")), before, "{len} tokens on {}", device.name());
        }
        idle(&engine);
    }
}
