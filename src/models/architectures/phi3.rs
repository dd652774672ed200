//! Phi-3 (Abdin et al., 2024), 3.5 and 4: Llama with joint matrices, partial rotation, LongRoPE, and a window on all layers.

use super::Named;
use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, JointQkv};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { part: Some(1.0), yarn_is_longrope: true, ..RopeDefaults::default() };
    let mut d = common::decoder(s, "phi3", &Usual { eps: 1e-5, rope, ..Usual::default() })?;
    // What LongRoPE takes it for is read with the rotations.
    s.positive(NONE, "original_max_position_embeddings")?;
    d.names = Names::llama().with(&[("ffn_up", "mlp.gate_up_proj")]);
    d.attentions(|a| a.joint = JointQkv::Sorted);
    d.each(|l| l.feed.form = FeedForm::GatedJoint);
    common::windows(s, &mut d, None, |_| true)?;
    Ok(d)
}

/// 0 stands for no window.
pub(super) fn gguf_keys(_: &Settings<'_>, d: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    let window = d.layers[0].mixer.attention().and_then(|a| a.window);
    w.set("phi3.attention.sliding_window", window.unwrap_or(0) as u32);
    Ok(())
}
