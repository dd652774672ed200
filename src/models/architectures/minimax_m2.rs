//! MiniMax M2 (MiniMax, 2025): queries and keys normalised over their whole width, a part of each head rotated; experts by σ of the logits, with a
//! correction for the choice, whose weights add up to 1.

use super::common::{self, Usual};
use super::experts;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{QkNorm, QkNormOf, RouterSpec, Scores};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let head = s.size("attention.key_length", "head_dim", 1 << 12)?.unwrap_or(128);
    let part = s.size(NONE, "rotary_dim", 1 << 12)?.map_or(1.0, |rope_dim| rope_dim as f64 / head as f64);
    let rope = RopeDefaults { base: 5e6, part: Some(part), ..RopeDefaults::default() };
    let usual = Usual { kv_heads: Some(8), head_dim: Some(128), rope, experts: true, ..Usual::default() };
    let mut d = common::decoder(s, "minimax_m2", &usual)?;
    let norm = d.norm;
    d.attentions(|a| a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Width, after_rope: false }));
    experts::only_text(s, "scoring_func", &["sigmoid"])?;
    s.only_flag(NONE, "use_routing_bias", true, "only experts with a correction are implemented")?;
    s.only_number("expert_gating_func", NONE, 2.0, "only sigmoid (2) is implemented for this architecture")?;
    let size = d.layers[0].feed.size;
    s.only_number("expert_feed_forward_length", NONE, size as f64, "`feed_forward_length` must be the same")?;
    // Noise that training adds.
    s.number(NONE, "router_jitter_noise")?;
    let router = RouterSpec { correction: true, ..RouterSpec::new(Scores::Sigmoid) }.normalised(true);
    let experts = experts::experts(s, &experts::counts([256, 8]), router)?;
    experts::put(&mut d, &experts, size, |_| true);
    d.names = Names::mixtral();
    Ok(d)
}
