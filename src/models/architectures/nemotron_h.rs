//! Nemotron-H (NVIDIA, 2025): layers of one part each, Mamba-2, attention without positions, or a plain relu² feed-forward part.

use super::common;
use super::mamba2::{self, SsdKeys};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, Flow, GatedNorm, MixerSpec, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

/// The parts of layers by the names that settings have had for them.
const KINDS: [&[&str]; 4] = [&["linear_attention", "mamba"], &["full_attention", "attention"], &["mlp"], &["moe"]];

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let kinds = kinds(s)?;
    let need = |key: &str, most: usize| s.need(NONE, key, most);
    let heads = need("num_attention_heads", 1 << 14)?;
    let kv_heads = if s.is_null("num_key_value_heads") { heads } else { s.size(NONE, "num_key_value_heads", 1 << 14)?.unwrap_or(8) };
    let head_dim = s.size(NONE, "head_dim", 1 << 12)?.unwrap_or(128);
    let (width, context) = (need("hidden_size", 1 << 20)?, need("max_position_embeddings", 1 << 24)?);
    if heads % kv_heads != 0 {
        return Err(s.wrong(format!("{heads} heads and {kv_heads} of keys do not fit together ({})", s.sizes())));
    }
    let z = Sizes { width, layers: kinds.len(), heads, kv_heads, head_dim, feed: need("intermediate_size", 1 << 22)?, context };
    let eps = s.positive(NONE, "layer_norm_epsilon")?.unwrap_or(1e-5);
    let mut d = Description::new("nemotron_h", z, NormSpec::rms(eps), names());
    let keys = SsdKeys {
        heads: ("mamba_num_heads", 128),
        head_dim: ("mamba_head_dim", 64),
        groups: ("n_groups", 8),
        state: ("ssm_state_size", 128),
        taps: ("conv_kernel", 4),
        conv_bias: "use_conv_bias",
        activation: "mamba_hidden_act",
        inner: s.size(NONE, "mamba_num_heads", 1 << 16)?.unwrap_or(128) * s.size(NONE, "mamba_head_dim", 1 << 16)?.unwrap_or(64),
    };
    let mut spec = keys.read(s)?;
    let bias = s.flag(NONE, "use_bias")?.unwrap_or(false);
    (spec.input_bias, spec.output_bias) = (bias, bias);
    // transformers takes the least Δ of the key by which it is drawn, whatever `time_step_limit` says.
    spec.step_limits = (s.number(NONE, "time_step_min")?.unwrap_or(0.001), f64::INFINITY);
    spec.norm = Some(GatedNorm { eps, groups: spec.groups, gate_after: false });
    let (activation, bias) = (ActivationFn::read(s, "mlp_hidden_act", ActivationFn::ReluSquared)?, common::bias(s, "mlp_bias", false)?);
    for (l, kind) in d.layers.iter_mut().zip(&kinds) {
        (l.feed.form, l.feed.activation, l.feed.bias) = (FeedForm::Plain, activation, bias);
        l.flow = if *kind == 2 { Flow::FeedOnly } else { Flow::MixerOnly };
        if *kind == 0 {
            l.mixer = MixerSpec::Ssd(spec.clone());
        }
    }
    d.attentions(|a| a.rope = None);
    left_out(s)?;
    Ok(d)
}

/// The number of the row of [`KINDS`] for each layer.
fn kinds(s: &Settings<'_>) -> TensorResult<Vec<usize>> {
    let said = ["layers_block_type", "layer_types"].into_iter().find(|key| s.has_object(key));
    let kinds = match said {
        Some(key) => {
            let layers = s.texts(key)?.map_or(0, |types| types.len());
            s.ignore("hybrid_override_pattern");
            common::layer_kinds(s, &[key], layers, &KINDS)?.unwrap_or_default()
        }
        None => {
            let pattern = s.text(NONE, "hybrid_override_pattern")?.unwrap_or("ME*-");
            let known: Option<Vec<usize>> = pattern.chars().map(|c| "M*-E".find(c)).collect();
            known.ok_or_else(|| s.refuse(NONE, "hybrid_override_pattern", "expected the letters M, * and -"))?
        }
    };
    if kinds.is_empty() || kinds.contains(&3) {
        return Err(s.refuse(NONE, said.unwrap_or("hybrid_override_pattern"), "experts are not implemented"));
    }
    // The list decides.
    s.ignore("num_hidden_layers");
    Ok(kinds)
}

/// Refuses what is not implemented, and accepts what has no effect.
fn left_out(s: &Settings<'_>) -> TensorResult<()> {
    s.only_flag(NONE, "attention_bias", false, "biases of attention are not implemented")?;
    s.only_flag(NONE, "mamba_proj_bias", false, "`use_bias` says whether there are biases")?;
    if s.has_object("sliding_window") {
        return Err(s.refuse(NONE, "sliding_window", "windows are not implemented here"));
    }
    // No layer has experts; further tokens are not predicted; rounding; how sums are ordered; the sizes say it.
    for key in [
        "moe_intermediate_size",
        "moe_latent_size",
        "moe_shared_expert_intermediate_size",
        "moe_shared_expert_overlap",
        "n_group",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_experts_per_tok",
        "routed_scaling_factor",
        "topk_group",
        "output_router_logits",
        "mtp_layers_block_type",
        "mtp_hybrid_override_pattern",
        "num_nextn_predict_layers",
        "mamba_ssm_cache_dtype",
        "residual_in_fp32",
        "use_mamba_kernels",
        "chunk_size",
        "expand",
        "time_step_limit",
    ] {
        s.ignore(key);
    }
    mamba2::INITIAL.iter().for_each(|key| s.ignore(key));
    Ok(())
}

fn names() -> Names {
    Names::new(
        "backbone.",
        "layers",
        &[("token_embd", "backbone.embeddings"), ("output_norm", "backbone.norm_f"), ("output", "lm_head")],
        &[&mamba2::PARTS[..], &OTHERS].concat(),
    )
}

/// The names of what is no Mamba-2 layer.
const OTHERS: [(&str, &str); 7] = [
    ("ffn_norm", "norm"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
];
