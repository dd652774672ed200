//! Phi-1 to Phi-2 (Gunasekar et al., 2023): attention and a plain GELU part side by side behind one layer norm, half of each head rotated, biases
//! everywhere.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, Flow, NormKind, QkNorm, QkNormOf};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { part: Some(0.5), ..RopeDefaults::default() };
    let (norm, eps_key, activation) = (NormKind::Layer, "layer_norm_eps", ActivationFn::GeluTanh);
    let mut d = common::decoder(s, "phi2", &Usual { norm, eps: 1e-5, eps_key, activation, rope, ..Usual::default() })?;
    let normed = s.flag(NONE, "qk_layernorm")?.unwrap_or(false);
    let norm = d.norm;
    d.attentions(|a| {
        (a.qkv_bias, a.output_bias) = (Some(true), Some(true));
        a.qk_norm = normed.then_some(QkNorm { norm, of: QkNormOf::Head, after_rope: false });
    });
    d.each(|l| {
        (l.flow, l.feed_norm, l.feed.form) = (Flow::Parallel, None, FeedForm::Plain);
        l.feed.bias = Some(true);
    });
    d.head.bias = true;
    d.names = Names::llama().with_top(&[("output_norm", "model.final_layernorm")]).with(&[
        ("attn_output", "self_attn.dense"),
        ("attn_q_norm", "self_attn.q_layernorm"),
        ("attn_k_norm", "self_attn.k_layernorm"),
        ("ffn_up", "mlp.fc1"),
        ("ffn_down", "mlp.fc2"),
    ]);
    Ok(d)
}
