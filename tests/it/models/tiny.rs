//! The repository's own trained model, on every device: what it predicts, and that devices and types of activations agree.

use crate::common::devices;
use std::path::Path;
use tensorlogic::autograd::no_grad;
use tensorlogic::models::convert::write_gguf;
use tensorlogic::models::{self, KvCache, Model, Rounding, Sampler, Session, Weights};
use tensorlogic::text::Tokenizer;
use tensorlogic::{DType, Device, Rng, Tensor};

const PASSAGE: &str = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n";

const FILE: &str = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");

/// Characters that are written: decode steps go to a GPU up to eight at a time, so these are two whole groups of them. The program `msl` executes
/// each step's threads one by one.
const WRITTEN: usize = 16;

/// Nats a character of the passage, and what is written after a prompt, always the best character next.
fn run(device: &Device, dtype: DType) -> (f64, String) {
    let weights = Weights::open(FILE, device).unwrap();
    let tokenizer = Tokenizer::from_gguf(weights.gguf().unwrap()).unwrap();
    let model = models::load(&weights, Some(dtype)).unwrap();
    let ids = tokenizer.encode(PASSAGE, true).unwrap();
    assert_eq!((ids.len(), tokenizer.decode(&ids, true).unwrap().as_str()), (PASSAGE.len(), PASSAGE));
    let row = |ids: &[u32]| Tensor::from_vec(ids.iter().map(|&i| i as i32).collect::<Vec<i32>>(), &[1, ids.len()], device).unwrap();
    let (x, y) = (row(&ids[..ids.len() - 1]), row(&ids[1..]));
    let loss = no_grad(|| models::loss(&*model, &x, &y)).unwrap().item().unwrap();
    // The same by way of the cache, a part at a time.
    let mut cache = KvCache::new(&model.shape(), 128, device).unwrap();
    let mut parts = Vec::new();
    for chunk in ids[..ids.len() - 1].chunks(29) {
        let x = row(chunk).flatten(0, -1).unwrap();
        parts.push(model.logits(&model.hidden(&x, &mut cache).unwrap()).unwrap().squeeze(0).unwrap());
    }
    let logits = Tensor::cat(&parts, 0).unwrap();
    let again = logits.cross_entropy(&y.flatten(0, -1).unwrap(), &Default::default()).unwrap().item().unwrap();
    assert!((again - loss).abs() < 0.01 * loss, "{again} {loss} on {}", device.name());

    let mut session = Session::new(&*model, 100, device).unwrap();
    let logits = session.prompt(&tokenizer.encode("ROMEO:\n", true).unwrap(), || false).unwrap().unwrap();
    let mut sampler = Sampler::default();
    let mut generation = session.generate(logits, &mut sampler).unwrap();
    let written: Vec<u32> = (0..WRITTEN).map(|_| generation.token().unwrap().unwrap()).collect();
    (loss, tokenizer.decode(&written, true).unwrap())
}

fn open(file: &Path, device: &Device) -> (Box<dyn Model>, Tokenizer) {
    let weights = Weights::open(file, device).unwrap();
    (models::load(&weights, Some(DType::F32)).unwrap(), Tokenizer::from_gguf(weights.gguf().unwrap()).unwrap())
}

/// Tokens as rows of one tensor.
fn rows(texts: &[&[u32]], device: &Device) -> Tensor {
    let all: Vec<i32> = texts.iter().flat_map(|t| t.iter().map(|&i| i as i32)).collect();
    Tensor::from_vec(all, &[texts.len(), texts[0].len()], device).unwrap()
}

/// Logits of texts of one length, all at once and without a cache.
fn whole(model: &dyn Model, texts: &[&[u32]], device: &Device) -> Vec<f32> {
    no_grad(|| model.logits(&model.hidden(&rows(texts, device), &mut KvCache::none())?)?.to_vec()).unwrap()
}

#[track_caller]
fn near(what: &str, got: &[f32], want: &[f32], tolerance: f32, device: &Device) {
    assert_eq!(got.len(), want.len());
    let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!((a - b).abs() <= tolerance * size, "{what} on {}: element {i} is {a}, not {b}", device.name());
    }
}

/// Token by token through the cache, taken back and gone over again, or as a part of a batch: every position's logits are those of the whole text.
#[test]
fn caches_and_batches_give_what_the_whole_text_gives() {
    for device in devices() {
        let (model, tokenizer) = open(Path::new(FILE), &device);
        let ids = tokenizer.encode(PASSAGE, true).unwrap();
        let want = whole(&*model, &[&ids], &device);
        let vocab = want.len() / ids.len();
        let mut session = Session::new(&*model, 128, &device).unwrap();
        let mut got = Vec::new();
        for (i, id) in ids.iter().take(20).enumerate() {
            if i == 10 {
                // Half of it was something else, and is forgotten.
                session.score(&ids[50..70]).unwrap().eval().unwrap();
                session.truncate(10);
            }
            got.extend(session.score(&[*id]).unwrap().to_vec().unwrap());
        }
        near("token by token", &got, &want[..20 * vocab], 2e-5, &device);
        let texts: Vec<&[u32]> = (0..4).map(|i| &ids[7 * i..7 * i + 20]).collect();
        let together = whole(&*model, &texts, &device);
        let alone: Vec<f32> = texts.iter().flat_map(|t| whole(&*model, &[t], &device)).collect();
        near("a batch", &together, &alone, 2e-5, &device);
    }
}

/// What is drawn depends on the seed alone: not on the run, and on another seed much.
#[test]
fn a_seed_gives_the_same_text() {
    for device in devices() {
        let (model, tokenizer) = open(Path::new(FILE), &device);
        let write = |seed: u64, top_k: usize| -> Vec<u32> {
            let mut session = Session::new(&*model, 128, &device).unwrap();
            let logits = session.prompt(&tokenizer.encode("JULIET:\n", true).unwrap(), || false).unwrap().unwrap();
            let mut sampler = Sampler { temperature: 0.9, top_k, rng: Rng::new(seed), ..Sampler::default() };
            let mut generation = session.generate(logits, &mut sampler).unwrap();
            (0..WRITTEN).map(|_| generation.token().unwrap().unwrap()).collect()
        };
        for top_k in [0, 20] {
            let first = write(5, top_k);
            assert_eq!(first, write(5, top_k), "on {}", device.name());
            assert_ne!(first, write(6, top_k), "on {}", device.name());
        }
    }
}

/// The iterator ends behind an error, and the session holds no token of it.
#[test]
fn an_error_ends_the_tokens() {
    for device in devices() {
        let (model, _) = open(Path::new(FILE), &device);
        let vocab = model.shape().vocab;
        let mut session = Session::new(&*model, 64, &device).unwrap();
        session.prompt(&[1, 2, 3], || false).unwrap().unwrap();
        let nan = Tensor::full(f64::NAN, &[vocab], DType::F32, &device).unwrap();
        let mut sampler = Sampler::default();
        let tokens: Vec<_> = session.generate(nan, &mut sampler).unwrap().take(5).collect();
        let [Err(error)] = &tokens[..] else { panic!("{tokens:?} on {}", device.name()) };
        assert!(error.to_string().contains("logits contain NaN"), "{error}");
        assert_eq!(session.tokens(), [1, 2, 3]);
    }
}

/// Written in other types, it says nearly the same; in types that hold its own exactly, the very same.
#[test]
fn it_survives_other_types() {
    let cpu = Device::cpu();
    let (model, tokenizer) = open(Path::new(FILE), &cpu);
    let ids = tokenizer.encode(PASSAGE, true).unwrap();
    let want = whole(&*model, &[&ids], &cpu);
    let loss = |model: &dyn Model| {
        let (x, y) = (rows(&[&ids[..ids.len() - 1]], &cpu), rows(&[&ids[1..]], &cpu));
        no_grad(|| models::loss(model, &x, &y)).unwrap().item().unwrap()
    };
    let own = loss(&*model);
    let folder = std::env::temp_dir().join(format!("tl-tiny-types-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (dtype, logits, nats) in [(DType::F32, 1e-6, 1e-6), (DType::Q8_0, 0.02, 0.005), (DType::Q5_0, 0.15, 0.05), (DType::Q4_0, 0.5, 0.15)]
    {
        let file = folder.join(format!("{dtype}.gguf"));
        write_gguf(&Weights::open(FILE, &cpu).unwrap(), dtype, |_, _| Ok(()), &file).unwrap();
        let weights = Weights::open(&file, &cpu).unwrap();
        let other = models::load(&weights, Some(DType::F32)).unwrap();
        near(&format!("{dtype}"), &whole(&*other, &[&ids], &cpu), &want, logits, &cpu);
        let now = loss(&*other);
        assert!((now - own).abs() <= nats, "{dtype}: {now} nats, not {own}");
    }
    // With weights in bf16, what they are multiplied by may be rounded to bf16 too.
    let file = folder.join("rounded.gguf");
    write_gguf(&Weights::open(FILE, &cpu).unwrap(), DType::BF16, |_, _| Ok(()), &file).unwrap();
    let [plain, rounded] = [None, Some(Rounding::Bf16)].map(|to| {
        let weights = Weights::open(&file, &cpu).unwrap().round_activations(to);
        models::load(&weights, Some(DType::F32)).unwrap()
    });
    let (want, got) = (whole(&*plain, &[&ids], &cpu), whole(&*rounded, &[&ids], &cpu));
    near("rounded", &got, &want, 0.05, &cpu);
    assert_ne!(got, want);
    assert!((loss(&*rounded) - loss(&*plain)).abs() < 0.002);
    // With weights in blocks, to int8.
    let file = folder.join("q8_0.gguf");
    let int8 = |to: Option<Rounding>, device: &Device| {
        let weights = Weights::open(&file, device).unwrap().round_activations(to);
        models::load(&weights, Some(DType::F32)).unwrap()
    };
    let (plain, rounded) = (int8(None, &cpu), int8(Some(Rounding::Int8), &cpu));
    let (want, got) = (whole(&*plain, &[&ids], &cpu), whole(&*rounded, &[&ids], &cpu));
    near("int8", &got, &want, 0.1, &cpu);
    assert_ne!(got, want);
    assert!((loss(&*rounded) - loss(&*plain)).abs() < 0.004);
    // Few rows, which are multiplied as integers, are those of many, and those of other devices.
    for device in devices() {
        let model = int8(Some(Rounding::Int8), &device);
        for few in [1, 2, 4, 6, ids.len()] {
            let want = &got[..few * got.len() / ids.len()];
            near(&format!("int8, {few} rows"), &whole(&*model, &[&ids[..few]], &device), want, 0.05, &device);
        }
    }
    // Weights of other types have nothing rounded.
    for (file, to) in [(Path::new(FILE), Rounding::Bf16), (&folder.join("rounded.gguf"), Rounding::Int8)] {
        let [own, same] = [None, Some(to)].map(|to| {
            let weights = Weights::open(file, &cpu).unwrap().round_activations(to);
            models::load(&weights, Some(DType::F32)).unwrap()
        });
        assert_eq!(whole(&*same, &[&ids], &cpu), whole(&*own, &[&ids], &cpu));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn it_has_learnt_and_devices_agree() {
    let (loss, text) = run(&Device::cpu(), DType::F32);
    // The frequencies of characters alone are worth 3.3 nats.
    assert!(loss < 2.8, "{loss}");
    let mut others = vec![(Device::cpu(), DType::BF16, 0.02)];
    others.extend(devices().into_iter().skip(1).flat_map(|gpu| [(gpu.clone(), DType::F32, 1e-4), (gpu, DType::F16, 0.01)]));
    for (device, dtype, tolerance) in others {
        let (other, written) = run(&device, dtype);
        assert!((other - loss).abs() < tolerance * loss, "{other}, not {loss}, in {dtype} on {}", device.name());
        if dtype == DType::F32 {
            assert_eq!(written, text, "on {}", device.name());
        }
    }
}
