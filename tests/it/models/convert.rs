//! Models of the Hub as GGUF files, and GGUF files in other types: the same logits, the same tokens.

use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tensorlogic::autograd::no_grad;
use tensorlogic::io::{Gguf, GgufWriter, write_safetensors};
use tensorlogic::models::convert::{file_type, write_gguf};
use tensorlogic::models::{self, Adapters, KvCache, Model, Weights};
use tensorlogic::nn::LoraConfig;
use tensorlogic::text::{self, Tokenizer};
use tensorlogic::{DType, Device, Rng, Tensor};

const HUB: [&str; 4] = ["gpt2-odd", "llama-gqa-bf16", "llama3-rope", "llama-v4spelling"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name)
}

/// A folder of a test's own.
fn place(name: &str) -> PathBuf {
    let p = std::env::temp_dir().join(format!("tl-convert-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&p);
    std::fs::create_dir_all(&p).unwrap();
    p
}

fn load(path: &Path) -> Box<dyn Model> {
    models::load(&Weights::open(path, &Device::cpu()).unwrap(), Some(DType::F32)).unwrap()
}

fn logits(model: &dyn Model) -> Vec<f32> {
    let tokens = Tensor::from_vec((0..40).map(|i| i * i % 61).collect::<Vec<i32>>(), &[2, 20], &Device::cpu()).unwrap();
    no_grad(|| model.logits(&model.hidden(&tokens, &mut KvCache::none())?)?.to_vec()).unwrap()
}

fn convert(from: &Path, dtype: DType, to: &Path) {
    write_gguf(&Weights::open(from, &Device::cpu()).unwrap(), dtype, |_, _| Ok(()), to).unwrap();
}

/// The norm of the difference over that of the reference.
fn distance(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(g, w)| (g - w) as f64)) / norm(&mut want.iter().map(|&w| w as f64))
}

#[test]
fn a_folder_is_the_same_model_as_gguf() {
    let folder = place("hub");
    for name in HUB {
        let hub = path("models").join(name);
        let gguf = folder.join("m.gguf");
        convert(&hub, DType::F32, &gguf);
        let mut a = load(&hub);
        let mut b = load(&gguf);
        let d = distance(&logits(&*b), &logits(&*a));
        assert!(d < 1e-6, "{name}: {d:e}");

        // Adapters learnt on either are right on the other: their rows are in Hugging Face's order in the files.
        let config = LoraConfig { targets: vec!["all".into()], ..LoraConfig::default() };
        let adapters = Adapters::attach(&mut *b, &config, &mut Rng::new(3)).unwrap();
        let mut rng = Rng::new(4);
        for (_, p) in adapters.named_parameters() {
            p.set(&rng.normal(p.get().dims(), DType::F32, &Device::cpu()).unwrap().mul(0.1).unwrap()).unwrap();
        }
        adapters.save(folder.join("adapter"), name).unwrap();
        Adapters::load(folder.join("adapter"), &mut *a).unwrap();
        let (a, b) = (logits(&*a), logits(&*b));
        assert!(distance(&b, &logits(&*load(&hub))) > 0.1, "{name}: the adapters change something");
        assert!(distance(&b, &a) < 1e-5, "{name}: {:e}", distance(&b, &a));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Whether a folder becomes the same model as GGUF; `false` where it is refused, which has to be by name.
fn becomes_gguf(hub: &Path, folder: &Path) -> bool {
    let (name, gguf) = (hub.display(), folder.join("m.gguf"));
    let Ok(weights) = Weights::open(hub, &Device::cpu()) else { return false };
    if let Err(e) = write_gguf(&weights, DType::F32, |_, _| Ok(()), &gguf) {
        let message = e.to_string();
        assert!(message.contains('`') || message.contains("GGUF has no key for"), "{name}: {message}");
        return false;
    }
    let d = distance(&logits(&*load(&gguf)), &logits(&*load(hub)));
    assert!(d < 2e-6, "{name}: {d:e}");
    true
}

/// The folders of `models2` here that become GGUF as they are.
const WRITTEN: [&str; 9] = [
    "gemma-wide",
    "glm4-nobias",
    "mistral-headdim",
    "mixtral-two",
    "olmo-clip",
    "phi3-longrope",
    "phi3-window",
    "stablelm-parallel",
    "starcoder2-nobias",
];

/// A folder with some of its settings changed; null removes one.
fn changed(name: &str, to: &Path, changes: serde_json::Value) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(path(name).join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(path(name).join("config.json")).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        match value {
            serde_json::Value::Null => drop(config.as_object_mut().unwrap().remove(key)),
            value => config[key] = value.clone(),
        }
    }
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
}

/// What GGUF can say of an architecture becomes the same model; what it cannot is refused by its key.
#[test]
fn settings_that_gguf_has_no_key_for_are_refused() {
    let folder = place("settings");
    let hub = folder.join("hub");
    let gemma2 = json!({ "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 20 });
    let full = json!(["full_attention", "full_attention", "full_attention"]);
    for (name, changes, refused) in [
        ("models2/smollm3-nope", json!({ "no_rope_layers": null }), None),
        ("models2/smollm3-nope", json!({}), Some("no_rope_layers")),
        ("models2/gemma2-nocap", gemma2, None),
        ("models2/gemma2-nocap", json!({ "query_pre_attn_scalar": 20 }), Some("attn_logit_softcapping")),
        ("models2/gemma2-nocap", json!({ "attn_logit_softcapping": 50.0 }), Some("query_pre_attn_scalar")),
        ("models/gemma3_text-pattern", json!({ "query_pre_attn_scalar": 16 }), None),
        ("models/gemma3_text-pattern", json!({ "query_pre_attn_scalar": 16, "final_logit_softcapping": 3.0 }), None),
        ("models/gemma3_text-pattern", json!({}), Some("query_pre_attn_scalar")),
        ("models/gemma3_text-pattern", json!({ "query_pre_attn_scalar": 16, "layer_types": full }), Some("layer_types")),
        ("models2/mistral-headdim", json!({ "sliding_window": 5 }), Some("sliding_window")),
        ("models2/mixtral-two", json!({ "sliding_window": 5 }), Some("sliding_window")),
        ("models2/starcoder2-nobias", json!({ "hidden_act": "relu" }), Some("hidden_act")),
        ("models2/gemma-wide", json!({ "hidden_act": "relu" }), Some("hidden_act")),
        ("models2/stablelm-parallel", json!({ "use_parallel_residual": false }), Some("qk_layernorm")),
    ] {
        let _ = std::fs::remove_dir_all(&hub);
        changed(name, &hub, changes.clone());
        match refused {
            None => assert!(becomes_gguf(&hub, &folder), "{name} with {changes}"),
            Some(key) => {
                let weights = Weights::open(&hub, &Device::cpu()).unwrap();
                let e = write_gguf(&weights, DType::F32, |_, _| Ok(()), &folder.join("m.gguf")).expect_err(name).to_string();
                assert!(e.contains(&format!("`{key}`")), "{name} with {changes}: {e}");
            }
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// `TL_VECTORS=FOLDER` takes a larger set of the layout of `tests/vectors`.
#[test]
fn folders_become_the_same_model_or_are_refused_by_name() {
    let folder = place("all");
    let root = std::env::var_os("TL_VECTORS").map_or_else(|| path(""), PathBuf::from).join("models2");
    let mut written = Vec::new();
    for entry in std::fs::read_dir(&root).unwrap().flatten().filter(|e| e.path().join("config.json").exists()) {
        if becomes_gguf(&entry.path(), &folder) {
            written.push(entry.file_name());
        }
    }
    written.sort();
    let missing: Vec<&str> = WRITTEN.into_iter().filter(|name| !written.iter().any(|w| w == name)).collect();
    assert!(missing.is_empty(), "not written: {missing:?}");
    if std::env::var_os("TL_VECTORS").is_none() {
        assert_eq!(written, WRITTEN, "the list has what can be written");
    }
    // Qwen 3 without the windows that GGUF's readers do not know, and with them.
    let (from, hub) = (path("models2/qwen3-window"), folder.join("qwen3"));
    assert!(!becomes_gguf(&from, &folder));
    std::fs::create_dir_all(&hub).unwrap();
    std::fs::copy(from.join("model.safetensors"), hub.join("model.safetensors")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    config["use_sliding_window"] = false.into();
    config["sliding_window"] = serde_json::Value::Null;
    config.as_object_mut().unwrap().remove("layer_types");
    std::fs::write(hub.join("config.json"), config.to_string()).unwrap();
    assert!(becomes_gguf(&hub, &folder));
    std::fs::remove_dir_all(folder).unwrap();
}

/// A folder of Qwen 3 with experts, of random tensors.
fn with_experts(folder: &Path) {
    let config = json!({
        "model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "intermediate_size": 64, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": true,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let (mut rng, mut tensors) = (Rng::new(9), BTreeMap::new());
    let mut add = |name: String, shape: &[usize]| {
        tensors.insert(name, rng.normal(shape, DType::F32, &Device::cpu()).unwrap().mul(0.3).unwrap());
    };
    add("model.embed_tokens.weight".into(), &[64, 32]);
    add("model.norm.weight".into(), &[32]);
    for l in 0..2 {
        let mut part = |name: &str, shape: &[usize]| add(format!("model.layers.{l}.{name}.weight"), shape);
        ["input_layernorm", "post_attention_layernorm"].iter().for_each(|n| part(n, &[32]));
        ["self_attn.q_norm", "self_attn.k_norm"].iter().for_each(|n| part(n, &[16]));
        ["self_attn.q_proj", "self_attn.o_proj"].iter().for_each(|n| part(n, &[32, 32]));
        ["self_attn.k_proj", "self_attn.v_proj"].iter().for_each(|n| part(n, &[16, 32]));
        part("mlp.gate", &[4, 32]);
        for e in 0..4 {
            ["gate_proj", "up_proj", "down_proj"].iter().for_each(|n| part(&format!("mlp.experts.{e}.{n}"), &[32, 32]));
        }
    }
    let mut bytes = Vec::new();
    write_safetensors(&tensors, &[("format", "pt")], |part: &[u8]| {
        bytes.extend_from_slice(part);
        Ok(())
    })
    .unwrap();
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

#[test]
fn a_folder_with_experts_is_the_same_model_as_gguf() {
    let folder = place("experts");
    with_experts(&folder);
    let want = logits(&*load(&folder));
    for (dtype, most) in [(DType::F32, 1e-6), (DType::Q8_0, 0.05)] {
        let gguf = folder.join("m.gguf");
        convert(&folder, dtype, &gguf);
        let file = Gguf::open(&gguf).unwrap();
        assert_eq!(file.u64("qwen3moe.expert_count").unwrap(), 4);
        assert_eq!(file.tensor("blk.1.ffn_up_exps.weight").unwrap().shape[..], [4, 32, 32]);
        assert_eq!(file.tensor("blk.1.ffn_gate_inp.weight").unwrap().type_name(), "F32", "a router stays as it is");
        let d = distance(&logits(&*load(&gguf)), &want);
        assert!(d < most, "{dtype}: {d:e}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_type_is_near_its_source() {
    let folder = place("types");
    let source = path("models_gguf/llama-k256.Q4_K.gguf");
    let plain = folder.join("f32.gguf");
    convert(&source, DType::F32, &plain);
    let want = logits(&*load(&plain));
    assert!(distance(&logits(&*load(&source)), &want) < 1e-6);
    let bound = |d: DType| match d.block_bytes() as f64 * 8.0 / d.block() as f64 {
        32.0 => 1e-7,
        8.0.. => 0.02,
        5.5.. => 0.1,
        4.5.. => 0.2,
        2.5.. => 0.6,
        // Of one and two bits: a model that was not trained for them means something else.
        _ => f64::INFINITY,
    };
    // Some formats are only read.
    let written = |d: &DType| file_type(*d).is_some() && (!d.is_block() || tensorlogic::quant::quantize(*d, &[0.0; 256]).is_ok());
    for dtype in DType::WEIGHTS.into_iter().filter(written) {
        let out = folder.join(format!("{dtype}.gguf"));
        convert(&plain, dtype, &out);
        let d = distance(&logits(&*load(&out)), &want);
        assert!(d <= bound(dtype), "{dtype}: {d}");
        let file = Gguf::open(&out).unwrap();
        assert_eq!(file.u64("general.file_type").unwrap(), u64::from(file_type(dtype).unwrap()));
        assert_eq!(file.tensor("blk.0.attn_q.weight").unwrap().dtype().unwrap(), dtype);
        assert_eq!(file.tensor("blk.0.attn_norm.weight").unwrap().dtype().unwrap(), DType::F32);
    }
    // Rows of 60 are no blocks of 32.
    let out = folder.join("odd.gguf");
    convert(&path("models/gpt2-odd"), DType::Q4_K, &out);
    let file = Gguf::open(&out).unwrap();
    assert_eq!(file.tensor("blk.0.attn_qkv.weight").unwrap().dtype().unwrap(), DType::F16);
    assert_eq!(file.tensor("blk.0.attn_qkv.bias").unwrap().dtype().unwrap(), DType::F32);
    assert!(distance(&logits(&*load(&out)), &logits(&*load(&path("models/gpt2-odd")))) < 0.01);
    std::fs::remove_dir_all(folder).unwrap();
}

/// The tokenizer of a folder before and after its way through a GGUF file.
fn both(folder: &Path, vocab: usize) -> (Tokenizer, Tokenizer, Gguf) {
    let mut w = GgufWriter::new();
    text::gguf::write(folder, vocab, &mut w).unwrap();
    let gguf = Gguf::from_bytes(w.to_bytes().unwrap()).unwrap();
    (Tokenizer::from_file(folder.join("tokenizer.json")).unwrap(), Tokenizer::from_gguf(&gguf).unwrap(), gguf)
}

#[test]
fn byte_level_tokenizers_stay_the_same() {
    let folder = place("tokenizer");
    std::fs::write(folder.join("tokenizer.json"), crate::text_support::vector("tokenizer/gpt2.tokenizer.json")).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), r#"{"eos_token": "<|endoftext|>", "chat_template": "{{ messages[0].content }}"}"#)
        .unwrap();
    let (a, b, gguf) = both(&folder, 50260);
    assert_eq!((b.vocab_size(), b.end_tokens(), a.adds_bos(), b.adds_bos()), (50260, &[50256][..], false, false));
    assert_eq!(gguf.str("tokenizer.chat_template").unwrap(), "{{ messages[0].content }}");
    let lines = String::from_utf8(crate::text_support::vector("tokenizer/vectors.jsonl")).unwrap();
    let mut count = 0;
    for line in lines.lines().skip(1).step_by(3) {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = row["text"].as_str().unwrap();
        let ids = a.encode(text, true).unwrap();
        assert_eq!(b.encode(text, true).unwrap(), ids, "{text:?}");
        assert_eq!(b.decode(&ids, true).unwrap(), a.decode(&ids, true).unwrap());
        count += 1;
    }
    assert!(count > 200, "{count}");
    let mut w = GgufWriter::new();
    let small = text::gguf::write(&folder, 100, &mut w).unwrap_err().to_string();
    assert!(small.contains("50257 tokens for 100 rows"), "{small}");
    std::fs::write(folder.join("tokenizer.json"), crate::text_support::vector("tokenizer/llama-spm.tokenizer.json")).unwrap();
    assert!(text::gguf::write(&folder, 32000, &mut w).unwrap_err().to_string().contains("pre-tokenizer"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn characters_stay_the_same() {
    let folder = place("characters");
    for text in ["First Citizen:\nBefore we proceed any further, hear me speak.\n", "naïve — 日本 and 🙂, done.\n"] {
        let mut known: Vec<char> = text.chars().collect();
        known.sort_unstable();
        known.dedup();
        let vocab: serde_json::Map<String, serde_json::Value> = known.iter().enumerate().map(|(i, c)| (c.to_string(), i.into())).collect();
        let json = serde_json::json!({ "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": { "type": "Sequence", "decoders": [
                { "type": "Replace", "pattern": { "String": "\u{2581}" }, "content": " " }, { "type": "ByteFallback" }, { "type": "Fuse" }] },
            "model": { "type": "BPE", "unk_token": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] } });
        std::fs::write(folder.join("tokenizer.json"), json.to_string()).unwrap();
        let (a, b, _) = both(&folder, known.len());
        let want: Vec<u32> = text.chars().map(|c| known.binary_search(&c).unwrap() as u32).collect();
        for t in [a, b] {
            assert_eq!(t.encode(text, true).unwrap(), want, "{text:?}");
            assert_eq!(t.decode(&want, true).unwrap(), text);
            // A space at the beginning stays.
            assert_eq!(t.decode(&t.encode(" en d", true).unwrap(), true).unwrap(), " en d");
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}
