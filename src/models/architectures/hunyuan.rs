//! Hunyuan dense (Tencent, 2025): Llama with heads of queries and keys normalised after they rotate, and a rotation whose θ is scaled once by
//! α^(D/(D−2)).

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{QkNorm, QkNormOf};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(
        s,
        "hunyuan_v1_dense",
        &Usual { eps: 1e-5, rope: RopeDefaults { alpha: true, ..RopeDefaults::default() }, ..Usual::default() },
    )?;
    let (norm, bias) = (d.norm, common::bias(s, "attention_bias", false)?);
    d.attentions(|a| {
        a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Head, after_rope: true });
        (a.qkv_bias, a.output_bias) = (bias, bias);
    });
    d.names = Names::llama().with(&[("attn_q_norm", "self_attn.query_layernorm"), ("attn_k_norm", "self_attn.key_layernorm")]);
    Ok(d)
}
