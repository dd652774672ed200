//! OLMo 2 (OLMo team, 2024): Llama with the norms behind each part instead of before it, and queries and keys normalised over their whole width.
//! OLMo 3 (2025) has windows in three of four layers, and the scaling of rotations in the others.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{QkNorm, QkNormOf};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::{RopeDefaults, RopeTable};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "olmo2", &Usual { eps: 1e-5, ..Usual::default() })?;
    norms(s, &mut d)?;
    // In GGUF, OLMo 3 is OLMo 2 with windows.
    if !s.is_hub() && s.window(None)?.is_some() {
        let base = s.positive("rope.freq_base_swa", NONE)?.unwrap_or(d.ropes[0].base);
        d.ropes.push(RopeTable::unscaled(s, RopeDefaults::default(), base, d.head_dim));
        windows(s, &mut d)?;
    }
    Ok(d)
}

pub(super) fn describe3(s: &Settings<'_>) -> TensorResult<Description> {
    let full = RopeDefaults { base: 500_000.0, object: "rope_parameters.full_attention", ..RopeDefaults::default() };
    let mut d = common::decoder(s, "olmo3", &Usual { eps: 1e-5, rope: full, ..Usual::default() })?;
    // What stands beside the objects of the two kinds of layers is left over from the older spelling.
    // What stands beside the objects of the kinds of layers has no effect in transformers.
    for key in ["attention_factor", "beta_fast", "beta_slow", "factor", "original_max_position_embeddings", "rope_theta", "rope_type"] {
        s.ignore(&format!("rope_parameters.{key}"));
    }
    norms(s, &mut d)?;
    let limited = RopeTable::from_config(s, "rope_parameters.sliding_attention", full, d.head_dim, d.context)?;
    d.ropes.push(limited);
    windows(s, &mut d)?;
    Ok(d)
}

/// Windows in three of four layers, which rotate by the second rotation.
fn windows(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    common::windows(s, d, Some(4096), |i| (i + 1) % 4 != 0)?;
    d.attentions(|a| a.rope = Some(usize::from(a.window.is_some())));
    Ok(())
}

fn norms(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let bias = common::bias(s, "attention_bias", false)?;
    let norm = d.norm;
    d.norms_after();
    d.attentions(|a| {
        a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Width, after_rope: false });
        (a.qkv_bias, a.output_bias) = (bias, bias);
    });
    d.names = Names::llama().with(&[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")]);
    Ok(())
}
