//! ViT (Dosovitskiy et al., 2021): patches of an image as tokens behind a class token, learned positions, norms before each part.

use super::common::{TowerKeys, UsualTower, class};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};
use crate::models::vision::description::{ImagePool, LabelsOf, VisionSpec};

const USUAL: UsualTower = UsualTower { width: 768, layers: 12, heads: 12, feed: 3072, eps: 1e-12, activation: ActivationFn::GeluExact };

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<VisionSpec> {
    let keys = TowerKeys { settings: s, object: "" };
    let mut stack = keys.layers("vit", &USUAL, None, 1 << 14, names())?;
    let bias = keys.flag("qkv_bias", true)?;
    stack.attentions(|a| a.qkv_bias = Some(bias));
    // Of a head that paints hidden patches.
    s.number(NONE, "encoder_stride")?;
    let size = if s.is_null("pooler_output_size") { stack.width } else { keys.size("pooler_output_size", stack.width)? };
    let activation = ActivationFn::read(s, "pooler_act", ActivationFn::Tanh)?;
    let mut spec = keys.tower(stack, 224, 16)?;
    match class(s, &["ViTModel", "ViTForImageClassification"])? {
        Some("ViTForImageClassification") => spec.labels = Some((LabelsOf::First, s.labels()?)),
        _ => spec.pool = ImagePool::Dense(size, activation),
    }
    Ok(spec)
}

fn names() -> Names {
    Names::new(
        "vit.",
        "encoder.layer",
        &[
            ("class_embd", "vit.embeddings.cls_token"),
            ("position_embd", "vit.embeddings.position_embeddings"),
            ("patch_embd", "vit.embeddings.patch_embeddings.projection"),
            ("output_norm", "vit.layernorm"),
            ("pooler", "vit.pooler.dense"),
            ("cls.output", "classifier"),
        ],
        &[
            ("attn_norm", "layernorm_before"),
            ("attn_q", "attention.attention.query"),
            ("attn_k", "attention.attention.key"),
            ("attn_v", "attention.attention.value"),
            ("attn_output", "attention.output.dense"),
            ("ffn_norm", "layernorm_after"),
            ("ffn_up", "intermediate.dense"),
            ("ffn_down", "output.dense"),
        ],
    )
}
