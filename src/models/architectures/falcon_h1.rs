//! Falcon-H1 (TII, 2025): in every layer attention and a Mamba-2 layer beside each other, and multipliers of nearly everything.

use super::common::{self, Usual};
use super::granite_hybrid;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{BesideSpec, GatedNorm, MixerSpec};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "falcon_h1", &Usual { eps: 1e-5, kv_heads: Some(8), ..Usual::default() })?;
    common::biases(s, &mut d)?;
    let by = |key: &str| -> TensorResult<f64> { Ok(s.number(NONE, key)?.unwrap_or(1.0)) };
    let list = |key: &str| if s.is_null(key) { Ok(None) } else { s.numbers(key) };
    d.embed.scale = Some(by("embedding_multiplier")?);
    d.head.scale = Some(by("lm_head_multiplier")?);
    // What keys are multiplied with, scores are.
    let scale = by("key_multiplier")? / (d.head_dim as f64).sqrt();
    d.attentions(|a| a.scale = Some(scale));
    let [gate, down] = list("mlp_multipliers")?.unwrap_or_else(|| vec![1.0; 2])[..] else {
        return Err(s.refuse(NONE, "mlp_multipliers", "expected two numbers"));
    };
    if gate != 1.0 && d.layers[0].feed.activation != ActivationFn::Silu {
        return Err(s.refuse(NONE, "hidden_act", "only silu of a multiple is implemented"));
    }
    d.each(|l| {
        l.feed_scale = Some(down);
        if gate != 1.0 {
            l.feed.activation = ActivationFn::SiluOf(gate as f32);
        }
    });
    let inner = match s.is_null("mamba_d_ssm") {
        true => s.size(NONE, "mamba_expand", 64)?.unwrap_or(2) * d.width,
        false => s.size(NONE, "mamba_d_ssm", 1 << 20)?.unwrap_or(1024),
    };
    let mut ssd = granite_hybrid::bamba(s, inner)?;
    ssd.input_bias = s.flag(NONE, "mamba_proj_bias")?.unwrap_or(false);
    ssd.output_bias = s.flag(NONE, "projectors_bias")?.unwrap_or(false);
    ssd.input_scale = Some(by("ssm_in_multiplier")?);
    ssd.scales = match list("ssm_multipliers")? {
        Some(all) => Some(<[f64; 5]>::try_from(all).map_err(|_| s.refuse(NONE, "ssm_multipliers", "expected five numbers"))?),
        None => None,
    };
    let gate_after = s.flag(NONE, "mamba_norm_before_gate")?.unwrap_or(true);
    if s.flag(NONE, "mamba_rms_norm")?.unwrap_or(false) {
        ssd.norm = Some(GatedNorm { eps: d.norm.eps, groups: ssd.groups, gate_after });
    }
    let attention_scales = [by("attention_in_multiplier")?, by("attention_out_multiplier")?];
    let ssd_scale = by("ssm_out_multiplier")?;
    for l in &mut d.layers {
        if let MixerSpec::Attention(attention) = l.mixer.clone() {
            l.mixer = MixerSpec::Beside(Box::new(BesideSpec { attention, ssd: ssd.clone(), attention_scales, ssd_scale }));
        }
    }
    // How the sums of a scan are ordered; the size where `mamba_d_ssm` is null.
    ["mamba_chunk_size", "mamba_expand"].iter().for_each(|key| s.ignore(key));
    d.names = granite_hybrid::names().with_top(&[("output_norm", "model.final_layernorm")]).with(&[
        ("ffn_norm", "pre_ff_layernorm"),
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
    ]);
    Ok(d)
}
