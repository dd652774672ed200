//! Models whose layers are distributed, over devices of this process and over ranks (threads here): the same tokens as in one place, for
//! attention and for models with states, and errors of a rank that do not leave another waiting.

use crate::common::devices;
use crate::threads;
use std::path::PathBuf;
use tensorlogic::distributed::Ranks;
use tensorlogic::models::stages::follow;
use tensorlogic::models::{self, KvCache, LayerStages, Model, Sampler, Session, Weights};
use tensorlogic::{DType, Device, Tensor, TensorError, TensorResult};

const TOKENS: usize = 24;

fn tiny() -> PathBuf {
    concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf").into()
}

/// Greedy tokens, also after the text was cut back and read on.
fn tokens(model: &dyn Model, device: &Device) -> TensorResult<Vec<u32>> {
    let mut session = Session::new(model, 128, device)?;
    let mut sampler = Sampler::default();
    let prompt: Vec<u32> = (0..21).map(|n| (n * 7 + 3) % 61).collect();
    let mut write = |session: &mut Session, prompt: &[u32]| -> TensorResult<Vec<u32>> {
        let logits = session.prompt(prompt, || false)?.expect("nobody stopped it");
        session.generate(logits, &mut sampler)?.take(TOKENS).collect()
    };
    let mut all = write(&mut session, &prompt)?;
    session.truncate(30);
    all.extend(write(&mut session, &prompt[..5])?);
    let scores = session.score(&prompt[..9])?.argmax(-1)?.to_vec_of::<i32>()?;
    all.extend(scores.into_iter().map(|t| t as u32));
    Ok(all)
}

/// Each rank's end: rank 0's tokens, nothing of the others.
fn over_ranks(file: &PathBuf, device: &Device, dtype: DType, size: usize) -> Vec<TensorResult<Vec<u32>>> {
    threads::run(size, |ranks| {
        let weights = Weights::open(file, device)?;
        if !ranks.is_first() {
            return follow(Ok(&weights), &ranks).map(|()| Vec::new());
        }
        let (stages, model) = LayerStages::lead(Ok(&weights), Some(dtype), &ranks)?;
        assert_eq!(stages.layers().len(), size);
        assert!(model.distant_bytes() > 0 && model.weights().len() < models::load(&weights, Some(dtype))?.weights().len());
        tokens(&*model, device)
    })
}

#[test]
fn distributed_layers_give_the_same_tokens() {
    for device in devices() {
        for dtype in [DType::F32, DType::F16] {
            if !device.supports(dtype) {
                continue;
            }
            let whole = models::load(&Weights::open(tiny(), &device).unwrap(), Some(dtype)).unwrap();
            let expected = tokens(&*whole, &device).unwrap();
            let mut different = expected.clone();
            different.dedup();
            assert!(different.len() > TOKENS, "the text says little: {expected:?}");
            let sizes = if device.is_cpu() { &[2, 4][..] } else { &[2] };
            for &size in sizes {
                let ends = over_ranks(&tiny(), &device, dtype, size);
                for (rank, end) in ends.into_iter().enumerate() {
                    let end = end.unwrap_or_else(|e| panic!("rank {rank} of {size}: {e}"));
                    assert_eq!(end, if rank == 0 { expected.clone() } else { Vec::new() }, "{dtype}, {size} ranks on {}", device.name());
                }
            }
            // Three parts on one device, and two on different ones.
            let own = Weights::open(tiny(), &device).unwrap();
            let stages = LayerStages::of(&own, 3).unwrap();
            let weights: Vec<Weights> = (0..3).map(|_| Weights::open(tiny(), &device).unwrap()).collect();
            let model = stages.load(&weights, Some(dtype)).unwrap();
            let before = device.metrics().plans.repeats;
            assert_eq!(tokens(&*model, &device).unwrap(), expected, "{dtype}, three parts on {}", device.name());
            // Of each text, a part's first steps are recorded, and the others run again.
            let repeats = device.metrics().plans.repeats - before;
            assert!(repeats >= 3 * 2 * (TOKENS as u64 - 6), "{repeats} steps on {}", device.name());
        }
        let other = Device::cpu();
        let weights = [Weights::open(tiny(), &device).unwrap(), Weights::open(tiny(), &other).unwrap()];
        let model = LayerStages::of(&weights[0], 2).unwrap().load(&weights, Some(DType::F32)).unwrap();
        let whole = models::load(&Weights::open(tiny(), &device).unwrap(), Some(DType::F32)).unwrap();
        let shape = model.shape();
        assert!(shape.places.iter().flatten().any(|place| *place == device) && shape.places.last() == Some(&Some(other)));
        assert_eq!(tokens(&*model, &device).unwrap(), tokens(&*whole, &device).unwrap(), "{} and the CPU", device.name());
    }
}

/// Steps that are recorded and run again, of tokens that are parts of longer tensors and of both types, up to the end of the cache and beyond.
#[test]
fn recorded_steps_read_the_tokens_that_they_are_given() {
    const ROOM: usize = 24;
    for device in devices() {
        let whole = models::load(&Weights::open(tiny(), &device).unwrap(), Some(DType::F32)).unwrap();
        let weights: Vec<Weights> = (0..2).map(|_| Weights::open(tiny(), &device).unwrap()).collect();
        let staged = LayerStages::of(&weights[0], 2).unwrap().load(&weights, Some(DType::F32)).unwrap();
        let mut caches = [&whole, &staged].map(|m| KvCache::batch(&m.shape(), 1, ROOM, &device).unwrap());
        for n in 0..=ROOM {
            let candidates: Vec<i32> = (0..5).map(|k| ((n * 7 + k * 11) % 61) as i32).collect();
            // The same place for a while, so that its step is recorded, and then others.
            let place = if n < 10 { 0 } else { n % 5 };
            let ids = Tensor::from_vec(candidates, &[5], &device).unwrap().narrow(0, place, 1).unwrap();
            let other = if device.supports(DType::I64) { DType::I64 } else { DType::U32 };
            let ids = if n % 8 == 7 { ids.cast(other).unwrap() } else { ids };
            let step = |m: &dyn Model, cache: &mut KvCache| m.hidden(&ids, cache)?.to_vec();
            let [one, other] = &mut caches;
            match (step(&*whole, one), step(&*staged, other)) {
                (Ok(a), Ok(b)) => {
                    let off = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(n < ROOM && off < 1e-3, "step {n} is off by {off} on {}", device.name());
                }
                (Err(a), Err(b)) => assert!(n == ROOM && a.to_string() == b.to_string(), "step {n}: {a}; {b}"),
                (a, b) => panic!("step {n} on {}: {a:?}; {b:?}", device.name()),
            }
        }
    }
}

#[test]
fn a_batch_of_sequences_goes_through_the_ranks() {
    let device = Device::cpu();
    let logits = |model: &dyn Model| -> TensorResult<Vec<f32>> {
        let mut cache = KvCache::batch(&model.shape(), 3, 32, &device)?;
        let ids = |seed: i32| Tensor::from_vec((0..12).map(|n| (n * 5 + seed) % 60).collect::<Vec<i32>>(), &[3, 4], &device);
        model.hidden(&ids(1)?, &mut cache)?.eval()?;
        model.logits(&model.hidden(&ids(2)?, &mut cache)?)?.to_vec()
    };
    let expected = logits(&*models::load(&Weights::open(tiny(), &device).unwrap(), None).unwrap()).unwrap();
    let ends = threads::run(2, |ranks| {
        let weights = Weights::open(tiny(), &device)?;
        match ranks.is_first() {
            true => logits(&*LayerStages::lead(Ok(&weights), None, &ranks)?.1),
            false => follow(Ok(&weights), &ranks).map(|()| Vec::new()),
        }
    });
    assert_eq!(ends[0].as_ref().unwrap(), &expected);
}

#[test]
fn no_rank_waits_for_one_that_failed() {
    let device = Device::cpu();
    let missing = || TensorError::Value("no such file".into());
    // Before the first pass, on either side.
    for victim in [0, 1] {
        let ends = threads::run(2, |ranks: Ranks| {
            let weights = Weights::open(tiny(), &device).unwrap();
            let own = if ranks.rank() == victim { Err(missing()) } else { Ok(&weights) };
            match ranks.is_first() {
                true => LayerStages::lead(own, None, &ranks).map(drop),
                false => follow(own, &ranks),
            }
            .map_err(|e| e.to_string())
        });
        assert_eq!(ends[victim].as_ref().unwrap_err(), "no such file");
        assert_eq!(ends[1 - victim].as_ref().unwrap_err(), &format!("rank {victim} failed"));
    }
    // In the middle of a text: the second conversation is one too many for a rank that is in another.
    let ends = threads::run(3, |ranks: Ranks| {
        let weights = Weights::open(tiny(), &device).unwrap();
        if !ranks.is_first() {
            return follow(Ok(&weights), &ranks).map_err(|e| e.to_string());
        }
        let model = LayerStages::lead(Ok(&weights), None, &ranks).unwrap().1;
        let mut sessions = [0, 1].map(|_| Session::new(&*model, 32, &device).unwrap());
        sessions[0].prompt(&[1, 2], || false).unwrap();
        sessions[1].prompt(&[1, 2], || false).unwrap();
        sessions[0].prompt(&[3, 4], || false).map(drop).map_err(|e| e.to_string())
    });
    assert_eq!(ends[0].as_ref().unwrap_err(), "rank 1 failed");
    assert!(ends[1].as_ref().unwrap_err().contains("one conversation at a time"), "{ends:?}");
    assert!(ends[2].is_ok(), "{ends:?}");
}

#[test]
fn more_parts_than_layers_are_refused() {
    let weights = Weights::open(tiny(), &Device::cpu()).unwrap();
    let error = LayerStages::of(&weights, 99).unwrap_err().to_string();
    assert!(error.contains("6 layers in 99 parts"), "{error}");
    let one = LayerStages::of(&weights, 1).unwrap();
    assert_eq!((one.layers(), one.bytes().len()), (std::slice::from_ref(&(0..6)), 1));
    let two = LayerStages::of(&weights, 2).unwrap();
    assert_eq!(two.bytes().iter().sum::<u64>(), one.bytes()[0]);
    assert!(two.to_string().starts_with("layers 0-"), "{two}");
}
