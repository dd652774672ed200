//! LFM2 (Liquid AI, 2025): most layers have a gated short convolution in the place of attention; the others normalise heads of queries and keys.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{MixerSpec, QkNorm, QkNormOf, ShortConvSpec};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

/// Keys of the training code that transformers reads nothing from.
const LEFT_OVER: [&str; 11] = [
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_swiglu",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "use_pos_enc",
];

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { base: 1e6, ..RopeDefaults::default() };
    let tied = s.flag(NONE, "tie_embedding")?.unwrap_or(true);
    let usual = Usual { eps: 1e-5, eps_key: "norm_eps", kv_heads: Some(8), rope, tied, mixed: true, ..Usual::default() };
    let mut d = common::decoder(s, "lfm2", &usual)?;
    if s.is_hub() {
        let size = feed_size(s, d.layers[0].feed.size)?;
        d.each(|l| l.feed.size = size);
    }
    let layers = d.layers.len();
    let conv = match common::layer_kinds(s, &["layer_types"], layers, &[&["full_attention"], &["conv"]])? {
        Some(kinds) => {
            s.ignore("full_attn_idxs");
            kinds.into_iter().map(|kind| kind == 1).collect()
        }
        None if s.is_hub() => conv_layers(s, layers)?,
        None => without_attention(s, &mut d)?,
    };
    convolutions(s, &mut d, &conv, 3)?;
    d.names = names_of_heads();
    LEFT_OVER.iter().for_each(|key| s.ignore(key));
    Ok(d)
}

/// Size of the feed-forward part: two thirds of what the settings say, times a factor, as a multiple of a number.
fn feed_size(s: &Settings<'_>, size: usize) -> TensorResult<usize> {
    let size = s.size(NONE, "block_ff_dim", 1 << 22)?.unwrap_or(size);
    let (by, of) = (s.positive(NONE, "block_ffn_dim_multiplier")?, s.size(NONE, "block_multiple_of", 1 << 20)?.unwrap_or(256));
    if !s.flag(NONE, "block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(size);
    }
    let size = (2 * size / 3) as f64;
    Ok(((size * by.unwrap_or(1.0)) as usize).next_multiple_of(of))
}

/// The layers that `full_attn_idxs` does not name; without it all have attention.
fn conv_layers(s: &Settings<'_>, layers: usize) -> TensorResult<Vec<bool>> {
    if !s.has_object("full_attn_idxs") {
        return Ok(vec![false; layers]);
    }
    let named = s.numbers("full_attn_idxs")?.unwrap_or_default();
    Ok((0..layers).map(|i| !named.contains(&(i as f64))).collect())
}

/// The layers that GGUF gives no heads of keys.
pub(super) fn without_attention(s: &Settings<'_>, d: &mut Description) -> TensorResult<Vec<bool>> {
    // llama.cpp has the name of another norm for the last one.
    d.final_norm_name = "token_embd_norm";
    Ok(common::layers_with_attention(s, d.layers.len())?.iter().map(|attention| !attention).collect())
}

/// Convolutions in these layers; normalised heads in the others.
pub(super) fn convolutions(s: &Settings<'_>, d: &mut Description, conv: &[bool], usual: usize) -> TensorResult<()> {
    let taps = s.size("shortconv.l_cache", "conv_L_cache", 1 << 10)?.unwrap_or(usual);
    if taps < 2 {
        return Err(s.refuse("shortconv.l_cache", "conv_L_cache", "a convolution sees at least two tokens"));
    }
    let bias = s.flag(NONE, "conv_bias")?.unwrap_or(false);
    let norm = d.norm;
    d.attentions(|a| a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Head, after_rope: false }));
    let layers = d.layers.iter_mut().zip(conv).filter(|(_, conv)| **conv);
    layers.for_each(|(l, _)| l.mixer = MixerSpec::ShortConv(ShortConvSpec { taps, bias }));
    Ok(())
}

/// The names, with those that the attention of LFM2 has.
pub(super) fn names_of_heads() -> Names {
    names().with(&[
        ("attn_output", "self_attn.out_proj"),
        ("attn_q_norm", "self_attn.q_layernorm"),
        ("attn_k_norm", "self_attn.k_layernorm"),
    ])
}

pub(super) fn names() -> Names {
    Names::llama().with_top(&[("output_norm", "model.embedding_norm")]).with(&[
        ("attn_norm", "operator_norm"),
        ("ffn_norm", "ffn_norm"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_up", "feed_forward.w3"),
        ("ffn_down", "feed_forward.w2"),
        ("shortconv.in_proj", "conv.in_proj"),
        ("shortconv.conv", "conv.conv"),
        ("shortconv.out_proj", "conv.out_proj"),
    ])
}
