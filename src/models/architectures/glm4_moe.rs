//! GLM 4.5 (Z.ai, 2025): Llama with half of each head rotated and, where the settings say so, normed heads; DeepSeek V3's experts behind the first layer.

use super::common::{self, Usual};
use super::experts;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{QkNorm, QkNormOf};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { part: Some(0.5), ..RopeDefaults::default() };
    let mut d = common::decoder(s, "glm4_moe", &Usual { eps: 1e-5, kv_heads: Some(8), rope, experts: true, ..Usual::default() })?;
    common::qkv_biases(s, &mut d, false)?;
    let (norm, normed) =
        (d.norm, if s.is_hub() { s.flag(NONE, "use_qk_norm")?.unwrap_or(false) } else { s.has_tensor("blk.0.attn_q_norm.weight") });
    d.attentions(|a| a.qk_norm = normed.then_some(QkNorm { norm, of: QkNormOf::Head, after_rope: false }));
    let mut experts = experts::experts(s, &experts::routed(Some([128, 8])), experts::deepseek(s, [1, 1], true, 1.0)?)?;
    let size = experts::size(s, "moe_intermediate_size", 1408)?;
    experts.shared = experts::shared(s, "n_shared_experts", size, 1)?;
    let dense = experts::dense_first(s, 1)?;
    experts::put(&mut d, &experts, size, |i| i >= dense);
    experts::without_predictors(s, &mut d)?;
    d.names = Names::llama().in_gguf(&[("ffn_norm", "post_attention_norm")]);
    Ok(d)
}
