//! Granite 4 (IBM, 2025): Granite with Mamba-2 layers in the place of most attention, which does not rotate positions.

use super::common::{self, Usual};
use super::mamba2::SsdKeys;
use super::{experts, granite, granitemoe};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{ExpertLayout, FeedForm, GatedNorm, MixerSpec, SharedSpec, SsdSpec};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "granitehybrid", &Usual::default())?;
    granite::multipliers(s, &mut d)?;
    common::biases(s, &mut d)?;
    let positions = if s.is_null("position_embedding_type") { None } else { s.text(NONE, "position_embedding_type")? };
    if positions != Some("rope") {
        common::without_rope(&mut d, |_| true);
    }
    // The size of experts stands in its usual place.
    let (size, shared) = (d.layers[0].feed.size, s.size(NONE, "shared_intermediate_size", 1 << 22)?.unwrap_or(1024));
    d.each(|l| l.feed.form = FeedForm::GatedJoint);
    let dense = s.number(NONE, "num_local_experts")? == Some(0.0);
    if dense {
        s.ignore("num_experts_per_tok");
        d.each(|l| l.feed.size = shared);
    } else {
        let mut spec = experts::experts(s, &experts::counts([8, 2]), granitemoe::ROUTER)?;
        spec.layout = ExpertLayout::Joint;
        spec.shared = Some(SharedSpec { size: shared, gated: false, mean: false });
        experts::put(&mut d, &spec, size, |_| true);
    }
    s.ignore("mamba_chunk_size");
    let mut spec = bamba(s, s.size(NONE, "mamba_expand", 64)?.unwrap_or(2) * d.width)?;
    let bias = s.flag(NONE, "mamba_proj_bias")?.unwrap_or(false);
    (spec.input_bias, spec.output_bias) = (bias, bias);
    spec.norm = Some(GatedNorm { eps: d.norm.eps, groups: spec.groups, gate_after: false });
    let known: [&[&str]; 2] = [&["full_attention", "attention"], &["linear_attention", "mamba"]];
    let kinds = common::layer_kinds(s, &["layer_types", "layers_block_type"], d.layers.len(), &known)?;
    let kinds = kinds.unwrap_or_else(|| vec![1; d.layers.len()]);
    for (l, _) in d.layers.iter_mut().zip(kinds).filter(|(_, kind)| *kind == 1) {
        l.mixer = MixerSpec::Ssd(spec.clone());
    }
    let [up, down] = if dense { ["ffn_up", "ffn_down"] } else { ["ffn_up_shexp", "ffn_down_shexp"] };
    d.names = names().with(&granitemoe::NAMES).with(&[(up, "shared_mlp.input_linear"), (down, "shared_mlp.output_linear")]);
    Ok(d)
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
