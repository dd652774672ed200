//! EXAONE 4 (LG AI Research, 2025): Llama with the norms behind each part, normed heads of queries and keys, and, in the large model, windows in three
//! of four layers and no rotation in the others.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{QkNorm, QkNormOf};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

/// Layers of the model that has windows.
const WINDOWED_LAYERS: usize = 64;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let usual = Usual { eps: 1e-5, kv_heads: Some(32), ..Usual::default() };
    let mut d = common::decoder(s, "exaone4", &usual)?;
    let norm = d.norm;
    d.norms_after();
    d.attentions(|a| a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Head, after_rope: false }));
    d.names = Names::llama().with(&[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")]);
    if s.is_hub() {
        // 0 where there is no window, and a text such as LLLG beside `layer_types`.
        let pattern = if s.is_text("sliding_window_pattern") {
            s.text(NONE, "sliding_window_pattern")?.map_or(4, str::len)
        } else {
            s.number(NONE, "sliding_window_pattern")?.unwrap_or(4.0) as usize
        };
        let limited = common::windows(s, &mut d, Some(4096), |i| pattern > 0 && (i + 1) % pattern != 0)?;
        if s.window(Some(4096))?.is_some() {
            common::without_rope(&mut d, |i| !limited[i]);
        }
    } else if d.layers.len() == WINDOWED_LAYERS {
        let limited = common::windows(s, &mut d, Some(4096), |i| (i + 1) % 4 != 0)?;
        common::without_rope(&mut d, |i| !limited[i]);
    } else {
        // llama.cpp has windows in the large model alone, whatever other files say.
        s.window(None)?;
        s.flags_by_layer("attention.sliding_window_pattern")?;
    }
    Ok(d)
}
