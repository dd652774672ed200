//! The metadata of GGUF files of Llama's kin, as llama.cpp's converter writes it; what it has no key for is refused by name.

use super::common::{sizes_to_gguf, to_gguf};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::AttentionSpec;
use crate::models::rope_settings::unscaled;
use crate::models::settings::Settings;

/// The attention of the layers, all of which have one.
fn attention(d: &Description) -> impl Iterator<Item = &AttentionSpec> {
    d.layers.iter().filter_map(|l| l.mixer.attention())
}

/// Refuses windows, which readers of these architectures do not know.
fn without_windows(s: &Settings<'_>, d: &Description) -> TensorResult<()> {
    s.only(attention(d).all(|a| a.window.is_none()), "sliding_window")
}

/// Refuses another activation than readers take.
fn only_activation(s: &Settings<'_>, d: &Description, activation: ActivationFn, key: &str) -> TensorResult<()> {
    s.only(d.layers.iter().all(|l| l.feed.activation == activation), key)
}

fn only_plain_rope(s: &Settings<'_>, d: &Description) -> TensorResult<()> {
    s.only(d.ropes[0].factor == 1.0 && d.ropes[0].long.is_none(), "rope_parameters")
}

/// Mistral is Llama in GGUF.
pub(super) fn mistral(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    without_windows(s, d)?;
    w.set("general.architecture", "llama");
    to_gguf(s, &Description { architecture: "llama", ..d.clone() }, w)
}

/// Mixtral is Llama with experts in GGUF.
pub(super) fn mixtral(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    mistral(s, d, w)?;
    let experts = d.layers[0].feed.experts.as_ref().ok_or_else(|| s.wrong("no experts"))?;
    w.set("llama.expert_count", experts.count as u32).set("llama.expert_used_count", experts.used as u32);
    Ok(())
}

/// Every fourth layer rotates nothing.
pub(super) fn smollm3(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    without_windows(s, d)?;
    s.only(attention(d).enumerate().all(|(i, a)| a.rope.is_some() == ((i + 1) % 4 != 0)), "no_rope_layers")?;
    to_gguf(s, d, w)
}

pub(super) fn gemma(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    only_activation(s, d, ActivationFn::GeluTanh, "hidden_act")?;
    only_plain_rope(s, d)?;
    sizes_to_gguf(s, d, w)
}

/// Windows in every other layer, capped scores and logits.
pub(super) fn gemma2(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    only_activation(s, d, ActivationFn::GeluTanh, "hidden_activation")?;
    only_plain_rope(s, d)?;
    query_scale(s, d, 46)?;
    let Some(window) = attention(d).find_map(|a| a.window) else { return s.only(false, "sliding_window") };
    s.only(attention(d).enumerate().all(|(i, a)| a.window.is_some() == (i % 2 == 0)), "layer_types")?;
    // Readers take a missing cap for the usual one.
    let caps = (attention(d).next().and_then(|a| a.softcap), d.head.softcap);
    s.only(caps.0.is_some(), "attn_logit_softcapping")?;
    s.only(caps.1.is_some(), "final_logit_softcapping")?;
    w.set("gemma2.attention.sliding_window", window as u32);
    for (key, cap) in [("attn_logit_softcapping", caps.0), ("final_logit_softcapping", caps.1)] {
        cap.into_iter().for_each(|cap| {
            w.set(&format!("gemma2.{key}"), cap as f32);
        });
    }
    sizes_to_gguf(s, d, w)
}

/// Windows in all layers but those that a number divides, and two rotations, of which the one of whole texts may be scaled.
pub(super) fn gemma3(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    only_activation(s, d, ActivationFn::GeluTanh, "hidden_activation")?;
    query_scale(s, d, 62)?;
    let whole = |i: usize, pattern: usize| (i + 1) % pattern == 0;
    let fits = |pattern: &usize| attention(d).enumerate().all(|(i, a)| a.window.is_none() == whole(i, *pattern));
    let Some(pattern) = [6].into_iter().chain(2..=d.layers.len()).find(fits) else { return s.only(false, "layer_types") };
    let Some(window) = attention(d).find_map(|a| a.window) else { return s.only(false, "sliding_window") };
    let [full, limited] = &d.ropes[..] else { return s.only(false, "rope_parameters") };
    let scaled = |base: f64, freqs: &[f64]| -> Option<f64> {
        let factors: Vec<f64> = unscaled(base, 2 * freqs.len()).iter().zip(freqs).map(|(plain, f)| plain / f).collect();
        factors.iter().all(|f| (f / factors[0] - 1.0).abs() < 1e-9).then(|| factors[0])
    };
    s.only(full.factor == 1.0 && limited.factor == 1.0 && scaled(limited.base, &limited.freqs) == Some(1.0), "rope_parameters")?;
    let Some(factor) = scaled(full.base, &full.freqs) else { return s.only(false, "rope_parameters") };
    w.set("gemma3.attention.sliding_window", window as u32).set("gemma3.rope.freq_base_swa", limited.base as f32);
    if pattern != 6 {
        w.set("gemma3.attention.sliding_window_pattern", pattern as u32);
    }
    w.set("gemma3.rope.scaling.type", if factor == 1.0 { "none" } else { "linear" }).set("gemma3.rope.scaling.factor", factor as f32);
    d.head.softcap.into_iter().for_each(|cap| {
        w.set("gemma3.final_logit_softcapping", cap as f32);
    });
    sizes_to_gguf(s, d, w)
}

/// GGUF has no key of the scores' scale: 1/√D, but for the model of `largest` layers.
fn query_scale(s: &Settings<'_>, d: &Description, largest: usize) -> TensorResult<()> {
    let of = if d.layers.len() == largest { d.width as f64 / d.heads as f64 } else { d.head_dim as f64 };
    let usual = 1.0 / of.sqrt();
    s.only(attention(d).all(|a| a.scale.is_some_and(|scale| (scale / usual - 1.0).abs() < 1e-9)), "query_pre_attn_scalar")
}

pub(super) fn olmo(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    attention(d).next().and_then(|a| a.clip).into_iter().for_each(|clip| {
        w.set("olmo.attention.clamp_kqv", clip as f32);
    });
    to_gguf(s, d, w)
}

/// Readers take parallel parts and norms of heads to go together.
pub(super) fn stablelm(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    let parallel = d.layers[0].feed_norm.is_none();
    s.only(attention(d).all(|a| a.qk_norm.is_some() == parallel), "qk_layernorm")?;
    w.set("stablelm.use_parallel_residual", parallel);
    to_gguf(s, d, w)
}

pub(super) fn starcoder2(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    only_activation(s, d, ActivationFn::GeluTanh, "hidden_act")?;
    only_plain_rope(s, d)?;
    without_windows(s, d)?;
    sizes_to_gguf(s, d, w)
}

/// LongRoPE's divisors are tensors; 0 stands for no window.
pub(super) fn phi3(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    only_activation(s, d, ActivationFn::Silu, "hidden_act")?;
    let (rope, window) = (&d.ropes[0], attention(d).next().and_then(|a| a.window));
    w.set("phi3.attention.sliding_window", window.unwrap_or(0) as u32);
    match &rope.long {
        Some(long) => {
            w.set("phi3.rope.scaling.type", "longrope").set("phi3.rope.scaling.attn_factor", rope.factor as f32);
            w.set("phi3.rope.scaling.original_context_length", long.from as u32);
        }
        None => only_plain_rope(s, d)?,
    }
    sizes_to_gguf(s, d, w)
}
