//! Qwen 2 (Yang et al., 2024): Llama with biases of queries, keys and values, and windows from some layer on where the settings ask for them.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "qwen2", &Usual { kv_heads: Some(32), ..Usual::default() })?;
    d.attentions(|a| a.qkv_bias = Some(true));
    windows(s, &mut d)?;
    Ok(d)
}

/// Windows where `use_sliding_window` says so, by default from layer `max_window_layers` on.
pub(super) fn windows(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    if !s.is_hub() {
        return Ok(());
    }
    let used = s.flag(NONE, "use_sliding_window")?.unwrap_or(false);
    // 0 is a layer as well.
    let first = s.number(NONE, "max_window_layers")?.unwrap_or(28.0);
    common::windows(s, d, Some(4096), |i| used && i as f64 >= first)?;
    if !used {
        d.attentions(|a| a.window = None);
    }
    Ok(())
}
