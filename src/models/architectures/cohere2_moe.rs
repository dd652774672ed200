//! Cohere 2 with experts (2025): attention and experts side by side behind one norm; the weights are the softmax or σ of the chosen logits; the mean of
//! routed and shared experts, or their sum; dense layers at the start, which rotate even without a window.

use super::common::{self, Usual};
use super::{cohere, experts};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{NormKind, RouterSpec, Scores, SharedSpec};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut usual = Usual { head_dim: Some(128), experts: true, ..cohere::usual() };
    let rms = "attention.layer_norm_rms_epsilon";
    if !s.is_null("rms_norm_eps") && s.positive(rms, "rms_norm_eps")?.is_some() {
        (usual.norm, usual.eps_key) = (NormKind::Rms, "rms_norm_eps");
        s.ignore("layer_norm_eps");
    }
    let mut d = cohere::parallel(s, "cohere2_moe", usual)?;
    let [pattern, first_pattern] = ["sliding_window_pattern", "prefix_dense_sliding_window_pattern"].map(|key| s.size(NONE, key, 4096));
    let (pattern, first_pattern) = (pattern?.unwrap_or(4), first_pattern?.unwrap_or(1));
    let first = experts::dense_first(s, 0)?;
    let limited = |i: usize| if i < first { (i + 1) % first_pattern != 0 } else { (i - first + 1) % pattern != 0 };
    common::windows(s, &mut d, Some(4096), limited)?;
    let sparse = experts::by_types(s, d.layers.len())?.unwrap_or_else(|| (0..d.layers.len()).map(|i| i >= first).collect());
    let mut layer = 0;
    d.attentions(|a| {
        let rotated = a.window.is_some() || !sparse[layer] && first_pattern == 1;
        (a.rope, layer) = (rotated.then_some(0), layer + 1);
    });
    let own = d.layers[0].feed.size;
    let size = if s.is_hub() { own } else { s.need("expert_feed_forward_length", NONE, 1 << 22)? };
    let dense = s.size(NONE, "prefix_dense_intermediate_size", 1 << 22)?.unwrap_or(own);
    d.each(|l| l.feed.size = dense);
    experts::only_text(s, "expert_selection_fn", &["softmax", "sigmoid"])?;
    let normalised = s.flag("expert_weights_norm", "norm_topk_prob")?.unwrap_or(s.is_hub());
    let router = RouterSpec::new(Scores::AsTheyAre);
    let router = match s.text(NONE, "expert_selection_fn")?.or(gating(s, normalised)?) {
        Some("sigmoid") => RouterSpec { chosen: Scores::Sigmoid, ..router }.normalised(normalised),
        _ => RouterSpec { chosen: Scores::Softmax, ..router },
    };
    let mut experts = experts::experts(s, &experts::counts([8, 2]), router)?;
    experts::only_text(s, "shared_expert_combination_strategy", &["average", "sum"])?;
    let mean = s.text(NONE, "shared_expert_combination_strategy")? != Some("sum");
    experts.shared = experts::shared(s, "num_shared_experts", size, 0)?.map(|shared| SharedSpec { mean, ..shared });
    experts::put(&mut d, &experts, size, |i| sparse[i]);
    Ok(d)
}

/// What GGUF says of the weights; the softmax over all experts, divided by the sum of the chosen ones, is that over the chosen ones.
fn gating(s: &Settings<'_>, normalised: bool) -> TensorResult<Option<&'static str>> {
    s.only_number("expert_weights_scale", NONE, 1.0, "only 1 is implemented for this architecture")?;
    match s.number("expert_gating_func", NONE)? {
        _ if s.is_hub() => Ok(None),
        None | Some(2.0) => Ok(Some("sigmoid")),
        Some(3.0) => Ok(Some("softmax")),
        Some(1.0) if normalised => Ok(Some("softmax")),
        Some(_) => Err(s.refuse("expert_gating_func", NONE, "supported: 2, 3, and 1 with weights that add up to 1")),
    }
}
