//! Gemma 3n (Google, 2025): Gemma 3 with several copies of the residual stream of which a layer computes one, embeddings of tokens for each
//! layer, last layers that take the keys and values of earlier ones, and feed-forward parts of which few elements are not 0.

use super::{common, gemma2};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{AltUpSpec, KeysFrom, NormKind, NormSpec, PerLayerSpec, QkNorm, QkNormOf, Sizes};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

/// Copies of the residual stream that there are names for.
const MAX_COPIES: usize = 8;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let feeds = if s.is_list("intermediate_size") { s.numbers("intermediate_size")? } else { None };
    let z = sizes(s, feeds.as_ref().map(|all| all.iter().fold(1.0, |m: f64, v| m.max(*v)) as usize))?;
    let eps = s.positive(NONE, "rms_norm_eps")?.unwrap_or(1e-6);
    let norm = NormSpec::rms(eps);
    let mut d = Description::new("gemma3n_text", z, norm, names());
    base(s, &mut d)?;
    d.ropes = common::full_and_windowed_ropes(s, z)?;
    d.head.softcap = gemma2::softcap(s, "final_logit_softcapping", Some(30.0))?;
    let kinds = common::layer_kinds(s, &["layer_types"], z.layers, &KINDS)?;
    let kinds: Vec<usize> = kinds.unwrap_or_else(|| (1..=z.layers).map(|i| usize::from(i % 5 != 0)).collect());
    windows(s, &mut d, &kinds)?;
    shared_keys(s, &mut d, &kinds, 15)?;
    let per_layer = per_layer(s, norm, d.layers[0].feed.activation)?;
    let active = s.number(NONE, "altup_active_idx")?.unwrap_or(0.0);
    let altup = AltUpSpec {
        copies: s.size(NONE, "altup_num_inputs", MAX_COPIES)?.unwrap_or(4),
        active: active as usize,
        scaled: s.flag(NONE, "altup_correct_scale")?.unwrap_or(true),
        laurel: s.size(NONE, "laurel_rank", 1 << 16)?.unwrap_or(64),
        norm,
    };
    if !(0..altup.copies).any(|k| k as f64 == active) {
        return Err(s.refuse(NONE, "altup_active_idx", &format!("there are {} copies", altup.copies)));
    }
    // Training clips with it.
    s.ignore("altup_coef_clip");
    d.each(|l| (l.per_layer, l.altup) = (per_layer, Some(altup)));
    if let Some(feeds) = feeds {
        if feeds.len() != z.layers || feeds.iter().any(|n| *n < 1.0 || n.fract() != 0.0) {
            return Err(s.refuse(NONE, "intermediate_size", &format!("expected a size for each layer ({})", s.sizes())));
        }
        d.layers.iter_mut().zip(feeds).for_each(|(l, size)| l.feed.size = size as usize);
    }
    sparse(s, &mut d)?;
    Ok(d)
}

/// The two kinds of layers.
pub(super) const KINDS: [&[&str]; 2] = [&["full_attention"], &["sliding_attention"]];

/// The sizes; `feed` where it is known already.
pub(super) fn sizes(s: &Settings<'_>, feed: Option<usize>) -> TensorResult<Sizes> {
    let (heads, kv_heads) = (s.need(NONE, "num_attention_heads", 1 << 14)?, s.need(NONE, "num_key_value_heads", 1 << 14)?);
    let head_dim = s.size(NONE, "head_dim", 1 << 12)?.unwrap_or(256);
    if heads % kv_heads != 0 || head_dim % 2 != 0 {
        return Err(s.wrong(format!("{heads} heads, {kv_heads} of keys, of size {head_dim} do not fit together ({})", s.sizes())));
    }
    Ok(Sizes {
        width: s.need(NONE, "hidden_size", 1 << 20)?,
        layers: s.need(NONE, "num_hidden_layers", 4096)?,
        heads,
        kv_heads,
        head_dim,
        feed: feed.map_or_else(|| s.need(NONE, "intermediate_size", 1 << 22), Ok)?,
        context: s.need(NONE, "max_position_embeddings", 1 << 24)?,
    })
}

/// What Gemma 3n and 4 have in common: scaled embeddings, norms on both sides, normed queries, keys and values, scores that are not scaled.
pub(super) fn base(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let (norm, bias) = (d.norm, common::bias(s, "attention_bias", false)?);
    let activation = ActivationFn::read(s, "hidden_activation", ActivationFn::GeluTanh)?;
    d.norms_after_too();
    d.each(|l| l.feed.activation = activation);
    d.attentions(|a| {
        a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Head, after_rope: false });
        a.value_norm = Some(NormSpec { kind: NormKind::RmsWithoutWeights, ..norm });
        (a.qkv_bias, a.output_bias, a.scale) = (bias, bias, Some(1.0));
    });
    d.embed.scale = Some((d.width as f64).sqrt());
    d.head.tied = true;
    d.rope_positions = 1 << 15;
    // f16 overflows in the residual stream.
    d.dtype = Some(DType::F32);
    Ok(())
}

/// Windows, and the second rotation, in layers of the second kind.
pub(super) fn windows(s: &Settings<'_>, d: &mut Description, kinds: &[usize]) -> TensorResult<()> {
    let window = s.window(Some(512))?;
    for (a, _) in d.attention_layers().zip(kinds).filter(|(_, kind)| **kind == 1) {
        (a.window, a.rope) = (window, Some(1));
    }
    Ok(())
}

/// The last `num_kv_shared_layers` layers take the keys and values of the last layer of their kind before them.
pub(super) fn shared_keys(s: &Settings<'_>, d: &mut Description, kinds: &[usize], usual: usize) -> TensorResult<usize> {
    let count = s.number(NONE, "num_kv_shared_layers")?.unwrap_or(usual as f64);
    let first = kinds.len() as f64 - count;
    if count < 0.0 || first < 0.0 || first.fract() != 0.0 {
        return Err(s.refuse(NONE, "num_kv_shared_layers", &format!("there are {} layers", kinds.len())));
    }
    let first = first as usize;
    for i in first..kinds.len() {
        let Some(of) = kinds[..first].iter().rposition(|kind| *kind == kinds[i]) else {
            return Err(s.refuse(NONE, "num_kv_shared_layers", "each shared layer type needs an earlier layer of that type"));
        };
        let Some(lender) = d.layers[of].mixer.attention_mut() else { continue };
        lender.lends = true;
        let sizes = (lender.head_dim, lender.kv_heads);
        let Some(a) = d.layers[i].mixer.attention_mut() else { continue };
        if a.head_dim != sizes.0 {
            let message = format!("layer {i} has head size {}, but shares the keys of layer {of} with head size {}", a.head_dim, sizes.0);
            return Err(s.refuse(NONE, "num_kv_shared_layers", &message));
        }
        (a.keys, a.kv_heads) = (KeysFrom::Layer(of), sizes.1);
    }
    Ok(first)
}

/// The embeddings of tokens for each layer, if there are any.
pub(super) fn per_layer(s: &Settings<'_>, norm: NormSpec, activation: ActivationFn) -> TensorResult<Option<PerLayerSpec>> {
    let vocab = s.size(NONE, "vocab_size_per_layer_input", 1 << 31)?.unwrap_or(262_144);
    if s.number(NONE, "hidden_size_per_layer_input")? == Some(0.0) {
        return Ok(None);
    }
    let size = s.size(NONE, "hidden_size_per_layer_input", 1 << 16)?.unwrap_or(256);
    Ok(Some(PerLayerSpec { size, vocab, norm, activation }))
}

/// Feed-forward parts of which only so many elements are not 0 as a normal distribution has above a bound.
fn sparse(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let layers = d.layers.len();
    let few = if layers > 10 { 10 } else { 0 };
    let usual = (0..layers).map(|i| if i < few { 0.95 } else { 0.0 }).collect();
    let shares = if s.is_null("activation_sparsity_pattern") { None } else { s.numbers("activation_sparsity_pattern")? };
    let shares: Vec<f64> = shares.unwrap_or(usual);
    if shares.len() != layers || shares.iter().any(|p| !(0.0..1.0).contains(p)) {
        return Err(s.refuse(NONE, "activation_sparsity_pattern", &format!("expected a share below 1 for each layer ({})", s.sizes())));
    }
    for (l, share) in d.layers.iter_mut().zip(shares).filter(|(_, share)| *share > 0.0) {
        if l.feed.activation != ActivationFn::GeluTanh {
            return Err(s.refuse(NONE, "hidden_activation", "of few elements, only gelu_pytorch_tanh is implemented"));
        }
        l.feed.activation = ActivationFn::SparseGeluTanh(deviations_below(share) as f32);
    }
    Ok(())
}

/// x with Φ(x) = share, by bisection. Φ by its series (Marsaglia, 2004).
fn deviations_below(share: f64) -> f64 {
    let distribution = |x: f64| {
        let (mut sum, mut term, mut k) = (x, x, 1.0);
        while f64::abs(term) > 1e-17 {
            k += 2.0;
            term *= x * x / k;
            sum += term;
        }
        0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
    };
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        if distribution(middle) < share { low = middle } else { high = middle }
    }
    low
}

/// The names of what embeddings for each layer consist of.
pub(super) fn names() -> Names {
    let copies = [
        ("altup_proj.0", "model.altup_projections.0"),
        ("altup_proj.1", "model.altup_projections.1"),
        ("altup_proj.2", "model.altup_projections.2"),
        ("altup_proj.3", "model.altup_projections.3"),
        ("altup_proj.4", "model.altup_projections.4"),
        ("altup_proj.5", "model.altup_projections.5"),
        ("altup_proj.6", "model.altup_projections.6"),
        ("altup_unembd_proj.0", "model.altup_unembed_projections.0"),
        ("altup_unembd_proj.1", "model.altup_unembed_projections.1"),
        ("altup_unembd_proj.2", "model.altup_unembed_projections.2"),
        ("altup_unembd_proj.3", "model.altup_unembed_projections.3"),
        ("altup_unembd_proj.4", "model.altup_unembed_projections.4"),
        ("altup_unembd_proj.5", "model.altup_unembed_projections.5"),
        ("altup_unembd_proj.6", "model.altup_unembed_projections.6"),
        ("per_layer_token_embd", "model.embed_tokens_per_layer"),
        ("per_layer_model_proj", "model.per_layer_model_projection"),
        ("per_layer_proj_norm", "model.per_layer_projection_norm"),
    ];
    gemma2::names().with_top(&copies).with(&[
        ("inp_gate", "per_layer_input_gate"),
        ("proj", "per_layer_projection"),
        ("post_norm", "post_per_layer_input_norm"),
        ("altup_router", "altup.modality_router"),
        ("altup_router_norm", "altup.router_norm"),
        ("altup_predict_coef", "altup.prediction_coefs"),
        ("altup_correct_coef", "altup.correction_coefs"),
        ("altup_correct_scale.weight", "altup.correct_output_scale"),
        ("laurel_l", "laurel.linear_left"),
        ("laurel_r", "laurel.linear_right"),
        ("laurel_post_norm", "laurel.post_laurel_norm"),
        ("layer_output_scale.weight", "layer_scalar"),
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_bound_of_a_share_is_that_of_tables() {
        for (share, want) in [(0.5, 0.0), (0.95, 1.6448536269514722), (0.9, 1.2815515655446004), (0.1, -1.2815515655446004)] {
            assert!((super::deviations_below(share) - want).abs() < 1e-12, "{share}");
        }
    }
}
