//! GPT-NeoX (Black et al., 2022) and Pythia: both parts side by side behind a layer norm each, a quarter of each head rotated, joint QKV stored head
//! by head, biases everywhere.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, Flow, JointQkv, NormKind};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base_key: "rotary_emb_base", part: Some(0.25), part_key: "rotary_pct", ..RopeDefaults::default() };
    let (norm, eps_key, activation) = (NormKind::Layer, "layer_norm_eps", ActivationFn::GeluExact);
    let mut d = common::decoder(s, "gptneox", &Usual { norm, eps: 1e-5, eps_key, activation, rope, ..Usual::default() })?;
    let parallel = s.flag("use_parallel_residual", "use_parallel_residual")?.unwrap_or(true);
    let bias = common::bias(s, "attention_bias", true)?;
    d.attentions(|a| {
        a.joint = JointQkv::Grouped;
        (a.qkv_bias, a.output_bias) = (bias, bias);
    });
    d.each(|l| {
        l.flow = if parallel { Flow::Parallel } else { Flow::Sequential };
        (l.feed.form, l.feed.bias) = (FeedForm::Plain, Some(true));
    });
    d.unused = &[".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"];
    d.names = Names::new(
        "gpt_neox.",
        "layers",
        &[("token_embd", "gpt_neox.embed_in"), ("output_norm", "gpt_neox.final_layer_norm"), ("output", "embed_out")],
        &[
            ("attn_norm", "input_layernorm"),
            ("attn_qkv", "attention.query_key_value"),
            ("attn_output", "attention.dense"),
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn_up", "mlp.dense_h_to_4h"),
            ("ffn_down", "mlp.dense_4h_to_h"),
        ],
    );
    Ok(d)
}
