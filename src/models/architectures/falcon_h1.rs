//! Falcon-H1 (TII, 2025): in every layer attention and a Mamba-2 layer beside each other, and multipliers of nearly everything.

use super::common::{self, Usual};
use super::{Named, folded, granite_hybrid};
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
    d.embed.scale = other(by("embedding_multiplier")?);
    d.head.scale = other(by("lm_head_multiplier")?);
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
        l.feed_scale = other(down);
        if gate != 1.0 {
            l.feed.activation = ActivationFn::SiluOf(gate as f32);
        }
    });
    let inner = match s.is_null("mamba_d_ssm") {
        _ if !s.is_hub() => s.need("ssm.inner_size", NONE, 1 << 20)?,
        true => s.size(NONE, "mamba_expand", 64)?.unwrap_or(2) * d.width,
        false => s.size(NONE, "mamba_d_ssm", 1 << 20)?.unwrap_or(1024),
    };
    let mut ssd = granite_hybrid::bamba(s, inner)?;
    // Of GGUF files the tensors say it.
    let has = |part: &str| s.has_tensor(&format!("blk.0.{part}"));
    let said = |key: &str, part: &str| if s.is_hub() { Ok(s.flag(NONE, key)?.unwrap_or(false)) } else { Ok(has(part)) };
    ssd.input_bias = said("mamba_proj_bias", "ssm_in.bias")?;
    ssd.output_bias = said("projectors_bias", "ssm_out.bias")?;
    ssd.conv_bias = if s.is_hub() { ssd.conv_bias } else { has("ssm_conv1d.bias") };
    ssd.input_scale = other(by("ssm_in_multiplier")?);
    ssd.scales = match list("ssm_multipliers")? {
        Some(all) => Some(<[f64; 5]>::try_from(all).map_err(|_| s.refuse(NONE, "ssm_multipliers", "expected five numbers"))?),
        None => None,
    };
    // llama.cpp always has the gate first.
    let gate_after = s.flag(NONE, "mamba_norm_before_gate")?.unwrap_or(s.is_hub());
    if said("mamba_rms_norm", "ssm_norm.weight")? {
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
    d.names =
        granite_hybrid::names().in_gguf(&[("ffn_norm.weight", "ffn_norm")]).with_top(&[("output_norm", "model.final_layernorm")]).with(&[
            ("ffn_norm", "pre_ff_layernorm"),
            ("ffn_gate", "feed_forward.gate_proj"),
            ("ffn_up", "feed_forward.up_proj"),
            ("ffn_down", "feed_forward.down_proj"),
        ]);
    Ok(d)
}

/// A multiplier that is one.
fn other(by: f64) -> Option<f64> {
    (by != 1.0).then_some(by)
}

/// GGUF has the multipliers in the tensors.
pub(super) fn fold(d: &mut Description, tensors: &mut Vec<Named>) -> TensorResult<()> {
    folded::multiply_ends(tensors, d.embed.scale.unwrap_or(1.0), d.head.scale.unwrap_or(1.0))?;
    (d.embed.scale, d.head.scale) = (None, None);
    let Some(MixerSpec::Beside(both)) = d.layers.first().map(|l| l.mixer.clone()) else { return Ok(()) };
    let root = (d.head_dim as f64).sqrt();
    let key = both.attention.scale.map_or(1.0, |scale| scale * root);
    let [input, output] = both.attention_scales;
    let down = d.layers[0].feed_scale.unwrap_or(1.0);
    let gate = if let ActivationFn::SiluOf(by) = d.layers[0].feed.activation { f64::from(by) } else { 1.0 };
    folded::multiply(tensors, |part| match part {
        "attn_q.weight" | "attn_v.weight" => input,
        "attn_k.weight" => key * input,
        "attn_k.bias" => key,
        "attn_output.weight" | "attn_output.bias" => output,
        "ssm_out.weight" | "ssm_out.bias" => both.ssd_scale,
        "ssm_in.weight" => both.ssd.input_scale.unwrap_or(1.0),
        "ffn_gate.weight" | "ffn_gate.bias" => gate,
        "ffn_down.weight" | "ffn_down.bias" => down,
        _ => 1.0,
    })?;
    if let Some(scales) = both.ssd.scales {
        let rows: Vec<f32> = scales.iter().zip(both.ssd.parts()).flat_map(|(by, n)| std::iter::repeat_n(*by as f32, n)).collect();
        ["ssm_in.weight", "ssm_in.bias"].iter().try_for_each(|part| folded::multiply_rows(tensors, part, &rows))?;
    }
    for l in &mut d.layers {
        l.feed_scale = None;
        if gate != 1.0 {
            l.feed.activation = ActivationFn::Silu;
        }
        if let MixerSpec::Beside(both) = &mut l.mixer {
            (both.attention.scale, both.attention_scales, both.ssd_scale) = (Some(1.0 / root), [1.0; 2], 1.0);
            (both.ssd.input_scale, both.ssd.scales) = (None, None);
        }
    }
    Ok(())
}
