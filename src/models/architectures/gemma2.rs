//! Gemma 2 (Gemma team, 2024): Gemma with norms after each part as well, windows in every other layer, scores and logits as c·tanh(x/c).

use super::common::{self, Usual};
use super::gemma;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let usual = Usual { kv_heads: Some(4), head_dim: Some(256), tied: true, ..Usual::default() };
    let mut d = common::decoder(s, "gemma2", &usual)?;
    s.only_flag(NONE, "use_bidirectional_attention", false, "only causal attention is implemented")?;
    let activation = ActivationFn::read(s, "hidden_activation", ActivationFn::GeluTanh)?;
    // A key of Gemma that this architecture has not.
    s.text(NONE, "hidden_act")?;
    let bias = common::bias(s, "attention_bias", false)?;
    // GGUF has no key for it: of all sizes, only 27B (of 46 layers) takes the width over the number of heads instead of the heads' size.
    let query = match s.is_hub() {
        true => s.positive(NONE, "query_pre_attn_scalar")?.unwrap_or(256.0),
        false if d.layers.len() == 46 => d.width as f64 / d.heads as f64,
        false => d.head_dim as f64,
    };
    let score_cap = softcap(s, "attn_logit_softcapping", Some(50.0))?;
    d.head.softcap = softcap(s, "final_logit_softcapping", Some(30.0))?;
    d.norms_after_too();
    d.attentions(|a| {
        (a.qkv_bias, a.output_bias) = (bias, bias);
        (a.scale, a.softcap) = (Some(1.0 / query.sqrt()), score_cap);
    });
    d.each(|l| l.feed.activation = activation);
    common::windows(s, &mut d, Some(4096), |i| i % 2 == 0)?;
    gemma::scaled(&mut d);
    d.names = names();
    Ok(d)
}

/// The norms around the feed-forward part have names of their own.
pub(super) fn names() -> Names {
    Names::llama().with(&[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ])
}

/// c in c·tanh(x/c), which `config.json` leaves out as null and GGUF as 0.
pub(super) fn softcap(s: &Settings<'_>, key: &str, missing: Option<f64>) -> TensorResult<Option<f64>> {
    let missing = if s.is_null(key) { None } else { missing };
    match s.number(key, key)?.or(missing) {
        Some(v) if v < 0.0 || v == 0.0 && s.is_hub() => Err(s.refuse(key, key, "it must be above 0")),
        v => Ok(v.filter(|v| *v > 0.0)),
    }
}
