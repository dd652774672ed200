//! dots.llm1 (Xiaohongshu, 2025): Qwen 3's attention with windows from some layer on, and DeepSeek V3's experts.

use super::common::{self, Usual};
use super::{experts, qwen3};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "dots1", &Usual { kv_heads: Some(32), experts: true, ..Usual::default() })?;
    qwen3::normed(s, &mut d)?;
    let first = s.number(NONE, "max_window_layers")?.unwrap_or(62.0);
    common::windows(s, &mut d, Some(4096), |i| i as f64 >= first)?;
    let mut experts = experts::experts(s, &experts::routed(None), experts::deepseek(s, [1, 1], false, 1.0)?)?;
    let size = experts::size(s, "moe_intermediate_size", 1408)?;
    experts.shared = experts::shared(s, "n_shared_experts", size, 0)?;
    let dense = experts::dense_first(s, 0)?;
    experts::put(&mut d, &experts, size, |i| i >= dense);
    Ok(d)
}
