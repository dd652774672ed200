//! Gemma 3 (Gemma team, 2025): norms before and after each part, normed queries and keys, sliding windows in five layers of six.
//!
//! x = √d·E[tokens]; x ← x + rms(Wo·attention(rope(rms(Wq·n)), rope(rms(Wk·n)), Wv·n)) with n = rms(x), the same around a gated GELU part; each
//! norm is times 1 + w. Layers with windows and those that see all keys rotate by different θ.

use super::{Named, common, encoders, gemma2};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::{Description, NormSpec, QkNorm, QkNormOf, Sizes};
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let hub = s.is_hub();
    if s.has_object("text_config") {
        return Err(s.refuse(NONE, "text_config", "models of text and images are not implemented"));
    }
    s.only_flag("attention.causal", "use_bidirectional_attention", !hub, "embeddings are all that such a model computes (`tl embed`)")?;
    layers(s)
}

/// EmbeddingGemma (Vera et al., 2025): the same with tokens that see the whole text, in layers with windows half a window to either side.
pub(super) fn describe_encoder(s: &Settings<'_>) -> TensorResult<Option<EncoderSpec>> {
    if s.flag("attention.causal", "use_bidirectional_attention")? != Some(s.is_hub()) {
        return Ok(None);
    }
    let mut stack = layers(s)?;
    encoders::of_states(s)?;
    let reach = stack.attention_layers().map(|a| a.window.take().map(|w| w / 2)).collect();
    Ok(Some(EncoderSpec { reach, ..EncoderSpec::new(stack) }))
}

/// The description, whichever way tokens see.
fn layers(s: &Settings<'_>) -> TensorResult<Description> {
    let hub = s.is_hub();
    let z = sizes(s)?;
    let ropes = common::full_and_windowed_ropes(s, z)?;
    let softcap = gemma2::softcap(s, "final_logit_softcapping", None)?;
    // GGUF has no key for it: of all sizes, only 27B (of 62 layers) takes the width over the number of heads instead of the heads' size.
    let query = match hub {
        true => s.positive(NONE, "query_pre_attn_scalar")?.unwrap_or(256.0),
        false if z.layers == 62 => z.width as f64 / z.heads as f64,
        false => z.head_dim as f64,
    };
    let eps = s.positive("attention.layer_norm_rms_epsilon", "rms_norm_eps")?.unwrap_or(1e-6);
    let activation = ActivationFn::read(s, "hidden_activation", ActivationFn::GeluTanh)?;
    let bias = common::bias(s, "attention_bias", false)?;
    let windows = windows(s, z.layers)?;

    let norm = NormSpec { plus_one: true, ..NormSpec::rms(eps) };
    let mut d = Description::new("gemma3", z, norm, gemma2::names());
    d.norms_after_too();
    for (a, window) in d.attention_layers().zip(windows) {
        a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Head, after_rope: false });
        (a.qkv_bias, a.output_bias) = (bias, bias);
        a.scale = Some(1.0 / query.sqrt());
        a.window = window;
        a.rope = Some(if window.is_none() { 0 } else { 1 });
    }
    d.each(|l| l.feed.activation = activation);
    d.ropes = ropes;
    d.rope_positions = 1 << 15;
    d.embed.scale = Some((z.width as f64).sqrt());
    (d.head.tied, d.head.softcap) = (true, softcap);
    d.unused = &[".rotary_emb.inv_freq"];
    // f16 overflows in the residual stream.
    d.dtype = Some(DType::F32);
    Ok(d)
}

/// The sizes; of folders, transformers' where nothing says otherwise, as official ones of texts and images leave some out.
pub(super) fn sizes(s: &Settings<'_>) -> TensorResult<Sizes> {
    let width = s.need("embedding_length", "hidden_size", 1 << 20)?;
    let layers = s.need("block_count", "num_hidden_layers", 4096)?;
    let usual = |gguf: &str, hub: &str, usual: usize, limit: usize| {
        if s.is_hub() { Ok(s.size(gguf, hub, limit)?.unwrap_or(usual)) } else { s.need(gguf, hub, limit) }
    };
    let heads = usual("attention.head_count", "num_attention_heads", 8, 1 << 14)?;
    let kv_heads = usual("attention.head_count_kv", "num_key_value_heads", 4, 1 << 14)?;
    let head_dim = s.size("attention.key_length", "head_dim", 1 << 12)?.unwrap_or(256);
    let context = usual("context_length", "max_position_embeddings", 1 << 17, 1 << 24)?;
    if heads % kv_heads != 0 || head_dim % 2 != 0 {
        return Err(s.wrong(format!("{heads} heads, {kv_heads} of keys, of size {head_dim} do not fit together ({})", s.sizes())));
    }
    let same = format!("only values of the size of keys are implemented ({})", s.sizes());
    s.only_number("attention.value_length", NONE, head_dim as f64, &same)?;
    let feed = s.need("feed_forward_length", "intermediate_size", 1 << 22)?;
    Ok(Sizes { width, layers, heads, kv_heads, head_dim, feed, context })
}

/// The layers' windows: five layers with one, then one that sees all, where the settings do not say otherwise.
fn windows(s: &Settings<'_>, layers: usize) -> TensorResult<Vec<Option<usize>>> {
    let pattern = s.size("attention.sliding_window_pattern", "sliding_window_pattern", 4096)?.unwrap_or(6);
    let whole: Vec<bool> = match s.windowed_layers(layers)? {
        Some(windowed) => {
            // transformers writes it beside the list, which decides.
            s.number(NONE, "_sliding_window_pattern")?;
            windowed.into_iter().map(|w| !w).collect()
        }
        None => {
            s.only_number(NONE, "_sliding_window_pattern", 6.0, "`sliding_window_pattern` sets it")?;
            (1..=layers).map(|i| i % pattern == 0).collect()
        }
    };
    if s.is_hub() && whole.iter().all(|w| *w) {
        // A window that no layer has may be null.
        if s.has_object("sliding_window") {
            s.size(NONE, "sliding_window", 1 << 24)?;
        }
        return Ok(vec![None; layers]);
    }
    let window = match s.is_hub() {
        true => s.size(NONE, "sliding_window", 1 << 24)?.unwrap_or(4096),
        false => s.need("attention.sliding_window", NONE, 1 << 24)?,
    };
    Ok(whole.into_iter().map(|whole| if whole { None } else { Some(window) }).collect())
}

/// Which layers have windows, by the number of layers from one without to the next.
pub(super) fn gguf_keys(s: &Settings<'_>, d: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    s.only(d.layers.iter().any(|l| l.mixer.attention().is_some_and(|a| a.window.is_some())), "layer_types")?;
    let fits =
        |p: &usize| d.layers.iter().enumerate().all(|(i, l)| l.mixer.attention().is_some_and(|a| a.window.is_none() == ((i + 1) % p == 0)));
    [6].into_iter().chain(2..=d.layers.len()).find(fits).into_iter().for_each(|pattern| {
        w.set("gemma3.attention.sliding_window_pattern", pattern as u32);
    });
    Ok(())
}
