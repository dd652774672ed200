//! DeepSeek V2 and V3 (DeepSeek-AI, 2024): attention by latents, dense layers first, then experts and shared ones. V2 weights by the softmax over all
//! experts, V3 by σ with a correction for the choice; both may choose within the best groups. Kimi K2 is of V3's architecture.
//!
//! With latent c = norm(Wc·x) and key part r = rope(Wr·x) of each position, head h has k = (K_h·c, r) and v = V_h·c.

use super::{Named, common, experts, folded};
use crate::error::{TensorError, TensorResult};
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{LatentSpec, MixerSpec, NormSpec, RouterSpec, Scores, Sizes};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::{RopeDefaults, RopeTable, object};
use crate::models::settings::{NONE, Settings};
use crate::ops::rope::RopePairs;
use crate::tensor::Tensor;

/// Sizes where the settings leave them out.
pub(super) struct UsualLatent {
    pub query_rank: usize,
    pub rank: usize,
    pub nope_dim: usize,
    pub rope_dim: usize,
    pub value: usize,
    pub eps: f64,
    /// Whether the part of a head that rotates is said relative to all of the head.
    pub partial_rope: bool,
    /// Whether GGUF has the matrices of keys and values as one, and no sizes of the latents as heads.
    pub joint: bool,
}

const V3: UsualLatent =
    UsualLatent { query_rank: 1536, rank: 512, nope_dim: 128, rope_dim: 64, value: 128, eps: 1e-6, partial_rope: false, joint: false };

/// A decoder with attention by latents in all layers.
pub(super) fn decoder(s: &Settings<'_>, architecture: &'static str, usual: &UsualLatent) -> TensorResult<Description> {
    let hub = s.is_hub();
    let width = s.need("embedding_length", "hidden_size", 1 << 20)?;
    let heads = s.need("attention.head_count", "num_attention_heads", 1 << 14)?;
    let context = s.need("context_length", "max_position_embeddings", 1 << 24)?;
    let part = |gguf: &str, key: &str, usual: usize| Ok(s.size(gguf, key, 1 << 14)?.or(hub.then_some(usual)));
    let need =
        |found: TensorResult<Option<usize>>, gguf: &str| found?.ok_or_else(|| s.wrong(format!("`{}` is missing", s.name(gguf, NONE))));
    let rank = need(part("attention.kv_lora_rank", "kv_lora_rank", usual.rank), "attention.kv_lora_rank")?;
    let missing = (hub && !s.is_null("q_lora_rank")).then_some(usual.query_rank);
    let query_rank = s.size("attention.q_lora_rank", "q_lora_rank", 1 << 14)?.or(missing);
    let rope_dim = need(part("rope.dimension_count", "qk_rope_head_dim", usual.rope_dim), "rope.dimension_count")?;
    let (nope_dim, value) = match hub {
        true => (need(part(NONE, "qk_nope_head_dim", usual.nope_dim), NONE)?, need(part(NONE, "v_head_dim", usual.value), NONE)?),
        false if usual.joint => joint_sizes(s, heads, rope_dim)?,
        false => gguf_sizes(s, rank, rope_dim)?,
    };
    let parts = [nope_dim, rope_dim];
    if hub {
        common::latent_heads(s, heads, parts)?;
    } else if usual.joint {
        s.only_number("attention.head_count_kv", NONE, heads as f64, &format!("there are {heads} heads"))?;
    } else {
        s.size("attention.head_count_kv", NONE, 1 << 14)?;
    }
    let (head, why) = match usual.partial_rope {
        true => (nope_dim + rope_dim, common::head_parts(parts)),
        false => (rope_dim, format!("expected `qk_rope_head_dim`, {rope_dim}")),
    };
    s.only_number(NONE, "head_dim", head as f64, &why)?;
    let neighbours = s.flag(NONE, "rope_interleave")?.unwrap_or(true);
    let pairs = if neighbours { RopePairs::Adjacent } else { RopePairs::Halves };
    let part = (usual.partial_rope && hub).then_some(rope_dim as f64 / head as f64);
    let defaults = RopeDefaults { pairs, part, original: usual.joint.then_some(context), ..RopeDefaults::default() };
    let mut table = RopeTable::read(s, defaults, if hub { head } else { rope_dim }, context)?;
    if table.freqs.len() * 2 != rope_dim {
        return Err(s.wrong(format!(
            "rotary dimension {} does not match qk_rope_head_dim {rope_dim} ({})",
            table.freqs.len() * 2,
            s.sizes()
        )));
    }
    let eps = s.positive("attention.layer_norm_rms_epsilon", "rms_norm_eps")?.unwrap_or(usual.eps);
    let layers = s.need("block_count", "num_hidden_layers", 4096)?;
    let feed = s.need("feed_forward_length", "intermediate_size", 1 << 22)?;
    let sizes = Sizes { width, layers, heads, kv_heads: heads, head_dim: nope_dim + rope_dim, feed, context };
    let mut d = Description::new(architecture, sizes, NormSpec::rms(eps), names());
    // transformers leaves the latents' norms at their usual ε.
    let norm = NormSpec::rms(if hub { 1e-6 } else { eps });
    let bias = common::bias(s, "attention_bias", false)?;
    let grown = if hub { grown(s)? } else { grown_of_gguf(s, &mut table)? };
    let scale = grown.powi(2) / ((nope_dim + rope_dim) as f64).sqrt();
    let latent = LatentSpec { heads, query_rank, rank, nope_dim, rope_dim, value, norm, bias, rope: Some(0), scale, growth: None };
    let activation = ActivationFn::read(s, "hidden_act", ActivationFn::Silu)?;
    d.each(|l| (l.mixer, l.feed.activation) = (MixerSpec::Latent(latent.clone()), activation));
    d.ropes.push(table);
    d.unused = &[".rotary_emb.inv_freq"];
    Ok(d)
}

/// Sizes of the part of a key that does not rotate and of a value: files with joint matrices lack the keys of heads.
fn gguf_sizes(s: &Settings<'_>, rank: usize, rope_dim: usize) -> TensorResult<(usize, usize)> {
    let [key, value] = ["attention.key_length", "attention.value_length"].map(|k| s.need(k, NONE, 1 << 14));
    let (key, value) = (key?, value?);
    let own = |k: &str| s.size(k, NONE, 1 << 14);
    let (key, value) = match (own("attention.key_length_mla")?, own("attention.value_length_mla")?) {
        (Some(k), Some(v)) if key == rank + rope_dim && value == rank => (k, v),
        (None, None) => (key, value),
        _ => return Err(s.refuse("attention.key_length", NONE, &format!("expected {rank} + {rope_dim} ({})", s.sizes()))),
    };
    let nope_dim = key.checked_sub(rope_dim).filter(|n| *n > 0);
    Ok((nope_dim.ok_or_else(|| s.refuse("attention.key_length", NONE, &format!("{rope_dim} elements of a head rotate")))?, value))
}

/// The same of files that have the matrices of keys and values as one.
fn joint_sizes(s: &Settings<'_>, heads: usize, rope_dim: usize) -> TensorResult<(usize, usize)> {
    let key = s.need("attention.key_length", NONE, 1 << 14)?;
    // llama.cpp takes the heads' share of the width.
    let usual = s.size("embedding_length", NONE, 1 << 20)?.unwrap_or(0) / heads;
    let value = s.size("attention.value_length", NONE, 1 << 14)?.unwrap_or(usual);
    let nope_dim = key.checked_sub(rope_dim).filter(|n| *n > 0);
    let missing = || s.refuse("attention.key_length", NONE, &format!("{rope_dim} elements of a head rotate ({})", s.sizes()));
    Ok((nope_dim.ok_or_else(missing)?, value))
}

/// Joins the matrices of keys `[H,rank,plain]` and values `[H,value,rank]`: for each head, the rows of its keys and then of its values.
pub(super) fn joined(tensors: &mut Vec<Named>) -> TensorResult<()> {
    let of = |name: &str| {
        let part = |part: &str, n: usize| Some((format!("{}attn_kv_b.weight", name.strip_suffix(part)?), n));
        part("attn_k_b.weight", 0).or_else(|| part("attn_v_b.weight", 1))
    };
    folded::joined(tensors, of, |parts| {
        let [k, v] = parts else { return Err(TensorError::Internal("latents without keys or values".into())) };
        let rank = v.dims()[2];
        Tensor::cat(&[k.transpose(1, 2)?.contiguous()?, v.clone()], 1)?.reshape(((), rank))
    })
}

/// What YaRN multiplies the root of the scores' scale with.
fn grown(s: &Settings<'_>) -> TensorResult<f64> {
    let object = object(s, "rope_parameters")?;
    let key = |k: &str| format!("{object}.{k}");
    let kind = s.text(NONE, &key("rope_type"))?.or(s.text(NONE, &key("type"))?);
    if matches!(kind, None | Some("default")) {
        return Ok(1.0);
    }
    let (factor, m) = (s.positive(NONE, &key("factor"))?, s.number(NONE, &key("mscale_all_dim"))?.unwrap_or(0.0));
    Ok(factor.filter(|f| *f > 1.0).map_or(1.0, |f| if m == 0.0 { 1.0 } else { 0.1 * m * f.ln() + 1.0 }))
}

/// The same by GGUF's keys: 1 + m·ln(factor), where rotated elements are not multiplied with anything.
fn grown_of_gguf(s: &Settings<'_>, table: &mut RopeTable) -> TensorResult<f64> {
    let m = s.number("rope.scaling.yarn_log_multiplier", NONE)?.unwrap_or(0.0);
    if s.text("rope.scaling.type", NONE)? != Some("yarn") {
        return Ok(1.0);
    }
    s.only_number("rope.scaling.attn_factor", NONE, 1.0, "another factor of latent attention is not implemented")?;
    table.factor = 1.0;
    let factor = s.positive("rope.scaling.factor", NONE)?.filter(|f| *f > 1.0);
    Ok(factor.map_or(1.0, |f| m * f.ln() + 1.0))
}

pub(super) fn names() -> Names {
    Names::llama().with(&[
        ("attn_q_a", "self_attn.q_a_proj"),
        ("attn_q_a_norm", "self_attn.q_a_layernorm"),
        ("attn_q_b", "self_attn.q_b_proj"),
        ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
        ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
        ("attn_kv_b", "self_attn.kv_b_proj"),
    ])
}

pub(super) fn describe3(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = decoder(s, "deepseek_v3", &V3)?;
    let mut experts = experts::experts(s, &experts::routed(Some([256, 8])), experts::deepseek(s, [8, 4], true, 2.5)?)?;
    let size = experts::size(s, "moe_intermediate_size", 2048)?;
    experts.shared = experts::shared(s, "n_shared_experts", size, 1)?;
    let dense = experts::dense_first(s, 3)?;
    experts::put(&mut d, &experts, size, |i| i >= dense);
    experts::without_predictors(s, &mut d)?;
    Ok(d)
}

/// V2, and either of them in GGUF.
pub(super) fn describe2(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = decoder(s, "deepseek2", &V3)?;
    let bias = common::bias(s, "mlp_bias", false)?;
    d.each(|l| l.feed.bias = bias);
    let sigmoid = !s.is_hub() && s.count("expert_gating_func", NONE)? == Some(2.0);
    let router = if sigmoid { experts::deepseek(s, [1, 1], false, 1.0)? } else { greedy(s)? };
    let keys = experts::Counts { count: &["n_routed_experts", "num_experts"], used: "num_experts_per_tok", usual: None };
    let mut experts = experts::experts(s, &keys, router)?;
    let size = experts::size(s, "moe_intermediate_size", 1407)?;
    experts.shared = experts::shared(s, "n_shared_experts", size, 2)?;
    let dense = experts::dense_first(s, 0)?;
    experts::put(&mut d, &experts, size, |i| i >= dense);
    if !s.is_hub() {
        experts::without_predictors(s, &mut d)?;
    }
    Ok(d)
}

/// V2's router: the softmax over all experts, of which the best are taken, or the best of the groups with the best experts.
fn greedy(s: &Settings<'_>) -> TensorResult<RouterSpec> {
    experts::only_text(s, "scoring_func", &["softmax"])?;
    experts::only_text(s, "topk_method", &["greedy", "group_limited_greedy"])?;
    s.only_number("expert_gating_func", NONE, 1.0, "supported: softmax (1) and sigmoid (2)")?;
    s.only_flag(NONE, "norm_topk_prob", false, "transformers does not do it for this architecture")?;
    let groups = experts::groups(s, [1, 1], 1)?;
    let limited = !s.is_hub() || s.text(NONE, "topk_method")? == Some("group_limited_greedy");
    experts::weighted(s, RouterSpec { groups: groups.filter(|_| limited), ..RouterSpec::new(Scores::Softmax) }, false, 1.0)
}
