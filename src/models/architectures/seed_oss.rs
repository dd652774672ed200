//! Seed-OSS (ByteDance, 2025): Llama with biases of queries, keys and values.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::names::Names;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "seed_oss", &Usual { kv_heads: Some(8), head_dim: Some(128), ..Usual::default() })?;
    let output = common::bias(s, "attention_out_bias", false)?;
    let feed = common::bias(s, "mlp_bias", false)?;
    common::qkv_biases(s, &mut d, true)?;
    d.attentions(|a| a.output_bias = output);
    d.each(|l| l.feed.bias = feed);
    d.names = Names::llama().in_gguf(&[("ffn_norm", "post_attention_norm")]);
    Ok(d)
}
