//! Gemma (Gemma team, 2024): Llama with embeddings times √d, norms times 1 + w, and a gated tanh-GELU part.

use super::common::{self, Usual};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::NormSpec;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let usual = Usual { kv_heads: Some(16), head_dim: Some(256), activation: ActivationFn::GeluTanh, tied: true, ..Usual::default() };
    let mut d = common::decoder(s, "gemma", &usual)?;
    s.only_flag(NONE, "use_bidirectional_attention", false, "only causal attention is implemented")?;
    // A later spelling, which decides nothing: the first files say `gelu` and mean its approximation.
    ActivationFn::read(s, "hidden_activation", ActivationFn::GeluTanh)?;
    d.each(|l| {
        if l.feed.activation == ActivationFn::GeluExact {
            l.feed.activation = ActivationFn::GeluTanh;
        }
    });
    let bias = common::bias(s, "attention_bias", false)?;
    d.attentions(|a| (a.qkv_bias, a.output_bias) = (bias, bias));
    scaled(&mut d);
    Ok(d)
}

/// Embeddings times √d, norms times 1 + w.
pub(super) fn scaled(d: &mut Description) {
    d.norms(NormSpec { plus_one: true, ..d.norm });
    d.embed.scale = Some((d.width as f64).sqrt());
    // f16 overflows in the residual stream.
    d.dtype = Some(DType::F32);
}
