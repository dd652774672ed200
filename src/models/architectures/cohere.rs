//! Command R (Cohere, 2024): both parts side by side behind one layer norm without bias, pairs of neighbours rotated, logits scaled. Command R7B
//! (Cohere 2) has windows in three of four layers, and rotates nothing in the others.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{Flow, NormKind, QkNorm, QkNormOf};
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 500_000.0, ..common::adjacent() };
    let mut d = parallel(s, "command-r", Usual { rope, ..usual() })?;
    let normed = s.flag(NONE, "use_qk_norm")?.unwrap_or(false);
    let norm = d.norm;
    d.attentions(|a| a.qk_norm = normed.then_some(QkNorm { norm, of: QkNormOf::EachHead, after_rope: false }));
    Ok(d)
}

pub(super) fn describe2(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = parallel(s, "cohere2", usual())?;
    let pattern = s.size(NONE, "sliding_window_pattern", 4096)?.unwrap_or(4);
    s.number(NONE, "_sliding_window_pattern")?;
    common::windows(s, &mut d, Some(4096), |i| (i + 1) % pattern != 0)?;
    d.attentions(|a| a.rope = a.window.map(|_| 0));
    Ok(d)
}

pub(super) fn usual() -> Usual<'static> {
    let (norm, eps_key) = (NormKind::LayerWithoutBias, "layer_norm_eps");
    Usual { norm, eps: 1e-5, eps_key, rope: common::adjacent(), tied: true, ..Usual::default() }
}

pub(super) fn parallel(s: &Settings<'_>, architecture: &'static str, usual: Usual<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, architecture, &usual)?;
    let bias = common::bias(s, "attention_bias", false)?;
    d.attentions(|a| (a.qkv_bias, a.output_bias) = (bias, bias));
    d.each(|l| (l.flow, l.feed_norm) = (Flow::Parallel, None));
    d.head.scale = s.positive("logit_scale", "logit_scale")?.or(s.is_hub().then_some(0.0625));
    Ok(d)
}
