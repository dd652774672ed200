//! Gemma 4 (Google, 2026): Gemma 3 with larger heads in the layers that see all keys, of whose pairs a part rotates, embeddings of tokens for each
//! layer, last layers that take the keys and values of earlier ones, and a learned factor of each layer's result. Some have experts beside the dense
//! feed-forward parts, by the softmax of what a norm makes of the residual stream, with a learned factor of each expert's weight.

use super::{Named, common, experts, folded, gemma2, gemma3n};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::decoder::Description;
use crate::models::decoder::description::{AttentionSpec, DenseWithExperts, ExpertLayout, KeysFrom, NormSpec, RouterSpec, Scores};
use crate::models::rope_settings::{RopeDefaults, RopeTable};
use crate::models::settings::{NONE, Settings};
use crate::tensor::Tensor;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    common::rope_is_said(s)?;
    // Between the tokens of an image only, or nowhere.
    if !s.is_null("use_bidirectional_attention") && s.text(NONE, "use_bidirectional_attention")?.is_some_and(|of| of != "vision") {
        return Err(s.refuse(NONE, "use_bidirectional_attention", "only causal attention is implemented"));
    }
    let feeds = listed_feeds(s)?;
    let z = gemma3n::sizes(s, feeds.as_ref().and_then(|all| all.iter().copied().max()), "attention.key_length_swa")?;
    let norm = NormSpec::rms(s.positive("attention.layer_norm_rms_epsilon", "rms_norm_eps")?.unwrap_or(1e-6));
    let mut d = Description::new("gemma4_text", z, norm, gemma3n::names());
    gemma3n::base(s, &mut d)?;
    d.rope_positions = 1 << 17;
    d.head.softcap = gemma2::softcap(s, "final_logit_softcapping", None)?;
    let kinds = gemma3n::kinds(s, z.layers)?;
    let mut kinds: Vec<usize> = kinds.unwrap_or_else(|| (1..=z.layers).map(|i| usize::from(i % 6 != 0)).collect());
    if s.is_hub() {
        // The last layer sees all keys, whatever the settings say.
        kinds.last_mut().into_iter().for_each(|kind| *kind = 0);
    }
    gemma3n::windows(s, &mut d, &kinds)?;
    let equal = s.flag(NONE, "attention_k_eq_v")?.unwrap_or(false);
    let listed = if s.is_hub() { None } else { Some(HeadSizes::read(s, z.layers, z.kv_heads)?) };
    for ((i, a), kind) in d.attention_layers().enumerate().zip(&kinds) {
        let sizes = match &listed {
            Some(listed) => ((*kind == 0).then_some(listed.full), Some(listed.kv_heads[i])),
            None => sizes_of(s, i, *kind == 0, equal)?,
        };
        set_sizes(s, i, a, sizes)?;
        // Of GGUF files the tensors say it.
        let equal = if s.is_hub() { equal && *kind == 0 } else { !s.has_tensor(&format!("blk.{i}.attn_v.weight")) };
        if equal {
            a.keys = KeysFrom::OwnForValues;
        }
    }
    if let Some(feeds) = feeds {
        d.layers.iter_mut().zip(feeds).for_each(|(l, size)| l.feed.size = size);
    }
    let first = gemma3n::shared_keys(s, &mut d, &kinds, 0)?;
    if s.flag(NONE, "use_double_wide_mlp")?.unwrap_or(false) {
        d.layers.iter_mut().skip(first).for_each(|l| l.feed.size *= 2);
    }
    ropes(s, &mut d, &kinds)?;
    let per_layer = gemma3n::per_layer(s, norm, d.layers[0].feed.activation)?;
    for (i, l) in d.layers.iter_mut().enumerate() {
        (l.per_layer, l.scalar) = (per_layer, s.is_hub() || s.has_tensor(&format!("blk.{i}.layer_output_scale.weight")));
    }
    put_experts(s, &mut d)?;
    Ok(d)
}

/// Experts beside the dense parts of all layers, if there are any.
fn put_experts(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let keys = ["num_experts", "top_k_experts", "moe_intermediate_size"];
    let enabled = match s.is_hub() {
        true => s.flag(NONE, "enable_moe_block")?.unwrap_or(false),
        false => s.number("expert_count", NONE)?.is_some_and(|count| count > 0.0),
    };
    if !enabled {
        keys.iter().for_each(|key| s.ignore(key));
        // Files may say that there are none.
        s.only_number("expert_used_count", NONE, 0.0, "there are no experts")?;
        return Ok(());
    }
    let router = RouterSpec { input_norm: Some(d.norm.eps), factors: true, ..RouterSpec::new(Scores::Softmax).normalised(true) };
    let mut spec = experts::experts(s, &experts::Counts { count: &keys[..1], used: keys[1], usual: None }, router)?;
    spec.layout = ExpertLayout::Joint;
    spec.with_dense = Some(DenseWithExperts { expert_size: s.need("expert_feed_forward_length", keys[2], 1 << 22)?, norm: d.norm });
    d.each(|l| l.feed.experts = Some(spec.clone()));
    d.names = d.names.clone().with(&[
        ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
        ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
        ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
        ("ffn_gate_inp", "router.proj"),
        ("ffn_gate_inp.scale", "router.scale"),
        ("ffn_down_exps.scale", "router.per_expert_scale"),
        ("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
        ("ffn_down_exps.weight", "experts.down_proj"),
    ]);
    Ok(())
}

/// The sizes of feed-forward parts that GGUF lists.
fn listed_feeds(s: &Settings<'_>) -> TensorResult<Option<Vec<usize>>> {
    if s.is_hub() { Ok(None) } else { common::listed_sizes(s, "feed_forward_length", s.need("block_count", NONE, 4096)?) }
}

/// What GGUF says of heads: their size where a layer sees all keys, and how many keys have in each layer.
struct HeadSizes {
    full: usize,
    kv_heads: Vec<usize>,
}

impl HeadSizes {
    fn read(s: &Settings<'_>, layers: usize, kv_heads: usize) -> TensorResult<HeadSizes> {
        let full = s.need("attention.key_length", NONE, 1 << 12)?;
        for (value, key) in [("attention.value_length", "attention.key_length"), ("attention.value_length_swa", "attention.key_length_swa")]
        {
            let size = s.size(key, NONE, 1 << 12)?.unwrap_or(0);
            s.only_number(value, NONE, size as f64, &format!("only values of the size of keys are implemented ({})", s.sizes()))?;
        }
        let listed = common::listed_sizes(s, "attention.head_count_kv", layers)?.unwrap_or_else(|| vec![kv_heads; layers]);
        match listed.contains(&0) {
            true => Err(s.refuse("attention.head_count_kv", NONE, "every layer has attention")),
            false => Ok(HeadSizes { full, kv_heads: listed }),
        }
    }
}

/// What `config.json` says of the size of heads of layer `i` and of how many keys have: `per_layer_config`, or else larger ones where a layer sees all
/// keys.
fn sizes_of(s: &Settings<'_>, i: usize, full: bool, equal: bool) -> TensorResult<(Option<usize>, Option<usize>)> {
    if s.has_object("per_layer_config") {
        if !s.is_object("per_layer_config") {
            return Err(s.refuse(NONE, "per_layer_config", "it must be an object with the layers' numbers as keys"));
        }
        ["global_head_dim", "num_global_key_value_heads"].iter().for_each(|key| s.ignore(key));
        let of = |key: &str, most: usize| s.size(NONE, &format!("per_layer_config.{i}.{key}"), most);
        return Ok((of("head_dim", 1 << 12)?, of("num_key_value_heads", 1 << 14)?));
    }
    let size = s.size(NONE, "global_head_dim", 1 << 12)?.unwrap_or(512);
    let kv_heads = if s.is_null("num_global_key_value_heads") { None } else { s.size(NONE, "num_global_key_value_heads", 1 << 14)? };
    Ok((full.then_some(size), kv_heads.filter(|_| full && equal)))
}

/// Sets the heads of layer `i`.
fn set_sizes(s: &Settings<'_>, i: usize, a: &mut AttentionSpec, (size, kv_heads): (Option<usize>, Option<usize>)) -> TensorResult<()> {
    a.head_dim = size.unwrap_or(a.head_dim);
    a.kv_heads = kv_heads.unwrap_or(a.kv_heads);
    if a.heads % a.kv_heads != 0 || a.head_dim % 2 != 0 {
        let (heads, kv_heads, size) = (a.heads, a.kv_heads, a.head_dim);
        let message = format!("layer {i}: {heads} heads, {kv_heads} of keys, of size {size} do not fit together ({})", s.sizes());
        return Err(s.wrong(message));
    }
    Ok(())
}

/// A rotation for each kind of layers and size of heads; those of layers that see all keys come first.
fn ropes(s: &Settings<'_>, d: &mut Description, kinds: &[usize]) -> TensorResult<()> {
    if !s.is_hub() {
        return ropes_of_gguf(s, d, kinds);
    }
    let objects = [("rope_parameters.full_attention", 1e6), ("rope_parameters.sliding_attention", 1e4)];
    let (context, mut ropes, mut known) = (d.context, Vec::new(), Vec::new());
    for (kind, (object, base)) in objects.into_iter().enumerate() {
        for (a, _) in d.attention_layers().zip(kinds).filter(|(_, of)| **of == kind) {
            let of = (kind, a.head_dim);
            let n = known.iter().position(|k| *k == of).unwrap_or(known.len());
            if n == known.len() {
                known.push(of);
                let defaults = RopeDefaults { base, object, ..RopeDefaults::default() };
                ropes.push(RopeTable::from_config(s, object, defaults, a.head_dim, context)?);
            }
            a.rope = Some(n);
        }
    }
    // A kind that no layer is of may be described all the same.
    let unused = objects.iter().enumerate().filter(|(kind, _)| !kinds.contains(kind));
    unused.for_each(|(_, (object, _))| s.ignore(object));
    d.ropes = ropes;
    Ok(())
}

/// The two rotations of GGUF's keys, of which the first one's frequencies have divisors.
fn ropes_of_gguf(s: &Settings<'_>, d: &mut Description, kinds: &[usize]) -> TensorResult<()> {
    let (full, windowed) = (s.need("attention.key_length", NONE, 1 << 12)?, d.head_dim);
    let context = d.context;
    let table = RopeTable::read(s, RopeDefaults { base: 1e6, ..RopeDefaults::default() }, full, context)?;
    let whole = format!("only heads that rotate as a whole are implemented ({})", s.sizes());
    s.only_number("rope.dimension_count_swa", NONE, windowed as f64, &whole)?;
    let base = s.positive("rope.freq_base_swa", NONE)?.unwrap_or(1e4);
    d.ropes = vec![table, RopeTable::unscaled(s, RopeDefaults::default(), base, windowed)];
    d.attention_layers().zip(kinds).for_each(|(a, kind)| a.rope = Some(*kind));
    Ok(())
}

/// Sizes of both kinds of layers, and lists by layer.
pub(super) fn gguf_keys(_: &Settings<'_>, d: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    gemma3n::layer_keys("gemma4", d, w);
    let attention: Vec<&AttentionSpec> = d.layers.iter().filter_map(|l| l.mixer.attention()).collect();
    let size = |windowed: bool| attention.iter().find(|a| a.window.is_some() == windowed).map_or(d.head_dim, |a| a.head_dim) as u32;
    for (windowed, end) in [(false, ""), (true, "_swa")] {
        for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
            w.set(&format!("gemma4.{key}{end}"), size(windowed));
        }
    }
    let mut by_layer = |key: &str, sizes: Vec<u32>| {
        if sizes.iter().any(|n| *n != sizes[0]) {
            w.set(&format!("gemma4.{key}"), sizes);
        }
    };
    by_layer("attention.head_count_kv", attention.iter().map(|a| a.kv_heads as u32).collect());
    by_layer("feed_forward_length", d.layers.iter().map(|l| l.feed.size as u32).collect());
    Ok(())
}

/// Gates and ups of experts are one tensor; all of the vocabulary has embeddings for each layer, and frequencies always have divisors.
pub(super) fn fold(d: &mut Description, tensors: &mut Vec<Named>) -> TensorResult<()> {
    let of = |name: &str| {
        let part = |part: &str, n: usize| Some((format!("{}ffn_gate_up_exps.weight", name.strip_suffix(part)?), n));
        part("ffn_gate_exps.weight", 0).or_else(|| part("ffn_up_exps.weight", 1))
    };
    folded::joined(tensors, of, |parts| Tensor::cat(parts, 1))?;
    let full = d.ropes.first().map_or(0, |table| table.freqs.len());
    if !tensors.iter().any(|(name, _)| name == "rope_freqs.weight") {
        tensors.push(("rope_freqs.weight".into(), Tensor::ones(&[full], crate::dtype::DType::F32, &crate::device::Device::cpu())?));
    }
    gemma3n::whole_vocabulary(d, tensors)
}
