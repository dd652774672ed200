//! Llama 4 (Meta, 2025): pairs of neighbours rotated and heads normalised behind that; attention within chunks of positions, except in some layers,
//! which rotate nothing and whose queries grow with the position. Experts take x times σ of their logits, beside a shared one, in some layers.

use super::common::{self, Usual};
use super::experts;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{ExpertLayout, NormKind, NormSpec, QkNorm, QkNormOf, RouterSpec, Scores, SharedSpec};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::{Growth, RopeDefaults, RopeTable};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 500_000.0, ..common::adjacent() };
    let usual = Usual { eps: 1e-5, kv_heads: Some(8), head_dim: Some(128), rope, experts: true, ..Usual::default() };
    let mut d = common::decoder(s, "llama4_text", &usual)?;
    common::attention_biases(s, &mut d)?;
    attention(s, &mut d)?;
    let router = RouterSpec { chosen: Scores::Sigmoid, to_input: true, ..RouterSpec::new(Scores::AsTheyAre) };
    let (mut experts, size) = (experts::experts(s, &experts::counts([16, 1]), router)?, d.layers[0].feed.size);
    experts.layout = ExpertLayout::JointTransposed;
    // Noise that training adds.
    s.number(NONE, "router_jitter_noise")?;
    let step = s.size("interleave_moe_layer_step", "interleave_moe_layer_step", 1 << 12)?.unwrap_or(1);
    let listed = s.numbers("moe_layers")?;
    let dense = if s.is_hub() { s.size(NONE, "intermediate_size_mlp", 1 << 22)?.unwrap_or(16384) } else { size };
    d.each(|l| l.feed.size = dense);
    let size = if s.is_hub() { size } else { s.need("expert_feed_forward_length", NONE, 1 << 22)? };
    experts.shared = Some(SharedSpec { size, gated: false, mean: false });
    experts::put(&mut d, &experts, size, |i| listed.as_ref().map_or((i + 1) % step == 0, |all| all.contains(&(i as f64))));
    d.names = Names::llama().with(&[
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
        ("ffn_gate_inp", "feed_forward.router"),
        ("ffn_gate_up_exps.weight", "feed_forward.experts.gate_up_proj"),
        ("ffn_down_exps.weight", "feed_forward.experts.down_proj"),
        ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
        ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
        ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
    ]);
    Ok(d)
}

/// Which layers rotate, which see chunks, and how queries grow in those that do not rotate.
fn attention(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let layers = d.layers.len();
    let step = s.size(NONE, "no_rope_layer_interval", 1 << 12)?.unwrap_or(4);
    // 1 stands for layers that rotate.
    let rotated: Vec<bool> = match s.numbers("no_rope_layers")?.filter(|all| !all.is_empty()) {
        Some(all) if all.len() == layers => all.iter().map(|n| *n != 0.0).collect(),
        Some(_) => return Err(s.refuse(NONE, "no_rope_layers", &format!("expected {layers} numbers"))),
        None => (0..layers).map(|i| (i + 1) % step != 0).collect(),
    };
    let chunked: Vec<bool> = match s.texts("layer_types")? {
        Some(types) if types.len() == layers && types.iter().all(|t| ["chunked_attention", "full_attention"].contains(t)) => {
            types.iter().map(|t| *t == "chunked_attention").collect()
        }
        Some(_) => return Err(s.refuse(NONE, "layer_types", &format!("expected {layers} times chunked_attention or full_attention"))),
        None => rotated.clone(),
    };
    let chunk = if s.is_null("attention_chunk_size") { None } else { Some(s.size(NONE, "attention_chunk_size", 1 << 24)?.unwrap_or(8192)) };
    if chunk.is_none() && chunked.contains(&true) {
        return Err(s.refuse(NONE, "attention_chunk_size", "layers with chunks need their size"));
    }
    // GGUF has no key for these: llama.cpp takes them for those of the models that there are.
    s.only_number("attention.sliding_window", NONE, 8192.0, "llama.cpp takes it for 8192")?;
    let large = !s.is_hub() && s.number("expert_count", NONE)? == Some(128.0);
    let normed = s.flag(NONE, "use_qk_norm")?.unwrap_or(!large);
    let grows = s.flag(NONE, "attn_temperature_tuning")?.unwrap_or(true);
    let (beta, original) = (s.number(NONE, "attn_scale")?.unwrap_or(0.1), s.positive(NONE, "floor_scale")?.unwrap_or(8192.0));
    d.ropes.push(RopeTable::growing(Growth { beta, original, shift: 1.0 }));
    let norm = NormSpec { kind: NormKind::RmsWithoutWeights, ..d.norm };
    for (i, a) in d.attention_layers().enumerate() {
        a.chunk = chunk.filter(|_| chunked[i]);
        (a.rope, a.growth) = if rotated[i] { (Some(0), None) } else { (None, grows.then_some(1)) };
        a.qk_norm = (normed && rotated[i]).then_some(QkNorm { norm, of: QkNormOf::Head, after_rope: true });
    }
    Ok(())
}
