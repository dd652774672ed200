//! No setting passes without a word: each key of the configuration classes of the decoders that lie here (`tests/vectors/config_keys/keys_of_types.json`) is refused
//! by name with some value, or changes what the model computes, or is written down as without effect.

use super::model_settings::{Folder, load, logits, others, read_json, vectors};
use serde_json::{Map, Value as Json};
use std::collections::BTreeSet;
use std::path::Path;
use tensorlogic::models::settings::without_effect;

/// Keys without effect in models of a type, or in the one that lies here, with the reason.
const WITHOUT: [(&str, &[&str], &str); 13] = [
    ("falcon_h1", &["mamba_chunk_size", "mamba_expand"], "positions that a kernel takes at a time; the width, which `mamba_d_ssm` has too"),
    ("gemma3n_text", &["altup_coef_clip"], "training clips, inference does not"),
    ("granitemoehybrid", &["mamba_chunk_size"], "positions that a kernel takes at a time"),
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

/// What is wrong with a key of a model, of whose settings these are the values.
fn check(folder: &Folder, base: &Path, config: &Map<String, Json>, key: &str, (tokens, want): (&[u32], &[f32])) -> Option<String> {
    if without_effect(key).is_some() {
        return None;
    }
    let own = config.get(key).unwrap_or(&Json::Null);
    for value in others(own) {
        let mut changed = config.clone();
        changed.insert(key.into(), value.clone());
        match load(&folder.model_like(base, &Json::Object(changed))) {
            Err(e) if e.contains(key) => return None,
            Err(e) => return Some(format!("{key} = {value} is refused without its name: {e}")),
            Ok(model) if logits(&*model, tokens) != want => return None,
            Ok(_) => {}
        }
    }
    Some(format!("{key} = {own}: no other value is refused or changes a logit"))
}

#[test]
fn every_key_of_every_decoder_is_read() {
    let classes = read_json(&vectors("config_keys/keys_of_types.json"));
    let (mut wrong, mut types) = (Vec::new(), BTreeSet::new());
    let mut folders: Vec<_> = std::fs::read_dir(vectors("models2")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    for base in folders.iter().filter(|path| path.join("config.json").exists()) {
        let Json::Object(config) = read_json(&base.join("config.json")) else { panic!("{}", base.display()) };
        let kind = config["model_type"].as_str().unwrap().to_string();
        let Some(keys) = classes[&kind].as_array() else { continue };
        let folder = Folder::new();
        let Ok(model) = load(&folder.model_like(base, &Json::Object(config.clone()))) else { continue };
        if !types.insert(kind.clone()) {
            continue;
        }
        let tokens: Vec<u32> = (1..12).collect();
        let want = logits(&*model, &tokens);
        for key in keys.iter().filter_map(Json::as_str) {
            match check(&folder, base, &config, key, (&tokens, &want)) {
                // None of its values is refused or changes a logit.
                Some(_) if is_without(&kind, key) => {}
                None if is_without(&kind, key) => wrong.push(format!("{kind}: {key} has an effect after all")),
                what => wrong.extend(what.map(|what| format!("{kind}: {what}"))),
            }
        }
    }
    assert!(types.len() >= 40, "only {types:?}");
    assert!(wrong.is_empty(), "{} keys:\n{}", wrong.len(), wrong.join("\n"));
}
