//! StableLM 2 (Bellagente et al., 2024): Llama with layer norms and a quarter of each head rotated; the 12B model has both parts side by side behind
//! one norm, and norms of queries and keys with weights for each head.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{Flow, NormKind, NormSpec, QkNorm, QkNormOf};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { part: Some(0.25), ..RopeDefaults::default() };
    let (norm, eps_key) = (NormKind::Layer, "layer_norm_eps");
    let mut d = common::decoder(s, "stablelm", &Usual { norm, eps: 1e-5, eps_key, kv_heads: Some(32), rope, ..Usual::default() })?;
    let bias = common::bias(s, "use_qkv_bias", false)?;
    let parallel = s.flag("use_parallel_residual", "use_parallel_residual")?.unwrap_or(false);
    // In GGUF, only the parallel models have these norms.
    let normed = if s.is_hub() { s.flag(NONE, "qk_layernorm")?.unwrap_or(false) } else { parallel };
    let heads = NormSpec { kind: NormKind::LayerWithoutBias, ..d.norm };
    d.attentions(|a| {
        a.qkv_bias = bias;
        a.qk_norm = normed.then_some(QkNorm { norm: heads, of: QkNormOf::EachHead, after_rope: false });
    });
    if parallel {
        d.each(|l| (l.flow, l.feed_norm) = (Flow::Parallel, None));
    }
    d.names = Names::llama().with(&[("attn_q_norm", "self_attn.q_layernorm"), ("attn_k_norm", "self_attn.k_layernorm")]);
    Ok(d)
}
