//! Gemma 3n (Google, 2025): Gemma 3 with several copies of the residual stream of which a layer computes one, embeddings of tokens for each
//! layer, last layers that take the keys and values of earlier ones, and feed-forward parts of which few elements are not 0.

use super::{Named, common, folded, gemma2};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{
    AltUpSpec, AttentionSpec, KeysFrom, LayerSpec, NormKind, NormSpec, PerLayerSpec, QkNorm, QkNormOf, Sizes,
};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};
use crate::tensor::Tensor;

/// Copies of the residual stream that there are names for.
const MAX_COPIES: usize = 8;

/// The tensors of GGUF files whose rows say how many tokens there are for each layer, and the rank of the augmented residual.
pub(super) const SIZES: [&str; 2] = ["per_layer_token_embd.weight", "blk.0.laurel_l.weight"];

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let feeds = feeds(s)?;
    let most = feeds.as_ref().map(|all| all.iter().fold(1.0, |m: f64, v| m.max(*v)) as usize);
    let z = sizes(s, most, "attention.key_length")?;
    let same = format!("only values of the size of keys are implemented ({})", s.sizes());
    s.only_number("attention.value_length", NONE, z.head_dim as f64, &same)?;
    let eps = s.positive("attention.layer_norm_rms_epsilon", "rms_norm_eps")?.unwrap_or(1e-6);
    let norm = NormSpec::rms(eps);
    let mut d = Description::new("gemma3n_text", z, norm, names());
    base(s, &mut d)?;
    d.ropes = common::full_and_windowed_ropes(s, z)?;
    d.head.softcap = gemma2::softcap(s, "final_logit_softcapping", Some(30.0))?;
    let kinds = kinds(s, z.layers)?.unwrap_or_else(|| (1..=z.layers).map(|i| usize::from(i % 5 != 0)).collect());
    windows(s, &mut d, &kinds)?;
    // llama.cpp gives the first 20 layers keys of their own.
    shared_keys(s, &mut d, &kinds, if s.is_hub() { 15 } else { z.layers.saturating_sub(20) })?;
    let per_layer = per_layer(s, norm, d.layers[0].feed.activation)?;
    let active = s.number("altup.active_idx", "altup_active_idx")?.unwrap_or(0.0);
    let altup = AltUpSpec {
        copies: s.size("altup.num_inputs", "altup_num_inputs", MAX_COPIES)?.unwrap_or(4),
        active: active as usize,
        scaled: s.flag(NONE, "altup_correct_scale")?.unwrap_or(true),
        laurel: s.size(NONE, "laurel_rank", 1 << 16)?.or(rows(s, SIZES[1])).unwrap_or(64),
        norm,
    };
    if !(0..altup.copies).any(|k| k as f64 == active) {
        return Err(s.refuse("altup.active_idx", "altup_active_idx", &format!("there are {} copies", altup.copies)));
    }
    // Training clips with it.
    s.ignore("altup_coef_clip");
    d.each(|l| (l.per_layer, l.altup) = (per_layer, Some(altup)));
    if let Some(feeds) = feeds {
        if feeds.len() != z.layers || feeds.iter().any(|n| *n < 1.0 || n.fract() != 0.0) {
            return Err(s.refuse("feed_forward_length", "intermediate_size", &format!("expected a size for each layer ({})", s.sizes())));
        }
        d.layers.iter_mut().zip(feeds).for_each(|(l, size)| l.feed.size = size as usize);
    }
    sparse(s, &mut d)?;
    Ok(d)
}

/// The two kinds of layers.
pub(super) const KINDS: [&[&str]; 2] = [&["full_attention"], &["sliding_attention"]];

/// The rows of a tensor of a GGUF file.
fn rows(s: &Settings<'_>, name: &str) -> Option<usize> {
    s.gguf_shape(name).and_then(|shape| shape.first().copied())
}

/// The sizes of feed-forward parts, where the settings list them by layer.
fn feeds(s: &Settings<'_>) -> TensorResult<Option<Vec<f64>>> {
    match s.is_hub() {
        true if s.is_list("intermediate_size") => s.numbers("intermediate_size"),
        true => Ok(None),
        false => s.by_layer("feed_forward_length"),
    }
}

/// The number of the row of [`KINDS`] for each layer, where the settings say it.
pub(super) fn kinds(s: &Settings<'_>, layers: usize) -> TensorResult<Option<Vec<usize>>> {
    let listed = common::windowed_layers(s, layers)?.map(|windowed| windowed.into_iter().map(usize::from).collect());
    Ok(common::layer_kinds(s, &["layer_types"], layers, &KINDS)?.or(listed))
}

/// The sizes; `feed` where it is known already, and GGUF's key of the size of heads.
pub(super) fn sizes(s: &Settings<'_>, feed: Option<usize>, head: &str) -> TensorResult<Sizes> {
    let heads = s.need("attention.head_count", "num_attention_heads", 1 << 14)?;
    // By layer, it is for the caller to read.
    let kv_heads = match s.by_layer("attention.head_count_kv")? {
        Some(_) => heads,
        None => s.need("attention.head_count_kv", "num_key_value_heads", 1 << 14)?,
    };
    let head_dim = s.size(head, "head_dim", 1 << 12)?.unwrap_or(256);
    if heads % kv_heads != 0 || head_dim % 2 != 0 {
        return Err(s.wrong(format!("{heads} heads, {kv_heads} of keys, of size {head_dim} do not fit together ({})", s.sizes())));
    }
    Ok(Sizes {
        width: s.need("embedding_length", "hidden_size", 1 << 20)?,
        layers: s.need("block_count", "num_hidden_layers", 4096)?,
        heads,
        kv_heads,
        head_dim,
        feed: feed.map_or_else(|| s.need("feed_forward_length", "intermediate_size", 1 << 22), Ok)?,
        context: s.need("context_length", "max_position_embeddings", 1 << 24)?,
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
    let keys = ("attention.shared_kv_layers", "num_kv_shared_layers");
    let count = s.count(keys.0, keys.1)?.unwrap_or(usual as f64);
    let first = kinds.len() as f64 - count;
    if count < 0.0 || first < 0.0 || first.fract() != 0.0 {
        return Err(s.refuse(keys.0, keys.1, &format!("there are {} layers", kinds.len())));
    }
    let first = first as usize;
    for i in first..kinds.len() {
        let Some(of) = kinds[..first].iter().rposition(|kind| *kind == kinds[i]) else {
            let message = format!("each shared layer type needs an earlier layer of that type ({})", s.sizes());
            return Err(s.refuse(keys.0, keys.1, &message));
        };
        let Some(lender) = d.layers[of].mixer.attention_mut() else { continue };
        lender.lends = true;
        let sizes = (lender.head_dim, lender.kv_heads);
        let Some(a) = d.layers[i].mixer.attention_mut() else { continue };
        if a.head_dim != sizes.0 {
            let message = format!("layer {i} has head size {}, but shares the keys of layer {of} with head size {}", a.head_dim, sizes.0);
            return Err(s.refuse(keys.0, keys.1, &message));
        }
        (a.keys, a.kv_heads) = (KeysFrom::Layer(of), sizes.1);
    }
    Ok(first)
}

/// The embeddings of tokens for each layer, if there are any.
pub(super) fn per_layer(s: &Settings<'_>, norm: NormSpec, activation: ActivationFn) -> TensorResult<Option<PerLayerSpec>> {
    let vocab = s.size(NONE, "vocab_size_per_layer_input", 1 << 31)?.or(rows(s, SIZES[0])).unwrap_or(262_144);
    let keys = ("embedding_length_per_layer_input", "hidden_size_per_layer_input");
    if s.number(keys.0, keys.1)? == Some(0.0) {
        return Ok(None);
    }
    let size = s.size(keys.0, keys.1, 1 << 16)?.unwrap_or(256);
    Ok(Some(PerLayerSpec { size, vocab, norm, activation }))
}

/// Feed-forward parts of which only so many elements are not 0 as a normal distribution has above a bound.
fn sparse(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let layers = d.layers.len();
    let few = if layers > 10 { 10 } else { 0 };
    let usual = (0..layers).map(|i| if i < few { 0.95 } else { 0.0 }).collect();
    let key = "activation_sparsity_pattern";
    let shares = if s.is_null(key) { None } else { s.numbers(key)? };
    let shares: Vec<f64> = shares.unwrap_or(usual);
    if shares.len() != layers || shares.iter().any(|p| !(0.0..1.0).contains(p)) {
        return Err(s.refuse(NONE, key, &format!("expected a share below 1 for each layer ({})", s.sizes())));
    }
    // GGUF has the bound in standard deviations, −∞ for none.
    let bounds = shares.into_iter().map(|share| if share > 0.0 { deviations_below(share) } else { f64::NEG_INFINITY });
    let bounds = s.by_layer(BOUNDS)?.unwrap_or_else(|| bounds.collect());
    if bounds.len() != layers || bounds.iter().any(|b| b.is_nan() || *b == f64::INFINITY) {
        return Err(s.refuse(BOUNDS, NONE, &format!("expected a number for each of {layers} layers ({})", s.sizes())));
    }
    for (l, bound) in d.layers.iter_mut().zip(bounds).filter(|(_, bound)| bound.is_finite()) {
        if l.feed.activation != ActivationFn::GeluTanh {
            return Err(s.refuse(NONE, "hidden_activation", "of few elements, only gelu_pytorch_tanh is implemented"));
        }
        l.feed.activation = ActivationFn::SparseGeluTanh(bound as f32);
    }
    Ok(())
}

/// GGUF's key of the bounds.
const BOUNDS: &str = "activation_sparsity_scale";

/// Numbers of copies and layers, and lists by layer.
pub(super) fn gguf_keys(_: &Settings<'_>, d: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    layer_keys("gemma3n", d, w);
    let sizes: Vec<u32> = d.layers.iter().map(|l| l.feed.size as u32).collect();
    w.set("gemma3n.feed_forward_length", sizes);
    if let Some(altup) = d.layers.first().and_then(|l| l.altup) {
        w.set("gemma3n.altup.active_idx", altup.active as u32);
        w.set("gemma3n.altup.num_inputs", altup.copies as u32);
    }
    let bound = |l: &LayerSpec| if let ActivationFn::SparseGeluTanh(bound) = l.feed.activation { bound } else { f32::NEG_INFINITY };
    w.set(&format!("gemma3n.{BOUNDS}"), d.layers.iter().map(bound).collect::<Vec<f32>>());
    Ok(())
}

/// The keys that Gemma 3n and 4 have for what differs between layers.
pub(super) fn layer_keys(name: &str, d: &Description, w: &mut GgufWriter<'_>) {
    let attention: Vec<&AttentionSpec> = d.layers.iter().filter_map(|l| l.mixer.attention()).collect();
    let size = d.layers.first().and_then(|l| l.per_layer).map_or(0, |p| p.size);
    w.set(&format!("{name}.embedding_length_per_layer_input"), size as u32);
    let shared = attention.iter().filter(|a| matches!(a.keys, KeysFrom::Layer(_))).count();
    w.set(&format!("{name}.attention.shared_kv_layers"), shared as u32);
    w.set(&format!("{name}.attention.sliding_window_pattern"), attention.iter().map(|a| a.window.is_some()).collect::<Vec<bool>>());
}

/// The copies' matrices are one tensor for all copies; all of the vocabulary has embeddings for each layer, copies always have a factor, and layers have
/// matrices of keys that nothing reads.
pub(super) fn fold(d: &mut Description, tensors: &mut Vec<Named>) -> TensorResult<()> {
    let of = |name: &str| {
        let all = ["altup_proj", "altup_unembd_proj"].into_iter();
        let mut numbered = all.filter_map(|all| Some((all, name.strip_prefix(all)?.strip_prefix('.')?.strip_suffix(".weight")?)));
        numbered.find_map(|(all, n)| Some((format!("{all}.weight"), n.parse().ok()?)))
    };
    folded::joined(tensors, of, |parts| Tensor::stack(parts, 0))?;
    whole_vocabulary(d, tensors)?;
    for (i, l) in d.layers.iter().enumerate() {
        let Some(KeysFrom::Layer(of)) = l.mixer.attention().map(|a| a.keys) else { continue };
        // llama.cpp asks for them; checkpoints have some.
        for part in ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] {
            let lent = tensors.iter().find(|(name, _)| *name == format!("blk.{of}.{part}")).map(|(_, t)| t.clone());
            tensors.extend(lent.map(|t| (format!("blk.{i}.{part}"), t)));
        }
    }
    if d.layers.iter().any(|l| l.altup.is_some_and(|altup| !altup.scaled)) {
        for (_, t) in tensors.iter_mut().filter(|(name, _)| name.ends_with(".altup_correct_scale.weight")) {
            *t = Tensor::ones(t.dims(), DType::F32, t.device())?;
        }
        d.each(|l| l.altup.iter_mut().for_each(|altup| altup.scaled = true));
    }
    Ok(())
}

/// Gives the tokens that share the first one's embeddings for each layer rows of their own.
pub(super) fn whole_vocabulary(d: &mut Description, tensors: &mut [Named]) -> TensorResult<()> {
    let all = tensors.iter().find(|(name, _)| name == "token_embd.weight").map_or(0, |(_, t)| t.dims()[0]);
    let table = tensors.iter_mut().find(|(name, _)| name == SIZES[0]);
    let Some((_, t)) = table.filter(|(_, t)| t.dims()[0] < all) else { return Ok(()) };
    let (known, width) = (t.dims()[0], t.dims()[1]);
    let first = t.narrow(0, 0, 1)?.broadcast_to(&[all - known, width])?.contiguous()?;
    *t = Tensor::cat(&[t.clone(), first], 0)?;
    d.each(|l| l.per_layer.iter_mut().for_each(|p| p.vocab = all));
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
