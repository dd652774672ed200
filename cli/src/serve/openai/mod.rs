//! OpenAI's routes: what they read, and what they answer.

pub mod chat;
pub mod completions;
pub mod responses;

use super::answer::Usage;
use super::ask::random;
use super::error::ApiError;
use super::host::{Host, ModelName, Models};
use super::sse::data;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// What ends a stream of completions.
const DONE: &str = "data: [DONE]\n\n";

/// What all parts of an answer have in common.
#[derive(Clone)]
pub struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub fingerprint: String,
}

impl Head {
    /// With an id that begins with `prefix`.
    pub fn new(prefix: &str, host: &Host) -> Head {
        let id = format!("{prefix}{:016x}{:08x}", random(), random() as u32);
        Head { id, created: now(), model: host.name.id.clone(), fingerprint: host.fingerprint.clone() }
    }

    /// An object of this kind.
    pub fn object(&self, kind: &str, choices: Value) -> Value {
        json!({ "id": self.id, "object": kind, "created": self.created, "model": self.model, "system_fingerprint": self.fingerprint, "choices": choices })
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}

/// What an answer took, as completions give it.
pub fn usage(u: &Usage) -> Value {
    json!({ "prompt_tokens": u.prompt, "completion_tokens": u.written, "total_tokens": u.prompt + u.written,
        "prompt_tokens_details": { "cached_tokens": u.cached } })
}

/// Ends a stream of completions: with `last`, where usage was asked for, and the mark.
fn end(last: Option<Value>, used: &Usage, out: &mut String) {
    if let Some(mut value) = last {
        value["usage"] = usage(used);
        data(out, &value);
    }
    out.push_str(DONE);
}

/// Ends a stream of completions with an error.
fn fail(error: &ApiError, out: &mut String) {
    data(out, &error.openai());
    out.push_str(DONE);
}

/// The models that there are.
pub fn models(models: &Models) -> Value {
    let data: Value = models.names().iter().map(|(name, longest)| model(name, *longest)).collect();
    json!({ "object": "list", "data": data })
}

/// A model, with the tokens of a request where it is loaded.
pub fn model(name: &ModelName, longest: Option<usize>) -> Value {
    json!({ "id": name.id, "object": "model", "created": name.created, "owned_by": "tensorlogic", "max_model_len": longest })
}
