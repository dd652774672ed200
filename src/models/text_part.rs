//! The text side of a folder whose model reads images or sounds too: which of its keys and tensors describe it, and which parts are left out.

use crate::error::{TensorError, TensorResult};
use crate::io::info::clip;
use crate::models::decoder::names::Nesting;
use crate::models::without_effect::without_effect;
use serde_json::{Map, Value as Json};

/// The object of `config.json` that describes the decoder of texts.
pub(crate) const TEXT_CONFIG: &str = "text_config";

/// `model_type` of models that have such an object, and the `model_type` of that object where it does not say one.
const MULTIMODAL: [(&str, &str); 7] = [
    ("gemma3", "gemma3_text"),
    ("gemma3n", "gemma3n_text"),
    ("gemma4", "gemma4_text"),
    ("llama4", "llama4_text"),
    ("mistral3", "mistral"),
    ("qwen3_5", "qwen3_5_text"),
    ("qwen3_5_moe", "qwen3_5_moe_text"),
];

/// Keys beside `text_config` that describe the parts that are left out.
const KEYS: [&str; 23] = [
    "audio_config",
    "audio_soft_tokens_per_image",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "boi_token_index",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "image_token_id",
    "image_token_index",
    "mm_tokens_per_image",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_soft_tokens_per_image",
    "vision_start_token_id",
    "vision_feature_select_strategy",
];

/// Starts of the names of tensors of those parts, which stand behind `model.` in newer files.
const PARTS: [&str; 7] =
    ["vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "embed_vision.", "audio_tower.", "embed_audio."];

/// The decoder of texts in a folder.
pub(crate) struct TextPart {
    /// Its settings: those of `text_config`, and what beside them is about texts too.
    settings: Json,
    /// What stands beside `text_config`.
    beside: Map<String, Json>,
    nesting: Nesting,
}

impl TextPart {
    /// The text side that `config.json` describes, with tensors of these names; `None` where the model is not one of texts and images that is known.
    pub fn of<'n>(config: &Json, tensors: impl Iterator<Item = &'n str>) -> Option<TextPart> {
        let (_, usual) = MULTIMODAL.iter().find(|(name, _)| config["model_type"] == *name)?;
        let (all, text) = (config.as_object()?, config[TEXT_CONFIG].as_object()?);
        let shared = |key: &str| key == "tie_word_embeddings" || without_effect(key).is_some();
        let mut settings = Map::from_iter([("model_type".to_string(), Json::from(*usual))]);
        settings.extend(text.iter().map(|(k, v)| (k.clone(), v.clone())));
        for (key, value) in all.iter().filter(|(k, v)| shared(k) && !v.is_null()) {
            // The model as a whole says whether its head is the embedding.
            if key == "tie_word_embeddings" || !settings.contains_key(key) {
                settings.insert(key.clone(), value.clone());
            }
        }
        let beside = all.iter().filter(|(k, _)| *k != TEXT_CONFIG && *k != "model_type").map(|(k, v)| (k.clone(), v.clone()));
        let nesting = Nesting::of_tensors(tensors);
        Some(TextPart { settings: Json::Object(settings), beside: beside.collect(), nesting })
    }

    /// The decoder's settings.
    pub fn settings(&self) -> &Json {
        &self.settings
    }

    /// Where the decoder stands in the model.
    pub fn nesting(&self) -> Nesting {
        self.nesting
    }

    /// The starts of the names of tensors that are left out: these parts of the decoder, and what is for images and sounds.
    pub fn left_out(&self, of_decoder: &[String]) -> Vec<String> {
        let parts = PARTS.iter().flat_map(|part| [part.to_string(), format!("model.{part}")]);
        of_decoder.iter().map(|start| self.nesting.name(start)).chain(parts).collect()
    }

    /// Refuses keys beside `text_config` that neither belong to a part that is left out nor repeat what `text_config` says; `quantized` are known.
    ///
    /// # Errors
    /// Names the first such key, its value, and the file.
    pub fn finish(&self, file: &str, quantized: bool) -> TensorResult<()> {
        let refused = |key: &str, value: &Json, why: &str| {
            Err(TensorError::Unsupported(format!("{file}: `{}` is {}; {why}", clip(key), clip(&value.to_string()))))
        };
        for (key, value) in &self.beside {
            let repeats = self.settings.get(key) == Some(value);
            let of_quantized = quantized && key.starts_with("quantization");
            match key.as_str() {
                "architectures" => {
                    let known =
                        |v: &Json| v.as_str().is_some_and(|n| n.ends_with("ForConditionalGeneration") || n.ends_with("ForCausalLM"));
                    if !value.is_null() && !value.as_array().is_some_and(|all| all.iter().all(known)) {
                        return refused(key, value, "only models that predict the next token are implemented");
                    }
                }
                _ if value.is_null() || repeats || of_quantized || KEYS.contains(&key.as_str()) || without_effect(key).is_some() => {}
                _ => return refused(key, value, &format!("`{TEXT_CONFIG}` lacks it, and it is not a known top-level key")),
            }
        }
        Ok(())
    }
}
