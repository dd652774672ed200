//! Adapters on every described decoder: the loss falls, and what was learnt is saved, loaded and merged.
//!
//! `TL_VECTORS=FOLDER` takes a larger set of the layout of `tests/vectors`.

use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use tensorlogic::autograd::no_grad;
use tensorlogic::models::{self, Adapters, KvCache, Model, Weights};
use tensorlogic::nn::LoraConfig;
use tensorlogic::optim::{AdamW, Optimizer};
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

fn root() -> PathBuf {
    let given = std::env::var_os("TL_VECTORS").map(PathBuf::from);
    given.unwrap_or_else(|| Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors"))
}

/// The decoders in folders, and the GGUF files of decoders.
fn decoders() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for folder in ["models2", "models2_gguf", "models_gguf"].map(|f| root().join(f)) {
        let Ok(text) = std::fs::read(folder.join("manifest.json")) else { continue };
        let manifest: Json = serde_json::from_slice(&text).unwrap();
        let models = manifest["models"].as_array().unwrap().iter().filter(|m| m["kind"].is_null());
        all.extend(models.filter_map(|m| Some(folder.join(m["dir"].as_str().or(m["file"].as_str())?))));
    }
    assert!(all.len() >= 20, "{} models", all.len());
    all
}

fn load(path: &Path) -> TensorResult<Box<dyn Model>> {
    models::load(&Weights::open(path, &Device::cpu())?, Some(DType::F32))
}

fn logits(model: &dyn Model, tokens: &Tensor) -> TensorResult<Vec<f32>> {
    no_grad(|| model.logits(&model.hidden(tokens, &mut KvCache::none())?)?.to_vec())
}

/// The largest difference as a share of the largest value.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    let size = b.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / size
}

/// What is wrong with adapters of these targets on a model, if anything.
fn tuned(base: &Path, targets: &[String], scratch: &Path) -> TensorResult<Option<String>> {
    let mut model = load(base)?;
    let vocab = model.shape().vocab.min(61) as i32;
    let numbers = |by: i32| (0..40).map(|i| (i * i * by + 3) % vocab).collect::<Vec<i32>>();
    let tokens = Tensor::from_vec(numbers(1), &[2, 20], &Device::cpu())?;
    let targets_of = Tensor::from_vec(numbers(5), &[2, 20], &Device::cpu())?;
    let before = logits(&*model, &tokens)?;
    let config = LoraConfig { targets: targets.to_vec(), rank: 4, ..LoraConfig::default() };
    let adapters = Adapters::attach(&mut *model, &config, &mut Rng::new(5))?;
    let away = apart(&logits(&*model, &tokens)?, &before);
    if away > 1e-5 {
        return Ok(Some(format!("fresh adapters change the logits, by {away:e} of the largest")));
    }
    let mut optimizer = Optimizer::new(AdamW { weight_decay: 0.0, ..AdamW::default() }, adapters.named_parameters(), 2e-2)?;
    let mut losses = Vec::new();
    for _ in 0..10 {
        optimizer.zero_grad()?;
        let loss = models::loss(&*model, &tokens, &targets_of)?;
        loss.backward()?;
        optimizer.step()?;
        losses.push(loss.item()?);
    }
    if !(losses[9] < 0.98 * losses[0]) {
        return Ok(Some(format!("the loss does not fall: {losses:?}")));
    }
    for (name, p) in adapters.named_parameters().iter().filter(|(n, _)| n.ends_with("lora_B.weight")) {
        if p.get().abs()?.max_all()?.item()? == 0.0 {
            return Ok(Some(format!("{name} learns nothing")));
        }
    }
    adapters.train(false);
    let learnt = logits(&*model, &tokens)?;
    let (folder, merged) = (scratch.join("adapter"), scratch.join(if base.is_dir() { "merged" } else { "merged.gguf" }));
    adapters.save(&folder, "base")?;
    let mut again = load(base)?;
    let loaded = Adapters::load(&folder, &mut *again)?;
    let away = apart(&logits(&*again, &tokens)?, &learnt);
    if away > 1e-5 {
        return Ok(Some(format!("loaded adapters give other logits, {away:e} of the largest")));
    }
    if base.is_dir() {
        loaded.merge_folder(base, &merged)?
    } else {
        loaded.merge_gguf(base, &merged)?
    }
    let away = apart(&logits(&*load(&merged)?, &tokens)?, &learnt);
    // A merged weight is rounded once, W + BA: what roundings of BA do depends on what was learnt.
    for (_, p) in adapters.named_parameters().iter().filter(|(n, _)| n.ends_with("lora_B.weight")) {
        p.set(&(p.get().detach() * (1.0 + 1e-6))?)?;
    }
    let nudged = apart(&logits(&*model, &tokens)?, &learnt);
    // Blocks become f16.
    let rounded: f32 = if base.to_string_lossy().contains(".F32.") || base.is_dir() { 2e-4 } else { 2e-2 };
    let tolerance = rounded.max(20.0 * nudged).min(2e-2);
    Ok((away > tolerance)
        .then(|| format!("the merged model gives other logits, {away:e} of the largest, adapters by 1e-6 larger {nudged:e}")))
}

#[test]
fn every_described_decoder_is_tuned_saved_loaded_and_merged() {
    let mut failed = Vec::new();
    let mut count = 0;
    for base in decoders() {
        let name = base.file_name().unwrap().to_string_lossy().to_string();
        match load(&base) {
            // What is not supported is refused by name before anything is attached.
            Err(e) => {
                assert!(e.to_string().contains('`'), "{name}: {e}");
                continue;
            }
            Ok(model) => drop(model),
        }
        for targets in [vec![], vec!["all".to_string()]] {
            count += 1;
            let scratch = std::env::temp_dir().join(format!("tl-adapters-{}-{name}-{}", std::process::id(), targets.len()));
            std::fs::create_dir_all(&scratch).unwrap();
            let result = tuned(&base, &targets, &scratch);
            std::fs::remove_dir_all(&scratch).unwrap();
            match result {
                Ok(None) => {}
                Ok(Some(why)) => failed.push(format!("{name} {targets:?}: {why}")),
                Err(e) => failed.push(format!("{name} {targets:?}: {e}")),
            }
        }
    }
    assert!(failed.is_empty() && count >= 40, "{} of {count} failed:\n{}", failed.len(), failed.join("\n"));
}
