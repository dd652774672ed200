//! EmbeddingGemma (Vera et al., 2025): Gemma 3 whose tokens see the whole text, in layers with windows half a window to either side.

use super::common;
use crate::error::TensorResult;
use crate::models::architectures::gemma3;
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<EncoderSpec> {
    let mut stack = gemma3::layers(s)?;
    common::of_states(s)?;
    // Gemma's windows count the query itself, among the keys before it; half of them lie on either side here.
    let reach = stack.attention_layers().map(|a| a.window.take().map(|w| w / 2)).collect();
    Ok(EncoderSpec { reach, ..EncoderSpec::new(stack) })
}
