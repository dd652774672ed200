//! GPT-J (Wang & Komatsuzaki, 2021): both parts side by side behind one layer norm, the first elements of each head rotated in pairs of neighbours, a
//! plain GELU part with biases.

use super::gpt2;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, Flow, NormSpec};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeTable;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let z = gpt2::sizes(s)?;
    let rope_dim = s.size(NONE, "rotary_dim", z.head_dim)?.unwrap_or(64.min(z.head_dim));
    if rope_dim % 2 != 0 {
        return Err(s.refuse(NONE, "rotary_dim", "it must be even"));
    }
    let eps = s.positive(NONE, "layer_norm_epsilon")?.unwrap_or(1e-5);
    let activation = ActivationFn::read(s, "activation_function", ActivationFn::GeluTanh)?;
    let mut d = Description::new("gptj", z, NormSpec::layer(eps), names());
    d.ropes.push(RopeTable::unscaled(s, super::common::adjacent(), 10_000.0, rope_dim));
    d.each(|l| {
        (l.flow, l.feed_norm) = (Flow::Parallel, None);
        (l.feed.form, l.feed.activation, l.feed.bias) = (FeedForm::Plain, activation, Some(true));
    });
    d.head.bias = true;
    d.unused = &[".attn.bias", ".attn.masked_bias"];
    Ok(d)
}

fn names() -> Names {
    gpt2::names().with(&[
        ("attn_q", "attn.q_proj"),
        ("attn_k", "attn.k_proj"),
        ("attn_v", "attn.v_proj"),
        ("attn_output", "attn.out_proj"),
        ("ffn_up", "mlp.fc_in"),
        ("ffn_down", "mlp.fc_out"),
    ])
}
