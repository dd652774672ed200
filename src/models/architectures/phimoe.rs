//! Phi-3.5-MoE (Microsoft, 2024): layer norms with biases, a window on all layers, and two experts that SparseMixer chooses one after the other.

use super::common::{self, Usual};
use super::experts;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{NormKind, RouterSpec, Scores};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 1e6, mscales: true, ..RopeDefaults::default() };
    let usual = Usual { norm: NormKind::Layer, eps: 1e-5, kv_heads: Some(8), rope, experts: true, ..Usual::default() };
    let mut d = common::decoder(s, "phimoe", &usual)?;
    // What LongRoPE takes it for is read with the rotations.
    s.positive(NONE, "original_max_position_embeddings")?;
    common::attention_biases(s, &mut d)?;
    common::windows(s, &mut d, None, |_| true)?;
    d.head.bias = s.flag(NONE, "lm_head_bias")?.unwrap_or(false);
    // Noise that training adds; the other noise's size is the width within which experts are taken together.
    s.number(NONE, "input_jitter_noise")?;
    let eps = s.number(NONE, "router_jitter_noise")?.unwrap_or(0.01);
    let router = RouterSpec { sparse_mixer: Some(eps), ..RouterSpec::new(Scores::Softmax) };
    let (experts, size) = (experts::experts(s, &experts::counts([16, 2]), router)?, d.layers[0].feed.size);
    if experts.used != 2 {
        return Err(s.refuse("expert_used_count", "num_experts_per_tok", "SparseMixer takes 2 experts"));
    }
    experts::put(&mut d, &experts, size, |_| true);
    d.names = Names::mixtral();
    Ok(d)
}
