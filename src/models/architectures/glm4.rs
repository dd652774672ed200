//! GLM-4 (GLM team, 2024): Llama with half of each head rotated in pairs of neighbours and joint matrices of the gated part; its 2025 models have
//! norms behind each part as well.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, JointQkv};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { part: Some(0.5), ..common::adjacent() };
    let usual = Usual { eps: 1.5625e-7, kv_heads: Some(2), head_dim: Some(128), rope, ..Usual::default() };
    let mut d = common::decoder(s, "glm4", &usual)?;
    common::qkv_biases(s, &mut d, true)?;
    // Files of ChatGLM, whose architecture this is, have one matrix.
    if s.has_tensor("blk.0.attn_qkv.weight") {
        d.attentions(|a| a.joint = JointQkv::Sorted);
    }
    d.each(|l| l.feed.form = FeedForm::GatedJoint);
    d.names = Names::llama().with(&[("ffn_up", "mlp.gate_up_proj")]);
    Ok(d)
}

pub(super) fn describe_0414(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = describe(s)?;
    d.norms_after_too();
    d.names = d.names.with(&[("post_attention_norm", "post_self_attn_layernorm"), ("post_ffw_norm", "post_mlp_layernorm")]);
    Ok(d)
}
