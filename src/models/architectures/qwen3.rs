//! Qwen 3 (Yang et al., 2025): Llama with heads of queries and keys normalised before they rotate, q ← rope(rms(Wq·n)·w).

use super::common::{self, Usual};
use super::qwen2;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{QkNorm, QkNormOf};
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "qwen3", &Usual { kv_heads: Some(32), head_dim: Some(128), ..Usual::default() })?;
    normed(s, &mut d)?;
    qwen2::windows(s, &mut d)?;
    Ok(d)
}

/// The norms of heads, and biases where the settings ask for them.
pub(super) fn normed(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let (norm, bias) = (d.norm, common::bias(s, "attention_bias", false)?);
    d.attentions(|a| {
        a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Head, after_rope: false });
        (a.qkv_bias, a.output_bias) = (bias, bias);
    });
    Ok(())
}
