//! `/v1/messages`, in Anthropic's form.

use super::Server;
use super::answer::{Finish, Piece, Usage, Whole};
use super::ask::{Ask, random, texts};
use super::error::ApiError;
use super::fields::{Fields, is_empty};
use super::routes::Work;
use super::sse::{Form, named};
use super::texts::{Conversation, content};
use serde_json::{Value, json};

/// Reads a request.
pub fn read(mut fields: Fields, server: &Server) -> Result<Work, ApiError> {
    let stops = fields.array("stop_sequences")?.map(|list| texts("stop_sequences", &list)).transpose()?.unwrap_or_default();
    let mut ask = Ask::one(&mut fields, server)?.stopping("stop_sequences", stops)?;
    let most = fields.count("max_tokens", i32::MAX as usize)?;
    ask.max_tokens = Some(most.ok_or_else(|| ApiError::field("max_tokens", "max_tokens is missing"))?);
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        messages.push(json!({ "role": "system", "content": content("system", system, &["text"])? }));
    }
    let list = fields.array("messages")?.filter(|list| !list.is_empty());
    for (i, m) in list.ok_or_else(|| ApiError::field("messages", "messages is missing"))?.into_iter().enumerate() {
        let mut m = Fields::of(format!("messages[{i}]"), m)?;
        let name = m.name("role");
        let role = m.string("role")?.filter(|r| r == "user" || r == "assistant");
        let role = role.ok_or_else(|| ApiError::field(&name, format!("{name}: expected user or assistant")))?;
        let name = m.name("content");
        let content = content(&name, m.take("content").unwrap_or_default(), &["text"])?;
        m.finish()?;
        messages.push(json!({ "role": role, "content": content }));
    }
    if messages.last().is_some_and(|m| m["role"] == "assistant") {
        return Err(ApiError::field("messages", "messages: the last is the assistant's; continuing it is not supported"));
    }
    fields.only("tools", is_empty, "tools are not supported")?;
    fields.only("tool_choice", |v| v["type"] == "none" || v["type"] == "auto", "tools are not supported")?;
    fields.only("thinking", |v| v["type"] == "disabled", "is not supported")?;
    fields.ignore(&["metadata", "service_tier"]);
    fields.finish()?;
    let prompts = vec![server.texts.conversation(&Conversation::new(messages))?];
    let form = Message { id: format!("msg_{:016x}", random()), model: server.model.id.clone(), finish: None };
    Ok(Work { ask, prompts, form: Box::new(form) })
}

/// The form of answers.
struct Message {
    id: String,
    model: String,
    finish: Option<Finish>,
}

impl Message {
    fn object(&self, content: Value, finish: Option<&Finish>, usage: Value) -> Value {
        let [reason, sequence] = reasons(finish);
        json!({ "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content, "stop_reason": reason,
            "stop_sequence": sequence, "usage": usage })
    }
}

/// Why an answer ended, and the text that ended it.
fn reasons(finish: Option<&Finish>) -> [Value; 2] {
    match finish {
        None => [Value::Null, Value::Null],
        Some(Finish::End) => ["end_turn".into(), Value::Null],
        Some(Finish::Length) => ["max_tokens".into(), Value::Null],
        Some(Finish::Text(text)) => ["stop_sequence".into(), text.as_str().into()],
    }
}

/// Tokens of prompts are told apart by whether they were read or found.
fn usage(u: &Usage) -> Value {
    json!({ "input_tokens": u.prompt - u.cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": u.cached, "output_tokens": u.written })
}

impl Form for Message {
    fn whole(&mut self, answers: Vec<Whole>, used: &Usage) -> Value {
        let (text, finish) = answers.into_iter().next().map_or((String::new(), Finish::End), |a| (a.text, a.finish));
        self.object(json!([{ "type": "text", "text": text }]), Some(&finish), usage(used))
    }

    fn begin(&mut self, used: &Usage, out: &mut String) {
        let message = self.object(json!([]), None, usage(&Usage { written: 0, ..*used }));
        named(out, &json!({ "type": "message_start", "message": message }));
        named(out, &json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }));
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        if !piece.text.is_empty() {
            named(out, &json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": piece.text } }));
        }
        self.finish = piece.finish;
    }

    fn end(&mut self, used: &Usage, out: &mut String) {
        let [reason, sequence] = reasons(self.finish.as_ref());
        named(out, &json!({ "type": "content_block_stop", "index": 0 }));
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        named(out, &json!({ "type": "message_delta", "delta": delta, "usage": usage(used) }));
        named(out, &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        named(out, &error.anthropic());
    }
}
