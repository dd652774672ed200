//! MPT (MosaicML, 2023): GPT-2 without biases, with linear biases of positions (ALiBi) whose slopes have another range, and bounds of |q|, |k|, |v|.

use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{Alibi, FeedForm, JointQkv, NormKind, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let width = s.need("embedding_length", "d_model", 1 << 20)?;
    let heads = s.need("attention.head_count", "n_heads", 1 << 14)?;
    let context = s.need("context_length", "max_seq_len", 1 << 24)?;
    if width % heads != 0 {
        return Err(s.wrong(format!("{heads} heads do not divide {width} ({})", s.sizes())));
    }
    s.only_number("attention.head_count_kv", NONE, heads as f64, "only as many heads of keys as of queries are implemented")?;
    let layers = s.need("block_count", "n_layers", 4096)?;
    // transformers takes 4 whatever `expansion_ratio` says.
    s.positive(NONE, "expansion_ratio")?;
    let feed = s.size("feed_forward_length", NONE, 1 << 22)?.unwrap_or(4 * width);
    let z = Sizes { width, layers, heads, kv_heads: heads, head_dim: width / heads, feed, context };
    let eps = s.positive("attention.layer_norm_epsilon", "layer_norm_epsilon")?.unwrap_or(1e-5);
    for (key, want) in
        [("alibi", true), ("qk_ln", false), ("prefix_lm", false), ("is_encoder_decoder", false), ("attn_uses_sequence_id", false)]
    {
        s.only_flag(NONE, &format!("attn_config.{key}"), want, "other attention of MPT is not implemented")?;
    }
    s.ignore_without_effect("attn_config");
    for key in ["attn_config.attn_type", "attn_config.attn_impl", "attn_config.model_type", "init_device", "norm_type"] {
        s.text(NONE, key)?;
    }
    // Without effect in transformers, which adds no learned positions and scales nothing.
    for key in ["learned_pos_emb", "no_bias"] {
        s.flag(NONE, key)?;
    }
    s.only_number(NONE, "embedding_fraction", 1.0, "transformers ignores it")?;
    // transformers takes 8 whatever `alibi_bias_max` says.
    s.positive(NONE, "attn_config.alibi_bias_max")?;
    let range = s.positive("attention.max_alibi_bias", NONE)?.unwrap_or(8.0);
    let clip = s.positive_or_null("attention.clamp_kqv", "attn_config.clip_qkv")?;
    let scale = s.positive_or_null(NONE, "attn_config.softmax_scale")?;
    let mut d = Description::new("mpt", z, NormSpec { kind: NormKind::LayerWithoutBias, ..NormSpec::layer(eps) }, names());
    let alibi = Alibi { slopes: slopes(heads, range), bf16: false, factor: 1.0 };
    d.attentions(|a| {
        (a.rope, a.alibi, a.joint) = (None, Some(alibi.clone()), JointQkv::Sorted);
        (a.clip, a.scale) = (clip, scale);
    });
    d.each(|l| (l.feed.form, l.feed.activation) = (FeedForm::Plain, ActivationFn::GeluExact));
    d.head.tied = true;
    Ok(d)
}

/// 2^(−range·i/n) for n, the next power of two: if there are fewer heads, first every other one from the second on, then the rest.
fn slopes(heads: usize, range: f64) -> Vec<f32> {
    let n = heads.next_power_of_two();
    let all: Vec<f32> = (1..=n).map(|i| 2f64.powf(-range * i as f64 / n as f64) as f32).collect();
    if n == heads {
        return all;
    }
    let every_other = |from: usize| all.iter().copied().skip(from).step_by(2);
    every_other(1).chain(every_other(0)).take(heads).collect()
}

fn names() -> Names {
    Names::new(
        "transformer.",
        "blocks",
        &[("token_embd", "transformer.wte"), ("output_norm", "transformer.norm_f"), ("output", "lm_head")],
        &[
            ("attn_norm", "norm_1"),
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.out_proj"),
            ("ffn_norm", "norm_2"),
            ("ffn_up", "ffn.up_proj"),
            ("ffn_down", "ffn.down_proj"),
        ],
    )
}
