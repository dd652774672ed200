//! Granite with sliding windows (IBM, 2025): Granite with a learned logit of each head that belongs to no key, windows in three of four layers, and θ
//! by layer.

use super::common::{self, Usual};
use super::granite;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::rope_settings::RopeDefaults;
use crate::models::rope_settings::RopeTable;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "granite_swa", &Usual { eps: 1e-5, kv_heads: Some(4), tied: true, ..Usual::default() })?;
    common::biases(s, &mut d)?;
    granite::multipliers(s, &mut d)?;
    common::windows(s, &mut d, Some(128), |i| i % 4 != 0)?;
    d.attentions(|a| a.sinks = true);
    let Some(bases) = s.numbers("layer_rope_theta")? else { return Ok(d) };
    if bases.len() != d.layers.len() || bases.iter().any(|b| *b < 0.0) {
        return Err(s.refuse(NONE, "layer_rope_theta", &format!("want a number for each layer ({})", s.sizes())));
    }
    let mut ropes = d.ropes.clone();
    for (a, base) in d.attention_layers().zip(bases) {
        // 0 stands for no rotation.
        let known = ropes.iter().position(|r| r.base == base);
        a.rope = (base > 0.0).then(|| known.unwrap_or(ropes.len()));
        if base > 0.0 && known.is_none() {
            ropes.push(RopeTable::unscaled(s, RopeDefaults::default(), base, a.head_dim));
        }
    }
    d.ropes = ropes;
    Ok(d)
}
