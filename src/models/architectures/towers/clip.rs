//! CLIP (Radford et al., 2021): a ViT with a norm before its first layer, whose vector is that of the class token, and a causal tower for texts, whose
//! vector is that of the token that ends the text; both end with a product without a bias.

use super::common::{LAYER, TowerKeys, UsualTower, class};
use super::siglip::text_is_of;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::LearnedPositions;
use crate::models::decoder::names::Names;
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::{NONE, Settings};
use crate::models::vision::description::{ImagePool, PairSpec, TextToken, VisionSpec};

const TEXT: UsualTower = UsualTower { width: 512, layers: 12, heads: 8, feed: 2048, eps: 1e-5, activation: ActivationFn::GeluSigmoid };
const IMAGE: UsualTower = UsualTower { width: 768, layers: 12, heads: 12, feed: 3072, ..TEXT };

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<PairSpec> {
    class(s, &["CLIPModel"])?;
    // Old files repeat the objects, which transformers reads over the others.
    for object in ["text_config_dict", "vision_config_dict"] {
        if s.has_object(object) {
            return Err(s.refuse(NONE, object, "it repeats another object, or changes it; remove it where it says the same"));
        }
    }
    text_is_of(s, "clip_text_model", "clip_vision_model")?;
    let keys = TowerKeys { settings: s, object: "text_config." };
    let context = keys.size("max_position_embeddings", 77)?;
    let mut stack = keys.layers("clip", &TEXT, None, context, text_names())?;
    stack.embed.positions = Some(LearnedPositions { offset: 0 });
    s.size(NONE, "text_config.vocab_size", 1 << 31)?;
    let end = s.number(NONE, "text_config.eos_token_id")?.unwrap_or(49_407.0);
    if end.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&end) {
        return Err(s.refuse(NONE, "text_config.eos_token_id", "it is the number of a token"));
    }
    // The first files have a wrong number; the token that ends a text has the largest of all.
    let token = if end == 2.0 { TextToken::Largest } else { TextToken::FirstOf(end as u32) };
    let projection = keys_of_pair(s)?;
    let keys = TowerKeys { settings: s, object: "vision_config." };
    let layers = keys.layers("clip", &IMAGE, None, 1 << 14, image_names())?;
    let (norm, mut image) = (layers.norm, keys.tower(layers, 224, 32)?);
    image.stack.final_norm = false;
    let image = VisionSpec { patch_bias: false, first_norm: Some(norm), pool: ImagePool::FirstNormed, ..image };
    Ok(PairSpec {
        text: EncoderSpec { causal: true, ..EncoderSpec::new(stack) },
        image,
        token,
        text_projection: (projection, false),
        image_projection: Some(projection),
        bias: false,
    })
}

/// The size of vectors. The towers have one of their own, for use without each other.
fn keys_of_pair(s: &Settings<'_>) -> TensorResult<usize> {
    for key in ["logit_scale_init_value", "text_config.projection_dim", "vision_config.projection_dim"] {
        s.number(NONE, key)?;
    }
    Ok(s.size(NONE, "projection_dim", 1 << 20)?.unwrap_or(512))
}

fn text_names() -> Names {
    Names::new(
        "text_model.",
        "encoder.layers",
        &[
            ("token_embd", "text_model.embeddings.token_embedding"),
            ("position_embd", "text_model.embeddings.position_embedding"),
            ("output_norm", "text_model.final_layer_norm"),
            ("projection", "text_projection"),
        ],
        LAYER,
    )
}

fn image_names() -> Names {
    Names::new(
        "vision_model.",
        "encoder.layers",
        &[
            ("class_embd.vector", "vision_model.embeddings.class_embedding"),
            ("position_embd", "vision_model.embeddings.position_embedding"),
            ("patch_embd", "vision_model.embeddings.patch_embedding"),
            ("first_norm", "vision_model.pre_layrnorm"),
            ("output_norm", "vision_model.post_layernorm"),
            ("projection", "visual_projection"),
        ],
        LAYER,
    )
}
