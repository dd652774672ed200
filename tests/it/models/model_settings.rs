//! Every setting and every tensor of a model is honoured or refused by name: references of transformers in f64 for changed keys, and a walk
//! over all keys that transformers' configuration classes and GGUF's constants have (`tests/vectors/config_keys/known_keys.json`).

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorlogic::io::{Gguf, GgufWriter, SafeTensors, write_safetensors};
use tensorlogic::models::convert::write_gguf;
use tensorlogic::models::settings::without_effect;
use tensorlogic::models::{self, Model, Session, Weights};
use tensorlogic::nn::GptConfig;
use tensorlogic::{DType, Device, Tensor};

/// A file of `tests/vectors`, or of a larger set of the same layout in the folder `TL_VECTORS`.
pub(super) fn vectors(name: &str) -> PathBuf {
    let larger = std::env::var_os("TL_VECTORS").map(|root| PathBuf::from(root).join(name)).filter(|p| p.exists());
    larger.unwrap_or_else(|| Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors").join(name))
}

pub(super) fn read_json(path: &Path) -> Json {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A folder of a test's own, which goes with it.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let p = std::env::temp_dir().join(format!("tl-model-settings-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&p).unwrap();
        Folder(p)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// A model of these settings with the tensors of `base`.
    fn model(&self, base: &str, config: &Json) -> Weights {
        self.model_like(&vectors("config_keys").join(base), config)
    }

    /// A model of these settings with the tensors of another folder.
    pub fn model_like(&self, other: &Path, config: &Json) -> Weights {
        std::fs::write(self.0.join("config.json"), config.to_string()).unwrap();
        let file = self.0.join("model.safetensors");
        if !file.exists() {
            std::fs::copy(other.join("model.safetensors"), file).unwrap();
        }
        Weights::open(&self.0, &Device::cpu()).unwrap()
    }

    /// The tensors of `base` after `change`.
    fn tensors(&self, base: &str, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) {
        let weights = Weights::open(vectors("config_keys").join(base), &Device::cpu()).unwrap();
        let mut all: BTreeMap<String, Tensor> = weights.stored_names().into_iter().map(|n| (n.clone(), weights.any(&n).unwrap())).collect();
        change(&mut all);
        let mut bytes = Vec::new();
        write_safetensors(&all, &[("format", "pt")], |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        })
        .unwrap();
        std::fs::write(self.0.join("model.safetensors"), bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn load(weights: &Weights) -> Result<Box<dyn Model>, String> {
    models::load(weights, Some(DType::F32)).map_err(|e| e.to_string())
}

/// The logits after each of the tokens.
pub(super) fn logits(model: &dyn Model, tokens: &[u32]) -> Vec<f32> {
    Session::new(model, model.shape().context, &Device::cpu()).unwrap().score(tokens).unwrap().to_vec().unwrap()
}

struct Expected(SafeTensors);

impl Expected {
    fn open() -> Expected {
        Expected(SafeTensors::open(vectors("config_keys/expected.safetensors")).unwrap())
    }
    fn ids(&self, base: &str) -> Vec<u32> {
        let bytes = self.0.bytes_of(self.0.tensor(&format!("{base}.ids")).unwrap());
        bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect()
    }
    /// Logits of the last three positions.
    fn logits(&self, id: &str) -> Vec<f64> {
        let bytes = self.0.bytes_of(self.0.tensor(id).unwrap());
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64).collect()
    }
}

/// The largest difference between the end of `got` and `want`, in tolerances of the references.
fn error(got: &[f32], want: &[f64]) -> f64 {
    let got = &got[got.len() - want.len()..];
    let off = |(g, w): (&f32, &f64)| (*g as f64 - w).abs() / (2e-4 + 1e-4 * w.abs());
    got.iter().zip(want).map(off).fold(0.0, f64::max)
}

/// Compares the end of `got` with `want`.
#[track_caller]
fn close(what: &str, got: &[f32], want: &[f64]) {
    let worst = error(got, want);
    assert!(worst <= 1.0, "{what}: {worst:.1} times the tolerance");
}

fn base_config(base: &str) -> Map<String, Json> {
    match read_json(&vectors("config_keys").join(base).join("config.json")) {
        Json::Object(config) => config,
        other => panic!("{base}: {other}"),
    }
}

#[derive(Deserialize)]
struct Case {
    id: String,
    dir: String,
    patch: Map<String, Json>,
    delete: Vec<String>,
    verdict: String,
}

/// Cases whose models transformers can run and this library refuses.
const NOT_IMPLEMENTED: [&str; 3] = [
    "gemma3-07-use_bidirectional_attention",
    // Fewer layers than the file has: transformers drops the rest.
    "gpt2-15-n_layer",
    "llama-19-num_hidden_layers",
];

/// What is wrong with a case. In a larger set than the one that lies here, other settings may be refused too, by name.
fn check_reference(case: &Case, expected: &Expected) -> Option<String> {
    let mut config = base_config(&case.dir);
    config.extend(case.patch.clone());
    case.delete.iter().for_each(|k| drop(config.remove(k)));
    let folder = Folder::new();
    let model = load(&folder.model(&case.dir, &Json::Object(config)));
    let refused = case.verdict == "refuse" || NOT_IMPLEMENTED.contains(&case.id.as_str());
    let larger = std::env::var_os("TL_VECTORS").is_some();
    match model {
        Ok(_) if refused => Some(format!("{}: loads, where {} is asked for", case.id, case.verdict)),
        Ok(model) => {
            let off = error(&logits(&*model, &expected.ids(&case.dir)), &expected.logits(&case.id));
            (off > 1.0).then(|| format!("{}: {off:.1} times the tolerance", case.id))
        }
        Err(e) if e.contains("supported are") => Some(format!("{}: {e}", case.id)),
        Err(e) if !refused && !larger => Some(format!("{}: {e}", case.id)),
        Err(e) => {
            let named = case.patch.keys().chain(&case.delete).any(|k| e.contains(k.as_str()));
            (!named).then(|| format!("{}: names none of {:?}: {e}", case.id, case.patch))
        }
    }
}

#[test]
fn changed_keys_give_what_transformers_gives() {
    let expected = Expected::open();
    let manifest = read_json(&vectors("config_keys/manifest.json"));
    let cases: Vec<Case> = serde_json::from_value(manifest["cases"].clone()).unwrap();
    assert!(cases.len() > 30);
    let wrong: Vec<String> = cases.iter().filter_map(|c| check_reference(c, &expected)).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// What may happen to a key of a configuration class when its value changes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Effect {
    /// Other logits.
    Logits,
    /// Another context, and the same logits.
    Context,
    /// The same logits, as in transformers.
    Same,
}

/// The keys that are honoured, each with what a change of its value does; references above and below say which logits are right. Sizes are not
/// here: tensors do not fit changed ones, which is an error that names the size.
const HONOURED: [(&str, &str, Effect); 17] = [
    ("gpt2", "n_head", Effect::Logits),
    ("gpt2", "scale_attn_weights", Effect::Logits),
    ("gpt2", "scale_attn_by_inverse_layer_idx", Effect::Logits),
    ("gpt2", "layer_norm_epsilon", Effect::Logits),
    ("gpt2", "activation_function", Effect::Logits),
    ("llama", "rms_norm_eps", Effect::Logits),
    ("llama", "max_position_embeddings", Effect::Context),
    // `lm_head.weight` is in the file and is not the embedding.
    ("llama", "tie_word_embeddings", Effect::Same),
    ("llama", "hidden_act", Effect::Logits),
    ("gemma3", "rms_norm_eps", Effect::Logits),
    ("gemma3", "max_position_embeddings", Effect::Context),
    ("gemma3", "query_pre_attn_scalar", Effect::Logits),
    ("gemma3", "sliding_window", Effect::Logits),
    ("gemma3", "layer_types", Effect::Logits),
    // `layer_types` decides.
    ("gemma3", "_sliding_window_pattern", Effect::Same),
    ("gemma3", "final_logit_softcapping", Effect::Logits),
    ("gemma3", "hidden_activation", Effect::Logits),
];

/// Values unlike `v`.
pub(super) fn others(v: &Json) -> Vec<Json> {
    let mut all = vec![json!("nonsense"), json!([1, "x"]), json!({ "unknown": 1 }), json!(-3)];
    match v {
        Json::Bool(b) => all.push(json!(!b)),
        Json::Number(n) if n.is_i64() => all.extend([json!(n.as_i64().unwrap() + 1), json!(n.as_i64().unwrap() * 2), json!(2.5)]),
        Json::Number(n) => all.extend([json!(n.as_f64().unwrap() * 1000.0), json!(3)]),
        Json::String(_) => all.extend([json!("relu"), json!(1), json!(true)]),
        Json::Array(items) => all.extend([json!([]), Json::Array(items.iter().rev().cloned().collect())]),
        Json::Object(items) => {
            let mut more = items.clone();
            more.insert("unknown".into(), json!(1));
            all.push(Json::Object(more));
        }
        Json::Null => all.extend([json!(true), json!(2.5), json!(3)]),
    }
    all.retain(|o| o != v);
    all
}

/// A key of a configuration class with every one of other values: refused by name, without effect for a reason that is written down, or
/// honoured as [`HONOURED`] says.
fn check_key(base: &str, key: &str, config: &Map<String, Json>, (tokens, want): (&[u32], &[f32]), wrong: &mut Vec<String>) {
    let folder = Folder::new();
    let effect = HONOURED.iter().find(|(b, k, _)| (*b, *k) == (base, key)).map(|(.., e)| *e);
    let mut seen = Vec::new();
    for value in others(config.get(key).unwrap_or(&Json::Null)) {
        let mut config = config.clone();
        config.insert(key.into(), value.clone());
        let context = config.get("max_position_embeddings").or(config.get("n_positions")).and_then(Json::as_u64);
        match load(&folder.model(base, &Json::Object(config))) {
            Err(e) if without_effect(key).is_some() => wrong.push(format!("{base}: {key} has no effect, and {value} is refused: {e}")),
            Err(e) if !e.contains(key) => wrong.push(format!("{base}: {key} = {value} is refused without its name: {e}")),
            Err(_) => {}
            Ok(model) => {
                let same = logits(&*model, tokens) == want;
                let what = if without_effect(key).is_some() { Some(Effect::Same) } else { effect };
                let fits = what.is_some() && same == (what != Some(Effect::Logits));
                if !fits || what == Some(Effect::Context) && Some(model.shape().context as u64) != context {
                    wrong.push(format!("{base}: {key} = {value} loads, with the same logits: {same}; expected {what:?}"));
                }
                seen.extend(what);
            }
        }
    }
    if effect.is_some_and(|e| !seen.contains(&e)) {
        wrong.push(format!("{base}: no value of {key} shows {effect:?}"));
    }
}

#[test]
fn every_key_of_transformers_is_accounted_for() {
    let known = read_json(&vectors("config_keys/known_keys.json"));
    let (expected, mut wrong) = (Expected::open(), Vec::new());
    for (class, base) in [("gpt2", "gpt2"), ("llama", "llama"), ("gemma3_text", "gemma3")] {
        let config = base_config(base);
        let tokens = expected.ids(base);
        let folder = Folder::new();
        let want = logits(&*load(&folder.model(base, &Json::Object(config.clone()))).unwrap(), &tokens);
        let keys: Vec<&String> = known[class].as_object().unwrap().keys().collect();
        assert!(keys.len() > 30, "{class}: {} keys", keys.len());
        for key in keys {
            check_key(base, key, &config, (&tokens, &want), &mut wrong);
        }
        for key in ["quantization_config", "rope_scaling", "sliding_window", "partial_rotary_factor", "a_key_of_tomorrow"] {
            check_key(base, key, &config, (&tokens, &want), &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Keys of GGUF metadata that are honoured: a changed value may give other logits, or the same ones.
const HONOURED_IN_GGUF: [(&str, &[&str]); 3] = [
    ("gpt2", &["attention.layer_norm_epsilon", "attention.head_count"]),
    (
        "llama",
        &[
            "attention.layer_norm_rms_epsilon",
            "attention.scale",
            "rope.scale_linear",
            "rope.freq_base",
            "rope.scaling.factor",
            "rope.scaling.original_context_length",
            "context_length",
        ],
    ),
    (
        "gemma3",
        &[
            "attention.layer_norm_rms_epsilon",
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "context_length",
            "final_logit_softcapping",
            "rope.freq_base",
            "rope.freq_base_swa",
            "rope.scaling.factor",
            "rope.scaling.original_context_length",
        ],
    ),
];

/// The GGUF file with `set` applied after all its own metadata but `key`.
fn with_key(file: &Gguf, key: &str, set: impl FnOnce(&mut GgufWriter)) -> Weights {
    let mut w = GgufWriter::new();
    for (k, v) in file.metadata().filter(|(k, _)| *k != key) {
        w.set(k, v);
    }
    set(&mut w);
    for t in file.tensors() {
        w.tensor(&t.name, t.dtype().unwrap(), &t.shape, file.bytes_of(t)).unwrap();
    }
    Weights::from_gguf(Gguf::from_bytes(w.to_bytes().unwrap()).unwrap(), &Device::cpu())
}

fn check_gguf_key(file: &Gguf, architecture: &str, key: &str, (tokens, want): (&[u32], &[f32]), wrong: &mut Vec<String>) {
    let name = format!("{architecture}.{key}");
    let honoured = HONOURED_IN_GGUF.iter().any(|(a, keys)| *a == architecture && keys.contains(&key));
    let without_effect = ["pooling_type", "tensor_data_layout", "rope.scaling.finetuned"].contains(&key);
    let mut changed = false;
    for n in 0..6 {
        if n == 0 && file.get(&name).is_some_and(|v| v.u64().is_ok_and(|v| v == 2)) {
            continue;
        }
        let weights = with_key(file, &name, |w| {
            match n {
                0 => w.set(&name, 2u32),
                1 => w.set(&name, 0.37f32),
                2 => w.set(&name, "nonsense"),
                3 => w.set(&name, vec![1i32, 2]),
                4 => w.set(&name, -1i32),
                _ => w.set(&name, f32::NAN),
            };
        });
        match load(&weights) {
            Err(e) if !e.contains(&name) => wrong.push(format!("value {n} of {name} is refused without its name: {e}")),
            Err(_) => {}
            Ok(model) => {
                if !honoured && !without_effect {
                    wrong.push(format!("value {n} of {name} loads, and nothing says that it is honoured"));
                }
                let tokens = &tokens[..tokens.len().min(model.shape().context)];
                let same = logits(&*model, tokens) == want[..tokens.len() * model.shape().vocab];
                if !same && !honoured {
                    wrong.push(format!("value {n} of {name} changes the logits"));
                }
                changed |= !same || model.shape().context != 64;
            }
        }
    }
    let cannot = key.ends_with("original_context_length");
    if honoured && !changed && !cannot {
        wrong.push(format!("no value of {name} changes anything"));
    }
}

#[test]
fn every_key_of_gguf_is_accounted_for() {
    let known = read_json(&vectors("config_keys/known_keys.json"));
    let keys: Vec<&str> = known["gguf"].as_array().unwrap().iter().map(|k| k.as_str().unwrap()).collect();
    assert!(keys.len() > 100);
    let mut wrong = Vec::new();
    let files = [("gpt2", "gpt2-base.Q4_0"), ("llama", "llama-mha.Q8_0"), ("gemma3", "gemma3.F32")];
    for (architecture, name) in files {
        let file = Gguf::open(vectors("models_gguf").join(format!("{name}.gguf"))).unwrap();
        let tokens: Vec<u32> = (0..14).map(|i| (i * i * 7 + 3) % 300).collect();
        let want = logits(&*load(&with_key(&file, "", |_| ())).unwrap(), &tokens);
        for key in keys.iter().copied().chain(["a.key.of.tomorrow", "rope.scale_linear"]) {
            // The Gemma file has the factor's newer name, which goes first.
            if key != "rope.scale_linear" || architecture != "gemma3" {
                check_gguf_key(&file, architecture, key, (&tokens, &want), &mut wrong);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn gguf_keys_beside_the_architecture_are_for_others() {
    let file = Gguf::open(vectors("models_gguf/llama-mha.Q8_0.gguf")).unwrap();
    for (key, value, loads) in [
        ("general.type", "model", true),
        ("general.type", "adapter", false),
        ("general.description", "anything", true),
        ("somebody.comment", "anything", true),
    ] {
        check_load(
            key,
            load(&with_key(&file, key, |w| {
                w.set(key, value);
            })),
            loads,
        );
    }
    for (key, value, loads) in
        [("general.quantization_version", 2u32, true), ("general.quantization_version", 1, false), ("split.count", 2, false)]
    {
        check_load(
            key,
            load(&with_key(&file, key, |w| {
                w.set(key, value);
            })),
            loads,
        );
    }
}

/// A model that loads, or is refused with this word.
#[track_caller]
fn check_load(word: &str, model: Result<Box<dyn Model>, String>, loads: bool) {
    match model {
        Ok(_) => assert!(loads, "{word}: loads"),
        Err(e) => assert!(!loads && e.contains(word), "{word}: {e}"),
    }
}

/// Queries divided by √D and scores that are not: what the base model computes.
#[test]
fn unscaled_attention_takes_queries_as_they_are() {
    let (expected, folder) = (Expected::open(), Folder::new());
    let mut config = base_config("gpt2");
    let (d, heads) = (config["n_embd"].as_u64().unwrap() as usize, config["n_head"].as_u64().unwrap() as usize);
    let factor = 1.0 / ((d / heads) as f32).sqrt();
    folder.tensors("gpt2", |all| {
        for (name, t) in all.iter_mut().filter(|(n, _)| n.contains("attn.c_attn.")) {
            let mut values = t.to_vec().unwrap();
            values.chunks_exact_mut(3 * d).for_each(|row| row[..d].iter_mut().for_each(|v| *v *= factor));
            assert_eq!(*t.dims().last().unwrap(), 3 * d, "{name}");
            *t = Tensor::from_vec(values, t.dims(), &Device::cpu()).unwrap();
        }
    });
    config.insert("scale_attn_weights".into(), json!(false));
    let model = load(&folder.model("gpt2", &Json::Object(config))).unwrap();
    close("scale_attn_weights", &logits(&*model, &expected.ids("gpt2")), &expected.logits("gpt2"));
}

/// c·tanh(x/c) of transformers' logits x.
#[test]
fn final_logits_are_capped() {
    let (expected, folder) = (Expected::open(), Folder::new());
    for cap in [0.5, 3.0] {
        let mut config = base_config("gemma3");
        config.insert("final_logit_softcapping".into(), json!(cap));
        let model = load(&folder.model("gemma3", &Json::Object(config))).unwrap();
        let want: Vec<f64> = expected.logits("gemma3").iter().map(|x| cap * (x / cap).tanh()).collect();
        close("final_logit_softcapping", &logits(&*model, &expected.ids("gemma3")), &want);
    }
}

#[test]
fn every_tensor_is_accounted_for() {
    let cpu = Device::cpu();
    let extra = [
        ("gpt2", "transformer.h.0.attn.c_attn.scales", false),
        ("gpt2", "transformer.h.0.attn.masked_bias", true),
        ("llama", "model.layers.0.self_attn.q_proj.bias", false),
        ("llama", "model.layers.0.self_attn.q_norm.weight", false),
        ("llama", "model.layers.3.input_layernorm.weight", false),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", true),
        ("llama", "model.layers.0.attn.bias", false),
        ("gemma3", "model.layers.0.mlp.gate_proj.bias", false),
        ("gemma3", "vision_tower.patch_embedding.weight", false),
    ];
    for (base, name, loads) in extra {
        let folder = Folder::new();
        folder.tensors(base, |all| drop(all.insert(name.into(), Tensor::from_vec(vec![0f32; 6], &[6], &cpu).unwrap())));
        check_load(name, load(&folder.model(base, &Json::Object(base_config(base)))), loads);
    }
    for (base, name) in [
        ("gpt2", "transformer.h.1.mlp.c_fc.bias"),
        ("llama", "model.layers.2.mlp.up_proj.weight"),
        ("gemma3", "model.layers.0.self_attn.q_norm.weight"),
        ("gemma3", "model.layers.1.pre_feedforward_layernorm.weight"),
    ] {
        let folder = Folder::new();
        folder.tensors(base, |all| assert!(all.remove(name).is_some(), "{name}"));
        check_load(name, load(&folder.model(base, &Json::Object(base_config(base)))), false);
    }
    // An output matrix of its own is needed where the settings say that there is one.
    let folder = Folder::new();
    folder.tensors("llama", |all| assert!(all.remove("lm_head.weight").is_some()));
    check_load("tie_word_embeddings", load(&folder.model("llama", &Json::Object(base_config("llama")))), false);
}

/// A model of text and images, and an encoder beside the decoder, are named.
#[test]
fn other_kinds_of_models_are_refused_by_name() {
    for (base, key, value) in [
        ("gemma3", "text_config", json!({ "hidden_size": 48 })),
        ("llama", "quantization_config", json!({ "quant_method": "gptq", "bits": 4 })),
        ("gpt2", "architectures", json!(["GPT2ForSequenceClassification"])),
        ("llama", "is_encoder_decoder", json!(true)),
    ] {
        let folder = Folder::new();
        let mut config = base_config(base);
        config.insert(key.into(), value);
        let result = load(&folder.model(base, &Json::Object(config)));
        let e = result.err().unwrap_or_else(|| panic!("{key} loads"));
        assert!(e.contains(key) && e.contains("config.json"), "{key}: {e}");
    }
}

/// What GGUF has no key for is not written into a file that means something else.
#[test]
fn conversion_refuses_what_gguf_cannot_say() {
    for (base, key, value) in [
        ("gpt2", "activation_function", json!("relu")),
        ("gpt2", "scale_attn_weights", json!(false)),
        ("gpt2", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("llama", "hidden_act", json!("gelu")),
        ("llama", "quantization_config", json!({ "bits": 4 })),
        ("llama", "attention_bias", json!(true)),
    ] {
        let folder = Folder::new();
        let mut config = base_config(base);
        config.insert(key.into(), value);
        let weights = folder.model(base, &Json::Object(config));
        let e = write_gguf(&weights, DType::F32, |_, _| Ok(()), &folder.0.join("m.gguf")).err();
        let e = e.unwrap_or_else(|| panic!("{key} is written")).to_string();
        assert!(e.contains(key) || key == "attention_bias" && e.contains("q_proj.bias"), "{key}: {e}");
    }
}

/// Training goes on only with a model that is trained as it is run.
#[test]
fn training_refuses_other_settings_of_gpt2() {
    for (key, value, ok) in [
        ("activation_function", json!("gelu_new"), true),
        ("activation_function", json!("relu"), false),
        ("scale_attn_weights", json!(false), false),
        ("n_inner", json!(7), false),
        ("layer_norm_epsilon", json!(1e-3), false),
    ] {
        let mut config = base_config("gpt2");
        config.insert(key.into(), value.clone());
        match GptConfig::from_hub(&Json::Object(config)) {
            Ok(_) => assert!(ok, "{key} = {value} is taken"),
            Err(e) => assert!(!ok && e.to_string().contains(key), "{key} = {value}: {e}"),
        }
    }
}
