//! Falcon (Almazrouei et al., 2023): both parts side by side behind one layer norm (7B, one key head) or one each (40B, grouped queries); the RW
//! models one after the other, with linear biases of positions instead of rotations.

use super::Named;
use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{Alibi, FeedForm, Flow, JointQkv, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::{RopeDefaults, RopeTable};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    if !s.is_hub() {
        return from_gguf(s);
    }
    let width = s.need(NONE, "hidden_size", 1 << 20)?;
    let heads = s.need(NONE, "num_attention_heads", 1 << 14)?;
    let grouped = s.flag(NONE, "new_decoder_architecture")?.unwrap_or(false);
    let one_key = s.flag(NONE, "multi_query")?.unwrap_or(true);
    let given = if s.is_null("num_kv_heads") { None } else { s.size(NONE, "num_kv_heads", 1 << 14)? };
    let kv_heads = if grouped {
        given.unwrap_or(heads)
    } else if one_key {
        1
    } else {
        heads
    };
    let feed = if s.is_null("ffn_hidden_size") { None } else { s.size(NONE, "ffn_hidden_size", 1 << 22)? };
    if width % heads != 0 || heads % kv_heads != 0 || (width / heads) % 2 != 0 {
        return Err(s.wrong(format!("{heads} heads and {kv_heads} of keys do not divide {width} ({})", s.sizes())));
    }
    let z = Sizes {
        width,
        layers: s.need(NONE, "num_hidden_layers", 4096)?,
        heads,
        kv_heads,
        head_dim: width / heads,
        feed: feed.unwrap_or(4 * width),
        context: s.size(NONE, "max_position_embeddings", 1 << 24)?.unwrap_or(2048),
    };
    let eps = s.positive(NONE, "layer_norm_epsilon")?.unwrap_or(1e-5);
    let mut d = Description::new("falcon", z, NormSpec::layer(eps), names());
    let table = RopeTable::read(s, RopeDefaults::default(), z.head_dim, z.context)?;
    let (alibi, parallel) = (s.flag(NONE, "alibi")?.unwrap_or(false), s.flag(NONE, "parallel_attn")?.unwrap_or(true));
    let norms = if s.is_null("num_ln_in_parallel_attn") { None } else { s.size(NONE, "num_ln_in_parallel_attn", 2)? };
    let two = parallel && norms.map_or(grouped, |n| n == 2);
    if !parallel && grouped || two && !grouped {
        return Err(s.refuse(NONE, "new_decoder_architecture", &format!("it does not fit the other settings ({})", s.sizes())));
    }
    let bias = Some(s.flag(NONE, "bias")?.unwrap_or(false));
    let activation = ActivationFn::read(s, "activation", ActivationFn::GeluExact)?;
    // The slopes are multiplied with positions in bf16, and the sum with the scores is divided by √D.
    let slopes = Alibi { slopes: common::alibi_slopes(heads), bf16: true, factor: 2.0 / (z.head_dim as f64).sqrt() };
    d.each(|l| {
        l.flow = if parallel { Flow::Parallel } else { Flow::Sequential };
        if parallel && !two {
            l.feed_norm = None;
        }
        (l.feed.form, l.feed.activation, l.feed.bias) = (FeedForm::Plain, activation, bias);
    });
    d.attentions(|a| {
        a.joint = if grouped || !one_key { JointQkv::Grouped } else { JointQkv::Sorted };
        (a.qkv_bias, a.output_bias) = (bias, bias);
        if alibi {
            (a.rope, a.alibi) = (None, Some(slopes.clone()));
        }
    });
    if two {
        d.names = names().with(&[("attn_norm", "ln_attn"), ("ffn_norm", "ln_mlp")]).in_gguf(&TWO_NORMS);
    }
    d.ropes.push(table);
    d.head.tied = true;
    Ok(d)
}

/// GGUF's names of the norms of models that have two.
const TWO_NORMS: [(&str, &str); 2] = [("attn_norm", "attn_norm_2"), ("ffn_norm", "attn_norm")];

/// GGUF has the models that rotate; those of two norms by their names.
fn from_gguf(s: &Settings<'_>) -> TensorResult<Description> {
    let usual = Usual { norm: crate::models::decoder::description::NormKind::Layer, ..Usual::default() };
    let mut d = common::decoder(s, "falcon", &usual)?;
    d.attentions(|a| a.joint = JointQkv::Sorted);
    let two = s.has_tensor("blk.0.attn_norm_2.weight");
    d.each(|l| {
        l.flow = Flow::Parallel;
        l.feed_norm = l.feed_norm.filter(|_| two);
        (l.feed.form, l.feed.activation) = (FeedForm::Plain, ActivationFn::GeluExact);
    });
    if two {
        d.names = d.names.in_gguf(&TWO_NORMS);
    }
    Ok(d)
}

/// Rows of q, k and v are in the order that the first converter of these models gave them.
pub(super) fn gguf_keys(_: &Settings<'_>, _: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    w.set("falcon.tensor_data_layout", "jploski");
    Ok(())
}

fn names() -> Names {
    Names::new(
        "transformer.",
        "h",
        &[("token_embd", "transformer.word_embeddings"), ("output_norm", "transformer.ln_f"), ("output", "lm_head")],
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
