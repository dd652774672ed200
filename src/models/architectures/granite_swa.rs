//! Granite with sliding windows (IBM, 2025): Granite with a learned logit of each head that belongs to no key, windows in three of four layers, and θ
//! by layer.

use super::common::{self, Usual};
use super::{Named, granite};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::decoder::Description;
use crate::models::rope_settings::RopeTable;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(
        s,
        "granite_swa",
        &Usual { eps: 1e-5, kv_heads: Some(4), rope: common::reordered(), tied: true, ..Usual::default() },
    )?;
    common::biases(s, &mut d)?;
    granite::multipliers(s, &mut d)?;
    common::windows(s, &mut d, Some(128), |i| i % 4 != 0)?;
    d.attentions(|a| a.sinks = true);
    if let Some(rotated) = s.flags_by_layer("attention.rope_pattern")? {
        common::without_rope(&mut d, |i| rotated.get(i) == Some(&false));
    }
    let Some(bases) = s.numbers("layer_rope_theta")? else { return Ok(d) };
    if bases.len() != d.layers.len() || bases.iter().any(|b| *b < 0.0) {
        return Err(s.refuse(NONE, "layer_rope_theta", &format!("expected a number for each layer ({})", s.sizes())));
    }
    let mut ropes = d.ropes.clone();
    for (a, base) in d.attention_layers().zip(bases) {
        // 0 stands for no rotation.
        let known = ropes.iter().position(|r| r.base == base);
        a.rope = (base > 0.0).then(|| known.unwrap_or(ropes.len()));
        if base > 0.0 && known.is_none() {
            ropes.push(RopeTable::unscaled(s, common::reordered(), base, a.head_dim));
        }
    }
    d.ropes = ropes;
    Ok(d)
}

/// The divisor of logits, and which layers rotate.
pub(super) fn gguf_keys(s: &Settings<'_>, d: &Description, tensors: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    let rotated = d.layers.iter().map(|l| l.mixer.attention().is_some_and(|a| a.rope.is_some()));
    w.set("granite_swa.attention.rope_pattern", rotated.collect::<Vec<bool>>());
    granite::gguf_keys(s, d, tensors, w)
}
