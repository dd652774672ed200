//! What strategies do to submits, and what happens when a device is lost or full. Alone in its program: counters and limits are the device's.

mod common;

use common::{alone, selector};
use tensorlogic::models::{self, Model, Sampler, Session, Weights};
use tensorlogic::{DType, Device, PipelineStrategy, TensorError, TensorResult};

const FILE: &str = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");
const PROMPT: [u32; 7] = [5, 6, 7, 8, 20, 30, 9];
const TOKENS: usize = 60;

fn load(device: &Device, dtype: DType) -> TensorResult<Box<dyn Model>> {
    models::load(&Weights::open(FILE, device)?, Some(dtype))
}

fn generate(session: &mut Session, sampler: &mut Sampler, tokens: usize) -> TensorResult<Vec<u32>> {
    let logits = session.prompt(&PROMPT, || false)?.expect("nobody stopped it");
    session.generate(logits, sampler)?.at_most(tokens).collect()
}

/// What an undisturbed run on the CPU writes.
fn expected(sampler: &Sampler) -> Vec<u32> {
    let device = Device::cpu();
    let model = load(&device, DType::F32).unwrap();
    generate(&mut Session::new(&*model, 128, &device).unwrap(), &mut sampler.clone(), TOKENS).unwrap()
}

/// A list that begins with the GPU under test and ends with the CPU.
fn list() -> Option<(String, Device)> {
    let list = format!("{},cpu", selector()?);
    let device = Device::open(&list).unwrap();
    device.set_adaptive(false);
    Some((list, device))
}

#[test]
fn strategies_share_submits_as_they_say() {
    let _alone = alone();
    let Some((_, device)) = list() else { return };
    let model = load(&device, DType::F32).unwrap();
    let submits = |strategy| {
        let mut session = Session::new(&*model, 128, &device).unwrap().strategy(strategy);
        // The first answer learns what a step is.
        generate(&mut session, &mut Sampler::default(), TOKENS).unwrap();
        session.truncate(0);
        let before = device.submits();
        generate(&mut session, &mut Sampler::default(), TOKENS).unwrap();
        device.submits() - before
    };
    let [standard, low, high] = [PipelineStrategy::Standard, PipelineStrategy::LowLatency, PipelineStrategy::HighThroughput].map(submits);
    assert!(low >= TOKENS as u64, "{low} submits for {TOKENS} tokens, each by itself");
    // How many share a submit depends on how long a step takes here.
    assert!(high <= standard && standard <= low, "{high} submits for throughput, {standard} by Standard, {low} for latency");
}

#[test]
fn a_generation_survives_the_loss_of_its_device() {
    let _alone = alone();
    let greedy = expected(&Sampler::default());
    let penalized = Sampler { repetition_penalty: 1.2, ..Sampler::default() };
    let by_host = expected(&penalized);
    let mut lost = 0;
    for submits in [1, 2, 3, 5, 8, 13, 40, 90, 1000] {
        for (sampler, expected) in [(Sampler::default(), &greedy), (penalized.clone(), &by_host)] {
            let Some((_, device)) = list() else { return };
            assert!(!device.is_lost(), "the device was opened again");
            let model = load(&device, DType::F32).unwrap();
            let mut session = Session::with_reload(&*model, 128, &device, Box::new(load)).unwrap();
            device.lose_after(submits);
            let mut sampler = sampler;
            let tokens = generate(&mut session, &mut sampler, TOKENS).unwrap();
            assert_eq!(tokens, *expected, "lost after {submits} submits");
            assert_eq!(session.tokens(), [&PROMPT[..], expected].concat());
            match session.fallbacks() {
                [] => assert!(submits > 13, "the device was not lost after {submits} submits"),
                [note] => {
                    lost += 1;
                    let text = note.to_string();
                    assert!(
                        text.contains("the device was lost (") && text.contains(&format!("; going on with {}", Device::cpu().name())),
                        "{text}"
                    );
                    assert_eq!(*session.device(), Device::cpu());
                }
                more => panic!("{} notes", more.len()),
            }
        }
    }
    assert!(lost >= 12, "{lost} losses");
}

#[test]
fn a_prompt_and_a_score_survive_it_too() {
    let _alone = alone();
    let Some((_, _)) = list() else { return };
    let cpu = Device::cpu();
    let model = load(&cpu, DType::F32).unwrap();
    let mut session = Session::new(&*model, 128, &cpu).unwrap();
    session.prompt(&PROMPT, || false).unwrap();
    let want = session.score(&[1, 2, 3]).unwrap().to_vec().unwrap();
    let Some((_, device)) = list() else { return };
    let model = load(&device, DType::F32).unwrap();
    let mut session = Session::with_reload(&*model, 128, &device, Box::new(load)).unwrap();
    session.prompt(&PROMPT, || false).unwrap();
    device.lose_after(1);
    // The loss is seen when a result is waited for: that tensor is gone, and the next call goes on elsewhere.
    let mut scores = (0..3).map(|_| {
        session.truncate(PROMPT.len());
        session.score(&[1, 2, 3])?.to_vec()
    });
    let got = scores.find_map(Result::ok).expect("no score on another device");
    drop(scores);
    assert_eq!(session.fallbacks().len(), 1);
    common::assert_close("scores", &got, &want.iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), 1e-4, 1e-4);
}

#[test]
fn a_full_device_is_left_and_its_limit_stays() {
    let _alone = alone();
    let Some((_, device)) = list() else { return };
    let expected = expected(&Sampler::default());
    let model = load(&device, DType::F32).unwrap();
    device.empty_cache();
    // Room for some of the cache.
    device.set_memory_limit(device.memory().in_use + (8 << 10));
    let without = Session::new(&*model, 128, &device);
    assert!(matches!(without, Err(TensorError::OutOfMemory { .. })), "a cache fits into 8 KiB");
    let mut session = Session::with_reload(&*model, 128, &device, Box::new(load)).unwrap();
    device.set_memory_limit(None);
    assert_eq!(generate(&mut session, &mut Sampler::default(), TOKENS).unwrap(), expected);
    assert_eq!(session.fallbacks().len(), 1);
    assert!(session.fallbacks()[0].reason.starts_with("out of memory"), "{:?}", session.fallbacks());
}

#[test]
fn without_a_list_or_a_reload_a_loss_is_an_error() {
    let _alone = alone();
    let Some((_, device)) = list() else { return };
    let model = load(&device, DType::F32).unwrap();
    let mut session = Session::new(&*model, 128, &device).unwrap();
    device.lose_after(2);
    let failed = generate(&mut session, &mut Sampler::default(), TOKENS).unwrap_err();
    assert!(matches!(failed, TensorError::DeviceLost(_)), "{failed}");
    assert!(device.is_lost());
    let again = Device::open(selector().unwrap()).unwrap();
    assert!(again != device && !again.is_lost(), "a lost device is opened again");
}
