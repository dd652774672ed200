//! SigLIP (Zhai et al., 2023): a tower for images whose vector is what a learned query sees, and one for texts whose tokens see the whole text and whose
//! vector is that of the last place. Similarities are times a learned factor, plus a learned bias.

use super::common::{LAYER, TowerKeys, UsualTower, class};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::LearnedPositions;
use crate::models::decoder::names::Names;
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::{NONE, Settings};
use crate::models::vision::description::{ImagePool, PairSpec, TextToken, VisionSpec};

const USUAL: UsualTower = UsualTower { width: 768, layers: 12, heads: 12, feed: 3072, eps: 1e-6, activation: ActivationFn::GeluTanh };

pub(super) fn describe_tower(s: &Settings<'_>) -> TensorResult<VisionSpec> {
    class(s, &["SiglipVisionModel"])?;
    tower(TowerKeys { settings: s, object: "" })
}

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<PairSpec> {
    class(s, &["SiglipModel"])?;
    let keys = TowerKeys { settings: s, object: "text_config." };
    text_is_of(s, "siglip_text_model", "siglip_vision_model")?;
    let context = keys.size("max_position_embeddings", 64)?;
    let mut stack = keys.layers("siglip", &USUAL, None, context, text_names())?;
    stack.embed.positions = Some(LearnedPositions { offset: 0 });
    s.size(NONE, "text_config.vocab_size", 1 << 31)?;
    let width = stack.width;
    let projection = if s.is_null("text_config.projection_size") { width } else { keys.size("projection_size", width)? };
    Ok(PairSpec {
        text: EncoderSpec::new(stack),
        image: tower(TowerKeys { settings: s, object: "vision_config." })?,
        token: TextToken::Last,
        text_projection: (projection, true),
        image_projection: None,
        bias: true,
    })
}

/// Refuses towers of other architectures, and accepts what has no effect in their objects.
pub(super) fn text_is_of(s: &Settings<'_>, text: &str, image: &str) -> TensorResult<()> {
    for (object, name) in [("text_config", text), ("vision_config", image)] {
        let key = format!("{object}.model_type");
        if s.text(NONE, &key)?.is_some_and(|said| said != name) {
            return Err(s.refuse(NONE, &key, &format!("only {name} is implemented")));
        }
        for name in ["is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"] {
            s.only_flag(NONE, &format!("{object}.{name}"), false, "towers are single stacks")?;
        }
        // There is no output matrix that could be tied.
        s.flag(NONE, &format!("{object}.tie_word_embeddings"))?;
        s.ignore_without_effect(object);
    }
    Ok(())
}

fn tower(keys: TowerKeys<'_, '_>) -> TensorResult<VisionSpec> {
    let stack = keys.layers("siglip", &USUAL, None, 1 << 14, image_names())?;
    let pool = if keys.flag("vision_use_head", true)? { ImagePool::Probe } else { ImagePool::None };
    Ok(VisionSpec { class_token: false, pool, ..keys.tower(stack, 224, 16)? })
}

fn image_names() -> Names {
    Names::new(
        "vision_model.",
        "encoder.layers",
        &[
            ("position_embd", "vision_model.embeddings.position_embedding"),
            ("patch_embd", "vision_model.embeddings.patch_embedding"),
            ("output_norm", "vision_model.post_layernorm"),
            ("probe", "vision_model.head.probe"),
            ("probe_qkv.weight", "vision_model.head.attention.in_proj_weight"),
            ("probe_qkv.bias", "vision_model.head.attention.in_proj_bias"),
            ("probe_output", "vision_model.head.attention.out_proj"),
            ("probe_norm", "vision_model.head.layernorm"),
            ("probe_up", "vision_model.head.mlp.fc1"),
            ("probe_down", "vision_model.head.mlp.fc2"),
        ],
        LAYER,
    )
}

fn text_names() -> Names {
    Names::new(
        "text_model.",
        "encoder.layers",
        &[
            ("token_embd", "text_model.embeddings.token_embedding"),
            ("position_embd", "text_model.embeddings.position_embedding"),
            ("output_norm", "text_model.final_layer_norm"),
            ("projection", "text_model.head"),
        ],
        LAYER,
    )
}
