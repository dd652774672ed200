//! ERNIE 4.5 with experts (Baidu, 2025): pairs of neighbours rotated; the softmax over all experts, a correction for the choice, weights that are
//! divided by their sum; experts in some layers, and shared ones.

use super::common::{self, Usual};
use super::experts;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{Divisor, RouterSpec, Scores};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 500_000.0, ..common::adjacent() };
    let usual = Usual { eps: 1e-5, kv_heads: Some(4), rope, tied: true, experts: true, ..Usual::default() };
    let mut d = common::decoder(s, "ernie4_5_moe", &usual)?;
    let bias = common::bias(s, "use_bias", false)?;
    d.attentions(|a| (a.qkv_bias, a.output_bias) = (bias, bias));
    d.each(|l| l.feed.bias = bias);
    d.head.bias = bias == Some(true);
    let least = s.number(NONE, "moe_norm_min")?.unwrap_or(1e-12);
    let router = RouterSpec { correction: true, divisor: Some(Divisor { plus: 0.0, least }), ..RouterSpec::new(Scores::Softmax) };
    let keys = experts::Counts { count: &["moe_num_experts"], used: "moe_k", usual: Some([64, 6]) };
    let mut experts = experts::experts(s, &keys, router)?;
    let size = experts::size(s, "moe_intermediate_size", 1536)?;
    experts.shared = experts::shared(s, "moe_num_shared_experts", size, 2)?;
    let together = s.size("expert_shared_feed_forward_length", NONE, 1 << 22)?;
    experts.shared.iter_mut().for_each(|shared| shared.size = together.unwrap_or(shared.size));
    let first = s.count("leading_dense_block_count", "moe_layer_start_index")?.unwrap_or(if s.is_hub() { 1.0 } else { 0.0 });
    let last = s.number(NONE, "moe_layer_end_index")?.filter(|n| *n != -1.0).unwrap_or(f64::INFINITY);
    let step = s.size("interleave_moe_layer_step", "moe_layer_interval", 1 << 12)?.unwrap_or(1);
    experts::put(&mut d, &experts, size, |i| (i + 1) % step == 0 && (first..=last).contains(&(i as f64)));
    d.names = Names::llama().with(&[("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias")]);
    Ok(d)
}
