//! Granite 3 (IBM, 2024): Llama with four multipliers: of embeddings, of what is added to the residual stream, of scores, and a divisor of logits.

use super::Named;
use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::decoder::Description;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "granite", &Usual { rope: common::reordered(), ..Usual::default() })?;
    common::biases(s, &mut d)?;
    multipliers(s, &mut d)?;
    Ok(d)
}

pub(super) fn multipliers(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let residual = s.number("residual_scale", "residual_multiplier")?;
    let usual = s.is_hub().then_some(1.0);
    let scale = s.number("attention.scale", "attention_multiplier")?.or(usual);
    d.embed.scale = s.number("embedding_scale", "embedding_multiplier")?;
    d.head.scale = s.positive("logit_scale", "logits_scaling")?.map(|by| 1.0 / by);
    d.attentions(|a| a.scale = scale);
    d.each(|l| l.residual = residual);
    Ok(())
}

/// The logits' factor is written as what they are divided by.
pub(super) fn gguf_keys(_: &Settings<'_>, d: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    let name = d.architecture;
    d.head.scale.into_iter().for_each(|scale| {
        w.set(&format!("{name}.logit_scale"), (1.0 / scale) as f32);
    });
    Ok(())
}
