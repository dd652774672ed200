//! Granite 4 (IBM, 2025): Granite with Mamba-2 layers in the place of most attention, which does not rotate positions.

use super::common::{self, Usual};
use super::mamba2::SsdKeys;
use super::{Named, experts, granite, granitemoe};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::decoder::Description;
use crate::models::decoder::description::{ExpertLayout, FeedForm, GatedNorm, MixerSpec, SharedSpec, SsdSpec};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "granitehybrid", &Usual { rope: common::reordered(), experts: true, mixed: true, ..Usual::default() })?;
    granite::multipliers(s, &mut d)?;
    common::biases(s, &mut d)?;
    let positions = if s.is_null("position_embedding_type") { None } else { s.text(NONE, "position_embedding_type")? };
    if positions.is_some_and(|p| !["rope", "nope"].contains(&p)) {
        return Err(s.refuse(NONE, "position_embedding_type", "it must be rope or nope"));
    }
    // llama.cpp has this key for it.
    let rotated = if s.is_hub() { positions == Some("rope") } else { s.flag("rope.scaling.finetuned", NONE)?.unwrap_or(true) };
    if !rotated {
        common::without_rope(&mut d, |_| true);
    }
    // The size of experts stands in its usual place.
    let size = d.layers[0].feed.size;
    let shared = s.size("expert_shared_feed_forward_length", "shared_intermediate_size", 1 << 22)?;
    let count = s.number("expert_count", "num_local_experts")?;
    let dense = count == Some(0.0) || count.is_none() && !s.is_hub();
    let shared = shared.unwrap_or(if dense && !s.is_hub() { size } else { 1024 });
    if s.is_hub() {
        d.each(|l| l.feed.form = FeedForm::GatedJoint);
    }
    if dense {
        s.ignore("num_experts_per_tok");
        d.each(|l| l.feed.size = if s.is_hub() { shared } else { size });
    } else {
        let mut spec = experts::experts(s, &experts::counts([8, 2]), granitemoe::ROUTER)?;
        spec.layout = ExpertLayout::Joint;
        spec.shared = Some(SharedSpec { size: shared, gated: false, mean: false });
        experts::put(&mut d, &spec, size, |_| true);
    }
    s.ignore("mamba_chunk_size");
    let inner =
        if s.is_hub() { s.size(NONE, "mamba_expand", 64)?.unwrap_or(2) * d.width } else { s.need("ssm.inner_size", NONE, 1 << 22)? };
    let mut spec = bamba(s, inner)?;
    let bias = s.flag(NONE, "mamba_proj_bias")?.unwrap_or(false);
    (spec.input_bias, spec.output_bias) = (bias, bias);
    spec.norm = Some(GatedNorm { eps: d.norm.eps, groups: spec.groups, gate_after: false });
    let known: [&[&str]; 2] = [&["full_attention", "attention"], &["linear_attention", "mamba"]];
    let kinds = common::layer_kinds(s, &["layer_types", "layers_block_type"], d.layers.len(), &known)?;
    let kinds = match kinds {
        Some(kinds) => kinds,
        None if s.is_hub() => vec![1; d.layers.len()],
        None => common::layers_with_attention(s, d.layers.len())?.into_iter().map(|attention| usize::from(!attention)).collect(),
    };
    for (l, _) in d.layers.iter_mut().zip(kinds).filter(|(_, kind)| *kind == 1) {
        l.mixer = MixerSpec::Ssd(spec.clone());
    }
    let [up, down] = if dense { ["ffn_up", "ffn_down"] } else { ["ffn_up_shexp", "ffn_down_shexp"] };
    d.names = names().with(&granitemoe::NAMES).with(&[(up, "shared_mlp.input_linear"), (down, "shared_mlp.output_linear")]);
    Ok(d)
}

/// The divisor of logits, and whether positions rotate.
pub(super) fn gguf_keys(s: &Settings<'_>, d: &Description, tensors: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    w.set("granitehybrid.rope.scaling.finetuned", d.layers.iter().any(|l| l.mixer.attention().is_some_and(|a| a.rope.is_some())));
    granite::gguf_keys(s, d, tensors, w)
}

/// A state space layer by the keys that start with `mamba_`.
pub(super) fn bamba(s: &Settings<'_>, inner: usize) -> TensorResult<SsdSpec> {
    let heads = s.size(NONE, "mamba_n_heads", 1 << 16)?.unwrap_or(128);
    let keys = SsdKeys {
        heads: ("mamba_n_heads", 128),
        head_dim: ("mamba_d_head", inner / heads),
        groups: ("mamba_n_groups", 1),
        state: ("mamba_d_state", 256),
        taps: ("mamba_d_conv", 4),
        conv_bias: "mamba_conv_bias",
        activation: "hidden_act",
        inner,
    };
    keys.read(s)
}

/// Llama's names, and those below `mamba`.
pub(super) fn names() -> Names {
    Names::llama().with(&[
        ("ssm_in", "mamba.in_proj"),
        ("ssm_conv1d", "mamba.conv1d"),
        ("ssm_a", "mamba.A_log"),
        ("ssm_d", "mamba.D"),
        ("ssm_dt.bias", "mamba.dt_bias"),
        ("ssm_norm", "mamba.norm"),
        ("ssm_out", "mamba.out_proj"),
    ])
}
