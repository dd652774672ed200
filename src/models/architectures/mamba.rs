//! Mamba (Gu & Dao, 2023) and Jamba (AI21, 2024), which has attention without positions in some layers and feed-forward parts in all.

use super::common::{self, Usual};
use super::mamba2;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{Flow, MixerSpec, NormSpec, SelectiveSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let (width, layers) = (s.need("embedding_length", "hidden_size", 1 << 20)?, s.need("block_count", "num_hidden_layers", 4096)?);
    let norm = NormSpec::rms(s.positive("attention.layer_norm_rms_epsilon", "layer_norm_epsilon")?.unwrap_or(1e-5));
    let spec = SelectiveSpec {
        inner: mamba2::inner(s, width)?,
        state: s.size("ssm.state_size", "state_size", 1 << 12)?.unwrap_or(16),
        rank: rank(s, "time_step_rank", width)?,
        taps: taps(s, "conv_kernel")?,
        conv_bias: s.flag(NONE, "use_conv_bias")?.unwrap_or(true),
        bias: s.flag(NONE, "use_bias")?.unwrap_or(false),
        activation: ActivationFn::read(s, "hidden_act", ActivationFn::Silu)?,
        norm: None,
    };
    s.only_number(NONE, "intermediate_size", spec.inner as f64, "`expand` and `hidden_size` say how many channels there are")?;
    s.only_flag("ssm.dt_b_c_rms", NONE, false, "norms of δ, B and C are not implemented for this architecture")?;
    let z = Sizes { width, layers, heads: 0, kv_heads: 0, head_dim: 0, feed: 0, context: mamba2::context(s)? };
    let names = Names::new(
        "backbone.",
        "layers",
        &[("token_embd", "backbone.embeddings"), ("output_norm", "backbone.norm_f"), ("output", "lm_head")],
        &mamba2::PARTS,
    )
    .with(&[("ssm_x", "mixer.x_proj"), ("ssm_dt", "mixer.dt_proj"), ("ssm_dt.bias", "mixer.dt_proj.bias")]);
    let mut d = Description::new("mamba", z, norm, names);
    d.each(|l| (l.flow, l.mixer) = (Flow::MixerOnly, MixerSpec::Selective(spec.clone())));
    d.head.tied = true;
    // How Δ is drawn before training, how the sums are ordered and rounded.
    let others = ["time_step_init_scheme", "time_step_scale", "use_associative_scan", "use_mambapy", "residual_in_fp32"];
    mamba2::INITIAL.iter().chain(&others).for_each(|key| s.ignore(key));
    Ok(d)
}

pub(super) fn describe_jamba(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "jamba", &Usual { kv_heads: Some(8), experts: true, mixed: true, ..Usual::default() })?;
    common::without_rope(&mut d, |_| true);
    let size = |key: &str, usual: f64| match s.number(NONE, key)?.unwrap_or(usual) {
        n if n >= 0.0 && n.fract() == 0.0 => Ok(n as usize),
        _ => Err(s.refuse(NONE, key, "expected a whole number")),
    };
    let (every, first) = (size("expert_layer_period", 2.0)?.max(1), size("expert_layer_offset", 1.0)?);
    if s.is_hub() && size("num_experts", 16.0)? > 1 && (0..d.layers.len()).any(|i| i % every == first) {
        return Err(s.refuse(NONE, "num_experts", "experts are not implemented"));
    }
    for key in ["expert_count", "expert_used_count"] {
        if s.number(key, NONE)?.is_some_and(|n| n > 1.0) {
            return Err(s.refuse(key, NONE, "experts are not implemented"));
        }
    }
    let (every, first) = (size("attn_layer_period", 8.0)?.max(1), size("attn_layer_offset", 4.0)?);
    let attention = match s.is_hub() {
        true => (0..d.layers.len()).map(|i| i % every == first).collect(),
        false => common::layers_with_attention(s, d.layers.len())?,
    };
    let spec = SelectiveSpec {
        inner: if s.is_hub() { s.size(NONE, "mamba_expand", 64)?.unwrap_or(2) * d.width } else { s.need("ssm.inner_size", NONE, 1 << 22)? },
        state: s.size("ssm.state_size", "mamba_d_state", 1 << 12)?.unwrap_or(16),
        rank: rank(s, "mamba_dt_rank", d.width)?,
        taps: taps(s, "mamba_d_conv")?,
        conv_bias: s.flag(NONE, "mamba_conv_bias")?.unwrap_or(true),
        bias: s.flag(NONE, "mamba_proj_bias")?.unwrap_or(false),
        activation: d.layers[0].feed.activation,
        norm: Some(d.norm),
    };
    let layers = d.layers.iter_mut().zip(attention).filter(|(_, attention)| !attention);
    layers.for_each(|(l, _)| l.mixer = MixerSpec::Selective(spec.clone()));
    let others = ["num_experts_per_tok", "output_router_logits", "router_aux_loss_coef"];
    others.iter().chain(&["use_mamba_kernels", "use_associative_scan", "use_mambapy"]).for_each(|key| s.ignore(key));
    d.names = Names::llama().with_top(&[("output_norm", "model.final_layernorm")]).with(&[
        ("ffn_norm", "pre_ff_layernorm"),
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
        ("ssm_in", "mamba.in_proj"),
        ("ssm_conv1d", "mamba.conv1d"),
        ("ssm_x", "mamba.x_proj"),
        ("ssm_dt", "mamba.dt_proj"),
        ("ssm_dt_norm", "mamba.dt_layernorm"),
        ("ssm_b_norm", "mamba.b_layernorm"),
        ("ssm_c_norm", "mamba.c_layernorm"),
        ("ssm_a", "mamba.A_log"),
        ("ssm_d", "mamba.D"),
        ("ssm_out", "mamba.out_proj"),
    ]);
    Ok(d)
}

/// Elements of δ: a sixteenth of the width where the settings say "auto" or nothing.
fn rank(s: &Settings<'_>, key: &str, width: usize) -> TensorResult<usize> {
    match s.is_text(key) {
        true if s.text(NONE, key)? == Some("auto") => Ok(width.div_ceil(16)),
        true => Err(s.refuse(NONE, key, "expected a size or auto")),
        false => Ok(s.size("ssm.time_step_rank", key, 1 << 16)?.unwrap_or(width.div_ceil(16))),
    }
}

fn taps(s: &Settings<'_>, key: &str) -> TensorResult<usize> {
    match s.size("ssm.conv_kernel", key, 1 << 10)?.unwrap_or(4) {
        1 => Err(s.refuse("ssm.conv_kernel", key, "a convolution sees at least two tokens")),
        taps => Ok(taps),
    }
}
