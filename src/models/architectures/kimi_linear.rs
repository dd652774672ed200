//! Kimi Linear (Moonshot AI, 2025): three layers of four have a delta rule whose state decays by rows, the others attention by latents without
//! positions; experts by σ with a correction for the choice behind a dense first layer.

use super::{Named, common, deepseek, experts};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{
    DeltaByRowSpec, Divisor, GroupSpec, LatentSpec, LayerSpec, MixerSpec, NormSpec, RouterSpec, Scores, Sizes,
};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let norm = NormSpec::rms(s.positive("attention.layer_norm_rms_epsilon", "rms_norm_eps")?.unwrap_or(1e-5));
    let context = if s.is_hub() { either(s, CONTEXT, 1 << 24)?.unwrap_or(1 << 20) } else { s.need("context_length", NONE, 1 << 24)? };
    let latent = if s.is_hub() { latent(s)? } else { latent_of_gguf(s)? };
    let z = Sizes {
        width: s.need("embedding_length", "hidden_size", 1 << 20)?,
        layers: s.need("block_count", "num_hidden_layers", 4096)?,
        heads: latent.heads,
        kv_heads: latent.heads,
        head_dim: latent.nope_dim + latent.rope_dim,
        feed: s.need("feed_forward_length", "intermediate_size", 1 << 22)?,
        context,
    };
    let mut d = Description::new("kimi_linear", z, norm, deepseek::names());
    let activation = ActivationFn::read(s, "hidden_act", ActivationFn::Silu)?;
    let delta = delta(s, norm, activation, latent.heads)?;
    for (l, full) in d.layers.iter_mut().zip(full_layers(s, z.layers)?) {
        l.feed.activation = activation;
        l.mixer = if full { MixerSpec::Latent(latent.clone()) } else { MixerSpec::DeltaByRow(delta.clone()) };
    }
    put_experts(s, &mut d)?;
    names(s, &mut d);
    without_rope(s)?;
    Ok(d)
}

/// Two spellings of a key.
type Spellings = [&'static str; 2];
const CONTEXT: Spellings = ["model_max_length", "max_position_embeddings"];
const EXPERTS: Spellings = ["num_experts", "num_local_experts"];
const USED: Spellings = ["num_experts_per_token", "num_experts_per_tok"];
const SHARED: Spellings = ["num_shared_experts", "n_shared_experts"];
const GROUPS: Spellings = ["num_expert_group", "n_group"];
const NORMALISED: Spellings = ["moe_renormalize", "norm_topk_prob"];

/// The size by whichever spelling is there.
fn either(s: &Settings<'_>, keys: Spellings, limit: usize) -> TensorResult<Option<usize>> {
    match (s.size(NONE, keys[0], limit)?, s.size(NONE, keys[1], limit)?) {
        (Some(a), Some(b)) if a != b => Err(s.refuse(NONE, keys[1], &format!("`{}` is {a}", keys[0]))),
        (a, b) => Ok(a.or(b)),
    }
}

/// Attention by latents. A head's second part is shared by all heads as elsewhere, but does not rotate.
fn latent(s: &Settings<'_>) -> TensorResult<LatentSpec> {
    let size = |key: &str, usual: usize| -> TensorResult<usize> { Ok(s.size(NONE, key, 1 << 14)?.unwrap_or(usual)) };
    let heads = s.need(NONE, "num_attention_heads", 1 << 14)?;
    let (nope_dim, rope_dim) = (size("qk_nope_head_dim", 128)?, size("qk_rope_head_dim", 64)?);
    common::latent_heads(s, heads, [nope_dim, rope_dim])?;
    // Released files say the width over the number of heads, which nothing is of.
    s.ignore("head_dim");
    Ok(LatentSpec {
        heads,
        query_rank: s.size(NONE, "q_lora_rank", 1 << 14)?,
        rank: size("kv_lora_rank", 512)?,
        nope_dim,
        rope_dim,
        value: size("v_head_dim", 128)?,
        // transformers leaves the latents' norms at their usual ε.
        norm: NormSpec::rms(1e-6),
        bias: common::bias(s, "attention_bias", false)?,
        rope: None,
        scale: 1.0 / ((nope_dim + rope_dim) as f64).sqrt(),
        growth: None,
    })
}

/// The same by GGUF's keys, in which all heads share one.
fn latent_of_gguf(s: &Settings<'_>) -> TensorResult<LatentSpec> {
    let need = |key: &str| s.need(key, NONE, 1 << 14);
    let (heads, rank, rope_dim) = (need("attention.head_count")?, need("attention.kv_lora_rank")?, need("rope.dimension_count")?);
    let (key, value) = (need("attention.key_length_mla")?, need("attention.value_length_mla")?);
    for (of, size) in [("attention.key_length", rank + rope_dim), ("attention.value_length", rank)] {
        s.only_number(of, NONE, size as f64, &format!("expected {size} ({})", s.sizes()))?;
    }
    let nope_dim = key.checked_sub(rope_dim).filter(|n| *n > 0);
    let nope_dim =
        nope_dim.ok_or_else(|| s.refuse("attention.key_length_mla", NONE, &format!("{rope_dim} elements of a head are shared")))?;
    let query_rank = s.size("attention.q_lora_rank", NONE, 1 << 14)?;
    let scale = 1.0 / (key as f64).sqrt();
    let norm = NormSpec::rms(1e-6);
    Ok(LatentSpec { heads, query_rank, rank, nope_dim, rope_dim, value, norm, bias: None, rope: None, scale, growth: None })
}

/// The delta rule by the keys of transformers, before which those of the released files in `linear_attn_config` go.
fn delta(s: &Settings<'_>, norm: NormSpec, activation: ActivationFn, heads: usize) -> TensorResult<DeltaByRowSpec> {
    let size = |gguf: &str, first: &str, key: &str, usual: usize| -> TensorResult<usize> {
        let (first, second) = (s.size(gguf, &format!("linear_attn_config.{first}"), 1 << 14)?, s.size(gguf, key, 1 << 14)?);
        Ok(first.or(second).unwrap_or(usual))
    };
    let taps = size("ssm.conv_kernel", "short_conv_kernel_size", "linear_conv_kernel_dim", 4)?;
    if taps < 2 {
        return Err(s.wrong(format!("a convolution sees at least two tokens ({})", s.sizes())));
    }
    // In GGUF there are as many as of attention.
    let heads = if s.is_hub() { size(NONE, "num_heads", "linear_num_heads", 32)? } else { heads };
    let head_dim = size("kda.head_dim", "head_dim", "linear_head_dim", 128)?;
    Ok(DeltaByRowSpec { heads, head_dim, taps, activation, norm })
}

/// Which layers have attention: by `layer_types`, else by the numbers from 1 on of `linear_attn_config`, else every fourth but the first.
fn full_layers(s: &Settings<'_>, layers: usize) -> TensorResult<Vec<bool>> {
    if !s.is_hub() {
        return common::layers_with_attention(s, layers);
    }
    let lists = ["full_attn_layers", "kda_layers"].map(|key| format!("linear_attn_config.{key}"));
    if let Some(kinds) = common::layer_kinds(s, &["layer_types"], layers, &[&["full_attention"], &["linear_attention"]])? {
        lists.iter().for_each(|key| s.ignore(key));
        return Ok(kinds.into_iter().map(|kind| kind == 0).collect());
    }
    let [full, linear] = [s.numbers(&lists[0])?, s.numbers(&lists[1])?];
    let (Some(full), Some(linear)) = (full, linear) else {
        return Ok((0..layers).map(|i| i > 0 && i % 4 == 0).collect());
    };
    let is_in = |all: &[f64], i: usize| all.contains(&((i + 1) as f64));
    if full.len() + linear.len() != layers || (0..layers).any(|i| is_in(&full, i) == is_in(&linear, i)) {
        return Err(s.refuse(NONE, &lists[0], &format!("each of {layers} layers must be in it or in `{}`", lists[1])));
    }
    Ok((0..layers).map(|i| is_in(&full, i)).collect())
}

/// Experts as DeepSeek V3 has them, by other keys, in the layers that `mlp_layer_types` says, or behind the dense ones.
fn put_experts(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    experts::only_text(s, "moe_router_activation_func", &["sigmoid"])?;
    experts::only_text(s, "topk_method", &["noaux_tc"])?;
    s.only_flag(NONE, "use_grouped_topk", true, "transformers always chooses within groups")?;
    s.only_number("expert_gating_func", NONE, 2.0, "only sigmoid (2) is implemented for this architecture")?;
    s.only_flag("expert_weights_norm", NONE, true, "only weights that add up to 1 are implemented for this architecture")?;
    let groups = ["expert_group_count", "expert_group_used_count"];
    groups.iter().try_for_each(|key| s.only_number(key, NONE, 1.0, "groups of experts are not implemented for this architecture"))?;
    let (count, used) = (either(s, GROUPS, 1 << 12)?.unwrap_or(1), s.size(NONE, "topk_group", 1 << 12)?.unwrap_or(1));
    let (first, second) = (s.flag(NONE, NORMALISED[0])?, s.flag(NONE, NORMALISED[1])?);
    if first.is_some() && second.is_some() && first != second {
        return Err(s.refuse(NONE, NORMALISED[1], &format!("`{}` says otherwise", NORMALISED[0])));
    }
    let normalised = first.or(second).unwrap_or(true);
    let router = RouterSpec {
        correction: true,
        groups: (count > 1 && used != count).then_some(GroupSpec { count, used, best: 2 }),
        divisor: normalised.then_some(Divisor { plus: 1e-20, least: 0.0 }),
        scale: s.number("expert_weights_scale", "routed_scaling_factor")?.unwrap_or(if s.is_hub() { 2.446 } else { 1.0 }),
        ..RouterSpec::new(Scores::Sigmoid)
    };
    let used = either(s, USED, 1 << 16)?.unwrap_or(8);
    let mut spec = experts::experts(s, &experts::Counts { count: &EXPERTS, used: USED[0], usual: Some([256, used]) }, router)?;
    let size = experts::size(s, "moe_intermediate_size", 1024)?;
    let shared = if s.number(NONE, SHARED[0])?.is_some() { SHARED[0] } else { SHARED[1] };
    spec.shared = experts::shared(s, shared, size, 1)?;
    let sparse = match experts::by_types(s, d.layers.len())? {
        Some(sparse) => {
            s.ignore("first_k_dense_replace");
            s.only_number(NONE, "moe_layer_freq", 1.0, "`mlp_layer_types` says which layers have experts")?;
            sparse
        }
        None => {
            let dense = experts::dense_first(s, 1)?;
            (0..d.layers.len()).map(|i| i >= dense).collect()
        }
    };
    experts::put(d, &spec, size, |i| sparse[i]);
    experts::without_predictors(s, d)
}

/// Keys of rotations, which released files have all the same.
fn without_rope(s: &Settings<'_>) -> TensorResult<()> {
    s.only_flag(NONE, "mla_use_nope", true, "only attention without positions is implemented")?;
    s.ignore("rope_theta");
    s.number("rope.freq_base", NONE)?;
    Ok(())
}

/// The list of layers with attention, in which all heads share a key, and the size of its shared part.
pub(super) fn gguf_keys(s: &Settings<'_>, d: &Description, tensors: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    let router = d.layers.iter().find_map(|l| l.feed.experts.as_ref()).map(|e| e.router);
    let key = GROUPS.into_iter().find(|key| s.says(key)).unwrap_or(GROUPS[0]);
    s.only(router.is_none_or(|r| r.groups.is_none()), key)?;
    let key = NORMALISED.into_iter().find(|key| s.says(key)).unwrap_or(NORMALISED[0]);
    s.only(router.is_none_or(|r| r.divisor.is_some()), key)?;
    let full = |l: &LayerSpec| u32::from(matches!(l.mixer, MixerSpec::Latent(_)));
    w.set("kimi-linear.attention.head_count_kv", d.layers.iter().map(full).collect::<Vec<u32>>());
    for l in &d.layers {
        if let MixerSpec::Latent(latent) = &l.mixer {
            w.set("kimi-linear.rope.dimension_count", latent.rope_dim as u32);
        }
    }
    // llama.cpp asks for an output matrix.
    let own = tensors.iter().any(|(name, _)| name == "output.weight");
    let table = tensors.iter().find(|(name, _)| name == "token_embd.weight").map(|(_, t)| t.clone());
    tensors.extend(table.filter(|_| !own).map(|t| ("output.weight".into(), t)));
    Ok(())
}

fn names(s: &Settings<'_>, d: &mut Description) {
    let parts = [
        ("ssm_conv1d_q", "self_attn.q_conv1d"),
        ("ssm_conv1d_k", "self_attn.k_conv1d"),
        ("ssm_conv1d_v", "self_attn.v_conv1d"),
        ("ssm_f_a", "self_attn.f_a_proj"),
        ("ssm_f_b", "self_attn.f_b_proj"),
        ("ssm_g_a", "self_attn.g_a_proj"),
        ("ssm_g_b", "self_attn.g_b_proj"),
        ("ssm_beta", "self_attn.b_proj"),
        ("ssm_a", "self_attn.A_log"),
        ("ssm_dt.bias", "self_attn.dt_bias"),
        ("ssm_norm", "self_attn.o_norm"),
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        ("exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"),
        ("ffn_gate_exps", "block_sparse_moe.experts.*.w1"),
        ("ffn_up_exps", "block_sparse_moe.experts.*.w3"),
        ("ffn_down_exps", "block_sparse_moe.experts.*.w2"),
        ("ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"),
        ("ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"),
        ("ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"),
    ];
    d.names = deepseek::names().with(&parts);
    // transformers writes dense layers under the name of those with experts.
    let renamed = |i: usize| ["model.", ""].iter().any(|start| s.has_tensor(&format!("{start}layers.{i}.block_sparse_moe.up_proj.weight")));
    if (0..d.layers.len()).any(renamed) {
        let dense = [
            ("ffn_gate", "block_sparse_moe.gate_proj"),
            ("ffn_up", "block_sparse_moe.up_proj"),
            ("ffn_down", "block_sparse_moe.down_proj"),
        ];
        d.names = d.names.clone().with(&dense);
    }
}
