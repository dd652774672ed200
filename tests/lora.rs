//! Adapters on frozen, quantized models: the gradient of a product with packed weights, training, files, merging.
//!
//! It is a program of its own since it measures the peak of the memory in use, in which other tests would have a part.

mod common;

use common::devices;
use std::path::{Path, PathBuf};
use tensorlogic::autograd::no_grad;
use tensorlogic::io::SafeTensors;
use tensorlogic::models::{self, Adapters, KvCache, Model, Session, Weights};
use tensorlogic::nn::LoraConfig;
use tensorlogic::optim::{AdamW, Optimizer};
use tensorlogic::quant;
use tensorlogic::{DType, Device, Rng, Tensor};

/// A weight `[n, k]` in a block format, and its values.
fn packed(dtype: DType, n: usize, k: usize, rng: &mut Rng, device: &Device) -> (Tensor, Vec<f32>) {
    let values = rng.normal(&[n, k], DType::F32, &Device::cpu()).unwrap().to_vec().unwrap();
    let bytes = quant::quantize(dtype, &values).unwrap();
    let mut exact = vec![0f32; n * k];
    quant::dequantize(dtype, &bytes, &mut exact).unwrap();
    let bytes = tensorlogic::backends::Bytes::Owned(std::sync::Arc::new(bytes));
    (Tensor::from_bytes(bytes, dtype, &[n, k], device).unwrap(), exact)
}

/// The gradient of Σ c·(x·wᵀ) for x `[m, k]` against a loop in f64.
#[track_caller]
fn check_gradient(dtype: DType, m: usize, n: usize, k: usize, device: &Device) {
    let mut rng = Rng::new((m * n + k) as u64);
    let (w, exact) = packed(dtype, n, k, &mut rng, device);
    let x = rng.normal(&[m, k], DType::F32, device).unwrap().requires_grad().unwrap();
    let c = rng.normal(&[m, n], DType::F32, device).unwrap();
    x.matmul(&w.t().unwrap()).unwrap().mul(&c).unwrap().sum_all().unwrap().backward().unwrap();
    let got = x.grad().unwrap().to_vec().unwrap();
    let c = c.to_vec().unwrap();
    for i in 0..m {
        for j in 0..k {
            let terms = (0..n).map(|r| c[i * n + r] as f64 * exact[r * k + j] as f64);
            let (want, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
            let g = got[i * k + j] as f64;
            assert!((g - want).abs() <= 1e-5 * size, "{dtype} {m}×{n}×{k} on {}: {g} is not {want} at {i}, {j}", device.name());
        }
    }
}

#[test]
fn a_packed_weight_passes_gradients_to_its_input() {
    for device in devices() {
        for dtype in DType::BLOCKS.into_iter().filter(|d| d.format().is_some_and(|f| f.is_encoded())) {
            for m in [1, 5, 12, 40] {
                check_gradient(dtype, m, 96, 512, &device);
            }
        }
        check_gradient(DType::Q8_0, 33, 30, 96, &device);
        check_gradient(DType::Q4_K, 33, 30, 768, &device);
    }
}

#[test]
fn the_packed_weight_is_never_stored_unpacked() {
    for device in devices() {
        let (m, n, k) = (32, 1024, 1024);
        let mut rng = Rng::new(1);
        let (w, _) = packed(DType::Q4_0, n, k, &mut rng, &device);
        let x = rng.normal(&[m, k], DType::F32, &device).unwrap();
        x.eval().unwrap();
        w.narrow(0, 0, 1).unwrap().cast(DType::F32).unwrap().eval().unwrap();
        let x = x.requires_grad().unwrap();
        device.reset_peak_memory();
        let before = device.memory().in_use;
        x.matmul(&w.t().unwrap()).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap();
        x.grad().unwrap().eval().unwrap();
        let more = device.memory().peak - before;
        assert!(more < n * k * 4 / 2, "{more} bytes more on {}", device.name());
    }
}

/// Small models of every kind: Hub folders in f32 and bf16, GGUF files in block formats.
const MODELS: [&str; 5] = [
    "models/gpt2-odd",
    "models/llama-gqa-bf16",
    "models/llama3-rope",
    "models_gguf/llama-mha.Q4_1.gguf",
    "models_gguf/llama-k256.Q4_K.gguf",
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors").join(name)
}

fn load(path: &Path, device: &Device) -> Box<dyn Model> {
    models::load(&Weights::open(path, device).unwrap(), Some(DType::F32)).unwrap()
}

fn temporary(name: &str) -> PathBuf {
    let p = std::env::temp_dir().join(format!("tl-lora-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&p);
    let _ = std::fs::remove_file(&p);
    p
}

fn ids(b: usize, t: usize, device: &Device) -> Tensor {
    Tensor::from_vec((0..b * t).map(|i| (i * i % 61) as i32).collect::<Vec<i32>>(), &[b, t], device).unwrap()
}

fn logits(model: &dyn Model, tokens: &Tensor) -> Vec<f32> {
    no_grad(|| model.logits(&model.hidden(tokens, &mut KvCache::none())?)?.to_vec()).unwrap()
}

#[track_caller]
fn close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    let worst = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max) / size;
    assert!(worst <= tolerance, "{what}: {worst:e} of the largest");
}

/// Trains adapters on a fixed batch; gives the losses.
fn train(model: &dyn Model, adapters: &Adapters, steps: usize, device: &Device) -> Vec<f64> {
    let tokens = ids(2, 24, device);
    let targets =
        Tensor::from_vec((0..48).map(|i| if i % 7 == 0 { -1 } else { i * 5 % 61 }).collect::<Vec<i32>>(), &[2, 24], device).unwrap();
    let mut optimizer = Optimizer::new(AdamW { weight_decay: 0.0, ..AdamW::default() }, adapters.named_parameters(), 2e-2).unwrap();
    let step = |_| {
        optimizer.zero_grad().unwrap();
        let loss = models::loss(model, &tokens, &targets).unwrap();
        loss.backward().unwrap();
        optimizer.step().unwrap();
        loss.item().unwrap()
    };
    (0..steps).map(step).collect()
}

#[test]
fn a_batch_without_a_cache_is_what_the_cache_gives() {
    for device in devices() {
        for name in MODELS {
            let model = load(&path(name), &device);
            let tokens = ids(3, 20, &device);
            let batch = logits(&*model, &tokens);
            let rows: Vec<u32> = tokens.to_vec().unwrap().iter().map(|&v| v as u32).collect();
            let each: Vec<f32> =
                rows.chunks(20).flat_map(|row| Session::new(&*model, 32, &device).unwrap().score(row).unwrap().to_vec().unwrap()).collect();
            close(&format!("{name} on {}", device.name()), &batch, &each, 1e-5);
        }
    }
}

#[test]
fn adapters_learn_and_survive_saving_and_merging() {
    for device in devices() {
        // A software GPU takes a while.
        for name in if device.is_cpu() { &MODELS[..] } else { &MODELS[3..4] } {
            let name = *name;
            let what = format!("{name} on {}", device.name());
            let base = path(name);
            let mut model = load(&base, &device);
            let tokens = ids(1, 24, &device);
            let before = logits(&*model, &tokens);
            let config = LoraConfig { targets: vec!["all".into()], ..LoraConfig::default() };
            let adapters = Adapters::attach(&mut *model, &config, &mut Rng::new(5)).unwrap();
            assert_eq!(logits(&*model, &tokens), before, "{what}: fresh adapters add nothing");
            let losses = train(&*model, &adapters, 12, &device);
            assert!(losses[11] < 0.7 * losses[0], "{what}: {losses:?}");
            adapters.train(false);
            let learnt = logits(&*model, &tokens);

            // Saved and loaded: the same numbers, whatever order of rows the file has.
            let folder = temporary("adapter");
            adapters.save(&folder, "base").unwrap();
            let mut again = load(&base, &device);
            assert_eq!(logits(&*again, &tokens), before, "{what}: the base stays as it is");
            let loaded = Adapters::load(&folder, &mut *again).unwrap();
            assert_eq!(logits(&*again, &tokens), learnt, "{what}: loaded");
            assert_eq!(loaded.parameter_count(), adapters.parameter_count());
            // What is loaded for computing keeps no graph.
            assert!(!again.hidden(&tokens, &mut KvCache::none()).unwrap().is_tracked());

            // Merged: one model without adapters. A block format becomes f16, f32 and bf16 stay.
            let merged = temporary(if base.is_dir() { "merged" } else { "merged.gguf" });
            if base.is_dir() { loaded.merge_folder(&base, &merged) } else { loaded.merge_gguf(&base, &merged) }.unwrap();
            let dtype = load(&base, &device).layers().iter().find(|l| l.tensor == "blk.0.attn_output").unwrap().linear.weight.dtype();
            let tolerance = match dtype {
                DType::F32 => 1e-5,
                DType::BF16 => 3e-2,
                _ => 3e-3,
            };
            close(&format!("{what}: merged from {dtype}"), &logits(&*load(&merged, &device), &tokens), &learnt, tolerance);
            for p in [folder, merged] {
                let _ = std::fs::remove_file(&p);
                let _ = std::fs::remove_dir_all(&p);
            }
        }
    }
}

#[test]
fn only_adapters_learn_and_only_where_they_were_asked_for() {
    let device = Device::cpu();
    let mut model = load(&path("models/llama-gqa-bf16"), &device);
    let adapters = Adapters::attach(&mut *model, &LoraConfig::default(), &mut Rng::new(1)).unwrap();
    assert_eq!(adapters.config().targets, ["q_proj", "v_proj"]);
    let names: Vec<String> = adapters.named_parameters().into_iter().map(|(n, _)| n).collect();
    assert_eq!(
        names[..4].iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "model.layers.0.self_attn.q_proj.lora_A.weight",
            "model.layers.0.self_attn.q_proj.lora_B.weight",
            "model.layers.0.self_attn.v_proj.lora_A.weight",
            "model.layers.0.self_attn.v_proj.lora_B.weight",
        ]
    );
    let tokens = ids(1, 8, &device);
    models::loss(&*model, &tokens, &tokens).unwrap().backward().unwrap();
    assert!(adapters.named_parameters().iter().all(|(_, p)| p.grad().is_some()));
    assert!(model.weights().iter().all(|w| !w.is_tracked()));

    let mut gpt2 = load(&path("models/gpt2-odd"), &device);
    for (targets, want) in [(vec![], "c_attn"), (vec!["mlp.c_proj"], "mlp.c_proj"), (vec!["fc"], "c_fc")] {
        let config = LoraConfig { targets: targets.iter().map(|t| t.to_string()).collect(), ..LoraConfig::default() };
        let adapters = Adapters::attach(&mut *gpt2, &config, &mut Rng::new(1)).unwrap();
        assert_eq!((adapters.config().targets.join(","), adapters.named_parameters().len()), (want.to_string(), 4), "{targets:?}");
    }
    let attach = |model: &mut dyn Model, targets: &str, rank| {
        let config = LoraConfig { rank, targets: vec![targets.into()], ..LoraConfig::default() };
        Adapters::attach(model, &config, &mut Rng::new(1)).err().unwrap().to_string()
    };
    assert!(attach(&mut *gpt2, "q_proj", 8).contains("expected all, c_attn, c_proj, c_fc"));
    assert!(attach(&mut *gpt2, "c_attn", 0).contains("rank"));
}

#[test]
fn files_are_pefts_and_damaged_ones_are_errors() {
    let device = Device::cpu();
    let base = path("models/gpt2-odd");
    let mut model = load(&base, &device);
    let adapters = Adapters::attach(&mut *model, &LoraConfig::default(), &mut Rng::new(1)).unwrap();
    let folder = temporary("files");
    adapters.save(&folder, "openai-community/gpt2").unwrap();
    let file = SafeTensors::open(folder.join("adapter_model.safetensors")).unwrap();
    let names: Vec<&str> = file.tensors().iter().map(|t| &*t.name).collect();
    assert!(names.contains(&"base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"), "{names:?}");
    assert_eq!(file.tensor("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight").unwrap().shape[..], [8, 60]);
    let text = std::fs::read_to_string(folder.join("adapter_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((config["peft_type"].as_str(), config["r"].as_u64(), config["lora_alpha"].as_f64()), (Some("LORA"), Some(8), Some(16.0)));
    assert_eq!((config["fan_in_fan_out"].as_bool(), config["target_modules"][0].as_str()), (Some(true), Some("c_attn")));

    let check = |change: &dyn Fn(&mut serde_json::Value), model: &str, want: &str| {
        let mut v = config.clone();
        change(&mut v);
        std::fs::write(folder.join("adapter_config.json"), v.to_string()).unwrap();
        let mut m = load(&path(model), &device);
        let got = Adapters::load(&folder, &mut *m).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(got.contains(want) && want.is_empty() == got.is_empty(), "{got:?} lacks {want:?}");
    };
    check(&|_| {}, "models/gpt2-odd", "");
    check(&|v| v["use_rslora"] = true.into(), "models/gpt2-odd", "");
    check(&|v| v["peft_type"] = "IA3".into(), "models/gpt2-odd", "only LORA");
    check(&|v| v["use_dora"] = true.into(), "models/gpt2-odd", "use_dora");
    check(&|v| v["r"] = "eight".into(), "models/gpt2-odd", "no number `r`");
    check(&|v| v["r"] = 0.into(), "models/gpt2-odd", "rank 0");
    check(&|_| {}, "models/llama3-rope", "does not match a layer");
    std::fs::write(folder.join("adapter_model.safetensors"), b"short").unwrap();
    check(&|_| {}, "models/gpt2-odd", "header");
    std::fs::remove_dir_all(&folder).unwrap();
    let mut m = load(&base, &device);
    assert!(Adapters::load(&folder, &mut *m).err().unwrap().to_string().contains("adapter_config.json"));
}

#[test]
fn adapters_of_peft_give_what_transformers_computes() {
    for device in devices() {
        for name in ["gpt2-odd", "llama3-rope"] {
            let folder = path("lora").join(name);
            let mut model = load(&path("models").join(name), &device);
            let expected = SafeTensors::open(folder.join("expected.safetensors")).unwrap();
            let info = expected.tensor("input_ids").unwrap();
            let ids: Vec<i32> = expected.bytes_of(info).as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as i32).collect();
            let tokens = Tensor::from_vec(ids, &info.shape, &device).unwrap();
            let values = expected.bytes_of(expected.tensor("logits").unwrap()).as_chunks::<8>().0;
            let want: Vec<f32> = values.iter().map(|b| f64::from_le_bytes(*b) as f32).collect();
            let plain = logits(&*model, &tokens);
            let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert!(plain.iter().zip(&want).any(|(p, w)| (p - w).abs() > 0.1 * size), "{name}: the adapters change something");
            Adapters::load(&folder, &mut *model).unwrap();
            close(&format!("{name} on {}", device.name()), &logits(&*model, &tokens), &want, 1e-4);
        }
    }
}
