//! No setting passes without a word: each key of the configuration classes of the decoders and encoders (`tests/vectors/config_keys/keys_of_types.json`)
//! is refused by name with some value, or changes what the model computes, or is written down as without effect.

use super::convert::with_latents;
use super::layouts::layouts;
use super::model_settings::{Folder, load, logits, others, read_json, vectors};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;
use tensorlogic::io::SafeTensors;
use tensorlogic::models::inference::Inputs;
use tensorlogic::models::settings::without_effect;
use tensorlogic::models::{self, Encoder, ImageTextModel, KvCache, Seq2Seq, VisionTower, Weights};
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// Keys without effect in models of a type, in all (`*`), or in the test model, with the reason.
const WITHOUT: [(&str, &[&str], &str); 53] = [
    (
        "*",
        &["_sliding_window_pattern", "no_rope_layer_interval", "sliding_window_pattern"],
        "a list of layers says it, which the test model has too",
    ),
    ("*", &["architectures"], "the model's own: no other value is tried"),
    ("*", &["input_jitter_noise", "router_jitter_noise"], "training adds noise, inference does not"),
    ("*", &["num_nextn_predict_layers"], "layers that guess further tokens"),
    ("*", &["tie_word_embeddings"], "transformers ties no matrices that are both in the file"),
    ("*", &["topk_group"], "experts are one group"),
    ("bloom", &["slow_but_exact"], "the order of sums"),
    ("clip", &["logit_scale_init_value"], "first weights"),
    ("clip.text_config", &["projection_dim"], "the size beside both towers decides"),
    ("clip.vision_config", &["projection_dim"], "the size beside both towers decides"),
    ("cohere2_moe", &["prefix_dense_intermediate_size", "prefix_dense_sliding_window_pattern"], "all layers here have experts"),
    ("cohere2_moe", &["rope_theta"], "`rope_parameters` has one, which decides in transformers too"),
    ("deepseek_v2", &["n_group"], "`topk_method` is greedy"),
    ("dinov2", &["apply_layernorm", "out_features", "out_indices", "reshape_hidden_states", "stage_names"], "what a backbone returns"),
    ("dinov2", &["drop_path_rate", "layerscale_value"], "training, and first weights"),
    ("dinov2", &["intermediate_size"], "`mlp_ratio` decides in transformers too"),
    ("dinov2", &["use_mask_token"], "masks of training"),
    ("distilbert", &["sinusoidal_pos_embds"], "first weights"),
    ("dots1", &["max_window_layers", "sliding_window"], "no layer has a sliding window"),
    ("falcon", &["num_kv_heads", "num_ln_in_parallel_attn"], "`new_decoder_architecture` is false"),
    ("falcon_h1", &["mamba_chunk_size", "mamba_expand"], "positions that a kernel takes at a time; the width, which `mamba_d_ssm` has too"),
    ("falcon_h1", &["mamba_norm_before_gate"], "`mamba_rms_norm` is false"),
    ("gemma3n_text", &["altup_coef_clip"], "training clips, inference does not"),
    ("gemma4_text", &["use_double_wide_mlp", "vocab_size_per_layer_input"], "no layer shares keys, and none has embeddings of its own"),
    ("gpt_bigcode", &["attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"], "all is computed in f32"),
    ("gpt_neo", &["attention_types"], "`attention_layers` is the same list, and decides in transformers too"),
    ("granitemoehybrid", &["mamba_chunk_size"], "positions that a kernel takes at a time"),
    ("jamba", &["num_experts_per_tok"], "this one has a single expert"),
    ("jamba", &["use_associative_scan", "use_mamba_kernels", "use_mambapy"], "kernels"),
    ("kimi_linear", &["head_dim"], "heads have the sizes of latent attention"),
    ("lfm2", &["block_ffn_dim_multiplier", "block_multiple_of"], "`block_auto_adjust_ff_dim` is false"),
    ("lfm2", &["full_attn_idxs"], "this one has `layer_types`"),
    ("llama4_text", &["interleave_moe_layer_step"], "this one has `moe_layers`"),
    (
        "mamba",
        &["rescale_prenorm_residual", "time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min", "time_step_scale"],
        "first weights",
    ),
    ("mamba", &["residual_in_fp32", "use_associative_scan", "use_mambapy"], "types and kernels"),
    ("mamba2", &["rescale_prenorm_residual", "time_step_floor", "time_step_max", "time_step_min", "time_step_rank"], "first weights"),
    ("mamba2", &["chunk_size", "residual_in_fp32"], "types and kernels"),
    ("minimax_m2", &["rotary_dim"], "`rope_parameters` has the part that rotates, which decides in transformers too"),
    ("modernbert", &["classifier_bias", "decoder_bias"], "heads that this one does not have"),
    ("mpnet", &["type_vocab_size"], "tokens have no types"),
    ("mpt", &["expansion_ratio", "init_device", "learned_pos_emb", "no_bias", "norm_type"], "transformers does not read them either"),
    ("nemotron_h", &["rescale_prenorm_residual", "time_step_floor", "time_step_max"], "first weights"),
    (
        "nemotron_h",
        &["chunk_size", "expand", "mamba_ssm_cache_dtype", "residual_in_fp32", "use_mamba_kernels", "moe_shared_expert_overlap"],
        "types and kernels; the width, which the heads have too",
    ),
    ("olmo_hybrid", &["linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max", "linear_dt_min"], "first weights"),
    ("phi3", &["original_max_position_embeddings"], "positions are not scaled"),
    ("qwen2", &["max_window_layers", "sliding_window", "use_sliding_window"], "no layer has a sliding window"),
    ("qwen2_moe", &["max_window_layers", "sliding_window"], "`use_sliding_window` is false"),
    ("qwen3_5_moe_text", &["intermediate_size"], "all layers have experts"),
    ("qwen3_moe", &["sliding_window", "use_sliding_window"], "no layer has a sliding window"),
    ("qwen3_next", &["intermediate_size"], "all layers have experts"),
    ("smollm3", &["sliding_window", "use_sliding_window"], "no layer has a sliding window"),
    ("vit", &["encoder_stride", "pooler_output_size"], "a head of training, and a pooler, which this one does not have"),
    (
        "whisper",
        &[
            "apply_spec_augment",
            "classifier_proj_size",
            "decoder_layerdrop",
            "encoder_layerdrop",
            "mask_feature_length",
            "mask_feature_min_masks",
            "mask_feature_prob",
            "mask_time_length",
            "mask_time_min_masks",
            "mask_time_prob",
            "median_filter_width",
            "scale_embedding",
            "use_weighted_layer_sum",
        ],
        "training leaves out layers and masks features; times of words and classes of sounds are not computed; transformers scales no embeddings either",
    ),
];

/// Keys of parts that the test model lacks.
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

/// Keys without effect in an encoder of a type that has a decoder as test model, too.
const OF_ENCODERS: [(&str, &[&str], &str); 1] =
    [("qwen3", &["max_window_layers", "sliding_window", "use_sliding_window"], "no layer has a sliding window")];

/// Whether a key is listed as without effect for one of these types.
fn is_listed(kinds: &[&str], key: &str) -> bool {
    WITHOUT.iter().chain(&OF_OTHER_PARTS).any(|(kind, keys, _)| kinds.contains(kind) && keys.contains(&key))
}

/// Keys of values that have to fit another one, which the refusal names.
const FITTING: [(&str, &str); 5] = [
    ("do_layer_norm_before", "_remove_final_layer_norm"),
    ("multi_query", "num_key_value_heads"),
    ("num_attention_heads", "rotary_pct"),
    ("num_hidden_layers", "no_rope_layers"),
    ("use_sliding_window", "sliding_window"),
];

/// Whether a setting was refused since it is of another type than expected, or a size that none can have.
fn is_of_another_type(error: &str) -> bool {
    [", not a ", ", not true or false", "expected a whole number from 1"].iter().any(|what| error.contains(what))
}

/// Keys that the library lists as without effect, and that have one in these types.
const WITH_EFFECT: [(&str, &str, &str); 3] = [
    ("clip.text_config", "eos_token_id", "the state of this token is the text's embedding"),
    ("roberta", "pad_token_id", "positions begin behind it"),
    ("xlm-roberta", "pad_token_id", "positions begin behind it"),
];

/// What is wrong with a key of a model that computes `want`; `run` loads the model of other settings. The key may be one of an object. If it is `listed` as
/// without effect, each value is refused by name or changes nothing.
fn check(
    config: &Map<String, Json>,
    (part, key): (Option<&str>, &str),
    listed: bool,
    want: &[f32],
    run: impl Fn(&Json) -> Result<Vec<f32>, String>,
) -> Option<String> {
    let inside = part.map_or(config, |part| config[part].as_object().unwrap());
    let own = inside.get(key).unwrap_or(&Json::Null);
    let more = match own {
        Json::Null => vec![json!(false), json!(0.5), json!([1]), json!(["another"])],
        Json::Array(items) if items.is_empty() => vec![json!([0]), json!([1])],
        _ => vec![],
    };
    for value in others(own).into_iter().chain(more) {
        let mut changed = config.clone();
        match part {
            Some(part) => changed[part][key] = value.clone(),
            None => drop(changed.insert(key.into(), value.clone())),
        }
        match run(&Json::Object(changed)) {
            Err(e) if listed && !e.contains(key) => return Some(format!("{key} = {value} is refused without its name: {e}")),
            Err(_) if listed => {}
            Ok(got) if listed && got != want => {
                return Some(format!("{key} = {value} has an effect, and is listed in the library as without"));
            }
            // That a value of another type is refused says nothing of those of its own.
            Err(e) if e.contains(key) && is_of_another_type(&e) => {}
            Err(e) if FITTING.iter().any(|(own, other)| *own == key && e.contains(&format!("`{other}`"))) => return None,
            Err(e)
                if e.contains(key)
                    || ["the tensor `", "no tensor `", "has shape ", "images have shape "].iter().any(|what| e.contains(what)) =>
            {
                return None;
            }
            Err(e) => return Some(format!("{key} = {value} is refused without its name: {e}")),
            Ok(got) if got != want => return None,
            Ok(_) => {}
        }
    }
    (!listed).then(|| format!("{key} = {own}: no other value is refused or changes a logit"))
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
        let listed = without_effect(key).is_some() && !WITH_EFFECT.iter().any(|(own, other, _)| (*own, *other) == (kind, key));
        match check(config, (part, key), listed, &want, run) {
            // None of its values is refused or changes a logit.
            Some(_) if !listed && is_listed(&["*", kind], key) => {}
            None if is_listed(&[kind], key) => wrong.push(format!("{kind}: {key} has an effect after all")),
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
        let run = |config: &Json| {
            // Its context is a result, too.
            load(&folder.model_like(base, config)).map(|model| [logits(&*model, &tokens), vec![model.shape().context as f32]].concat())
        };
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
        // The longest text is a result, too.
        let run = |config: &Json| {
            let weights = folder.model_like(&base, config);
            let longest = Encoder::load(&weights, Some(DType::F32)).ok().map(|e| e.shape().context as f32);
            outputs(kind, &inputs, &weights).map(|got| [got, longest.into_iter().collect()].concat()).map_err(|e| e.to_string())
        };
        walk(&name, None, &config, &run, &mut wrong);
        for part in PARTS.into_iter().filter(|part| config.contains_key(*part)) {
            walk(&format!("{name}.{part}"), Some(part), &config, &run, &mut wrong);
        }
    }
    let is_known =
        |w: &String| OF_ENCODERS.iter().any(|(kind, keys, _)| keys.iter().any(|key| w.starts_with(&format!("{kind}: {key} = "))));
    wrong.retain(|w| !is_known(w));
    assert!(wrong.is_empty(), "{} keys:\n{}", wrong.len(), wrong.join("\n"));
    assert!(types.len() >= 17, "only {types:?}");
}
