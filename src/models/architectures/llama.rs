//! Llama (Touvron et al., 2023): RMS norm, rotary positions, grouped-query attention, gated SiLU feed-forward. Also SmolLM2 and TinyLlama.
//!
//! x ← x + Wo·attention(rope(Wq·n), rope(Wk·n), Wv·n) with n = rms(x)·w, then x ← x + Wdown·(silu(Wgate·m) ⊙ Wup·m) with m = rms(x)·w′.

use super::common::{self, Usual};
use super::mixtral;
use crate::error::TensorResult;
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
