//! Models of the Hub as GGUF files, and GGUF files in other types: the same logits, the same tokens.

use super::layouts::layouts;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tensorlogic::autograd::no_grad;
use tensorlogic::io::gguf::ToValue;
use tensorlogic::io::{Gguf, GgufWriter, SafeTensors, write_safetensors};
use tensorlogic::models::convert::{file_type, write_gguf};
use tensorlogic::models::{self, Adapters, KvCache, Model, Weights};
use tensorlogic::nn::LoraConfig;
use tensorlogic::text::{self, Tokenizer};
use tensorlogic::{DType, Device, Rng, Tensor};

/// Most distance of the logits of one model from two files in f32: half of what [`check_reference`] allows against the reference in f64. What a file
/// has computed (`1 + w`, `-exp(a)`) or holds in another order is rounded in another place: 2.1e-6 was seen, and which sums are rounded where depends on
/// the processor.
const SAME_MODEL: f64 = 1e-5;

const HUB: [&str; 4] = ["gpt2-odd", "llama-gqa-bf16", "llama3-rope", "llama-v4spelling"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors").join(name)
}

/// A folder of a test's own.
pub(super) fn place(name: &str) -> PathBuf {
    let p = std::env::temp_dir().join(format!("tl-convert-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&p);
    std::fs::create_dir_all(&p).unwrap();
    p
}

fn load(path: &Path) -> Box<dyn Model> {
    models::load(&Weights::open(path, &Device::cpu()).unwrap(), Some(DType::F32)).unwrap()
}

pub(super) fn logits(model: &dyn Model) -> Vec<f32> {
    let tokens = Tensor::from_vec((0..40).map(|i| i * i % 61).collect::<Vec<i32>>(), &[2, 20], &Device::cpu()).unwrap();
    no_grad(|| model.logits(&model.hidden(&tokens, &mut KvCache::none())?)?.to_vec()).unwrap()
}

pub(super) fn convert(from: &Path, dtype: DType, to: &Path) {
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
        assert!(d < SAME_MODEL, "{name}: {d:e}");

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
        assert!(distance(&b, &a) < SAME_MODEL, "{name}: {:e}", distance(&b, &a));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A folder becomes the same model as GGUF, or is refused with a message.
fn becomes_gguf(hub: &Path, folder: &Path) -> Result<(), String> {
    let gguf = folder.join("m.gguf");
    write_gguf(&Weights::open(hub, &Device::cpu()).unwrap(), DType::F32, |_, _| Ok(()), &gguf).map_err(|e| e.to_string())?;
    let d = distance(&logits(&*load(&gguf)), &logits(&*load(hub)));
    assert!(d < SAME_MODEL, "{}: {d:e}", hub.display());
    Ok(())
}

/// The folders of `models2` whose settings GGUF has no key for: the key that the refusal names, and settings with which they become GGUF, where there
/// are any. The tensors of layers that these leave out are left out.
pub(super) const REFUSED: [(&str, &str, &str); 17] = [
    ("bitnet-base", "hidden_act", r#"{"hidden_act": "silu"}"#),
    ("bloom-odd", "apply_residual_connection_post_layernorm", r#"{"apply_residual_connection_post_layernorm": false}"#),
    ("falcon-alibi", "parallel_attn", ""),
    ("gemma2-nocap", "query_pre_attn_scalar", r#"{"query_pre_attn_scalar": 20, "attn_logit_softcapping": 50.0}"#),
    ("gemma3_text-pattern", "query_pre_attn_scalar", r#"{"query_pre_attn_scalar": 16}"#),
    ("glm4_moe_lite-two", "rms_norm_eps", r#"{"rms_norm_eps": 1e-6}"#),
    ("gpt2-fastgelu", "scale_attn_by_inverse_layer_idx", r#"{"scale_attn_by_inverse_layer_idx": false}"#),
    ("gpt2-silu", "activation_function", ""),
    ("gpt2-tanh", "activation_function", ""),
    ("lfm2_moe-nobias", "use_expert_bias", ""),
    ("llama4_text-moe", "attention_chunk_size", r#"{"attention_chunk_size": 8192, "attn_scale": 0.1, "floor_scale": 8192}"#),
    ("mpt-clip", "attn_config.softmax_scale", r#"{"attn_config": {"softmax_scale": null}}"#),
    ("olmoe-clip", "clip_qkv", r#"{"norm_topk_prob": false, "clip_qkv": null}"#),
    ("qwen2_moe-mixed", "mlp_only_layers", ""),
    ("qwen3-window", "sliding_window", r#"{"use_sliding_window": false, "sliding_window": null, "layer_types": null}"#),
    ("qwen3_moe-raw", "norm_topk_prob", r#"{"norm_topk_prob": true, "mlp_only_layers": [], "num_hidden_layers": 1}"#),
    ("smollm3-nope", "no_rope_layers", r#"{"no_rope_layers": null}"#),
];

/// The settings of a folder.
pub(super) fn config(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// A folder with some of its settings changed, those of objects too; null removes one at the top.
pub(super) fn changed(from: &Path, to: &Path, changes: &serde_json::Value) {
    std::fs::create_dir_all(to).unwrap();
    let mut config = config(from);
    for (key, value) in changes.as_object().unwrap() {
        match value {
            serde_json::Value::Null => drop(config.as_object_mut().unwrap().remove(key)),
            serde_json::Value::Object(inside) => inside.iter().for_each(|(k, v)| config[key][k] = v.clone()),
            value => config[key] = value.clone(),
        }
    }
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let Some(layers) = changes["num_hidden_layers"].as_u64() else {
        std::fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
        return;
    };
    let file = SafeTensors::open(from.join("model.safetensors")).unwrap();
    let behind =
        |name: &str| name.split_once(".layers.").is_some_and(|(_, rest)| rest.split('.').next().unwrap().parse::<u64>().unwrap() >= layers);
    let kept = file.tensors().iter().filter(|t| !behind(&t.name));
    write_tensors(to, &kept.map(|t| (t.name.to_string(), file.load(&t.name, &Device::cpu()).unwrap())).collect());
}

/// `model.safetensors` of a folder.
fn write_tensors(folder: &Path, tensors: &BTreeMap<String, Tensor>) {
    let mut bytes = Vec::new();
    write_safetensors(tensors, &[("format", "pt")], |part: &[u8]| {
        bytes.extend_from_slice(part);
        Ok(())
    })
    .unwrap();
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

/// What GGUF can say of an architecture becomes the same model; what it cannot is refused by its key.
#[test]
fn settings_that_gguf_has_no_key_for_are_refused() {
    let folder = place("settings");
    let hub = folder.join("hub");
    let gemma2 = json!({ "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 20 });
    let full = json!(["full_attention", "full_attention", "full_attention"]);
    let llama3 = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0 });
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
        // Multipliers that GGUF has no keys for are in the tensors.
        ("models2/falcon_h1-base", json!({ "key_multiplier": 3.0, "attention_in_multiplier": 0.5, "ssm_in_multiplier": 0.25 }), None),
        (
            "models2/falcon_h1-base",
            json!({ "mlp_multipliers": [1.0, 1.0], "ssm_multipliers": [1, 1, 1, 1, 1], "lm_head_multiplier": 3.0 }),
            None,
        ),
        ("models2/falcon_h1-base", json!({ "rope_parameters": { "rope_type": "linear", "factor": 2.0 } }), None),
        ("models2/falcon_h1-base", json!({ "rope_parameters": llama3 }), Some("rope_parameters")),
        ("models2/falcon_h1-base", json!({ "mlp_multipliers": [1.0, 0.7], "hidden_act": "relu" }), Some("hidden_act")),
        ("models2/falcon_h1-base", json!({ "time_step_limit": [0.01, 0.1] }), Some("time_step_limit")),
        ("models2/nemotron_h-base", json!({ "time_step_min": 0.01 }), Some("time_step_min")),
        ("models2/nemotron_h-base", json!({ "mlp_hidden_act": "silu" }), Some("mlp_hidden_act")),
        ("models2/nemotron_h-base", json!({ "mamba_hidden_act": "gelu" }), Some("mamba_hidden_act")),
        ("models2/minicpm3-mla", json!({ "scale_emb": 7.0, "scale_depth": 0.9, "dim_model_base": 24 }), None),
        ("models2/minicpm3-mla", json!({ "hidden_act": "gelu" }), Some("hidden_act")),
        ("models2/gemma3n_text-small", json!({ "altup_correct_scale": false, "sliding_window": 3, "altup_active_idx": 2 }), None),
        (
            "models2/gemma3n_text-small",
            json!({ "hidden_activation": "relu", "activation_sparsity_pattern": [0, 0, 0, 0] }),
            Some("hidden_activation"),
        ),
        ("models2/gemma4_text-moe", json!({ "final_logit_softcapping": 10.0, "sliding_window": 3 }), None),
        ("models2/gemma4_text-moe", json!({ "hidden_activation": "relu" }), Some("hidden_activation")),
        ("models2/kimi_linear-base", json!({ "routed_scaling_factor": 1.5, "rms_norm_eps": 1e-6 }), None),
        ("models2/kimi_linear-base", json!({ "moe_renormalize": false }), Some("moe_renormalize")),
        ("models2/kimi_linear-base", json!({ "num_expert_group": 2 }), Some("num_expert_group")),
        ("models2/kimi_linear-base", json!({ "hidden_act": "gelu" }), Some("hidden_act")),
    ] {
        let _ = std::fs::remove_dir_all(&hub);
        changed(&path(name), &hub, &changes);
        match refused {
            None => becomes_gguf(&hub, &folder).unwrap_or_else(|e| panic!("{name} with {changes}: {e}")),
            Some(key) => {
                let e = becomes_gguf(&hub, &folder).expect_err(name);
                assert!(e.contains(&format!("`{key}`")), "{name} with {changes}: {e}");
            }
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The vectors here; `TL_VECTORS=FOLDER` takes a larger set of the same layout.
pub(super) fn vectors() -> PathBuf {
    std::env::var_os("TL_VECTORS").map_or_else(|| path(""), PathBuf::from)
}

/// The decoders of `models2`, by their folders.
pub(super) fn decoders() -> Vec<String> {
    let manifest = std::fs::read(vectors().join("models2/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let all = manifest["models"].as_array().unwrap().iter().filter(|m| m["kind"].is_null());
    let names = all.map(|m| m["dir"].as_str().unwrap().to_string());
    names.filter(|name| vectors().join("models2").join(name).join("model.safetensors").exists()).collect()
}

/// The architectures of which folders become GGUF files, by `model_type`.
pub(super) fn written_as(model_type: &str) -> Option<&'static str> {
    models::supported().find(|a| a.names.contains(&model_type)).and_then(|a| a.gguf)
}

/// The logits of a GGUF file are those of the reference in f64.
fn check_reference(name: &str, hub: &Path, gguf: &Path) {
    let expected = SafeTensors::open(hub.join("expected.safetensors")).unwrap();
    let of = |key: &str| expected.load(key, &Device::cpu()).unwrap();
    let (ids, want) = (of("input_ids").cast(DType::I32).unwrap(), of("logits").to_vec().unwrap());
    let model = load(gguf);
    let got = no_grad(|| model.logits(&model.hidden(&ids, &mut KvCache::none())?)?.to_vec()).unwrap();
    let d = distance(&got, &want);
    assert!(d < 2e-5, "{name}: {d:e} of the reference");
}

/// Every decoder that GGUF knows is written, or refused by the name of the setting that GGUF has no key for; the files give the logits of the
/// folders and of their references.
#[test]
fn folders_become_the_same_model_or_are_refused_by_name() {
    let (folder, root) = (place("all"), vectors().join("models2"));
    let mut written = BTreeSet::new();
    for name in decoders() {
        let (hub, gguf) = (root.join(&name), folder.join("m.gguf"));
        let model_type = config(&hub)["model_type"].as_str().unwrap().to_string();
        let form = written_as(&model_type);
        let refused = REFUSED.iter().find(|(folder, ..)| *folder == name).filter(|_| form.is_some());
        let result = write_gguf(&Weights::open(&hub, &Device::cpu()).unwrap(), DType::F32, |_, _| Ok(()), &gguf);
        match (form, refused, result) {
            (None, _, result) => {
                let e = result.expect_err(&name).to_string();
                assert!(e.contains(&format!("`{model_type}`")) && !e.contains("config.json"), "{name}: {e}");
            }
            (Some(_), Some((_, key, changes)), result) => {
                let e = result.expect_err(&name).to_string();
                assert!(e.contains(&format!("`{key}`")), "{name}: {e}");
                if !changes.is_empty() {
                    let to = folder.join(&name);
                    changed(&hub, &to, &serde_json::from_str(changes).unwrap());
                    becomes_gguf(&to, &folder).unwrap_or_else(|e| panic!("{name} with {changes}: {e}"));
                    written.insert(model_type);
                }
            }
            (Some(form), None, result) => {
                result.unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(Gguf::open(&gguf).unwrap().str("general.architecture").unwrap(), form, "{name}");
                let d = distance(&logits(&*load(&gguf)), &logits(&*load(&hub)));
                assert!(d < SAME_MODEL, "{name}: {d:e}");
                check_reference(&name, &hub, &gguf);
                convert(&hub, DType::Q8_0, &gguf);
                let d = distance(&logits(&*load(&gguf)), &logits(&*load(&hub)));
                // Weights that are rounded may give a token another expert.
                let most = if name.ends_with("-moe") { 0.2 } else { 0.1 };
                assert!(d < most, "{name} as Q8_0: {d:e}");
                written.insert(model_type);
            }
        }
    }
    let without = |a: &models::Supported| a.gguf.is_some() && !a.names.iter().any(|name| written.contains(*name));
    if std::env::var_os("TL_VECTORS").is_some() {
        // These have folders of random tensors below.
        let missing = models::supported().filter(without).map(|a| a.names[0]);
        assert_eq!(missing.collect::<Vec<_>>(), ["lfm2_moe", "qwen2moe", "mistral4"]);
    }
    assert!(written.len() >= 30, "{written:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Folders whose head is the embedding, of which GGUF has multiples that differ, and tables of embeddings that lack the last tokens.
#[test]
fn tensors_that_gguf_has_more_of_than_folders_are_made() {
    let folder = place("more");
    let cut = |t: &Tensor| t.narrow(0, 0, 300).unwrap().contiguous().unwrap();
    let tied = json!({ "tie_word_embeddings": true });
    for (name, changes, table, file) in [
        ("falcon_h1-base", &tied, "lm_head.weight", "output.weight"),
        ("minicpm3-mla", &tied, "lm_head.weight", "output.weight"),
        ("kimi_linear-base", &tied, "lm_head.weight", "output.weight"),
        (
            "gemma3n_text-small",
            &json!({ "vocab_size_per_layer_input": 300 }),
            "model.embed_tokens_per_layer.weight",
            "per_layer_token_embd.weight",
        ),
    ] {
        let (from, hub) = (path("models2").join(name), folder.join(name));
        changed(&from, &hub, changes);
        let tensors = SafeTensors::open(from.join("model.safetensors")).unwrap();
        let all = tensors.tensors().iter().map(|t| (t.name.to_string(), tensors.load(&t.name, &Device::cpu()).unwrap()));
        let all = all.filter(|(name, _)| name != "lm_head.weight");
        write_tensors(&hub, &all.map(|(name, t)| if name == table { (name, cut(&t)) } else { (name, t) }).collect());
        becomes_gguf(&hub, &folder).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(Gguf::open(folder.join("m.gguf")).unwrap().tensor(file).unwrap().shape[0], 320, "{name}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Files of ChatGLM have one matrix of queries, keys and values; those of GLM folders have three.
#[test]
fn files_of_chatglm_may_have_joint_matrices() {
    let folder = place("chatglm");
    let (hub, gguf) = (folder.join("hub"), folder.join("m.gguf"));
    layouts()["glm-full"].write(&hub);
    becomes_gguf(&hub, &folder).unwrap();
    let file = Gguf::open(&gguf).unwrap();
    let mut w = GgufWriter::new();
    for (key, value) in file.metadata() {
        w.set(key, value);
    }
    for t in file.tensors() {
        let Some(layer) = t.name.strip_suffix("attn_q.weight") else {
            if !["attn_k.weight", "attn_v.weight"].iter().any(|end| t.name.ends_with(end)) {
                w.tensor(&t.name, t.dtype().unwrap(), &t.shape, file.bytes_of(t)).unwrap();
            }
            continue;
        };
        let parts = ["q", "k", "v"].map(|part| file.tensor(&format!("{layer}attn_{part}.weight")).unwrap());
        let bytes = parts.iter().flat_map(|t| file.bytes_of(t).to_vec()).collect::<Vec<u8>>();
        let rows = parts.iter().map(|t| t.shape[0]).sum();
        w.tensor(&format!("{layer}attn_qkv.weight"), DType::F32, &[rows, t.shape[1]], bytes).unwrap();
    }
    let joint = Weights::from_gguf(Gguf::from_bytes(w.to_bytes().unwrap()).unwrap(), &Device::cpu());
    let d = distance(&logits(&*models::load(&joint, Some(DType::F32)).unwrap()), &logits(&*load(&gguf)));
    assert!(d < SAME_MODEL, "{d:e}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Keys below the architecture's name with their types.
type Keys = BTreeMap<String, String>;

/// Tensors by their names without numbers of layers, with their types and how many sizes they have.
type Parts = BTreeMap<String, (String, usize)>;

/// The form of a GGUF file.
fn form(file: &Path) -> (String, Keys, Parts) {
    let gguf = Gguf::open(file).unwrap();
    let own = gguf.metadata().filter(|(key, _)| !["general.", "tokenizer."].iter().any(|start| key.starts_with(start)));
    let keys = own.map(|(key, value)| (key.to_string(), value.kind().name().to_string())).collect();
    let part = |name: &str| name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, part)| part).to_string();
    let parts = gguf.tensors().iter().map(|t| (part(&t.name), (t.type_name().to_string(), t.shape.len()))).collect();
    (gguf.str("general.architecture").unwrap().to_string(), keys, parts)
}

/// Files have the keys and the tensors, and these the types, of the files of llama.cpp's converter of the same architecture. The models differ: what
/// only some of an architecture have is named here.
#[test]
fn files_have_the_form_of_those_of_llama_cpp() {
    let (folder, root) = (place("form"), vectors());
    let (mut forms, mut count) = (Vec::new(), 0);
    for name in decoders() {
        let (from, to, gguf) = (root.join("models2").join(&name), folder.join(&name), folder.join("m.gguf"));
        let changes = REFUSED.iter().find(|(folder, ..)| *folder == name).map_or("{}", |(_, _, changes)| changes);
        if changes.is_empty() || written_as(config(&from)["model_type"].as_str().unwrap()).is_none() {
            continue;
        }
        changed(&from, &to, &serde_json::from_str(changes).unwrap());
        convert(&to, DType::F32, &gguf);
        forms.push((name, form(&gguf)));
    }
    for entry in
        std::fs::read_dir(root.join("models2_gguf")).unwrap().flatten().filter(|e| e.path().extension().is_some_and(|e| e == "gguf"))
    {
        let (architecture, keys, parts) = form(&entry.path());
        let experts = |parts: &Parts| parts.contains_key("ffn_down_exps.weight");
        let all = forms.iter().filter(|(_, (own, _, own_parts))| *own == architecture && experts(own_parts) == experts(&parts));
        for (name, (_, own_keys, own_parts)) in all {
            count += 1;
            for (key, kind) in &keys {
                // Queries by a vector of their own; the length that LongRoPE starts from.
                let some = ["attention.q_lora_rank", "rope.scaling.original_context_length"].iter().any(|end| key.ends_with(end));
                let own = own_keys.get(key);
                assert!(own == Some(kind) || own.is_none() && some, "{name}: `{key}` is {own:?}, not {kind}");
            }
            let some = |part: &str| {
                part.ends_with(".bias")
                    || ["attn_q", "output.", "rope_f", "attn_k_norm", "ffn_norm", "attn_norm_2", "exp_probs"]
                        .iter()
                        .any(|s| part.starts_with(s))
            };
            for (part, (kind, sizes)) in &parts {
                let own = own_parts.get(part);
                // Files of blocks are compared by what they keep in f32.
                let same = own.is_some_and(|(own, n)| n == sizes && (own == kind || kind != "F32"));
                assert!(same || own.is_none() && some(part), "{name}: `{part}` is {own:?}, not {kind} of {sizes} sizes");
            }
            let more: Vec<&String> = own_parts.keys().filter(|part| !parts.contains_key(*part) && !some(part)).collect();
            assert!(more.is_empty(), "{name} has {more:?} besides");
        }
    }
    assert!(count >= if std::env::var_os("TL_VECTORS").is_some() { 30 } else { 1 }, "{count}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// The model of a GGUF file with a key changed.
fn with_key(file: &Path, key: &str, value: impl ToValue) -> Result<Vec<f32>, String> {
    let gguf = Gguf::open(file).unwrap();
    let mut w = GgufWriter::new();
    for (key, value) in gguf.metadata() {
        w.set(key, value);
    }
    w.set(key, value);
    for t in gguf.tensors() {
        w.tensor(&t.name, t.dtype().unwrap(), &t.shape, gguf.bytes_of(t)).unwrap();
    }
    let weights = Weights::from_gguf(Gguf::from_bytes(w.to_bytes().unwrap()).unwrap(), &Device::cpu());
    Ok(logits(&*models::load(&weights, Some(DType::F32)).map_err(|e| e.to_string())?))
}

/// Keys that newer files have beside others that say the same: a list of the layers with states, and what YaRN multiplies rotated elements with.
#[test]
fn keys_of_newer_files_are_read() {
    let (folder, root) = (place("newer"), path("models2"));
    let gguf = folder.join("m.gguf");
    convert(&root.join("qwen3_next-base"), DType::F32, &gguf);
    let want = logits(&*load(&gguf));
    assert_eq!(with_key(&gguf, "qwen3next.full_attention_interval", 2u32).unwrap(), want, "the list of layers decides");
    let e = with_key(&gguf, "qwen3next.attention.recurrent_layers", vec![false; 4]).unwrap_err();
    assert!(e.contains("attn_q.weight"), "{e}");
    convert(&root.join("gpt_oss-base"), DType::F32, &gguf);
    let usual = 1.0 + 0.1 * Gguf::open(&gguf).unwrap().f64("gpt-oss.rope.scaling.factor").unwrap().ln();
    let key = "gpt-oss.rope.scaling.yarn_attn_factor";
    assert_eq!(with_key(&gguf, key, usual as f32).unwrap(), logits(&*load(&gguf)));
    let e = with_key(&gguf, key, 2f32).unwrap_err();
    assert!(e.contains(&format!("`{key}` is 2")), "{e}");
    // The layers with windows are a list too.
    let e = with_key(&gguf, "gpt-oss.attention.sliding_window_pattern", vec![true; 2]).unwrap_err();
    assert!(e.contains("`gpt-oss.attention.sliding_window_pattern`"), "{e}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A folder of Mistral 4, of random tensors: latent attention with a vector of queries' own, experts in two tensors, and queries that grow.
pub(super) fn with_latents(folder: &Path) {
    let rope = json!({ "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.4 });
    let config = json!({
        "model_type": "mistral4", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
        "head_dim": 20, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 12,
        "intermediate_size": 40, "moe_intermediate_size": 20, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64, "hidden_act": "silu", "tie_word_embeddings": false, "rope_parameters": rope, "attention_bias": false,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let (mut rng, mut tensors) = (Rng::new(11), BTreeMap::new());
    let mut add = |name: String, shape: &[usize]| {
        tensors.insert(name, rng.normal(shape, DType::F32, &Device::cpu()).unwrap().mul(0.3).unwrap());
    };
    ["model.embed_tokens", "lm_head"].iter().for_each(|n| add(format!("{n}.weight"), &[64, 32]));
    add("model.norm.weight".into(), &[32]);
    for l in 0..2 {
        let mut part = |name: &str, shape: &[usize]| add(format!("model.layers.{l}.{name}"), shape);
        ["input_layernorm.weight", "post_attention_layernorm.weight"].iter().for_each(|n| part(n, &[32]));
        for (name, shape) in [
            ("q_a_proj.weight", &[12, 32][..]),
            ("q_a_layernorm.weight", &[12]),
            ("q_b_proj.weight", &[40, 12]),
            ("kv_a_proj_with_mqa.weight", &[24, 32]),
            ("kv_a_layernorm.weight", &[16]),
            ("kv_b_proj.weight", &[48, 16]),
            ("o_proj.weight", &[32, 24]),
        ] {
            part(&format!("self_attn.{name}"), shape);
        }
        let (feed, size) = if l == 0 { ("mlp", 40) } else { ("mlp.shared_experts", 20) };
        ["gate_proj", "up_proj"].iter().for_each(|n| part(&format!("{feed}.{n}.weight"), &[size, 32]));
        part(&format!("{feed}.down_proj.weight"), &[32, size]);
        if l == 1 {
            part("mlp.gate.weight", &[4, 32]);
            part("mlp.experts.gate_up_proj", &[4, 40, 32]);
            part("mlp.experts.down_proj", &[4, 32, 20]);
        }
    }
    write_tensors(folder, &tensors);
}

/// The folder of LFM2 with experts, with the corrections of their choice that llama.cpp asks for.
#[test]
fn a_folder_of_lfm2_with_experts_is_the_same_model_as_gguf() {
    let (folder, from) = (place("lfm2moe"), path("models2/lfm2_moe-nobias"));
    let hub = folder.join("hub");
    changed(&from, &hub, &json!({ "use_expert_bias": true, "norm_topk_prob": true, "routed_scaling_factor": 1.0 }));
    let file = SafeTensors::open(from.join("model.safetensors")).unwrap();
    let mut tensors: BTreeMap<String, Tensor> =
        file.tensors().iter().map(|t| (t.name.to_string(), file.load(&t.name, &Device::cpu()).unwrap())).collect();
    let routers: Vec<(String, usize)> =
        tensors.iter().filter_map(|(name, t)| Some((name.strip_suffix("feed_forward.gate.weight")?.to_string(), t.dims()[0]))).collect();
    assert!(!routers.is_empty());
    for (layer, count) in routers {
        let bias = Rng::new(5).normal(&[count], DType::F32, &Device::cpu()).unwrap();
        tensors.insert(format!("{layer}feed_forward.expert_bias"), bias);
    }
    write_tensors(&hub, &tensors);
    becomes_gguf(&hub, &folder).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_folder_of_mistral_4_is_the_same_model_as_gguf() {
    let folder = place("latents");
    with_latents(&folder);
    becomes_gguf(&folder, &folder).unwrap();
    let file = Gguf::open(folder.join("m.gguf")).unwrap();
    assert_eq!(file.u64("mistral4.attention.key_length").unwrap(), 24);
    assert_eq!(file.u64("mistral4.attention.temperature_length").unwrap(), 16);
    assert_eq!(file.tensor("blk.1.attn_k_b.weight").unwrap().shape[..], [2, 16, 12]);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A folder of Qwen 3 with experts, or of Qwen 2 with a shared one besides, of random tensors.
pub(super) fn with_experts(folder: &Path, model_type: &str) {
    let shared = model_type == "qwen2_moe";
    let config = json!({
        "model_type": model_type, "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "intermediate_size": 64, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": !shared,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": true,
        "use_sliding_window": false, "shared_expert_intermediate_size": if shared { json!(48) } else { json!(null) },
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
        if !shared {
            ["self_attn.q_norm", "self_attn.k_norm"].iter().for_each(|n| part(n, &[16]));
        }
        ["self_attn.q_proj", "self_attn.o_proj"].iter().for_each(|n| part(n, &[32, 32]));
        ["self_attn.k_proj", "self_attn.v_proj"].iter().for_each(|n| part(n, &[16, 32]));
        part("mlp.gate", &[4, 32]);
        for e in 0..4 {
            ["gate_proj", "up_proj", "down_proj"].iter().for_each(|n| part(&format!("mlp.experts.{e}.{n}"), &[32, 32]));
        }
        if shared {
            ["gate_proj", "up_proj"].iter().for_each(|n| part(&format!("mlp.shared_expert.{n}"), &[48, 32]));
            part("mlp.shared_expert.down_proj", &[32, 48]);
            part("mlp.shared_expert_gate", &[1, 32]);
            for (name, len) in [("q", 32), ("k", 16), ("v", 16)] {
                add(format!("model.layers.{l}.self_attn.{name}_proj.bias"), &[len]);
            }
        }
    }
    write_tensors(folder, &tensors);
}

#[test]
fn a_folder_with_experts_is_the_same_model_as_gguf() {
    for (model_type, name) in [("qwen3_moe", "qwen3moe"), ("qwen2_moe", "qwen2moe")] {
        let folder = place(name);
        with_experts(&folder, model_type);
        let want = logits(&*load(&folder));
        for (dtype, most) in [(DType::F32, 1e-6), (DType::Q8_0, 0.05)] {
            let gguf = folder.join("m.gguf");
            convert(&folder, dtype, &gguf);
            let file = Gguf::open(&gguf).unwrap();
            assert_eq!(file.u64(&format!("{name}.expert_count")).unwrap(), 4);
            assert_eq!(file.tensor("blk.1.ffn_up_exps.weight").unwrap().shape[..], [4, 32, 32]);
            assert_eq!(file.tensor("blk.1.ffn_gate_inp.weight").unwrap().type_name(), "F32", "a router stays as it is");
            let d = distance(&logits(&*load(&gguf)), &want);
            assert!(d < most, "{name} as {dtype}: {d:e}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn every_type_is_near_its_source() {
    let folder = place("types");
    let source = path("models_gguf/llama-k256.Q4_K.gguf");
    let plain = folder.join("f32.gguf");
    convert(&source, DType::F32, &plain);
    let want = logits(&*load(&plain));
    assert!(distance(&logits(&*load(&source)), &want) < SAME_MODEL);
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
