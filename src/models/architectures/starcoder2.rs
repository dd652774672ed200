//! StarCoder2 (Lozhkov et al., 2024): layer norms, a plain tanh-GELU part, biases everywhere, and a window on all layers.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, NormKind};
use crate::models::decoder::names::Names;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let (norm, activation) = (NormKind::Layer, ActivationFn::GeluTanh);
    let usual = Usual { norm, eps: 1e-5, eps_key: "norm_epsilon", kv_heads: Some(2), activation, tied: true, ..Usual::default() };
    let mut d = common::decoder(s, "starcoder2", &usual)?;
    let bias = common::bias(s, "use_bias", true)?;
    d.attentions(|a| (a.qkv_bias, a.output_bias) = (bias, bias));
    d.each(|l| {
        l.feed.bias = bias;
        l.feed.form = FeedForm::Plain;
    });
    d.names = Names::llama().with(&[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")]);
    common::windows(s, &mut d, None, |_| true)?;
    Ok(d)
}
