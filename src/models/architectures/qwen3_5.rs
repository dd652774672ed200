//! Qwen 3.5 and Qwen 3 Next (Alibaba, 2025): three layers of four have the gated delta rule in the place of attention, whose results are times
//! σ of a gate in the others; a quarter of each head rotates, and norms are times 1 + w.

use super::common::{self, Usual};
use super::{Named, experts, qwen_moe};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::decoder::Description;
use crate::models::decoder::description::{
    DeltaInputs, DeltaSpec, ExpertLayout, Gate, MixerSpec, NormSpec, QkNorm, QkNormOf, RouterSpec, Scores, SharedSpec,
};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    hybrid(s, "qwen3_5_text", 4, None, false)
}

/// Qwen 3.5 with experts, whose weights add up to 1, and a shared one in every layer.
pub(super) fn describe_moe(s: &Settings<'_>) -> TensorResult<Description> {
    // No layer is dense.
    let mut d = hybrid(s, "qwen3_5_moe_text", 2, Some(1), false)?;
    if s.numbers("mlp_only_layers")?.is_some_and(|dense| !dense.is_empty()) {
        return Err(s.refuse(NONE, "mlp_only_layers", "every layer of this architecture has experts"));
    }
    put_experts(s, &mut d, [256, 8], true, |_| true)?;
    Ok(d)
}

/// Qwen 3 Next: the same but for layers without experts.
pub(super) fn describe_next(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = hybrid(s, "qwen3_next", 2, None, true)?;
    let step = s.size(NONE, "decoder_sparse_step", 4096)?.unwrap_or(1);
    let dense = s.numbers("mlp_only_layers")?.unwrap_or_default();
    let normalised = s.flag(NONE, "norm_topk_prob")?.unwrap_or(true);
    if s.number("expert_count", "num_experts")? == Some(0.0) {
        ["moe_intermediate_size", "shared_expert_intermediate_size", "num_experts_per_tok"].iter().for_each(|key| s.ignore(key));
        return Ok(d);
    }
    put_experts(s, &mut d, [512, 10], normalised, |i| (i + 1) % step == 0 && !dense.contains(&(i as f64)))?;
    Ok(d)
}

/// Experts by the softmax over all of them, and a shared one times σ(w·x), in the layers for which `sparse` holds.
fn put_experts(
    s: &Settings<'_>,
    d: &mut Description,
    usual: [usize; 2],
    normalised: bool,
    sparse: impl Fn(usize) -> bool,
) -> TensorResult<()> {
    let mut spec = experts::experts(s, &experts::counts(usual), RouterSpec::new(Scores::Softmax).normalised(normalised))?;
    let shared = s.size("expert_shared_feed_forward_length", "shared_expert_intermediate_size", 1 << 22)?;
    let shared = match shared {
        Some(shared) => shared,
        None if s.is_hub() => 512,
        None => return Err(s.refuse("expert_shared_feed_forward_length", NONE, "the size of the shared expert is required")),
    };
    spec.shared = Some(SharedSpec { size: shared, gated: true, mean: false });
    let size = experts::size(s, "moe_intermediate_size", 512)?;
    d.names = d.names.clone().with(&qwen_moe::SHARED_NAMES);
    if s.has_tensor_like(".mlp.experts.gate_up_proj") {
        spec.layout = ExpertLayout::Joint;
        d.names = d
            .names
            .clone()
            .with(&[("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"), ("ffn_down_exps.weight", "mlp.experts.down_proj")]);
    }
    experts::put(d, &spec, size, sparse);
    Ok(())
}

fn hybrid(s: &Settings<'_>, architecture: &'static str, kv_heads: usize, feed: Option<usize>, joint: bool) -> TensorResult<Description> {
    let hub = s.is_hub();
    let rope = RopeDefaults { part: Some(0.25), ..RopeDefaults::default() };
    let mut d = common::decoder(
        s,
        architecture,
        &Usual { kv_heads: Some(kv_heads), head_dim: Some(256), feed, rope, experts: true, ..Usual::default() },
    )?;
    // Which pairs rotate with the rows and columns of an image; those of a text rotate with its positions.
    ["mrope_section", "mrope_interleaved"].iter().for_each(|key| s.ignore(&format!("rope_parameters.{key}")));
    s.only_flag(NONE, "attn_output_gate", true, "only results times a gate are implemented for this architecture")?;
    // States are f32 here.
    experts::only_text(s, "mamba_ssm_dtype", &["float32"])?;
    // Layers that predict further tokens.
    ["mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"].iter().for_each(|key| s.ignore(key));
    d.left_out = vec!["mtp.".into()];
    let of_heads = NormSpec { plus_one: false, ..d.norm };
    let norm = NormSpec { plus_one: true, ..d.norm };
    d.norms(norm);
    let bias = common::bias(s, "attention_bias", false)?;
    d.attentions(|a| {
        a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Head, after_rope: false });
        (a.qkv_bias, a.output_bias) = (bias, bias);
        a.gate = Some(Gate::Element);
    });
    // As long as the pairs of rows and columns rotate alike, which they do in a text.
    s.by_layer("rope.dimension_sections")?;
    let size = |gguf: &str, key: &str, usual: usize| -> TensorResult<usize> {
        if hub { Ok(s.size(NONE, key, 1 << 14)?.unwrap_or(usual)) } else { s.need(gguf, NONE, 1 << 14) }
    };
    let value_heads = size("ssm.time_step_rank", "linear_num_value_heads", 32)?;
    let inner = if hub { None } else { Some(s.need("ssm.inner_size", NONE, 1 << 22)?) };
    let spec = DeltaSpec {
        key_heads: size("ssm.group_count", "linear_num_key_heads", 16)?,
        value_heads,
        key_dim: size("ssm.state_size", "linear_key_head_dim", 128)?,
        value_dim: inner.map_or_else(|| size(NONE, "linear_value_head_dim", 128), |all| Ok(all / value_heads))?,
        taps: size("ssm.conv_kernel", "linear_conv_kernel_dim", 4)?,
        activation: d.layers[0].feed.activation,
        norm: of_heads,
        inputs: match joint {
            true if hub => DeltaInputs::Joint,
            true => DeltaInputs::JointScales,
            false => DeltaInputs::JointQkv,
        },
        spread: !hub && !joint,
        beta_scale: 1.0,
    };
    if spec.value_heads % spec.key_heads != 0 || spec.taps < 2 || inner.is_some_and(|all| all % value_heads != 0) {
        return Err(s.wrong(format!("the sizes of linear attention do not fit together ({})", s.sizes())));
    }
    let interval = s.size("full_attention_interval", "full_attention_interval", 4096)?.unwrap_or(4);
    let kinds = common::layer_kinds(s, &["layer_types"], d.layers.len(), &[&["full_attention"], &["linear_attention"]])?;
    let listed = s.flags_by_layer("attention.recurrent_layers")?.filter(|all| all.len() >= d.layers.len());
    let kinds = kinds.or(listed.map(|all| all.into_iter().map(usize::from).collect()));
    let kinds: Vec<usize> = kinds.unwrap_or_else(|| (1..=d.layers.len()).map(|i| usize::from(i % interval != 0)).collect());
    for (l, _) in d.layers.iter_mut().zip(kinds).filter(|(_, kind)| *kind == 1) {
        l.mixer = MixerSpec::Delta(spec.clone());
    }
    d.names = Names::llama().in_gguf(&[("ffn_norm", "post_attention_norm")]).with(&[
        ("attn_qkv", "linear_attn.in_proj_qkv"),
        ("attn_gate", "linear_attn.in_proj_z"),
        ("ssm_beta", "linear_attn.in_proj_b"),
        ("ssm_alpha", "linear_attn.in_proj_a"),
        ("ssm_in", "linear_attn.in_proj_qkvz"),
        ("ssm_ba", "linear_attn.in_proj_ba"),
        ("ssm_conv1d", "linear_attn.conv1d"),
        ("ssm_a", "linear_attn.A_log"),
        ("ssm_dt.bias", "linear_attn.dt_bias"),
        ("ssm_norm", "linear_attn.norm"),
        ("ssm_out", "linear_attn.out_proj"),
    ]);
    Ok(d)
}

/// Which pairs rotate with the time, the rows and the columns of an image: as the settings say, or as usual.
pub(super) fn gguf_keys(s: &Settings<'_>, d: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    let said = s.numbers("rope_parameters.mrope_section")?.unwrap_or_else(|| vec![11.0, 11.0, 10.0]);
    let sections: Vec<i32> = said.iter().map(|n| *n as i32).chain([0; 4]).take(4).collect();
    let name = if d.layers.iter().any(|l| l.feed.experts.is_some()) { "qwen35moe" } else { "qwen35" };
    w.set(&format!("{name}.rope.dimension_sections"), sections);
    Ok(())
}
