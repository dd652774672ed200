//! Mistral 7B (Jiang et al., 2023): Llama with a window on all layers. Ministral has it on some of them; Ministral 3 rotates by YaRN, and multiplies
//! queries at position p with 1 + β·ln(1 + ⌊p/original⌋).

use super::Named;
use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::decoder::Description;
use crate::models::rope_settings::Growth;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    // In GGUF it is Llama, whose rows are in another order there.
    let mut d = common::decoder(s, "mistral", &Usual { kv_heads: Some(8), rope: common::reordered(), ..Usual::default() })?;
    common::windows(s, &mut d, Some(4096), |_| true)?;
    Ok(d)
}

pub(super) fn describe_ministral(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "ministral", &Usual { kv_heads: Some(8), ..Usual::default() })?;
    common::windows(s, &mut d, Some(4096), |_| true)?;
    Ok(d)
}

pub(super) fn describe_ministral3(s: &Settings<'_>) -> TensorResult<Description> {
    common::rope_is_said(s)?;
    let usual = Usual { eps: 1e-5, kv_heads: Some(8), head_dim: Some(128), rope: common::reordered(), ..Usual::default() };
    let mut d = common::decoder(s, "ministral3", &usual)?;
    common::windows(s, &mut d, None, |_| true)?;
    let (beta, original) = ("rope_parameters.llama_4_scaling_beta", "rope_parameters.original_max_position_embeddings");
    s.only_number(NONE, "rope_parameters.max_position_embeddings", d.context as f64, "`max_position_embeddings` must be the same")?;
    let (beta, original) = (s.number("attention.temperature_scale", beta)?, s.positive("rope.scaling.original_context_length", original)?);
    if let (Some(beta), Some(original)) = (beta, original) {
        let mut queries = d.ropes[0].clone();
        queries.growth = Some(Growth { beta, original, shift: 0.0 });
        d.ropes.push(queries);
        d.attentions(|a| a.query_rope = Some(1));
    }
    Ok(d)
}

/// The growth of queries, which counts from YaRN's original length. What YaRN multiplies rotated elements with is told by its logarithm.
pub(super) fn gguf_keys(_: &Settings<'_>, d: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    if let Some(growth) = d.ropes.get(1).and_then(|r| r.growth) {
        w.set("mistral3.attention.temperature_scale", growth.beta as f32);
    }
    if d.ropes[0].yarn.is_some() && d.ropes[0].factor == 1.0 {
        w.set("mistral3.rope.scaling.yarn_log_multiplier", 1f32).set("mistral3.rope.scaling.attn_factor", 1f32);
    }
    Ok(())
}
