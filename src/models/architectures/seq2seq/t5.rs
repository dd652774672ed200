//! T5 (Raffel et al., 2020) and Flan-T5: RMS norms before each part, scores without a scale but with a bias by distance that the layers of a stack share,
//! no other positions and no biases. The first version multiplies the last states with 1/√d and ties the output matrix to the embedding; 1.1 does neither,
//! and its feed-forward parts are gated.

use super::{only_generation, tokens};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::{Description, FeedForm, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::encoder::description::RelativeSpec;
use crate::models::seq2seq::description::Seq2SeqSpec;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Seq2SeqSpec> {
    only_generation(s, "T5ForConditionalGeneration")?;
    let width = s.need(NONE, "d_model", 1 << 20)?;
    let heads = s.need(NONE, "num_heads", 1 << 14)?;
    let layers = s.need(NONE, "num_layers", 4096)?;
    let (head_dim, feed) = (s.need(NONE, "d_kv", 1 << 12)?, s.need(NONE, "d_ff", 1 << 22)?);
    // Distances have no end. The models were trained with 512 positions.
    let context = s.size(NONE, "n_positions", 1 << 24)?.unwrap_or(1 << 14);
    let z = Sizes { width, layers, heads, kv_heads: heads, head_dim, feed, context };
    let norm = NormSpec::rms(s.positive(NONE, "layer_norm_epsilon")?.unwrap_or(1e-6));
    let (form, activation) = feed_forward(s)?;
    let stack = |layers: usize, names: Names| {
        let mut d = Description::new("t5", Sizes { layers, ..z }, norm, names);
        d.attentions(|a| (a.rope, a.scale) = (None, Some(1.0)));
        d.each(|l| (l.feed.form, l.feed.activation) = (form, activation));
        // The embedding, again.
        d.unused = &["coder.embed_tokens.weight"];
        d
    };
    let decoder_layers = s.size(NONE, "num_decoder_layers", 4096)?.unwrap_or(layers);
    let buckets = s.size(NONE, "relative_attention_num_buckets", 1 << 16)?.unwrap_or(32);
    let farthest = s.size(NONE, "relative_attention_max_distance", 1 << 24)?.unwrap_or(128);
    if buckets < 4 || farthest <= buckets / 2 {
        return Err(s.refuse(
            NONE,
            "relative_attention_max_distance",
            &format!("with {buckets} buckets it must be more than {}", buckets / 2),
        ));
    }
    let tied = s.flag(NONE, "tie_word_embeddings")?.unwrap_or(true);
    let scaled = s.flag(NONE, "scale_decoder_outputs")?.unwrap_or(tied);
    let (start, ends) = tokens(s, 1)?;
    Ok(Seq2SeqSpec {
        encoder: stack(layers, names(false, form)),
        decoder: stack(decoder_layers, names(true, form)),
        relative: Some(RelativeSpec { rows: buckets, buckets, farthest }),
        audio: None,
        head_scale: scaled.then(|| 1.0 / (width as f64).sqrt()),
        start,
        ends,
    })
}

/// What `feed_forward_proj` says: the name of a function, behind `gated-` where there is a gate.
fn feed_forward(s: &Settings<'_>) -> TensorResult<(FeedForm, ActivationFn)> {
    let said = s.text(NONE, "feed_forward_proj")?.unwrap_or("relu");
    let gated = s.flag(NONE, "is_gated_act")?.unwrap_or(said.starts_with("gated-"));
    let form = if gated { FeedForm::Gated } else { FeedForm::Plain };
    // Both are written beside it by newer files, and count there.
    let named = match said.strip_prefix("gated-").unwrap_or(said) {
        "gelu" if said == "gated-gelu" => Some(ActivationFn::GeluTanh),
        name => ActivationFn::named(name),
    };
    let Some(named) = named else { return Err(s.refuse(NONE, "feed_forward_proj", "its function is not known")) };
    Ok((form, ActivationFn::read(s, "dense_act_fn", named)?))
}

/// The names of a stack; the feed-forward part is the third of a decoder's layer, and the second of an encoder's.
fn names(writes: bool, form: FeedForm) -> Names {
    let attention: &[(&str, &str)] = &[
        ("attn_norm", "layer.0.layer_norm"),
        ("attn_q", "layer.0.SelfAttention.q"),
        ("attn_k", "layer.0.SelfAttention.k"),
        ("attn_v", "layer.0.SelfAttention.v"),
        ("attn_output", "layer.0.SelfAttention.o"),
    ];
    if !writes {
        let top: &[(&str, &str)] = &[
            ("token_embd", "shared"),
            ("relative_bias", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"),
            ("output_norm", "encoder.final_layer_norm"),
            ("output", "lm_head"),
        ];
        let feed = [
            ("ffn_norm", "layer.1.layer_norm"),
            ("ffn_gate", "layer.1.DenseReluDense.wi_0"),
            ("ffn_up", if form == FeedForm::Gated { "layer.1.DenseReluDense.wi_1" } else { "layer.1.DenseReluDense.wi" }),
            ("ffn_down", "layer.1.DenseReluDense.wo"),
        ];
        return Names::new("encoder.", "block", top, &[attention, &feed].concat());
    }
    let top: &[(&str, &str)] =
        &[("relative_bias", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"), ("output_norm", "decoder.final_layer_norm")];
    let rest = [
        ("cross_attn_norm", "layer.1.layer_norm"),
        ("cross_attn_q", "layer.1.EncDecAttention.q"),
        ("cross_attn_k", "layer.1.EncDecAttention.k"),
        ("cross_attn_v", "layer.1.EncDecAttention.v"),
        ("cross_attn_o", "layer.1.EncDecAttention.o"),
        ("ffn_norm", "layer.2.layer_norm"),
        ("ffn_gate", "layer.2.DenseReluDense.wi_0"),
        ("ffn_up", if form == FeedForm::Gated { "layer.2.DenseReluDense.wi_1" } else { "layer.2.DenseReluDense.wi" }),
        ("ffn_down", "layer.2.DenseReluDense.wo"),
    ];
    Names::new("decoder.", "block", top, &[attention, &rest].concat())
}
