//! BLOOM (BigScience, 2022): GPT-2 with linear biases of positions (ALiBi) and a norm of the embeddings; joint QKV stored head by head.

use super::common;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{Alibi, FeedForm, Flow, JointQkv, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let width = s.need("embedding_length", "hidden_size", 1 << 20)?;
    let heads = s.need("attention.head_count", "n_head", 1 << 14)?;
    if width % heads != 0 {
        return Err(s.wrong(format!("{heads} heads do not divide {width} ({})", s.sizes())));
    }
    s.only_number("attention.head_count_kv", NONE, heads as f64, "only as many heads of keys as of queries are implemented")?;
    // The biases grow without bound; the models were trained with 2,048 positions.
    let context = s.size("context_length", "seq_length", 1 << 24)?.unwrap_or(2048);
    let layers = s.need("block_count", "n_layer", 4096)?;
    let feed = s.size("feed_forward_length", NONE, 1 << 22)?.unwrap_or(4 * width);
    let z = Sizes { width, layers, heads, kv_heads: heads, head_dim: width / heads, feed, context };
    let eps = s.positive("attention.layer_norm_epsilon", "layer_norm_epsilon")?.unwrap_or(1e-5);
    // It orders the sums of a split product.
    s.flag(NONE, "slow_but_exact")?;
    let from_norms = s.flag(NONE, "apply_residual_connection_post_layernorm")?.unwrap_or(false);
    let mut d = Description::new("bloom", z, NormSpec::layer(eps), names());
    let alibi = Alibi { slopes: common::alibi_slopes(heads), bf16: false, factor: 1.0 };
    d.attentions(|a| {
        (a.rope, a.alibi, a.joint) = (None, Some(alibi.clone()), JointQkv::Grouped);
        (a.qkv_bias, a.output_bias) = (Some(true), Some(true));
    });
    d.each(|l| {
        l.flow = if from_norms { Flow::FromNorms } else { Flow::Sequential };
        (l.feed.bias, l.feed.form, l.feed.activation) = (Some(true), FeedForm::Plain, ActivationFn::GeluTanh);
    });
    d.embed.norm = Some(d.norm);
    d.head.tied = true;
    Ok(d)
}

fn names() -> Names {
    Names::new(
        "transformer.",
        "h",
        &[
            ("token_embd", "transformer.word_embeddings"),
            ("token_embd_norm", "transformer.word_embeddings_layernorm"),
            ("output_norm", "transformer.ln_f"),
            ("output", "lm_head"),
        ],
        &[
            ("attn_norm", "input_layernorm"),
            ("attn_qkv", "self_attention.query_key_value"),
            ("attn_output", "self_attention.dense"),
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn_up", "mlp.dense_h_to_4h"),
            ("ffn_down", "mlp.dense_4h_to_h"),
        ],
    )
}
