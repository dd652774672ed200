//! BitNet b1.58 (Ma et al., 2025), in plain weights: Llama with max(x, 0)² in its gate and a norm before the last matrix of each part.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 500_000.0, ..RopeDefaults::default() };
    // llama.cpp has the models before this one, whose gates are SiLU's.
    let activation = if s.is_hub() { ActivationFn::ReluSquared } else { ActivationFn::Silu };
    let usual = Usual { eps: 1e-5, kv_heads: Some(5), activation, rope, ..Usual::default() };
    let mut d = common::decoder(s, "bitnet", &usual)?;
    let (norm, bias) = (d.norm, common::bias(s, "attention_bias", false)?);
    d.attentions(|a| {
        a.output_norm = Some(norm);
        (a.qkv_bias, a.output_bias) = (bias, bias);
    });
    d.each(|l| l.feed.inner_norm = Some(norm));
    d.names = Names::llama().with(&[("attn_sub_norm", "self_attn.attn_sub_norm"), ("ffn_sub_norm", "mlp.ffn_sub_norm")]);
    Ok(d)
}
