//! `/v1/messages`, in Anthropic's form.

use super::answer::{Finish, Piece, Usage, Whole};
use super::ask::{Ask, random, texts};
use super::calls::Tools;
use super::error::ApiError;
use super::fields::Fields;
use super::format;
use super::host::Host;
use super::routes::Work;
use super::sse::{Form, named};
use super::texts::{Conversation, call_message, content, named_results};
use serde_json::{Value, json};

/// Reads a request.
pub fn read(mut fields: Fields, host: &Host) -> Result<Work, ApiError> {
    let stops = fields.array("stop_sequences")?.map(|list| texts("stop_sequences", &list)).transpose()?.unwrap_or_default();
    let ask = Ask::one(&mut fields, host)?.stopping("stop_sequences", stops)?;
    let mut ask = ask.chat(Tools::messages(&mut fields)?);
    if let Some(config) = fields.take("output_config") {
        let mut config = Fields::of("output_config".into(), config)?;
        if let Some(format) = config.take("format") {
            ask = ask.format(format::object("output_config.format", format, false)?);
        }
        config.finish()?;
    }
    ask = ask.constrained(host)?;
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
        let content = m.take("content").unwrap_or_default();
        m.finish()?;
        message(&name, &role, content, &mut messages)?;
    }
    if messages.last().is_some_and(|m| m["role"] == "assistant") {
        return Err(ApiError::field("messages", "messages: the last is the assistant's; continuing it is not supported"));
    }
    fields.only("thinking", |v| v["type"] == "disabled", "is not supported")?;
    fields.ignore(&["metadata", "service_tier"]);
    fields.finish()?;
    let mut talk = Conversation::new(named_results(messages));
    talk.tools = ask.tools.offered().to_vec();
    let prompts = vec![host.texts.conversation(&talk)?];
    let form = Message { id: format!("msg_{:016x}", random()), model: host.name.id.clone(), finish: None, blocks: 0, text: false };
    Ok(Work { ask, prompts, form: Box::new(form) })
}

/// Appends a message as templates read it: results of calls are messages of their own.
fn message(name: &str, role: &str, value: Value, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let Value::Array(blocks) = value else {
        out.push(json!({ "role": role, "content": content(name, value, &["text"])? }));
        return Ok(());
    };
    let (mut text, mut calls, mut results) = (Vec::new(), Vec::new(), Vec::new());
    for (i, block) in blocks.into_iter().enumerate() {
        let name = format!("{name}[{i}]");
        match (role, block["type"].as_str()) {
            ("assistant", Some("tool_use")) => {
                let mut block = Fields::of(name, block)?;
                let [id, function] = ["id", "name"].map(|field| block.string(field).map(Option::unwrap_or_default));
                let input = block.take("input").unwrap_or(json!({}));
                block.ignore(&["type", "cache_control", "caller"]);
                block.finish()?;
                calls.push(call_message(&id?, &function?, &input.to_string()));
            }
            ("user", Some("tool_result")) => {
                let mut block = Fields::of(name, block)?;
                let id = block.string("tool_use_id")?.unwrap_or_default();
                let name = block.name("content");
                let content = content(&name, block.take("content").unwrap_or("".into()), &["text"])?;
                block.ignore(&["type", "is_error", "cache_control"]);
                block.finish()?;
                results.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
            }
            // What it thought earlier is left out, as its templates do.
            ("assistant", Some("thinking" | "redacted_thinking")) => {}
            _ => text.push(block),
        }
    }
    let (called, said) = (!calls.is_empty(), !results.is_empty());
    out.extend(results);
    if !text.is_empty() || !said {
        let text = if text.is_empty() && called { String::new() } else { content(name, text.into(), &["text"])? };
        let mut message = json!({ "role": role, "content": text });
        if called {
            message["tool_calls"] = calls.into();
        }
        out.push(message);
    }
    Ok(())
}

/// The form of answers.
struct Message {
    id: String,
    model: String,
    finish: Option<Finish>,
    /// Blocks of a stream that have ended.
    blocks: usize,
    /// Whether one of text is open.
    text: bool,
}

impl Message {
    /// Ends the text, if there is any.
    fn close(&mut self, out: &mut String) {
        if std::mem::take(&mut self.text) {
            named(out, &json!({ "type": "content_block_stop", "index": self.blocks }));
            self.blocks += 1;
        }
    }

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
        Some(Finish::Calls) => ["tool_use".into(), Value::Null],
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
        let Some(answer) = answers.into_iter().next() else { return self.object(json!([]), None, usage(used)) };
        let mut content = Vec::new();
        if !answer.text.is_empty() || answer.calls.is_empty() {
            content.push(json!({ "type": "text", "text": answer.text }));
        }
        content.extend(answer.calls.iter().map(|c| json!({ "type": "tool_use", "id": c.id, "name": c.name, "input": c.input() })));
        self.object(content.into(), Some(&answer.finish), usage(used))
    }

    fn begin(&mut self, used: &Usage, out: &mut String) {
        let message = self.object(json!([]), None, usage(&Usage { written: 0, ..*used }));
        named(out, &json!({ "type": "message_start", "message": message }));
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        if !piece.text.is_empty() {
            let index = self.blocks;
            if !std::mem::replace(&mut self.text, true) {
                named(out, &json!({ "type": "content_block_start", "index": index, "content_block": { "type": "text", "text": "" } }));
            }
            named(out, &json!({ "type": "content_block_delta", "index": index, "delta": { "type": "text_delta", "text": piece.text } }));
        }
        for call in &piece.calls {
            self.close(out);
            let index = self.blocks;
            let block = json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} });
            named(out, &json!({ "type": "content_block_start", "index": index, "content_block": block }));
            let delta = json!({ "type": "input_json_delta", "partial_json": call.arguments });
            named(out, &json!({ "type": "content_block_delta", "index": index, "delta": delta }));
            named(out, &json!({ "type": "content_block_stop", "index": index }));
            self.blocks += 1;
        }
        self.finish = piece.finish;
    }

    fn end(&mut self, used: &Usage, out: &mut String) {
        let [reason, sequence] = reasons(self.finish.as_ref());
        self.close(out);
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        named(out, &json!({ "type": "message_delta", "delta": delta, "usage": usage(used) }));
        named(out, &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        named(out, &error.anthropic());
    }
}
