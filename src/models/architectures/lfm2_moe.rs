//! LFM2 with experts (Liquid AI, 2025): behind some dense layers experts by σ, with a correction for the choice.

use super::common::{self, Usual};
use super::{experts, lfm2};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{Divisor, RouterSpec, Scores};
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 1e6, ..RopeDefaults::default() };
    let usual =
        Usual { eps: 1e-5, eps_key: "norm_eps", kv_heads: Some(8), rope, tied: true, experts: true, mixed: true, ..Usual::default() };
    let mut d = common::decoder(s, "lfm2moe", &usual)?;
    let layers = d.layers.len();
    let conv = common::layer_kinds(s, &["layer_types"], layers, &[&["full_attention"], &["conv"]])?;
    let conv: Vec<bool> = match conv {
        Some(kinds) => kinds.into_iter().map(|kind| kind == 1).collect(),
        None if s.is_hub() => vec![false; layers],
        None => lfm2::without_attention(s, &mut d)?,
    };
    lfm2::convolutions(s, &mut d, &conv, 3)?;
    let divisor = s.flag(NONE, "norm_topk_prob")?.unwrap_or(true).then_some(Divisor { plus: 1e-6, least: 0.0 });
    let scale = s.number(NONE, "routed_scaling_factor")?.unwrap_or(1.0);
    let correction = s.flag(NONE, "use_expert_bias")?.unwrap_or(true);
    s.only_number("expert_gating_func", NONE, 2.0, "only sigmoid (2) is implemented for this architecture")?;
    let router = RouterSpec { correction, divisor, scale, ..RouterSpec::new(Scores::Sigmoid) };
    let experts = experts::experts(s, &experts::counts([32, 4]), router)?;
    let size = experts::size(s, "moe_intermediate_size", 1792)?;
    let dense = s.count("leading_dense_block_count", "num_dense_layers")?.unwrap_or(if s.is_hub() { 2.0 } else { 0.0 }).max(0.0) as usize;
    experts::put(&mut d, &experts, size, |i| i >= dense);
    d.names = lfm2::names_of_heads().with(&[
        ("ffn_gate_inp", "feed_forward.gate"),
        ("exp_probs_b.bias", "feed_forward.expert_bias"),
        ("ffn_gate_exps", "feed_forward.experts.*.w1"),
        ("ffn_up_exps", "feed_forward.experts.*.w3"),
        ("ffn_down_exps", "feed_forward.experts.*.w2"),
    ]);
    Ok(d)
}
