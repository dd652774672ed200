//! Mixtral (Jiang et al., 2024): Mistral with experts, Σ w_e·feed_e(x) over the k experts with the largest logits W·x, w = softmax of those.

use super::common::{self, Usual};
use super::experts;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{RouterSpec, Scores};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

/// The softmax over all experts, divided by the sum of the chosen ones, is that over the chosen ones.
fn router() -> RouterSpec {
    RouterSpec::new(Scores::Softmax).normalised(true)
}

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 1e6, ..common::reordered() };
    let mut d = common::decoder(s, "mixtral", &Usual { eps: 1e-5, kv_heads: Some(8), rope, experts: true, ..Usual::default() })?;
    common::windows(s, &mut d, None, |_| true)?;
    let (experts, size) = (experts::experts(s, &experts::counts([8, 2]), router())?, d.layers[0].feed.size);
    // Noise that training adds.
    s.number(NONE, "router_jitter_noise")?;
    experts::put(&mut d, &experts, size, |_| true);
    d.names = Names::mixtral();
    Ok(d)
}

/// Mixtral's experts where a GGUF file of Llama's architecture has some.
pub(super) fn of_llama(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    if s.number("expert_count", NONE)?.unwrap_or(0.0) == 0.0 {
        return s.only_number("expert_used_count", NONE, 0.0, "there are no experts");
    }
    let dense = d.layers[0].feed.size;
    let size = s.size("expert_feed_forward_length", NONE, 1 << 22)?.unwrap_or(dense);
    let experts = experts::experts(s, &experts::counts([0, 0]), router())?;
    experts::put(d, &experts, size, |_| true);
    Ok(())
}
