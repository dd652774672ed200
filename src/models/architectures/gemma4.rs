//! Gemma 4 (Google, 2026): Gemma 3 with larger heads in the layers that see all keys, of whose pairs a part rotates, embeddings of tokens for each
//! layer, last layers that take the keys and values of earlier ones, and a learned factor of each layer's result. Some have experts beside the dense
//! feed-forward parts, by the softmax of what a norm makes of the residual stream, with a learned factor of each expert's weight.

use super::{common, experts, gemma2, gemma3n};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{AttentionSpec, DenseWithExperts, ExpertLayout, KeysFrom, NormSpec, RouterSpec, Scores};
use crate::models::rope_settings::{RopeDefaults, RopeTable};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    common::rope_is_said(s)?;
    // Between the tokens of an image only, or nowhere.
    if !s.is_null("use_bidirectional_attention") && s.text(NONE, "use_bidirectional_attention")?.is_some_and(|of| of != "vision") {
        return Err(s.refuse(NONE, "use_bidirectional_attention", "only causal attention is implemented"));
    }
    let z = gemma3n::sizes(s, None, NONE)?;
    let norm = NormSpec::rms(s.positive(NONE, "rms_norm_eps")?.unwrap_or(1e-6));
    let mut d = Description::new("gemma4_text", z, norm, gemma3n::names());
    gemma3n::base(s, &mut d)?;
    d.rope_positions = 1 << 17;
    d.head.softcap = gemma2::softcap(s, "final_logit_softcapping", None)?;
    let kinds = common::layer_kinds(s, &["layer_types"], z.layers, &gemma3n::KINDS)?;
    let mut kinds: Vec<usize> = kinds.unwrap_or_else(|| (1..=z.layers).map(|i| usize::from(i % 6 != 0)).collect());
    // The last layer sees all keys, whatever the settings say.
    kinds.last_mut().into_iter().for_each(|kind| *kind = 0);
    gemma3n::windows(s, &mut d, &kinds)?;
    let equal = s.flag(NONE, "attention_k_eq_v")?.unwrap_or(false);
    for ((i, a), kind) in d.attention_layers().enumerate().zip(&kinds) {
        sizes_of(s, i, a, *kind == 0, equal)?;
        if equal && *kind == 0 {
            a.keys = KeysFrom::OwnForValues;
        }
    }
    let first = gemma3n::shared_keys(s, &mut d, &kinds, 0)?;
    if s.flag(NONE, "use_double_wide_mlp")?.unwrap_or(false) {
        d.layers.iter_mut().skip(first).for_each(|l| l.feed.size *= 2);
    }
    ropes(s, &mut d, &kinds)?;
    let per_layer = gemma3n::per_layer(s, norm, d.layers[0].feed.activation)?;
    d.each(|l| (l.per_layer, l.scalar) = (per_layer, true));
    put_experts(s, &mut d)?;
    Ok(d)
}

/// Experts beside the dense parts of all layers, if there are any.
fn put_experts(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    let keys = ["num_experts", "top_k_experts", "moe_intermediate_size"];
    if !s.flag(NONE, "enable_moe_block")?.unwrap_or(false) {
        keys.iter().for_each(|key| s.ignore(key));
        return Ok(());
    }
    let router = RouterSpec { input_norm: Some(d.norm.eps), factors: true, ..RouterSpec::new(Scores::Softmax).normalised(true) };
    let mut spec = experts::experts(s, &experts::Counts { count: &keys[..1], used: keys[1], usual: None }, router)?;
    spec.layout = ExpertLayout::Joint;
    spec.with_dense = Some(DenseWithExperts { expert_size: s.need(NONE, keys[2], 1 << 22)?, norm: d.norm });
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

/// The heads of layer `i`: by `per_layer_config`, or else larger ones where a layer sees all keys.
fn sizes_of(s: &Settings<'_>, i: usize, a: &mut AttentionSpec, full: bool, equal: bool) -> TensorResult<()> {
    let (size, kv_heads) = if s.has_object("per_layer_config") {
        if !s.is_object("per_layer_config") {
            return Err(s.refuse(NONE, "per_layer_config", "it must be an object with the layers' numbers as keys"));
        }
        ["global_head_dim", "num_global_key_value_heads"].iter().for_each(|key| s.ignore(key));
        let of = |key: &str, most: usize| s.size(NONE, &format!("per_layer_config.{i}.{key}"), most);
        (of("head_dim", 1 << 12)?, of("num_key_value_heads", 1 << 14)?)
    } else {
        let size = s.size(NONE, "global_head_dim", 1 << 12)?.unwrap_or(512);
        let kv_heads = if s.is_null("num_global_key_value_heads") { None } else { s.size(NONE, "num_global_key_value_heads", 1 << 14)? };
        (full.then_some(size), kv_heads.filter(|_| full && equal))
    };
    a.head_dim = size.unwrap_or(a.head_dim);
    a.kv_heads = kv_heads.unwrap_or(a.kv_heads);
    if a.heads % a.kv_heads != 0 || a.head_dim % 2 != 0 {
        let (heads, kv_heads, size) = (a.heads, a.kv_heads, a.head_dim);
        let message = format!("layer {i}: {heads} heads, {kv_heads} of keys, of size {size} do not fit together ({})", s.sizes());
        return Err(s.wrong(message));
    }
    Ok(())
}

/// A rotation for each kind of layers and size of heads.
fn ropes(s: &Settings<'_>, d: &mut Description, kinds: &[usize]) -> TensorResult<()> {
    let objects = [("rope_parameters.full_attention", 1e6), ("rope_parameters.sliding_attention", 1e4)];
    let (context, mut ropes, mut known) = (d.context, Vec::new(), Vec::new());
    for (a, &kind) in d.attention_layers().zip(kinds) {
        let of = (kind, a.head_dim);
        let n = known.iter().position(|k| *k == of).unwrap_or(known.len());
        if n == known.len() {
            let (object, base) = objects[kind];
            known.push(of);
            ropes.push(RopeTable::from_config(s, object, RopeDefaults { base, object, ..RopeDefaults::default() }, a.head_dim, context)?);
        }
        a.rope = Some(n);
    }
    // A kind that no layer is of may be described all the same.
    let unused = objects.iter().enumerate().filter(|(kind, _)| !kinds.contains(kind));
    unused.for_each(|(_, (object, _))| s.ignore(object));
    d.ropes = ropes;
    Ok(())
}
