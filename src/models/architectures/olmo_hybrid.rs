//! OLMo Hybrid (OLMo team, 2026): three layers of four have the gated delta rule, with matrices and convolutions of their own for q, k and v, and norms
//! before each part; the others are those of OLMo 3 without windows, with norms behind each part. Released models do not rotate positions.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{DeltaInputs, DeltaSpec, LayerSpec, MixerSpec, NormSpec, QkNorm, QkNormOf};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

/// Keys of how A and Δ are drawn before training.
const INITIAL: [&str; 5] = ["linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max", "linear_dt_min"];

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "olmo_hybrid", &Usual::default())?;
    s.only_number(NONE, "head_dim", (d.width / d.heads) as f64, "this architecture has no key of it")?;
    if !has_rope(s)? {
        d.ropes.clear();
        common::without_rope(&mut d, |_| true);
    }
    let (norm, bias) = (d.norm, common::bias(s, "attention_bias", false)?);
    d.attentions(|a| {
        a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Width, after_rope: false });
        (a.qkv_bias, a.output_bias) = (bias, bias);
    });
    let delta = delta(s, &d)?;
    let kinds = common::layer_kinds(s, &["layer_types"], d.layers.len(), &[&["full_attention"], &["linear_attention"]])?;
    let last = d.layers.len() - 1;
    let kinds = kinds.unwrap_or_else(|| (0..=last).map(|i| usize::from(i % 4 != 3 && !(last < 3 && i == last))).collect());
    for (l, kind) in d.layers.iter_mut().zip(kinds) {
        match kind {
            0 => norms_after(l),
            _ => l.mixer = MixerSpec::Delta(delta.clone()),
        }
    }
    INITIAL.iter().for_each(|key| s.ignore(key));
    s.only_flag(NONE, "linear_use_gate", true, "only gated results are implemented")?;
    d.names = names();
    Ok(d)
}

fn norms_after(l: &mut LayerSpec) {
    l.attention_post_norm = l.attention_norm.take();
    l.feed_post_norm = l.feed_norm.take();
}

/// Whether queries and keys rotate: not where θ is null. transformers has a default where nothing says it.
fn has_rope(s: &Settings<'_>) -> TensorResult<bool> {
    let null = s.is_null("rope_parameters.rope_theta") || s.is_null("rope_theta");
    if !null && s.number(NONE, "rope_parameters.rope_theta")?.is_none() && s.number(NONE, "rope_theta")?.is_none() {
        return Err(s.refuse(NONE, "rope_parameters", "`rope_theta` must be a number, or null where positions do not rotate"));
    }
    Ok(!null)
}

/// The delta rule; heads are as many as those of attention, and sizes follow from them, where the keys are missing or null.
fn delta(s: &Settings<'_>, d: &Description) -> TensorResult<DeltaSpec> {
    let size = |key: &str, usual: usize| -> TensorResult<usize> {
        if s.is_null(key) { Ok(usual) } else { Ok(s.size(NONE, key, 1 << 14)?.unwrap_or(usual)) }
    };
    let key_heads = size("linear_num_key_heads", d.heads)?;
    let key_dim = size("linear_key_head_dim", (0.75 * d.width as f64 / key_heads as f64) as usize)?;
    let spec = DeltaSpec {
        key_heads,
        value_heads: size("linear_num_value_heads", d.heads)?,
        key_dim,
        value_dim: size("linear_value_head_dim", 2 * key_dim)?,
        taps: size("linear_conv_kernel_dim", 4)?,
        activation: d.layers[0].feed.activation,
        // A constant of transformers, whatever `rms_norm_eps` is.
        norm: NormSpec::rms(1e-5),
        inputs: DeltaInputs::Separate,
        spread: false,
        beta_scale: if s.flag(NONE, "linear_allow_neg_eigval")?.unwrap_or(true) { 2.0 } else { 1.0 },
    };
    if spec.value_heads % spec.key_heads != 0 || spec.taps < 2 || spec.key_dim == 0 {
        return Err(s.wrong(format!("the sizes of linear attention do not fit together ({})", s.sizes())));
    }
    Ok(spec)
}

fn names() -> Names {
    // Files of transformers have the names that the training code has for the norms of layers.
    let spelled = &[("input_layernorm", "attention_layer_norm"), ("post_attention_layernorm", "feedforward_layer_norm")];
    Names::llama().also_spelled(spelled).with(&[
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        ("ssm_q", "linear_attn.q_proj"),
        ("ssm_k", "linear_attn.k_proj"),
        ("ssm_v", "linear_attn.v_proj"),
        ("attn_gate", "linear_attn.g_proj"),
        ("ssm_beta", "linear_attn.b_proj"),
        ("ssm_alpha", "linear_attn.a_proj"),
        ("ssm_conv1d_q", "linear_attn.q_conv1d"),
        ("ssm_conv1d_k", "linear_attn.k_conv1d"),
        ("ssm_conv1d_v", "linear_attn.v_conv1d"),
        ("ssm_a", "linear_attn.A_log"),
        ("ssm_dt.bias", "linear_attn.dt_bias"),
        ("ssm_norm", "linear_attn.o_norm"),
        ("ssm_out", "linear_attn.o_proj"),
    ])
}
