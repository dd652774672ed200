//! What the architectures have in common: the keys of sizes, norms and rotations, windows, biases.

use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::{Description, NormKind, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::{self, RopeDefaults, RopeTable};
use crate::models::settings::{NONE, Settings};
use crate::ops::rope::RopePairs;

/// What an architecture has where its settings do not say; the default is Llama's, without the order of rows that GGUF's converter makes.
#[derive(Clone, Copy)]
pub(super) struct Usual<'k> {
    pub norm: NormKind,
    pub eps: f64,
    /// The Hub's key of ε.
    pub eps_key: &'k str,
    /// Heads of keys where the key is missing; as many as of queries when absent.
    pub kv_heads: Option<usize>,
    /// Size of a head; the width over the number of heads when absent.
    pub head_dim: Option<usize>,
    /// Size of a dense feed-forward part; the key has to be there when absent.
    pub feed: Option<usize>,
    pub activation: ActivationFn,
    pub rope: RopeDefaults<'k>,
    /// Whether the embedding serves as the output matrix.
    pub tied: bool,
    /// Whether there are experts, whose numbers the architecture asks for itself.
    pub experts: bool,
    /// Whether GGUF lists the heads of keys by layer, with 0 where there is no attention.
    pub mixed: bool,
}

impl Default for Usual<'_> {
    fn default() -> Self {
        Usual {
            norm: NormKind::Rms,
            eps: 1e-6,
            eps_key: "rms_norm_eps",
            kv_heads: None,
            head_dim: None,
            feed: None,
            activation: ActivationFn::Silu,
            rope: RopeDefaults::default(),
            tied: false,
            experts: false,
            mixed: false,
        }
    }
}

/// Rotations by pairs of halves, whose rows GGUF's converter reorders so that pairs are neighbours.
pub(super) fn reordered() -> RopeDefaults<'static> {
    RopeDefaults { reordered: true, ..RopeDefaults::default() }
}

/// Rotations of neighbours.
pub(super) fn adjacent() -> RopeDefaults<'static> {
    RopeDefaults { pairs: RopePairs::Adjacent, ..RopeDefaults::default() }
}

/// A decoder with Llama's names of settings and tensors and one rotation; the rest of the description is Llama's without biases.
pub(super) fn decoder(s: &Settings<'_>, architecture: &'static str, usual: &Usual<'_>) -> TensorResult<Description> {
    let z = sizes(s, usual)?;
    s.only_flag(NONE, "rope_interleaved", false, "only pairs of the two halves of a head are implemented")?;
    let table = RopeTable::read(s, usual.rope, z.head_dim, z.context)?;
    let gguf = if usual.norm == NormKind::Rms { "attention.layer_norm_rms_epsilon" } else { "attention.layer_norm_epsilon" };
    let eps = s.positive(gguf, usual.eps_key)?.unwrap_or(if s.is_hub() { usual.eps } else { 1e-5 });
    let norm = NormSpec { kind: usual.norm, eps, plus_one: false };
    let mut d = Description::new(architecture, z, norm, Names::llama());
    let activation = ActivationFn::read(s, "hidden_act", usual.activation)?;
    d.each(|l| l.feed.activation = activation);
    d.ropes.push(table);
    d.head.tied = usual.tied;
    // Tables of rotations that old files carry.
    d.unused = &[".rotary_emb.inv_freq"];
    Ok(d)
}

/// The sizes by the keys that most architectures have.
pub(super) fn sizes(s: &Settings<'_>, usual: &Usual<'_>) -> TensorResult<Sizes> {
    let width = s.need("embedding_length", "hidden_size", 1 << 20)?;
    let heads = s.need("attention.head_count", "num_attention_heads", 1 << 14)?;
    let missing = if s.is_null("num_key_value_heads") { None } else { usual.kv_heads };
    let kv_heads = match attention_layers(s)?.filter(|_| usual.mixed) {
        Some((kv_heads, _)) => kv_heads,
        None => s.size("attention.head_count_kv", "num_key_value_heads", 1 << 14)?.or(missing).unwrap_or(heads),
    };
    let missing = if s.is_hub() && !s.is_null("head_dim") { usual.head_dim } else { None };
    let head_dim = s.size("attention.key_length", "head_dim", 1 << 12)?.or(missing).unwrap_or(width / heads);
    let context = s.need("context_length", "max_position_embeddings", 1 << 24)?;
    if heads % kv_heads != 0 || head_dim % 2 != 0 || head_dim == 0 {
        return Err(s.wrong(format!("{heads} heads, {kv_heads} of keys, of size {head_dim} do not fit together ({})", s.sizes())));
    }
    let same = format!("only values of the size of keys are implemented ({})", s.sizes());
    s.only_number("attention.value_length", NONE, head_dim as f64, &same)?;
    s.only_flag("attention.causal", NONE, true, "only causal attention is implemented")?;
    for key in ["expert_count", "expert_used_count"].into_iter().filter(|_| !usual.experts) {
        s.only_number(key, NONE, 0.0, "experts are not implemented")?;
    }
    let layers = s.need("block_count", "num_hidden_layers", 4096)?;
    let feed = match usual.feed {
        Some(feed) => s.size("feed_forward_length", "intermediate_size", 1 << 22)?.unwrap_or(feed),
        None => s.need("feed_forward_length", "intermediate_size", 1 << 22)?,
    };
    Ok(Sizes { width, layers, heads, kv_heads, head_dim, feed, context })
}

/// The heads of keys that GGUF lists by layer, and which layers have attention: those that have any.
pub(super) fn attention_layers(s: &Settings<'_>) -> TensorResult<Option<(usize, Vec<bool>)>> {
    let key = "attention.head_count_kv";
    let Some(all) = s.by_layer(key)? else { return Ok(None) };
    let most = all.iter().copied().fold(0.0, f64::max);
    if !(1.0..=16384.0).contains(&most) || all.iter().any(|n| *n != 0.0 && *n != most) {
        return Err(s.refuse(key, NONE, "expected one number of heads, or 0, for each layer"));
    }
    Ok(Some((most as usize, all.iter().map(|n| *n > 0.0).collect())))
}

/// The layers to which GGUF gives heads of keys, which it has to list.
pub(super) fn layers_with_attention(s: &Settings<'_>, layers: usize) -> TensorResult<Vec<bool>> {
    match attention_layers(s)? {
        Some((_, attention)) if attention.len() == layers => Ok(attention),
        _ => Err(s.refuse("attention.head_count_kv", NONE, &format!("expected a number for each of {layers} layers ({})", s.sizes()))),
    }
}

/// Sizes that GGUF lists by layer; `None` where it has one number for all, or none.
pub(super) fn listed_sizes(s: &Settings<'_>, key: &str, layers: usize) -> TensorResult<Option<Vec<usize>>> {
    let Some(all) = s.by_layer(key)? else { return Ok(None) };
    let whole = |n: &f64| (0.0..=4_194_304.0).contains(n) && n.fract() == 0.0;
    if all.len() != layers || !all.iter().all(whole) {
        return Err(s.refuse(key, NONE, &format!("expected a size for each of {layers} layers ({})", s.sizes())));
    }
    Ok(Some(all.into_iter().map(|n| n as usize).collect()))
}

/// Whether there are biases, which only `config.json` says; those of GGUF files are taken where they are.
pub(super) fn bias(s: &Settings<'_>, key: &str, usual: bool) -> TensorResult<Option<bool>> {
    Ok(if s.is_hub() { Some(s.flag(NONE, key)?.unwrap_or(usual)) } else { None })
}

/// Biases of q, k, v and of the output matrix by `attention_bias`, of the feed-forward part by `mlp_bias`.
pub(super) fn biases(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let (attention, feed) = (bias(s, "attention_bias", false)?, bias(s, "mlp_bias", false)?);
    d.attentions(|a| (a.qkv_bias, a.output_bias) = (attention, attention));
    d.each(|l| l.feed.bias = feed);
    Ok(())
}

/// Biases of q, k, v and of the output matrix by `attention_bias`.
pub(super) fn attention_biases(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let bias = bias(s, "attention_bias", false)?;
    d.attentions(|a| (a.qkv_bias, a.output_bias) = (bias, bias));
    Ok(())
}

/// Biases of q, k and v by `attention_bias`; the other matrices have none.
pub(super) fn qkv_biases(s: &Settings<'_>, d: &mut Description, usual: bool) -> TensorResult<()> {
    let qkv = bias(s, "attention_bias", usual)?;
    d.attentions(|a| a.qkv_bias = qkv);
    Ok(())
}

/// Limits the keys that layers see to a window: in the layers that `layer_types` says, or else `usual`. `missing` is its size where no key says
/// one. Returns which layers are limited.
pub(super) fn windows(
    s: &Settings<'_>,
    d: &mut Description,
    missing: Option<usize>,
    usual: impl Fn(usize) -> bool,
) -> TensorResult<Vec<bool>> {
    let (window, layers) = (s.window(missing)?, d.layers.len());
    let types = if s.is_hub() { s.windowed_layers(layers)? } else { windowed_layers(s, layers)? };
    let limited = types.unwrap_or_else(|| (0..layers).map(usual).collect());
    let layers = d.layers.iter_mut().zip(&limited).filter(|(_, limited)| **limited);
    layers.filter_map(|(l, _)| l.mixer.attention_mut()).for_each(|a| a.window = window);
    Ok(limited)
}

/// What GGUF says of the layers that a window limits: whether it does for each of them, or that it does in all but each so many.
pub(super) fn windowed_layers(s: &Settings<'_>, layers: usize) -> TensorResult<Option<Vec<bool>>> {
    let key = "attention.sliding_window_pattern";
    if let Some(limited) = s.flags_by_layer(key)? {
        return match limited.len() == layers {
            true => Ok(Some(limited)),
            false => Err(s.refuse(key, NONE, &format!("expected one for each of {layers} layers ({})", s.sizes()))),
        };
    }
    let pattern = s.size(key, NONE, 4096)?;
    Ok(pattern.map(|p| (1..=layers).map(|i| i % p != 0).collect()))
}

/// No rotation in layers where `without` holds.
pub(super) fn without_rope(d: &mut Description, without: impl Fn(usize) -> bool) {
    let layers = d.layers.iter_mut().enumerate().filter(|(i, _)| without(*i));
    layers.filter_map(|(_, l)| l.mixer.attention_mut()).for_each(|a| a.rope = None);
}

/// The types of layers that the first of these keys of `config.json` that is there says; each is one of `known`, of which the names of a row mean
/// the same. The result has the number of the row for each layer.
pub(super) fn layer_kinds(s: &Settings<'_>, keys: &[&str], layers: usize, known: &[&[&str]]) -> TensorResult<Option<Vec<usize>>> {
    let Some(key) = keys.iter().find(|k| s.has_object(k)) else { return Ok(None) };
    let types = s.texts(key)?.unwrap_or_default();
    let kinds: Vec<usize> = types.iter().filter_map(|t| known.iter().position(|row| row.contains(t))).collect();
    if kinds.len() != layers || types.len() != layers {
        let names: Vec<&str> = known.iter().map(|row| row[0]).collect();
        return Err(s.refuse(NONE, key, &format!("expected {layers} times {} ({})", names.join(" or "), s.sizes())));
    }
    Ok(Some(kinds))
}

/// What a refusal says of the size of a head whose first part does not rotate.
pub(super) fn head_parts([nope, rope]: [usize; 2]) -> String {
    format!("its parts `qk_nope_head_dim` and `qk_rope_head_dim` are {nope} and {rope}")
}

/// Refuses sizes of latent attention in `config.json` that are not those of its heads and of the two parts of each.
pub(super) fn latent_heads(s: &Settings<'_>, heads: usize, parts: [usize; 2]) -> TensorResult<()> {
    let same = format!("expected as many as `num_attention_heads`, {heads}");
    s.only_number(NONE, "num_key_value_heads", heads as f64, &same)?;
    s.only_number(NONE, "qk_head_dim", parts.iter().sum::<usize>() as f64, &head_parts(parts))
}

/// Refuses a folder that does not say how positions rotate, where transformers has a default of its own.
pub(super) fn rope_is_said(s: &Settings<'_>) -> TensorResult<()> {
    let said = !s.is_hub() || s.has_object("rope_parameters") || s.has_object("rope_scaling");
    if said { Ok(()) } else { Err(s.refuse(NONE, "rope_parameters", "this architecture's default is not implemented")) }
}

/// The slopes 2^(−8·i/n) of n heads; if n is no power of two, those of the next lower one and every other of the next higher one
/// (Press et al., 2021).
pub(super) fn alibi_slopes(heads: usize) -> Vec<f32> {
    let lower = 1 << heads.max(1).ilog2();
    let slope = |i: usize, n: usize| 2f64.powf(-8.0 * i as f64 / n as f64) as f32;
    let own = (1..=lower).map(|i| slope(i, lower));
    own.chain((0..heads - lower).map(|i| slope(2 * i + 1, 2 * lower))).collect()
}

/// The rotations of layers that see all keys, and of those with windows.
pub(super) fn full_and_windowed_ropes(s: &Settings<'_>, z: Sizes) -> TensorResult<Vec<RopeTable>> {
    let global = RopeDefaults { base: 1_000_000.0, object: "rope_parameters.full_attention", ..Default::default() };
    let local = RopeDefaults { base_key: "rope_local_base_freq", object: "rope_parameters.sliding_attention", ..Default::default() };
    if !s.is_hub() {
        let base = s.positive("rope.freq_base_swa", NONE)?.unwrap_or(local.base);
        let local = RopeTable::unscaled(s, local, base, z.head_dim);
        return Ok(vec![RopeTable::read(s, global, z.head_dim, z.context)?, local]);
    }
    // The older spelling scales the layers that see all keys.
    let object = rope_settings::object(s, global.object)?;
    let part = |object, defaults| RopeTable::from_config(s, object, defaults, z.head_dim, z.context);
    Ok(vec![part(object, global)?, part(local.object, local)?])
}
