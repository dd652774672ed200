//! OLMo (Groeneveld et al., 2024): Llama with layer norms that have no weights, and bounds of |q|, |k| and |v|.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::NormKind;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let usual = Usual { norm: NormKind::LayerWithoutWeights, eps: 1e-5, eps_key: NONE, rope: common::reordered(), ..Usual::default() };
    let mut d = common::decoder(s, "olmo", &usual)?;
    let bias = common::bias(s, "attention_bias", false)?;
    let clip = if s.is_null("clip_qkv") { None } else { s.positive("attention.clamp_kqv", "clip_qkv")? };
    d.attentions(|a| {
        (a.qkv_bias, a.output_bias) = (bias, bias);
        a.clip = clip;
    });
    Ok(d)
}
