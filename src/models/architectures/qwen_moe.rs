//! Qwen 2 and 3 with experts (Qwen team, 2024 and 2025): weights by the softmax over all experts, which add up to 1 only where the settings say so;
//! some layers without experts. Qwen 2 has a shared expert as well, times σ(w·x).

use super::common::{self, Usual};
use super::{experts, qwen3};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{RouterSpec, Scores, SharedSpec};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

/// The names of a shared expert's matrices and of its gate.
pub(super) const SHARED_NAMES: [(&str, &str); 4] = [
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];

pub(super) fn describe2(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "qwen2moe", &Usual { kv_heads: Some(16), experts: true, ..Usual::default() })?;
    let bias = common::bias(s, "qkv_bias", true)?;
    d.attentions(|a| a.qkv_bias = bias);
    let used = s.flag(NONE, "use_sliding_window")?.unwrap_or(false);
    let most = s.number(NONE, "max_window_layers")?.unwrap_or(28.0);
    if used {
        common::windows(s, &mut d, Some(4096), |i| i % 2 == 0 && (i as f64) < most)?;
    } else {
        // Then the window is written as 0.
        s.ignore("sliding_window");
        if s.is_hub() && s.windowed_layers(d.layers.len())?.is_some_and(|all| all.contains(&true)) {
            return Err(s.refuse(NONE, "layer_types", "`use_sliding_window` is false"));
        }
    }
    let shared = s.size("expert_shared_feed_forward_length", "shared_expert_intermediate_size", 1 << 22)?;
    let shared = shared.or(s.is_hub().then_some(5632)).map(|size| SharedSpec { size, gated: true, mean: false });
    put(s, &mut d, [60, 4], 1408, false, shared)?;
    d.names = Names::llama().with(&SHARED_NAMES);
    Ok(d)
}

pub(super) fn describe3(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "qwen3moe", &Usual { kv_heads: Some(4), experts: true, ..Usual::default() })?;
    qwen3::normed(s, &mut d)?;
    let used = s.flag(NONE, "use_sliding_window")?.unwrap_or(false);
    s.number(NONE, "max_window_layers")?;
    if used {
        common::windows(s, &mut d, Some(4096), |_| true)?;
    } else {
        s.ignore("sliding_window");
    }
    put(s, &mut d, [128, 8], 768, true, None)?;
    Ok(d)
}

/// Experts in the layers that are not in `mlp_only_layers`, each `decoder_sparse_step` of them. GGUF has no key of the weights' sum.
fn put(s: &Settings<'_>, d: &mut Description, n: [usize; 2], size: usize, in_gguf: bool, shared: Option<SharedSpec>) -> TensorResult<()> {
    let normalised = if s.is_hub() { s.flag(NONE, "norm_topk_prob")?.unwrap_or(false) } else { in_gguf };
    let mut experts = experts::experts(s, &experts::counts(n), RouterSpec::new(Scores::Softmax).normalised(normalised))?;
    experts.shared = shared;
    let size = experts::size(s, "moe_intermediate_size", size)?;
    let step = s.size(NONE, "decoder_sparse_step", 1 << 12)?.unwrap_or(1);
    let dense = s.numbers("mlp_only_layers")?.unwrap_or_default();
    experts::put(d, &experts, size, |i| (i + 1) % step == 0 && !dense.contains(&(i as f64)));
    Ok(())
}
