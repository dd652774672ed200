//! LFM3 (Liquid AI, 2026): LFM2 with windows in some layers, which rotate otherwise; a gate σ(Wg·h) for each head; norms behind the parts too.

use super::common::{self, Usual};
use super::lfm2;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::Gate;
use crate::models::rope_settings::{RopeDefaults, RopeTable};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    common::rope_is_said(s)?;
    let full = RopeDefaults { base: 1e6, object: "rope_parameters.full_attention", ..RopeDefaults::default() };
    let usual =
        Usual { eps: 1e-5, eps_key: "norm_eps", kv_heads: Some(4), head_dim: Some(128), rope: full, tied: true, ..Usual::default() };
    let mut d = common::decoder(s, "lfm3", &usual)?;
    let limited = RopeDefaults { base: 1e4, ..full };
    d.ropes.push(RopeTable::from_config(s, "rope_parameters.sliding_attention", limited, d.head_dim, d.context)?);
    let known: [&[&str]; 3] = [&["full_attention"], &["sliding_attention"], &["conv"]];
    let usual = |i: usize| {
        if i % 4 == 2 {
            0
        } else if i % 4 == 0 && i > 0 {
            1
        } else {
            2
        }
    };
    let kinds = common::layer_kinds(s, &["layer_types"], d.layers.len(), &known)?;
    let kinds: Vec<usize> = kinds.unwrap_or_else(|| (0..d.layers.len()).map(usual).collect());
    let (window, gated) = (s.window(Some(256))?, s.flag(NONE, "use_attention_gate")?.unwrap_or(true));
    let bias = common::bias(s, "attention_bias", false)?;
    for (a, kind) in d.attention_layers().zip(&kinds) {
        (a.qkv_bias, a.output_bias) = (bias, bias);
        a.gate = gated.then_some(Gate::Head);
        if *kind == 1 {
            (a.window, a.rope) = (window, Some(1));
        }
    }
    if s.flag(NONE, "use_sandwich_norm")?.unwrap_or(true) {
        d.norms_after_too();
    }
    lfm2::convolutions(s, &mut d, &kinds.iter().map(|kind| *kind == 2).collect::<Vec<bool>>(), 7)?;
    d.names = lfm2::names().with(&[
        ("attn_gate", "self_attn.gate_proj"),
        ("post_attention_norm", "post_operator_norm"),
        ("post_ffw_norm", "post_ffn_norm"),
    ]);
    Ok(d)
}
