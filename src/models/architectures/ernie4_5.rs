//! ERNIE 4.5 (Baidu, 2025): Llama that rotates pairs of neighbours.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 500_000.0, ..common::adjacent() };
    let usual = Usual { eps: 1e-5, kv_heads: Some(2), head_dim: Some(128), rope, tied: true, ..Usual::default() };
    let mut d = common::decoder(s, "ernie4_5", &usual)?;
    let bias = common::bias(s, "use_bias", false)?;
    d.attentions(|a| (a.qkv_bias, a.output_bias) = (bias, bias));
    d.each(|l| l.feed.bias = bias);
    Ok(d)
}
