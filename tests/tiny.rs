//! The repository's own trained model, on every device: what it predicts, and that devices and types of activations agree.

use tensorlogic::autograd::no_grad;
use tensorlogic::models::{self, KvCache, Sampler, Session, Weights};
use tensorlogic::text::Tokenizer;
use tensorlogic::{DType, Device, Tensor};

const PASSAGE: &str = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n";

/// Nats a character of the passage, and what is written after a prompt, always the best character next.
fn run(device: &Device, dtype: DType) -> (f64, String) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    let weights = Weights::open(file, device).unwrap();
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
    let written: Vec<u32> = (0..40).map(|_| generation.token().unwrap().unwrap()).collect();
    (loss, tokenizer.decode(&written, true).unwrap())
}

#[test]
fn it_has_learnt_and_devices_agree() {
    let (loss, text) = run(&Device::cpu(), DType::F32);
    // The frequencies of characters alone are worth 3.3 nats.
    assert!(loss < 2.8, "{loss}");
    let mut others = vec![(Device::cpu(), DType::BF16, 0.02)];
    match Device::open("vulkan") {
        Ok(gpu) => others.extend([(gpu.clone(), DType::F32, 1e-4), (gpu, DType::F16, 0.01)]),
        Err(e) if std::env::var("TL_REQUIRE_GPU").is_ok_and(|v| v == "1") => panic!("{e}"),
        Err(_) => {}
    }
    for (device, dtype, tolerance) in others {
        let (other, written) = run(&device, dtype);
        assert!((other - loss).abs() < tolerance * loss, "{other}, not {loss}, in {dtype} on {}", device.name());
        if dtype == DType::F32 {
            assert_eq!(written, text, "on {}", device.name());
        }
    }
}
