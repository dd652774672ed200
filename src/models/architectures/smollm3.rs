//! SmolLM3 (Hugging Face, 2025): Llama with no rotation in every fourth layer (Yang et al., 2025, "RoPE to NoPE and back again").

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 2_000_000.0, ..common::reordered() };
    let mut d = common::decoder(s, "smollm3", &Usual { kv_heads: Some(4), rope, tied: true, ..Usual::default() })?;
    common::biases(s, &mut d)?;
    let interval = s.size(NONE, "no_rope_layer_interval", 4096)?.unwrap_or(4);
    // 1 stands for a layer that rotates.
    let rotated: Vec<bool> = match s.numbers("no_rope_layers")? {
        Some(list) if list.len() == d.layers.len() => list.iter().map(|n| *n != 0.0).collect(),
        Some(_) => return Err(s.refuse(NONE, "no_rope_layers", &format!("expected a number for each layer ({})", s.sizes()))),
        None => (1..=d.layers.len()).map(|i| i % interval != 0).collect(),
    };
    if s.is_hub() {
        let used = s.flag(NONE, "use_sliding_window")?.unwrap_or(false);
        common::windows(s, &mut d, None, |i| used && !rotated[i])?;
    }
    common::without_rope(&mut d, |i| !rotated[i]);
    Ok(d)
}
