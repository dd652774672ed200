//! Helium (Kyutai, 2025): Llama that rotates pairs of neighbours.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 100_000.0, ..common::adjacent() };
    let usual = Usual { eps: 1e-8, kv_heads: Some(20), head_dim: Some(128), rope, ..Usual::default() };
    let mut d = common::decoder(s, "helium", &usual)?;
    let feed = common::bias(s, "mlp_bias", false)?;
    common::qkv_biases(s, &mut d, false)?;
    d.each(|l| l.feed.bias = feed);
    Ok(d)
}
