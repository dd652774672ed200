//! OLMoE (Muennighoff et al., 2024): queries and keys normalised over their whole width, then clipped; weights by the softmax over all experts.

use super::common::{self, Usual};
use super::experts;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{QkNorm, QkNormOf, RouterSpec, Scores};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "olmoe", &Usual { eps: 1e-5, experts: true, ..Usual::default() })?;
    let (norm, bias) = (d.norm, common::bias(s, "attention_bias", false)?);
    // llama.cpp knows no bounds of this architecture.
    let clip = s.positive_or_null(NONE, "clip_qkv")?;
    d.attentions(|a| {
        a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Width, after_rope: false });
        (a.qkv_bias, a.output_bias, a.clip) = (bias, bias, clip);
    });
    let normalised = s.flag(NONE, "norm_topk_prob")?.unwrap_or(false);
    let experts = experts::experts(s, &experts::counts([64, 8]), RouterSpec::new(Scores::Softmax).normalised(normalised))?;
    let size = d.layers[0].feed.size;
    experts::put(&mut d, &experts, size, |_| true);
    Ok(d)
}
