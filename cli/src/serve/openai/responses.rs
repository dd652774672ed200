//! `/v1/responses`: one answer to a conversation that the request has in full; nothing is stored.

use super::Head;
use crate::serve::Server;
use crate::serve::answer::{Finish, Piece, Usage, Whole};
use crate::serve::ask::{Ask, random};
use crate::serve::error::ApiError;
use crate::serve::fields::{Fields, is_empty, wrong};
use crate::serve::routes::Work;
use crate::serve::sse::{Form, named};
use crate::serve::texts::{Conversation, content};
use serde_json::{Value, json};

/// Reads a request.
pub fn read(mut fields: Fields, server: &Server) -> Result<Work, ApiError> {
    let mut ask = Ask::one(&mut fields, server)?;
    ask.max_tokens = fields.count("max_output_tokens", i32::MAX as usize)?;
    let instructions = fields.string("instructions")?;
    let mut messages: Vec<Value> = instructions.iter().map(|text| json!({ "role": "system", "content": text })).collect();
    match fields.take("input") {
        None => return Err(ApiError::field("input", "input is missing")),
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(list)) => {
            for (i, item) in list.into_iter().enumerate() {
                messages.push(message(format!("input[{i}]"), item)?);
            }
        }
        Some(other) => return Err(wrong("input", &other, "a string or an array of messages")),
    }
    for name in ["previous_response_id", "conversation", "prompt"] {
        fields.only(name, |_| false, "the server keeps nothing; send the whole conversation in input")?;
    }
    fields.only("tools", is_empty, "tools are not supported")?;
    fields.only("tool_choice", |v| matches!(v.as_str(), Some("none" | "auto")), "tools are not supported")?;
    fields.only("truncation", |v| v == "disabled", "only \"disabled\" is supported")?;
    fields.only("background", |v| v == false, "is not supported")?;
    fields.only("reasoning", is_empty, "is not supported")?;
    fields.only("include", is_empty, "is not supported")?;
    fields.only("top_logprobs", |v| v.as_i64() == Some(0), "is not supported")?;
    if let Some(text) = fields.take("text") {
        let mut text = Fields::of("text".into(), text)?;
        text.only("format", |f| f["type"] == "text", "only {\"type\": \"text\"} is supported")?;
        text.finish()?;
    }
    let metadata = fields.take("metadata").unwrap_or(json!({}));
    fields.ignore(&["store", "user", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls", "max_tool_calls"]);
    fields.ignore(&["stream_options"]);
    fields.finish()?;
    let prompts = vec![server.texts.conversation(&Conversation::new(messages))?];
    let settings = json!({ "instructions": instructions, "max_output_tokens": ask.max_tokens, "temperature": ask.sampling.temperature,
        "top_p": ask.sampling.top_p, "metadata": metadata });
    let item = format!("msg_{:016x}", random());
    let form = Response { head: Head::new("resp_", server), settings, item, text: String::new(), finish: Finish::End, number: 0 };
    Ok(Work { ask, prompts, form: Box::new(form) })
}

/// A message of the input.
fn message(path: String, item: Value) -> Result<Value, ApiError> {
    let mut m = Fields::of(path, item)?;
    m.only("type", |t| t == "message", "only messages are supported")?;
    let name = m.name("role");
    let role = match m.string("role")?.as_deref() {
        Some("developer" | "system") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        _ => return Err(ApiError::field(&name, format!("{name}: expected system, developer, user or assistant"))),
    };
    let name = m.name("content");
    let content = content(&name, m.take("content").unwrap_or_default(), &["input_text", "output_text", "text"])?;
    // An answer that is sent back has them.
    m.ignore(&["id", "status", "phase"]);
    m.finish()?;
    Ok(json!({ "role": role, "content": content }))
}

/// The form of answers.
struct Response {
    head: Head,
    /// What the request set, which the answer repeats.
    settings: Value,
    /// The id of the message in it.
    item: String,
    text: String,
    finish: Finish,
    /// Events so far.
    number: usize,
}

impl Response {
    fn object(&self, status: &str, output: Value, usage: Option<&Usage>) -> Value {
        let incomplete = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let usage = usage.map(|u| {
            json!({ "input_tokens": u.prompt, "input_tokens_details": { "cached_tokens": u.cached }, "output_tokens": u.written,
                "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": u.prompt + u.written })
        });
        let mut value = json!({ "id": self.head.id, "object": "response", "created_at": self.head.created, "status": status,
            "model": self.head.model, "output": output, "usage": usage, "error": null, "incomplete_details": incomplete,
            "parallel_tool_calls": false, "previous_response_id": null, "store": false, "tool_choice": "auto", "tools": [],
            "text": { "format": { "type": "text" } }, "truncation": "disabled" });
        for (name, v) in self.settings.as_object().into_iter().flatten() {
            value[name] = v.clone();
        }
        value
    }

    fn status(&self) -> &'static str {
        if self.finish == Finish::Length { "incomplete" } else { "completed" }
    }

    fn part(&self) -> Value {
        json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
    }

    fn message(&self, status: &str, content: Value) -> Value {
        json!({ "id": self.item, "type": "message", "status": status, "role": "assistant", "content": content })
    }

    fn event(&mut self, out: &mut String, kind: &str, mut value: Value) {
        value["type"] = kind.into();
        value["sequence_number"] = self.number.into();
        self.number += 1;
        named(out, &value);
    }

    /// Where a part of the text is.
    fn place(&self) -> Value {
        json!({ "item_id": self.item, "output_index": 0, "content_index": 0 })
    }
}

impl Form for Response {
    fn whole(&mut self, answers: Vec<Whole>, usage: &Usage) -> Value {
        if let Some(answer) = answers.into_iter().next() {
            (self.text, self.finish) = (answer.text, answer.finish);
        }
        self.object(self.status(), json!([self.message(self.status(), json!([self.part()]))]), Some(usage))
    }

    fn begin(&mut self, _: &Usage, out: &mut String) {
        let response = self.object("in_progress", json!([]), None);
        self.event(out, "response.created", json!({ "response": response }));
        self.event(out, "response.in_progress", json!({ "response": response }));
        let item = self.message("in_progress", json!([]));
        self.event(out, "response.output_item.added", json!({ "output_index": 0, "item": item }));
        let mut value = self.place();
        value["part"] = self.part();
        self.event(out, "response.content_part.added", value);
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        self.text += &piece.text;
        if !piece.text.is_empty() {
            let mut value = self.place();
            value["delta"] = piece.text.into();
            value["logprobs"] = json!([]);
            self.event(out, "response.output_text.delta", value);
        }
        if let Some(finish) = piece.finish {
            self.finish = finish;
        }
    }

    fn end(&mut self, usage: &Usage, out: &mut String) {
        let mut value = self.place();
        value["text"] = self.text.clone().into();
        value["logprobs"] = json!([]);
        self.event(out, "response.output_text.done", value);
        let mut value = self.place();
        value["part"] = self.part();
        self.event(out, "response.content_part.done", value);
        let item = self.message(self.status(), json!([self.part()]));
        self.event(out, "response.output_item.done", json!({ "output_index": 0, "item": item }));
        let response = self.object(self.status(), json!([item]), Some(usage));
        self.event(out, &format!("response.{}", self.status()), json!({ "response": response }));
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        let value = json!({ "code": error.code.unwrap_or("server_error"), "message": error.message, "param": error.param });
        self.event(out, "error", value);
    }
}
