//! GPT-2 (Radford et al., 2019): learned positions, layer norm, joint QKV, tanh-GELU feed-forward.
//!
//! x = E[tokens] + P[positions]; x ← x + Wo·attention(Wqkv·ln(x)), then x ← x + W₂·gelu(W₁·ln′(x)), every product with a bias.

use super::Named;
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::{Description, FeedForm, JointQkv, LearnedPositions, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let z = sizes(s)?;
    s.only_number("attention.head_count_kv", NONE, z.heads as f64, "only as many heads of keys as of queries are implemented")?;
    s.only_flag("attention.causal", NONE, true, "only causal attention is implemented")?;
    s.only_number(NONE, "n_ctx", z.context as f64, "`n_positions` must be the same")?;
    let eps = s.positive("attention.layer_norm_epsilon", "layer_norm_epsilon")?.unwrap_or(1e-5);
    let activation = ActivationFn::read(s, "activation_function", ActivationFn::GeluTanh)?;
    let by_size = s.flag(NONE, "scale_attn_weights")?.unwrap_or(true);
    let by_layer = s.flag(NONE, "scale_attn_by_inverse_layer_idx")?.unwrap_or(false);
    let mut d = Description::new("gpt2", z, NormSpec::layer(eps), names().transposed());
    let bias = s.is_hub().then_some(true);
    for (i, a) in d.attention_layers().enumerate() {
        let scale = 1.0 / if by_size { (z.head_dim as f64).sqrt() } else { 1.0 };
        a.scale = Some(scale / if by_layer { (i + 1) as f64 } else { 1.0 });
        (a.joint, a.rope) = (JointQkv::Sorted, None);
        (a.qkv_bias, a.output_bias) = (bias, bias);
    }
    d.each(|l| (l.feed.form, l.feed.activation, l.feed.bias) = (FeedForm::Plain, activation, bias));
    d.embed.positions = Some(LearnedPositions { offset: 0 });
    d.head.tied = true;
    // Masks that old files carry.
    d.unused = &[".attn.bias", ".attn.masked_bias"];
    Ok(d)
}

/// The Hub's names of GPT-2's tensors.
pub(super) fn names() -> Names {
    Names::new(
        "transformer.",
        "h",
        &[
            ("token_embd", "transformer.wte"),
            ("position_embd", "transformer.wpe"),
            ("output_norm", "transformer.ln_f"),
            ("output", "lm_head"),
        ],
        &[
            ("attn_norm", "ln_1"),
            ("attn_qkv", "attn.c_attn"),
            ("attn_output", "attn.c_proj"),
            ("ffn_norm", "ln_2"),
            ("ffn_up", "mlp.c_fc"),
            ("ffn_down", "mlp.c_proj"),
        ],
    )
}

/// The sizes by GPT-2's keys.
pub(super) fn sizes(s: &Settings<'_>) -> TensorResult<Sizes> {
    let width = s.need("embedding_length", "n_embd", 1 << 20)?;
    let heads = s.need("attention.head_count", "n_head", 1 << 14)?;
    let context = s.need("context_length", "n_positions", 1 << 24)?;
    if width % heads != 0 {
        return Err(s.wrong(format!("{heads} heads do not divide {width} ({})", s.sizes())));
    }
    let layers = s.need("block_count", "n_layer", 4096)?;
    let feed = s.size("feed_forward_length", "n_inner", 1 << 22)?.unwrap_or(4 * width);
    Ok(Sizes { width, layers, heads, kv_heads: heads, head_dim: width / heads, feed, context })
}

/// Scores are scaled as usual.
pub(super) fn gguf_keys(s: &Settings<'_>, _: &Description, _: &mut Vec<Named>, _: &mut GgufWriter<'_>) -> TensorResult<()> {
    s.only(s.flag(NONE, "scale_attn_weights")?.unwrap_or(true), "scale_attn_weights")?;
    s.only(!s.flag(NONE, "scale_attn_by_inverse_layer_idx")?.unwrap_or(false), "scale_attn_by_inverse_layer_idx")
}
