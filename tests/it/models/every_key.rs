//! No setting passes without a word: each key of the configuration classes of the decoders and encoders (`tests/vectors/config_keys/keys_of_types.json`)
//! is refused by name with some value, or changes what the model computes, or is written down as without effect.

use super::convert::with_latents;
use super::layouts::layouts;
use super::model_settings::{Folder, load, logits, others, read_json, vectors};
use serde_json::{Map, Value as Json};
use std::collections::BTreeSet;
use tensorlogic::io::SafeTensors;
use tensorlogic::models::inference::Inputs;
use tensorlogic::models::settings::without_effect;
use tensorlogic::models::{self, Encoder, ImageTextModel, KvCache, Seq2Seq, VisionTower, Weights};
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// Keys without effect in models of a type, or in the one that lies here, with the reason.
const WITHOUT: [(&str, &[&str], &str); 19] = [
    ("dinov2", &["out_features", "out_indices", "stage_names"], "which layers a backbone returns"),
    ("falcon_h1", &["mamba_chunk_size", "mamba_expand"], "positions that a kernel takes at a time; the width, which `mamba_d_ssm` has too"),
    ("gemma3n_text", &["altup_coef_clip"], "training clips, inference does not"),
    ("gpt_neo", &["attention_types"], "`attention_layers` is the same list, and decides in transformers too"),
    ("granitemoehybrid", &["mamba_chunk_size"], "positions that a kernel takes at a time"),
    ("jamba", &["num_experts_per_tok"], "this one has a single expert"),
    ("jamba", &["use_associative_scan", "use_mamba_kernels", "use_mambapy"], "kernels"),
    ("kimi_linear", &["head_dim"], "heads have the sizes of latent attention"),
    ("lfm2", &["full_attn_idxs"], "this one has `layer_types`"),
    (
        "mamba",
        &["rescale_prenorm_residual", "time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min", "time_step_scale"],
        "first weights",
    ),
    ("mamba", &["residual_in_fp32", "use_associative_scan", "use_mambapy"], "types and kernels"),
    ("mamba2", &["rescale_prenorm_residual", "time_step_floor", "time_step_max", "time_step_min", "time_step_rank"], "first weights"),
    ("mamba2", &["chunk_size", "residual_in_fp32"], "types and kernels"),
    ("nemotron_h", &["rescale_prenorm_residual", "time_step_floor", "time_step_max"], "first weights"),
    (
        "nemotron_h",
        &["chunk_size", "expand", "mamba_ssm_cache_dtype", "residual_in_fp32", "use_mamba_kernels", "moe_shared_expert_overlap"],
        "types and kernels; the width, which the heads have too",
    ),
    ("olmo_hybrid", &["linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max", "linear_dt_min"], "first weights"),
    ("qwen2_moe", &["sliding_window"], "`use_sliding_window` is false"),
    ("qwen3_moe", &["sliding_window"], "`use_sliding_window` is false"),
    (
        "whisper",
        &[
            "decoder_layerdrop",
            "encoder_layerdrop",
            "mask_feature_length",
            "mask_feature_min_masks",
            "mask_feature_prob",
            "mask_time_length",
            "mask_time_min_masks",
            "mask_time_prob",
        ],
        "training leaves out layers and masks features, inference does not",
    ),
];

/// Keys of parts that the model which lies here does not have.
const OF_OTHER_PARTS: [(&str, &[&str], &str); 2] = [
    (
        "nemotron_h",
        &[
            "moe_intermediate_size",
            "moe_latent_size",
            "moe_shared_expert_intermediate_size",
            "n_group",
            "n_routed_experts",
            "n_shared_experts",
            "norm_topk_prob",
            "num_experts_per_tok",
            "routed_scaling_factor",
            "topk_group",
        ],
        "experts",
    ),
    ("nemotron_h", &["mtp_layers_block_type", "num_nextn_predict_layers"], "layers that guess further tokens"),
];

/// Whether a key is known to have no effect on this type's model.
fn is_without(kind: &str, key: &str) -> bool {
    WITHOUT.iter().chain(&OF_OTHER_PARTS).any(|(k, keys, _)| *k == kind && keys.contains(&key))
}

/// What is wrong with a key of a model that computes `want`; `run` loads the model of other settings. The key may be one of an object.
fn check(
    config: &Map<String, Json>,
    (part, key): (Option<&str>, &str),
    want: &[f32],
    run: impl Fn(&Json) -> Result<Vec<f32>, String>,
) -> Option<String> {
    if without_effect(key).is_some() {
        return None;
    }
    let inside = part.map_or(config, |part| config[part].as_object().unwrap());
    let own = inside.get(key).unwrap_or(&Json::Null);
    for value in others(own) {
        let mut changed = config.clone();
        match part {
            Some(part) => changed[part][key] = value.clone(),
            None => drop(changed.insert(key.into(), value.clone())),
        }
        match run(&Json::Object(changed)) {
            Err(e) if e.contains(key) => return None,
            Err(e) => return Some(format!("{key} = {value} is refused without its name: {e}")),
            Ok(got) if got != want => return None,
            Ok(_) => {}
        }
    }
    Some(format!("{key} = {own}: no other value is refused or changes a logit"))
}

/// Checks the keys of a type, or of a part of it, and those that the model's own settings have besides. `kind` is the type's name, with its part's.
fn walk(
    kind: &str,
    part: Option<&str>,
    config: &Map<String, Json>,
    run: &dyn Fn(&Json) -> Result<Vec<f32>, String>,
    wrong: &mut Vec<String>,
) {
    let classes = read_json(&vectors("config_keys/keys_of_types.json"));
    let of_class = classes[kind].as_array().into_iter().flatten().filter_map(Json::as_str);
    let inside = part.map_or(config, |part| config[part].as_object().unwrap());
    let keys: BTreeSet<&str> = of_class.chain(inside.keys().map(String::as_str)).collect();
    let want = run(&Json::Object(config.clone())).unwrap_or_else(|e| panic!("{kind}: {e}"));
    assert!(want.iter().all(|v| v.is_finite()), "{kind}");
    for key in keys.into_iter().filter(|key| part.is_some() || !PARTS.contains(key)) {
        match check(config, (part, key), &want, run) {
            // None of its values is refused or changes a logit.
            Some(_) if is_without(kind, key) => {}
            None if is_without(kind, key) => wrong.push(format!("{kind}: {key} has an effect after all")),
            what => wrong.extend(what.map(|what| format!("{kind}: {what}"))),
        }
    }
}

/// Settings of towers, which are walked like a model's.
const PARTS: [&str; 2] = ["text_config", "vision_config"];

#[test]
fn every_key_of_every_decoder_is_read() {
    let (mut wrong, mut types, random) = (Vec::new(), BTreeSet::new(), Folder::new());
    let mut folders: Vec<_> = std::fs::read_dir(vectors("models2")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    for (name, layout) in layouts() {
        layout.write(&random.path().join(&name));
        folders.push(random.path().join(&name));
    }
    let latents = random.path().join("mistral4");
    std::fs::create_dir_all(&latents).unwrap();
    with_latents(&latents);
    folders.push(latents);
    for base in folders.iter().filter(|path| path.join("config.json").exists()) {
        let Json::Object(config) = read_json(&base.join("config.json")) else { panic!("{}", base.display()) };
        let kind = config["model_type"].as_str().unwrap().to_string();
        let (folder, tokens): (_, Vec<u32>) = (Folder::new(), (1..12).collect());
        let run = |config: &Json| load(&folder.model_like(base, config)).map(|model| logits(&*model, &tokens));
        if types.contains(&kind) || run(&Json::Object(config.clone())).is_err() {
            continue;
        }
        walk(&kind, None, &config, &run, &mut wrong);
        types.insert(kind);
    }
    assert!(wrong.is_empty(), "{} keys:\n{}", wrong.len(), wrong.join("\n"));
    let known = models::supported().filter(|a| !a.names.iter().any(|name| types.contains(*name))).map(|a| a.names[0]);
    assert_eq!(known.collect::<Vec<_>>(), [""; 0], "these are not walked; those that are: {types:?}");
}

/// What the model of a folder of another kind computes of the inputs of its references.
fn outputs(kind: &str, inputs: &SafeTensors, weights: &Weights) -> TensorResult<Vec<f32>> {
    let read = |name: &str| inputs.load(name, &Device::cpu());
    let integers = |name: &str| read(name)?.cast(DType::I32);
    let all = |parts: &[Option<&Tensor>]| parts.iter().flatten().map(|t| t.to_vec()).collect::<TensorResult<Vec<_>>>().map(|v| v.concat());
    match kind {
        "pair" => {
            let model = ImageTextModel::load(weights, Some(DType::F32))?;
            let got = model.compare(&read("in.pixel_values")?, &Inputs::tokens(&integers("in.input_ids")?))?;
            all(&[Some(&got.images), Some(&got.texts), Some(&got.logits)])
        }
        "vision" | "imageclass" => {
            let got = VisionTower::load(weights, Some(DType::F32))?.run(&read("in.pixel_values")?)?;
            all(&[Some(&got.hidden_states), got.pooled.as_ref(), got.logits.as_ref()])
        }
        "seq2seq" | "speech" => {
            let model = Seq2Seq::load(weights, Some(DType::F32))?;
            let source = match kind {
                "speech" => model.listen(&read("in.input_features")?)?,
                _ => model.read(&Inputs::tokens(&integers("in.input_ids")?).attention_mask(&integers("in.attention_mask")?))?,
            };
            let logits = model.logits(&integers("in.decoder_input_ids")?, &source, &mut KvCache::none())?;
            all(&[Some(&source.states()?), Some(&logits)])
        }
        _ => {
            let tokens = Inputs::tokens(&integers("in.input_ids")?).attention_mask(&integers("in.attention_mask")?);
            let got = Encoder::load(weights, Some(DType::F32))?.run(&tokens)?;
            all(&[Some(&got.hidden_states), got.pooler.as_ref(), got.logits.as_ref()])
        }
    }
}

#[test]
fn every_key_of_every_encoder_is_read() {
    let (mut wrong, mut types) = (Vec::new(), BTreeSet::new());
    let root = vectors("encoders/models2");
    let manifest = read_json(&root.join("manifest.json"));
    for model in manifest["models"].as_array().unwrap() {
        let base = root.join(model["dir"].as_str().unwrap());
        let Json::Object(config) = read_json(&base.join("config.json")) else { panic!("{}", base.display()) };
        let Some(kind) = model["kind"].as_str() else { continue };
        // Heads have keys of their own.
        let name = config["model_type"].as_str().unwrap().to_string();
        types.insert(name.clone());
        let inputs = SafeTensors::open(base.join("expected.safetensors")).unwrap();
        let folder = Folder::new();
        let run = |config: &Json| outputs(kind, &inputs, &folder.model_like(&base, config)).map_err(|e| e.to_string());
        walk(&name, None, &config, &run, &mut wrong);
        for part in PARTS.into_iter().filter(|part| config.contains_key(*part)) {
            walk(&format!("{name}.{part}"), Some(part), &config, &run, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{} keys:\n{}", wrong.len(), wrong.join("\n"));
    assert!(types.len() >= 17, "only {types:?}");
}
