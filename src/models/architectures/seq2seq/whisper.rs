//! Whisper (Radford et al., 2022): a spectrogram through two convolutions to an encoder with sinusoids as positions, a decoder with learned ones; norms
//! before each part, biases everywhere but at the keys.

use super::{only_generation, tokens};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::{Description, FeedForm, LearnedPositions, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::seq2seq::description::{AudioSpec, Seq2SeqSpec};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Seq2SeqSpec> {
    only_generation(s, "WhisperForConditionalGeneration")?;
    let width = s.need(NONE, "d_model", 1 << 20)?;
    let activation = ActivationFn::read(s, "activation_function", ActivationFn::GeluExact)?;
    // transformers reads it and does nothing with it.
    s.flag(NONE, "scale_embedding")?;
    // The layers, which another key says; a classifier; training; and where words lie in time.
    for key in ["num_hidden_layers", "classifier_proj_size", "median_filter_width"] {
        s.number(NONE, key)?;
    }
    for key in ["use_weighted_layer_sum", "apply_spec_augment"] {
        s.flag(NONE, key)?;
    }
    let training = ["time_prob", "time_length", "time_min_masks", "feature_prob", "feature_length", "feature_min_masks"];
    training.iter().for_each(|key| s.ignore(&format!("mask_{key}")));
    ["encoder_layerdrop", "decoder_layerdrop", "alignment_heads", "forced_decoder_ids", "lang_ids"].iter().for_each(|key| s.ignore(key));
    let stack = |side: &str, context: usize, names: Names| -> TensorResult<Description> {
        let heads = s.need(NONE, &format!("{side}_attention_heads"), 1 << 14)?;
        if width % heads != 0 {
            return Err(s.wrong(format!("{heads} heads do not divide {width} ({})", s.sizes())));
        }
        let z = Sizes {
            width,
            layers: s.need(NONE, &format!("{side}_layers"), 4096)?,
            heads,
            kv_heads: heads,
            head_dim: width / heads,
            feed: s.need(NONE, &format!("{side}_ffn_dim"), 1 << 22)?,
            context,
        };
        let mut d = Description::new("whisper", z, NormSpec::layer(1e-5), names);
        d.embed.positions = Some(LearnedPositions { offset: 0 });
        // Keys have no biases, and the file says so.
        d.attentions(|a| (a.rope, a.qkv_bias, a.output_bias) = (None, None, Some(true)));
        d.each(|l| (l.feed.form, l.feed.activation, l.feed.bias) = (FeedForm::Plain, activation, Some(true)));
        Ok(d)
    };
    let positions = s.need(NONE, "max_source_positions", 1 << 20)?;
    let encoder = stack("encoder", positions, names(false))?;
    let decoder = stack("decoder", s.need(NONE, "max_target_positions", 1 << 20)?, names(true))?;
    let audio = AudioSpec { mels: s.size(NONE, "num_mel_bins", 1 << 12)?.unwrap_or(80), frames: 2 * positions };
    let (start, ends) = tokens(s, 50_256)?;
    Ok(Seq2SeqSpec { encoder, decoder, relative: None, audio: Some(audio), head_scale: None, start, ends })
}

fn names(writes: bool) -> Names {
    let parts = [
        ("attn_norm", "self_attn_layer_norm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.out_proj"),
        ("cross_attn_norm", "encoder_attn_layer_norm"),
        ("cross_attn_q", "encoder_attn.q_proj"),
        ("cross_attn_k", "encoder_attn.k_proj"),
        ("cross_attn_v", "encoder_attn.v_proj"),
        ("cross_attn_o", "encoder_attn.out_proj"),
        ("ffn_norm", "final_layer_norm"),
        ("ffn_up", "fc1"),
        ("ffn_down", "fc2"),
    ];
    let top: &[(&str, &str)] = match writes {
        false => &[
            // The decoder's, which the output matrix is too.
            ("token_embd", "model.decoder.embed_tokens"),
            ("position_embd", "model.encoder.embed_positions"),
            ("conv1", "model.encoder.conv1"),
            ("conv2", "model.encoder.conv2"),
            ("output_norm", "model.encoder.layer_norm"),
            ("output", "proj_out"),
        ],
        true => &[("position_embd", "model.decoder.embed_positions"), ("output_norm", "model.decoder.layer_norm")],
    };
    Names::new("model.", if writes { "decoder.layers" } else { "encoder.layers" }, top, &parts)
}
