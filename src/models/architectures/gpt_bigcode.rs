//! SantaCoder and StarCoder (Li et al., 2023): GPT-2 with one key head for all queries (Shazeer, 2019).

use super::gpt2;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, JointQkv, LearnedPositions, NormSpec, Sizes};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let z = gpt2::sizes(s)?;
    let one_key = match s.is_hub() {
        true => s.flag(NONE, "multi_query")?.unwrap_or(true),
        false => s.number("attention.head_count_kv", NONE)? == Some(1.0),
    };
    let kv_heads = if one_key { 1 } else { z.heads };
    s.only_number("attention.head_count_kv", "num_key_value_heads", kv_heads as f64, "there is one for all queries, or one for each")?;
    s.only_flag("attention.causal", NONE, true, "only causal attention is implemented")?;
    let eps = s.positive("attention.layer_norm_epsilon", "layer_norm_epsilon")?.unwrap_or(1e-5);
    let activation = ActivationFn::read(s, "activation_function", ActivationFn::GeluTanh)?;
    let scaled = s.flag(NONE, "scale_attn_weights")?.unwrap_or(true);
    // Scores and softmax are in f32 here.
    for key in ["attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"] {
        s.flag(NONE, key)?;
    }
    let mut d = Description::new("gpt_bigcode", Sizes { kv_heads, ..z }, NormSpec::layer(eps), gpt2::names());
    d.attentions(|a| {
        a.joint = if one_key || !s.is_hub() { JointQkv::Sorted } else { JointQkv::Grouped };
        (a.rope, a.scale) = (None, if scaled { None } else { Some(1.0) });
        (a.qkv_bias, a.output_bias) = (Some(true), Some(true));
    });
    d.each(|l| {
        (l.feed.bias, l.feed.form, l.feed.activation) = (Some(true), FeedForm::Plain, activation);
    });
    d.embed.positions = Some(LearnedPositions { offset: 0 });
    d.head.tied = true;
    d.unused = &[".attn.bias", ".attn.masked_bias"];
    Ok(d)
}
