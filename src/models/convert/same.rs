//! Whether a GGUF file says what a folder says: the descriptions that are read from both have to be the same.

use crate::error::{TensorError, TensorResult};
use crate::models::decoder::Description;
use crate::models::decoder::description::{DeltaInputs, ExpertLayout, FeedForm, JointQkv, LayerSpec, MixerSpec};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeTable;
use crate::models::settings::{NONE, Settings};
use crate::ops::rope::RopePairs;

/// Ends of the places in a description, and the keys of `config.json` that say what stands there. The first key that is there is named.
const KEYS: [(&str, &[&str]); 43] = [
    ("context", &["max_position_embeddings", "n_positions", "max_seq_len"]),
    ("mixer.window", &["layer_types", "sliding_window"]),
    ("mixer.chunk", &["attention_chunk_size"]),
    ("mixer.rope", &["no_rope_layers", "layer_types", "no_rope_layer_interval"]),
    ("mixer.growth", &["attn_temperature_tuning", "rope_parameters"]),
    ("mixer.scale", &["query_pre_attn_scalar", "attention_multiplier", "scale_attn_weights", "attn_config.softmax_scale"]),
    ("mixer.softcap", &["attn_logit_softcapping"]),
    ("mixer.clip", &["clip_qkv", "attn_config.clip_qkv"]),
    ("mixer.qk_norm", &["use_qk_norm", "qk_layernorm"]),
    ("mixer.alibi", &["alibi"]),
    ("mixer.norm", &["rms_norm_eps"]),
    ("mixer.qkv_bias", &["attention_bias", "qkv_bias", "use_bias", "bias"]),
    ("mixer.output_bias", &["attention_bias", "attention_out_bias", "use_bias", "bias"]),
    ("mixer.head_dim", &["per_layer_config", "global_head_dim", "head_dim"]),
    ("mixer.kv_heads", &["per_layer_config", "num_global_key_value_heads", "num_key_value_heads"]),
    ("norm.gate_after", &["mamba_norm_before_gate"]),
    ("mixer.heads", &["linear_attn_config", "linear_num_heads"]),
    ("step_limits", &["time_step_limit"]),
    ("ssd.output_bias", &["projectors_bias"]),
    ("input_bias", &["use_bias", "mamba_proj_bias"]),
    ("conv_bias", &["use_conv_bias", "conv_bias", "mamba_conv_bias"]),
    ("beta", &["attn_scale", "rope_parameters"]),
    ("original", &["floor_scale", "rope_parameters"]),
    ("flow", &["parallel_attn", "use_parallel_residual", "apply_residual_connection_post_layernorm"]),
    ("feed_norm", &["new_decoder_architecture", "parallel_attn"]),
    ("ssd.activation", &["hidden_act"]),
    ("mixer.activation", &["mamba_hidden_act", "hidden_act"]),
    ("activation", &["mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function", "activation"]),
    ("form.alpha", &["swiglu_alpha"]),
    ("form.limit", &["swiglu_limit"]),
    ("feed.bias", &["mlp_bias", "use_bias", "bias"]),
    ("router.correction", &["use_expert_bias"]),
    ("router.divisor", &["norm_topk_prob", "moe_renormalize", "moe_norm_min"]),
    ("router.scale", &["routed_scaling_factor"]),
    ("router.groups", &["n_group", "topk_group"]),
    ("router", &["scoring_func", "norm_topk_prob"]),
    ("shared", &["shared_expert_combination_strategy"]),
    (
        "feed.size",
        &["mlp_only_layers", "moe_layers", "decoder_sparse_step", "mlp_layer_types", "first_k_dense_replace", "intermediate_size"],
    ),
    (
        "experts",
        &["mlp_only_layers", "moe_layers", "decoder_sparse_step", "mlp_layer_types", "first_k_dense_replace", "moe_layer_interval"],
    ),
    ("head.scale", &["logit_scale", "logits_scaling"]),
    ("head.softcap", &["final_logit_softcapping"]),
    ("ropes", &["layer_rope_theta", "rope_scaling", "rope_parameters"]),
    ("layers.mixer", &["layer_types", "full_attn_idxs"]),
];

/// Refuses the settings of which a GGUF file, read as `file`, would say something else than the folder's `hub`.
pub(super) fn check(s: &Settings<'_>, hub: &Description, file: &Description) -> TensorResult<()> {
    let (mut hub, mut file) = (plain(hub), plain(file));
    // Where GGUF leaves open whether there are biases, they are taken where they are.
    hub.layers.iter_mut().zip(&mut file.layers).for_each(|(hub, file)| open_biases(hub, file));
    let (hub, file) = (format!("{hub:#?}"), format!("{file:#?}"));
    let mut path: Vec<&str> = Vec::new();
    for (a, b) in hub.lines().zip(file.lines()) {
        let depth = (a.len() - a.trim_start().len()) / 4;
        path.resize(depth.max(1) - 1, "");
        path.push(a.trim_start().split_once(": ").map_or("", |(name, _)| name));
        if !same(a, b) {
            return Err(refusal(s, &path, [a, b]));
        }
    }
    match hub.lines().count() == file.lines().count() {
        true => Ok(()),
        false => Err(TensorError::Internal("descriptions of different lengths that begin alike".into())),
    }
}

/// An error that names the setting, if `config.json` has one for this place.
fn refusal(s: &Settings<'_>, path: &[&str], [hub, file]: [&str; 2]) -> TensorError {
    let path = path.iter().copied().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(".");
    let at = |place: &str| path.ends_with(place) || path.contains(&format!("{place}."));
    // The first of the rows that fit is the closest one.
    let keys = KEYS.iter().find(|(place, _)| at(place)).map_or(&[][..], |(_, keys)| keys);
    if let Some(key) = keys.iter().find(|key| s.says(key)) {
        return s.refuse(NONE, key, "GGUF has no key for it");
    }
    let value = |line: &str| line.trim().split_once(": ").map_or(line.trim(), |(_, value)| value).trim_end_matches(',').to_string();
    let message = format!("{}: GGUF has no key for it: `{path}` would be {}, not {}", s.file(), value(file), value(hub));
    TensorError::Unsupported(message)
}

/// Whether two lines say the same, but for the rounding of numbers to f32.
fn same(a: &str, b: &str) -> bool {
    let number = |line: &str| line.rsplit(' ').next().and_then(|word| word.trim_end_matches(',').parse::<f64>().ok());
    match (number(a), number(b)) {
        (Some(x), Some(y)) => x == y || (x - y).abs() <= 1e-6 * x.abs().max(y.abs()),
        _ => a == b,
    }
}

/// What a description says, without what is the same model under other names or in another order.
fn plain(d: &Description) -> Description {
    let mut used: Vec<usize> = Vec::new();
    let mut d = Description {
        architecture: "",
        names: Names::llama(),
        unused: &[],
        left_out: Vec::new(),
        final_norm_name: "",
        dtype: None,
        rope_positions: 0,
        // These are the layers' own.
        heads: 0,
        kv_heads: 0,
        head_dim: 0,
        ..d.clone()
    };
    d.head.tied = false;
    let mut renumbered = |rope: &mut Option<usize>| {
        if let Some(r) = rope {
            let found = used.iter().position(|u| u == r);
            *r = found.unwrap_or_else(|| {
                used.push(*r);
                used.len() - 1
            });
        }
    };
    for l in &mut d.layers {
        l.feed.xielu = None;
        // What a layer has not.
        if !l.flow.has_feed() {
            l.feed.size = 0;
        }
        if let Some(a) = l.mixer.attention_mut().filter(|_| !l.flow.has_mixer()) {
            a.kv_heads = 0;
        }
        if l.feed.form == FeedForm::GatedJoint {
            l.feed.form = FeedForm::Gated;
        }
        l.feed.experts.iter_mut().for_each(|e| e.layout = ExpertLayout::OneByOne);
        match &mut l.mixer {
            MixerSpec::Attention(a) => {
                a.scale = a.scale.or(Some(1.0 / (a.head_dim as f64).sqrt()));
                if a.joint == JointQkv::Grouped {
                    a.joint = JointQkv::Sorted;
                }
                [&mut a.rope, &mut a.query_rope, &mut a.growth].into_iter().for_each(&mut renumbered);
            }
            MixerSpec::Beside(b) => renumbered(&mut b.attention.rope),
            MixerSpec::Latent(l) => [&mut l.rope, &mut l.growth].into_iter().for_each(&mut renumbered),
            MixerSpec::Delta(delta) => (delta.spread, delta.inputs) = (false, DeltaInputs::JointQkv),
            _ => {}
        }
    }
    d.ropes = used.iter().filter_map(|&r| d.ropes.get(r)).map(in_halves).collect();
    d
}

/// A rotation as it is before rows are reordered.
fn in_halves(table: &RopeTable) -> RopeTable {
    let pairs = if table.reordered { RopePairs::Halves } else { table.pairs };
    RopeTable { pairs, reordered: false, base: 0.0, yarn: None, ..table.clone() }
}

fn open_biases(hub: &mut LayerSpec, file: &mut LayerSpec) {
    let open = |hub: &mut Option<bool>, file: &mut Option<bool>| {
        if file.is_none() {
            *hub = None;
        }
    };
    if let (Some(a), Some(b)) = (hub.mixer.attention_mut(), file.mixer.attention_mut()) {
        open(&mut a.qkv_bias, &mut b.qkv_bias);
        open(&mut a.output_bias, &mut b.output_bias);
    }
    if let (MixerSpec::Latent(a), MixerSpec::Latent(b)) = (&mut hub.mixer, &mut file.mixer) {
        open(&mut a.bias, &mut b.bias);
    }
    open(&mut hub.feed.bias, &mut file.feed.bias);
    if let (Some(a), Some(b)) = (&mut hub.feed.experts, &mut file.feed.experts) {
        open(&mut a.bias, &mut b.bias);
    }
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn numbers_are_the_same_within_the_rounding_of_f32() {
        assert!(same("    eps: 1e-6,", &format!("    eps: {},", f64::from(1e-6f32))));
        assert!(!same("    eps: 1e-6,", "    eps: 1.1e-6,"));
        assert!(same("    most: inf,", "    most: inf,"));
        assert!(!same("    window: None,", "    window: Some("));
    }
}
