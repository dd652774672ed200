//! GPT-Neo (Black et al., 2021): GPT-2 with separate q, k and v without biases, scores that are not scaled, and windows in every other layer.

use super::gpt2;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, LearnedPositions, NormSpec, Sizes};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let width = s.need(NONE, "hidden_size", 1 << 20)?;
    let heads = s.need(NONE, "num_heads", 1 << 14)?;
    let context = s.need(NONE, "max_position_embeddings", 1 << 24)?;
    let layers = s.need(NONE, "num_layers", 4096)?;
    if width % heads != 0 {
        return Err(s.wrong(format!("{heads} heads do not divide {width} ({})", s.sizes())));
    }
    let feed = if s.is_null("intermediate_size") { None } else { s.size(NONE, "intermediate_size", 1 << 22)? };
    let z = Sizes { width, layers, heads, kv_heads: heads, head_dim: width / heads, feed: feed.unwrap_or(4 * width), context };
    let eps = s.positive(NONE, "layer_norm_epsilon")?.unwrap_or(1e-5);
    let activation = ActivationFn::read(s, "activation_function", ActivationFn::GeluTanh)?;
    let window = s.size(NONE, "window_size", 1 << 24)?.unwrap_or(256);
    let types = s.texts("attention_layers")?.ok_or_else(|| s.wrong("`attention_layers` is missing"))?;
    // The same list, in runs.
    s.ignore("attention_types");
    if types.len() != layers || types.iter().any(|t| !["global", "local"].contains(t)) {
        return Err(s.refuse(NONE, "attention_layers", &format!("expected {layers} times global or local ({})", s.sizes())));
    }
    let names = gpt2::names().with(&[
        ("attn_q", "attn.attention.q_proj"),
        ("attn_k", "attn.attention.k_proj"),
        ("attn_v", "attn.attention.v_proj"),
        ("attn_output", "attn.attention.out_proj"),
    ]);
    let mut d = Description::new("gpt_neo", z, NormSpec::layer(eps), names);
    for (a, kind) in d.attention_layers().zip(types) {
        a.window = (kind == "local").then_some(window);
        (a.rope, a.scale, a.output_bias) = (None, Some(1.0), Some(true));
    }
    d.each(|l| (l.feed.form, l.feed.activation, l.feed.bias) = (FeedForm::Plain, activation, Some(true)));
    d.embed.positions = Some(LearnedPositions { offset: 0 });
    d.head.tied = true;
    d.unused = &[".attn.attention.bias", ".attn.attention.masked_bias"];
    Ok(d)
}
