//! Nemotron-H (NVIDIA, 2025): layers of one part each, Mamba-2, attention without positions, or a plain relu² feed-forward part.

use super::mamba2::{self, SsdKeys};
use super::{Named, common};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, Flow, GatedNorm, LayerSpec, MixerSpec, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

/// The parts of layers by the names that settings have had for them.
const KINDS: [&[&str]; 4] = [&["linear_attention", "mamba"], &["full_attention", "attention"], &["mlp"], &["moe"]];

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let listed = if s.is_hub() { None } else { Some(LayerLists::read(s)?) };
    let kinds = listed.as_ref().map_or_else(|| kinds(s), |listed| Ok(listed.kinds.clone()))?;
    let need = |gguf: &str, key: &str, most: usize| s.need(gguf, key, most);
    let heads = need("attention.head_count", "num_attention_heads", 1 << 14)?;
    let kv_heads = match &listed {
        Some(listed) => listed.kv_heads.unwrap_or(heads),
        None if s.is_null("num_key_value_heads") => heads,
        None => s.size(NONE, "num_key_value_heads", 1 << 14)?.unwrap_or(8),
    };
    let width = need("embedding_length", "hidden_size", 1 << 20)?;
    let head_dim = s.size("attention.key_length", "head_dim", 1 << 12)?.unwrap_or(if s.is_hub() { 128 } else { width / heads });
    let same = format!("only values of the size of keys are implemented ({})", s.sizes());
    s.only_number("attention.value_length", NONE, head_dim as f64, &same)?;
    let context = need("context_length", "max_position_embeddings", 1 << 24)?;
    if heads % kv_heads != 0 {
        return Err(s.wrong(format!("{heads} heads and {kv_heads} of keys do not fit together ({})", s.sizes())));
    }
    let feed = match listed {
        Some(listed) => listed.feed.unwrap_or(0),
        None => s.need(NONE, "intermediate_size", 1 << 22)?,
    };
    let z = Sizes { width, layers: kinds.len(), heads, kv_heads, head_dim, feed, context };
    let eps = s.positive("attention.layer_norm_rms_epsilon", "layer_norm_epsilon")?.unwrap_or(1e-5);
    // llama.cpp asks for it as well.
    let rms = s.name("attention.layer_norm_rms_epsilon", NONE);
    s.only_number("attention.layer_norm_epsilon", NONE, eps, &format!("`{rms}` is {eps}"))?;
    let mut d = Description::new("nemotron_h", z, NormSpec::rms(eps), names());
    let keys = SsdKeys {
        heads: ("mamba_num_heads", 128),
        head_dim: ("mamba_head_dim", 64),
        groups: ("n_groups", 8),
        state: ("ssm_state_size", 128),
        taps: ("conv_kernel", 4),
        conv_bias: "use_conv_bias",
        activation: "mamba_hidden_act",
        inner: match s.is_hub() {
            true => s.size(NONE, "mamba_num_heads", 1 << 16)?.unwrap_or(128) * s.size(NONE, "mamba_head_dim", 1 << 16)?.unwrap_or(64),
            false => s.need("ssm.inner_size", NONE, 1 << 22)?,
        },
    };
    let mut spec = keys.read(s)?;
    let bias = s.flag(NONE, "use_bias")?.unwrap_or(false);
    (spec.input_bias, spec.output_bias) = (bias, bias);
    // transformers takes the least Δ of the key by which it is drawn, whatever `time_step_limit` says. llama.cpp has no least one.
    spec.step_limits = (s.number(NONE, "time_step_min")?.unwrap_or(MIN_STEP), f64::INFINITY);
    spec.norm = Some(GatedNorm { eps, groups: spec.groups, gate_after: false });
    let (activation, bias) = (ActivationFn::read(s, "mlp_hidden_act", ActivationFn::ReluSquared)?, common::bias(s, "mlp_bias", false)?);
    for (l, kind) in d.layers.iter_mut().zip(&kinds) {
        (l.feed.form, l.feed.activation, l.feed.bias) = (FeedForm::Plain, activation, bias);
        l.flow = if *kind == 2 { Flow::FeedOnly } else { Flow::MixerOnly };
        if *kind == 0 {
            l.mixer = MixerSpec::Ssd(spec.clone());
        }
    }
    let open = common::bias(s, "attention_bias", false)?;
    d.attentions(|a| (a.rope, a.qkv_bias, a.output_bias) = (None, open, open));
    // Nothing is rotated, whatever files say of it.
    ["rope.dimension_count", "rope.freq_base"].iter().try_for_each(|key| s.number(key, NONE).map(|_| ()))?;
    left_out(s)?;
    Ok(d)
}

/// What GGUF lists by layer: heads of keys where there is attention, the size of a feed-forward part where there is one.
struct LayerLists {
    kinds: Vec<usize>,
    kv_heads: Option<usize>,
    feed: Option<usize>,
}

/// The least Δ where no key says it.
const MIN_STEP: f64 = 0.001;

const LISTS: [&str; 2] = ["attention.head_count_kv", "feed_forward_length"];

impl LayerLists {
    fn read(s: &Settings<'_>) -> TensorResult<LayerLists> {
        let layers = s.need("block_count", NONE, 4096)?;
        let list = |key: &str| -> TensorResult<(Vec<usize>, Option<usize>)> {
            let all = common::listed_sizes(s, key, layers)?;
            let all = all.ok_or_else(|| s.refuse(key, NONE, &format!("expected a number for each of {layers} layers ({})", s.sizes())))?;
            let one = all.iter().copied().find(|n| *n > 0);
            match all.iter().all(|n| *n == 0 || Some(*n) == one) {
                true => Ok((all, one)),
                false => Err(s.refuse(key, NONE, "expected one number, or 0, for each layer")),
            }
        };
        let ((keys, kv_heads), (feeds, feed)) = (list(LISTS[0])?, list(LISTS[1])?);
        let kind = |(keys, feed): (&usize, &usize)| match (keys, feed) {
            (0, 0) => Ok(0),
            (_, 0) => Ok(1),
            (0, _) => Ok(2),
            _ => Err(s.refuse(LISTS[0], NONE, &format!("a layer has one part, and `{}` is not 0 there ({})", LISTS[1], s.sizes()))),
        };
        let kinds = keys.iter().zip(&feeds).map(kind).collect::<TensorResult<_>>()?;
        Ok(LayerLists { kinds, kv_heads, feed })
    }
}

/// The lists.
pub(super) fn gguf_keys(s: &Settings<'_>, d: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    let usual = |l: &LayerSpec| !matches!(&l.mixer, MixerSpec::Ssd(spec) if spec.step_limits.0 != MIN_STEP);
    s.only(d.layers.iter().all(usual), "time_step_min")?;
    let heads = d.layers.iter().map(|l| l.mixer.attention().filter(|_| l.flow.has_mixer()).map_or(0, |a| a.kv_heads as u32));
    w.set(&format!("nemotron_h.{}", LISTS[0]), heads.collect::<Vec<u32>>());
    let feeds = d.layers.iter().map(|l| if l.flow.has_feed() { l.feed.size as u32 } else { 0 });
    w.set(&format!("nemotron_h.{}", LISTS[1]), feeds.collect::<Vec<u32>>());
    w.set("nemotron_h.attention.layer_norm_epsilon", d.norm.eps as f32);
    // Where no layer has attention, nothing has said it.
    w.set("nemotron_h.attention.head_count", d.heads as u32);
    w.set("nemotron_h.attention.key_length", d.head_dim as u32);
    w.set("nemotron_h.attention.value_length", d.head_dim as u32);
    Ok(())
}

/// The number of the row of [`KINDS`] for each layer.
fn kinds(s: &Settings<'_>) -> TensorResult<Vec<usize>> {
    let said = ["layers_block_type", "layer_types"].into_iter().find(|key| s.has_object(key));
    let kinds = match said {
        Some(key) => {
            let layers = s.texts(key)?.map_or(0, |types| types.len());
            s.ignore("hybrid_override_pattern");
            common::layer_kinds(s, &[key], layers, &KINDS)?.unwrap_or_default()
        }
        None => {
            let pattern = s.text(NONE, "hybrid_override_pattern")?.unwrap_or("ME*-");
            let known: Option<Vec<usize>> = pattern.chars().map(|c| "M*-E".find(c)).collect();
            known.ok_or_else(|| s.refuse(NONE, "hybrid_override_pattern", "expected the letters M, * and -"))?
        }
    };
    if kinds.is_empty() || kinds.contains(&3) {
        return Err(s.refuse(NONE, said.unwrap_or("hybrid_override_pattern"), "experts are not implemented"));
    }
    // The list decides.
    s.ignore("num_hidden_layers");
    Ok(kinds)
}

/// Refuses what is not implemented, and accepts what has no effect.
fn left_out(s: &Settings<'_>) -> TensorResult<()> {
    s.only_flag(NONE, "attention_bias", false, "biases of attention are not implemented")?;
    s.only_flag(NONE, "mamba_proj_bias", false, "`use_bias` says whether there are biases")?;
    if s.has_object("sliding_window") {
        return Err(s.refuse(NONE, "sliding_window", "windows are not implemented here"));
    }
    // No layer has experts; further tokens are not predicted; rounding; how sums are ordered; the sizes say it.
    for key in [
        "moe_intermediate_size",
        "moe_latent_size",
        "moe_shared_expert_intermediate_size",
        "moe_shared_expert_overlap",
        "n_group",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_experts_per_tok",
        "routed_scaling_factor",
        "topk_group",
        "output_router_logits",
        "mtp_layers_block_type",
        "mtp_hybrid_override_pattern",
        "num_nextn_predict_layers",
        "mamba_ssm_cache_dtype",
        "residual_in_fp32",
        "use_mamba_kernels",
        "chunk_size",
        "expand",
        "time_step_limit",
    ] {
        s.ignore(key);
    }
    mamba2::INITIAL.iter().for_each(|key| s.ignore(key));
    Ok(())
}

fn names() -> Names {
    Names::new(
        "backbone.",
        "layers",
        &[("token_embd", "backbone.embeddings"), ("output_norm", "backbone.norm_f"), ("output", "lm_head")],
        &[&mamba2::PARTS[..], &OTHERS].concat(),
    )
    .in_gguf(&[("ffn_norm", "attn_norm")])
}

/// The names of what is no Mamba-2 layer.
const OTHERS: [(&str, &str); 7] = [
    ("ffn_norm", "norm"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
];
