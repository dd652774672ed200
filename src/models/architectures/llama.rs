//! Llama (Touvron et al., 2023): RMS norm, rotary positions, grouped-query attention, gated SiLU feed-forward. Also SmolLM2 and TinyLlama.
//!
//! x ← x + Wo·attention(rope(Wq·n), rope(Wk·n), Wv·n) with n = rms(x)·w, then x ← x + Wdown·(silu(Wgate·m) ⊙ Wup·m) with m = rms(x)·w′.

use super::common::{self, Usual};
use super::mixtral;
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "llama", &Usual { rope: common::reordered(), experts: true, ..Usual::default() })?;
    common::biases(s, &mut d)?;
    let scale = s.positive("attention.scale", NONE)?;
    d.attentions(|a| a.scale = scale);
    mixtral::of_llama(s, &mut d)?;
    d.unused = &[".rotary_emb.inv_freq", ".attn_rot_embd.weight"];
    Ok(d)
}

/// The metadata that llama.cpp's converter writes.
pub(super) fn to_gguf(s: &Settings<'_>, d: &Description, w: &mut GgufWriter) -> TensorResult<()> {
    let (l, rope) = (&d.layers[0], &d.ropes[0]);
    s.only(l.feed.experts.is_none(), "num_local_experts")?;
    s.only(l.feed.activation == ActivationFn::Silu, "hidden_act")?;
    s.only(rope.factor == 1.0 && rope.long.is_none(), "rope_parameters")?;
    let vocab = s.size(NONE, "vocab_size", 1 << 31)?;
    let sizes = [
        ("block_count", d.layers.len()),
        ("context_length", d.context),
        ("embedding_length", d.width),
        ("feed_forward_length", l.feed.size),
        ("attention.head_count", d.heads),
        ("attention.head_count_kv", d.kv_heads),
        ("attention.key_length", d.head_dim),
        ("attention.value_length", d.head_dim),
        ("rope.dimension_count", d.head_dim),
    ];
    for (key, v) in sizes.into_iter().chain(vocab.map(|v| ("vocab_size", v))) {
        w.set(&format!("llama.{key}"), v as u32);
    }
    w.set("llama.attention.layer_norm_rms_epsilon", d.norm.eps as f32).set("llama.rope.freq_base", rope.base as f32);
    Ok(())
}
