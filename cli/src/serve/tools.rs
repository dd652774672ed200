//! `/tokenize`, `/detokenize`, `/apply-template` and `/props`, in llama.cpp's form.

use super::calls::Tools;
use super::error::ApiError;
use super::fields::Fields;
use super::host::Host;
use super::texts::Conversation;
use serde_json::{Value, json};

pub fn tokenize(mut fields: Fields, host: &Host) -> Result<Value, ApiError> {
    let text = fields.string("content")?.ok_or_else(|| ApiError::field("content", "content is missing"))?;
    let special = fields.flag("add_special")?.unwrap_or(false);
    let parse = fields.flag("parse_special")?.unwrap_or(true);
    let pieces = fields.flag("with_pieces")?.unwrap_or(false);
    fields.finish()?;
    let ids = host.texts.tokenizer.encode_with(&text, special, parse).map_err(|e| ApiError::bad(e.to_string()))?;
    let tokens: Value = match pieces {
        true => ids.iter().map(|&id| json!({ "id": id, "piece": host.texts.token_text(id) })).collect(),
        false => ids.into(),
    };
    Ok(json!({ "tokens": tokens }))
}

pub fn detokenize(mut fields: Fields, host: &Host) -> Result<Value, ApiError> {
    let list = fields.array("tokens")?.ok_or_else(|| ApiError::field("tokens", "tokens is missing"))?;
    fields.finish()?;
    let ids = host.texts.ids("tokens", &list, host.texts.tokenizer.vocab_size())?;
    Ok(json!({ "content": host.texts.tokenizer.decode(&ids, false)? }))
}

pub fn apply_template(mut fields: Fields, host: &Host) -> Result<Value, ApiError> {
    let mut talk = Conversation::of(&mut fields)?;
    talk.tools = Tools::chat(&mut fields)?.offered().to_vec();
    fields.finish()?;
    Ok(json!({ "prompt": host.texts.conversation_text(&talk)? }))
}

/// What the server has.
pub fn props(host: &Host) -> Value {
    let (texts, usual) = (&host.texts, &host.sampling);
    let name = |id: Option<u32>| id.and_then(|id| texts.tokenizer.token(id));
    json!({
        "model_alias": host.name.id,
        "build_info": concat!("tensorlogic ", env!("CARGO_PKG_VERSION")),
        "system_fingerprint": host.fingerprint,
        "device": host.device.name(),
        "total_slots": host.rows,
        "default_generation_settings": {
            "n_ctx": host.longest(),
            "params": {
                "temperature": usual.temperature,
                "top_k": usual.top_k,
                "top_p": usual.top_p,
                "min_p": usual.min_p,
                "repeat_penalty": usual.repetition_penalty,
            },
        },
        "n_vocab": host.vocab(),
        "chat_template": texts.template.as_ref().map(|t| t.source()),
        "bos_token": name(texts.tokenizer.bos()),
        "eos_token": name(texts.tokenizer.end_tokens().first().copied()),
        "modalities": { "vision": false, "audio": false },
    })
}
