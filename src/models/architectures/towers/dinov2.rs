//! DINOv2 (Oquab et al., 2023): ViT with learned factors of what each part adds, and positions that are interpolated for images of other sizes; the largest
//! model has gated feed-forward parts.

use super::common::{TowerKeys, UsualTower, class};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::{FeedForm, NormKind, NormSpec};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};
use crate::models::vision::description::{ImagePool, LabelsOf, VisionSpec};

const USUAL: UsualTower = UsualTower { width: 768, layers: 12, heads: 12, feed: 0, eps: 1e-6, activation: ActivationFn::GeluExact };

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<VisionSpec> {
    let keys = TowerKeys { settings: s, object: "" };
    let width = keys.size("hidden_size", USUAL.width)?;
    let whole = (width as f64 * s.positive(NONE, "mlp_ratio")?.unwrap_or(4.0)) as usize;
    // transformers takes the ratio, whatever this key says.
    s.number(NONE, "intermediate_size")?;
    let gated = keys.flag("use_swiglu_ffn", false)?;
    // Two thirds, in eights.
    let feed = if gated { (whole * 2 / 3).div_ceil(8) * 8 } else { whole };
    let mut stack = keys.layers("dinov2", &USUAL, Some(feed), 1 << 14, names(gated))?;
    let bias = keys.flag("qkv_bias", true)?;
    let factor = NormSpec { kind: NormKind::Factor, ..stack.norm };
    stack.attentions(|a| a.qkv_bias = Some(bias));
    stack.each(|l| {
        (l.attention_post_norm, l.feed_post_norm) = (Some(factor), Some(factor));
        if gated {
            (l.feed.form, l.feed.activation) = (FeedForm::GatedJoint, ActivationFn::Silu);
        }
    });
    // How the factors began, what training drops, and which states a larger model would take.
    for key in ["layerscale_value", "drop_path_rate"] {
        s.number(NONE, key)?;
    }
    for key in ["use_mask_token", "apply_layernorm", "reshape_hidden_states"] {
        s.flag(NONE, key)?;
    }
    ["out_features", "out_indices", "stage_names"].iter().for_each(|key| s.ignore(key));
    let mut spec = VisionSpec { any_size: true, pool: ImagePool::First, ..keys.tower(stack, 224, 14)? };
    if class(s, &["Dinov2Model", "Dinov2ForImageClassification"])? == Some("Dinov2ForImageClassification") {
        spec.labels = Some((LabelsOf::FirstAndMean, s.labels()?));
    }
    Ok(spec)
}

fn names(gated: bool) -> Names {
    let (up, down) = if gated { ("mlp.weights_in", "mlp.weights_out") } else { ("mlp.fc1", "mlp.fc2") };
    Names::new(
        "dinov2.",
        "encoder.layer",
        &[
            ("class_embd", "dinov2.embeddings.cls_token"),
            ("position_embd", "dinov2.embeddings.position_embeddings"),
            ("patch_embd", "dinov2.embeddings.patch_embeddings.projection"),
            ("output_norm", "dinov2.layernorm"),
            ("cls.output", "classifier"),
        ],
        &[
            ("attn_norm", "norm1"),
            ("attn_q", "attention.attention.query"),
            ("attn_k", "attention.attention.key"),
            ("attn_v", "attention.attention.value"),
            ("attn_output", "attention.output.dense"),
            ("post_attention_norm.weight", "layer_scale1.lambda1"),
            ("ffn_norm", "norm2"),
            ("ffn_up", up),
            ("ffn_down", down),
            ("post_ffw_norm.weight", "layer_scale2.lambda1"),
        ],
    )
}
