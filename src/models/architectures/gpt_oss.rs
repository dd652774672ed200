//! gpt-oss (OpenAI, 2025): a learned logit of each head that takes part in the softmax and belongs to no key, windows in every other layer, biases
//! everywhere; down((u + 1)·g·σ(α·g)) in the experts, whose weights are the softmax over the chosen logits.

use super::common::{self, Usual};
use super::experts;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{ExpertLayout, FeedForm, RouterSpec, Scores};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    common::rope_is_said(s)?;
    let rope = RopeDefaults { base: 150_000.0, ..RopeDefaults::default() };
    let usual = Usual { eps: 1e-5, kv_heads: Some(8), head_dim: Some(64), rope, experts: true, ..Usual::default() };
    let mut d = common::decoder(s, "gpt-oss", &usual)?;
    let bias = common::bias(s, "attention_bias", true)?;
    d.attentions(|a| (a.qkv_bias, a.output_bias, a.sinks) = (bias, bias, true));
    common::windows(s, &mut d, Some(128), |i| i % 2 == 0)?;
    let alpha = s.number(NONE, "swiglu_alpha")?.unwrap_or(1.702);
    let limit = s.positive(NONE, "swiglu_limit")?.unwrap_or(7.0);
    d.each(|l| l.feed.form = FeedForm::GatedClamped { alpha, limit });
    let router = RouterSpec { bias: true, chosen: Scores::Softmax, ..RouterSpec::new(Scores::AsTheyAre) };
    let mut experts = experts::experts(s, &experts::counts([128, 4]), router)?;
    (experts.layout, experts.bias) = (ExpertLayout::InterleavedTransposed, Some(true));
    let dense = d.layers[0].feed.size;
    let size = s.size("expert_feed_forward_length", NONE, 1 << 22)?.unwrap_or(dense);
    experts::put(&mut d, &experts, size, |_| true);
    d.names = Names::llama()
        .with(&[
            ("ffn_gate_inp", "mlp.router"),
            ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
            ("ffn_gate_up_exps.bias", "mlp.experts.gate_up_proj_bias"),
            ("ffn_down_exps.weight", "mlp.experts.down_proj"),
            ("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
        ])
        .in_gguf(&[("ffn_norm", "post_attention_norm")]);
    Ok(d)
}
