//! Folders of models of texts and images, or sounds: their text side is the decoder alone, what is for other things is left out, and the rest of
//! their keys and tensors is used or refused by name. The references are those of the decoders alone, by transformers in f64.

use crate::common::assert_close;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tensorlogic::io::{SafeTensors, write_safetensors};
use tensorlogic::models::{self, Session, Weights, lacks};
use tensorlogic::{DType, Device, Tensor};

/// A decoder's folder, the model that official folders have around it, and whether those have its tensors as a model of their own.
const CASES: [(&str, &str, bool); 7] = [
    ("models/gemma3_text-pattern", "gemma3", true),
    ("models/gemma3_text-pattern", "gemma3", false),
    ("models2/gemma3n_text-small", "gemma3n", false),
    ("models2/gemma4_text-moe", "gemma4", false),
    ("models2/qwen3_5_text-two", "qwen3_5", false),
    ("models2/ministral3-scaled", "mistral3", true),
    ("models2/llama4_text-moe", "llama4", true),
];

/// A folder of a model around a decoder.
struct Around {
    config: Json,
    tensors: BTreeMap<String, Tensor>,
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors").join(name)
}

fn config(folder: &Path) -> Json {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::from_vec(vec![0f32; shape.iter().product()], shape, &Device::cpu()).unwrap()
}

impl Around {
    /// The decoder of `folder` in a model of type `model_type` that has towers for images and sounds too.
    fn of(folder: &Path, model_type: &str, own_model: bool) -> Around {
        let weights = Weights::open(folder, &Device::cpu()).unwrap();
        let named = |name: &str| match name.strip_prefix("model.") {
            _ if own_model => format!("language_model.{name}"),
            Some(rest) => format!("model.language_model.{rest}"),
            None => name.to_string(),
        };
        let mut tensors: BTreeMap<String, Tensor> =
            weights.stored_names().iter().map(|name| (named(name), weights.any(name).unwrap())).collect();
        let start = if own_model { "" } else { "model." };
        for name in ["vision_tower.layers.0.mlp.fc1.weight", "visual.merger.norm.weight", "multi_modal_projector.linear_1.weight"] {
            tensors.insert(format!("{start}{name}"), zeros(&[2, 3]));
        }
        for name in ["audio_tower.layers.0.norm.weight", "embed_vision.embedding.weight"] {
            tensors.insert(format!("{start}{name}"), zeros(&[4]));
        }
        let mut text = config(folder);
        text.as_object_mut().unwrap().remove("architectures");
        let config = json!({
            "architectures": ["AnyForConditionalGeneration"], "model_type": model_type, "torch_dtype": "float32", "eos_token_id": [1, 106],
            "image_token_id": 300, "mm_tokens_per_image": 256, "vision_config": { "hidden_size": 7, "patch_size": 14 }, "audio_config": null,
            "vocab_size": text["vocab_size"], "text_config": text,
        });
        Around { config, tensors }
    }

    /// Loads it, which gives the logits of `tokens`.
    fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>, String> {
        self.opened(|weights| {
            let model = models::load(&weights, Some(DType::F32)).map_err(|e| e.to_string())?;
            Ok(Session::new(&*model, 64, &Device::cpu()).unwrap().score(tokens).unwrap().to_vec().unwrap())
        })
    }

    fn opened<T>(&self, then: impl FnOnce(Weights) -> T) -> T {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let to = std::env::temp_dir().join(format!("tl-text-side-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&to).unwrap();
        std::fs::write(to.join("config.json"), self.config.to_string()).unwrap();
        let mut bytes = Vec::new();
        write_safetensors(&self.tensors, &[("format", "pt")], |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        })
        .unwrap();
        std::fs::write(to.join("model.safetensors"), bytes).unwrap();
        let result = then(Weights::open(&to, &Device::cpu()).unwrap());
        std::fs::remove_dir_all(to).unwrap();
        result
    }
}

/// The first row of a folder's tokens and their logits.
fn reference(folder: &Path) -> (Vec<u32>, Vec<f64>) {
    let expected = SafeTensors::open(folder.join("expected.safetensors")).unwrap();
    let (ids, logits) = (expected.tensor("input_ids").unwrap(), expected.tensor("logits").unwrap());
    let rows = ids.shape[0];
    let tokens: Vec<u32> = match ids.type_name() {
        "I64" => expected.bytes_of(ids).chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect(),
        _ => expected.bytes_of(ids).chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()) as u32).collect(),
    };
    let want: Vec<f64> = match logits.type_name() {
        "F64" => expected.bytes_of(logits).chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        _ => expected.bytes_of(logits).chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
    };
    (tokens[..tokens.len() / rows].to_vec(), want[..want.len() / rows].to_vec())
}

#[test]
fn the_text_side_is_the_decoder_alone() {
    for (name, model_type, own_model) in CASES {
        let folder = path(name);
        let (tokens, want) = reference(&folder);
        let got = Around::of(&folder, model_type, own_model).logits(&tokens).unwrap_or_else(|e| panic!("{model_type} around {name}: {e}"));
        assert_close(&format!("{model_type} around {name}"), &got, &want, 1e-4, 1e-3);
    }
}

/// Experts in two stacked tensors, as official folders have them, a part that predicts further tokens, and keys that only official ones have.
#[test]
fn experts_of_official_folders_are_stacked() {
    let folder = path("models2/qwen3_5_moe_text-base");
    let (tokens, want) = reference(&folder);
    let mut around = Around::of(&folder, "qwen3_5_moe", false);
    let text = around.config["text_config"].as_object_mut().unwrap();
    let (layers, count) = (text["num_hidden_layers"].as_u64().unwrap(), text["num_experts"].as_u64().unwrap());
    text.remove("intermediate_size");
    for (key, value) in [
        ("attn_output_gate", json!(true)),
        ("mamba_ssm_dtype", json!("float32")),
        ("mlp_only_layers", json!([])),
        ("mtp_num_hidden_layers", json!(1)),
        ("mtp_use_dedicated_embeddings", json!(false)),
    ] {
        text.insert(key.into(), value);
    }
    for l in 0..layers {
        let start = format!("model.language_model.layers.{l}.mlp.experts");
        let mut all = |part: &str| -> Vec<Tensor> {
            (0..count).map(|e| around.tensors.remove(&format!("{start}.{e}.{part}_proj.weight")).unwrap()).collect()
        };
        let (gates, ups, downs) = (all("gate"), all("up"), all("down"));
        let joint: Vec<Tensor> = gates.iter().zip(&ups).map(|(g, u)| Tensor::cat(&[g.clone(), u.clone()], 0).unwrap()).collect();
        around.tensors.insert(format!("{start}.gate_up_proj"), Tensor::stack(&joint, 0).unwrap());
        around.tensors.insert(format!("{start}.down_proj"), Tensor::stack(&downs, 0).unwrap());
    }
    around.tensors.insert("mtp.layers.0.mlp.gate.weight".into(), zeros(&[2]));
    assert_close("qwen3_5_moe", &around.logits(&tokens).unwrap(), &want, 1e-4, 1e-3);
    around.config["text_config"]["attn_output_gate"] = json!(false);
    let e = around.logits(&tokens).unwrap_err();
    assert!(e.contains("`text_config.attn_output_gate` is false"), "{e}");
}

/// Official files of Gemma 3 leave out what their sizes share with transformers' defaults.
#[test]
fn missing_sizes_are_those_of_transformers() {
    let mut around = Around::of(&path("models/gemma3_text-pattern"), "gemma3", true);
    let text = around.config["text_config"].as_object_mut().unwrap();
    ["num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "model_type"].iter().for_each(|k| {
        text.remove(*k);
    });
    // 8 heads of 256, which the tensors here do not have.
    let width = text["hidden_size"].as_u64().unwrap();
    let e = around.logits(&[1, 2]).unwrap_err();
    assert!(e.contains(&format!("ask for [2048, {width}]")) && e.contains("language_model.model.layers.0.self_attn.q_proj.weight"), "{e}");
}

#[test]
fn what_else_they_have_is_refused_by_name() {
    let folder = path("models/gemma3_text-pattern");
    let (tokens, _) = reference(&folder);
    for (key, value, named) in [
        ("a_key_of_tomorrow", json!(2), "`a_key_of_tomorrow` is 2"),
        ("vocab_size", json!(7), "`vocab_size` is 7"),
        ("sliding_window", json!(3), "`sliding_window` is 3"),
        ("architectures", json!(["Gemma3ForSequenceClassification"]), "`architectures`"),
        ("quantization_config", json!({ "quant_method": "of tomorrow" }), "quantization_config"),
        ("model_type", json!("paligemma"), "`model_type` is \"paligemma\""),
    ] {
        let mut around = Around::of(&folder, "gemma3", false);
        around.config[key] = value;
        let e = around.logits(&tokens).expect_err(key);
        assert!(e.contains(named) && e.contains("config.json"), "{key}: {e}");
    }
    for (key, value, named) in [
        ("a_key_of_tomorrow", json!([1]), "`text_config.a_key_of_tomorrow` is [1]"),
        ("hidden_activation", json!("relu9"), "`text_config.hidden_activation` is"),
        ("quantization_config", json!({ "bits": 4 }), "`text_config.quantization_config`"),
        ("model_type", json!("gemma9"), "gemma9"),
    ] {
        let mut around = Around::of(&folder, "gemma3", false);
        around.config["text_config"][key] = value;
        let e = around.logits(&tokens).expect_err(key);
        assert!(e.contains(named), "{key}: {e}");
    }
    for (own_model, name) in
        [(false, "model.language_model.layers.0.self_attn.q_proj.bias"), (true, "language_model.model.extra"), (true, "adapter.w")]
    {
        let mut around = Around::of(&folder, "gemma3", own_model);
        around.tensors.insert(name.into(), zeros(&[3]));
        let e = around.logits(&tokens).expect_err(name);
        assert!(e.contains(&format!("the tensor `{name}` has no place")), "{name}: {e}");
    }
    let mut around = Around::of(&folder, "gemma3", false);
    let missing = "model.language_model.layers.0.mlp.up_proj.weight";
    assert!(around.tensors.remove(missing).is_some());
    let e = around.logits(&tokens).unwrap_err();
    assert!(e.contains(missing), "{e}");
}

/// A decoder alone whose folder carries towers has no place for them; what it lacks is said with its own keys.
#[test]
fn a_decoder_alone_has_no_towers() {
    let folder = path("models2/qwen3_5_text-two");
    let mut around = Around::of(&folder, "qwen3_5", false);
    around.config["text_config"]["model_type"] = json!("qwen9");
    around.config["text_config"]["mixing_rate"] = json!(0.5);
    let found = around.opened(|weights| {
        assert_eq!(weights.architecture().unwrap(), "qwen9");
        lacks(weights).unwrap().unwrap()
    });
    assert_eq!((found.architecture.as_str(), found.nearest, found.refusal), ("qwen9", "qwen3_5_text", None));
    assert_eq!((found.settings, found.tensors), (vec!["`text_config.mixing_rate` is 0.5".to_string()], vec![]));
}

/// Kimi K2 is of DeepSeek V3's architecture, under its own name.
#[test]
fn kimi_k2_is_deepseek_v3() {
    let folder = path("models2/deepseek_v3-yarn");
    let (tokens, want) = reference(&folder);
    let mut around = Around::of(&folder, "gemma3", false);
    let weights = Weights::open(&folder, &Device::cpu()).unwrap();
    around.tensors = weights.stored_names().iter().map(|name| (name.clone(), weights.any(name).unwrap())).collect();
    around.config = config(&folder);
    around.config["model_type"] = json!("kimi_k2");
    assert_close("kimi_k2", &around.logits(&tokens).unwrap(), &want, 1e-4, 1e-3);
}
