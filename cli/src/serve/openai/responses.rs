//! `/v1/responses`: one answer to a conversation that the request has in full; nothing is stored.

use super::Head;
use crate::serve::answer::{Finish, Piece, Usage, Whole};
use crate::serve::ask::{Ask, random};
use crate::serve::calls::{Call, Tools};
use crate::serve::error::ApiError;
use crate::serve::fields::{Fields, is_empty, wrong};
use crate::serve::format;
use crate::serve::host::Host;
use crate::serve::routes::Work;
use crate::serve::sse::{Form, named};
use crate::serve::texts::{Conversation, call_message, content, named_results};
use serde_json::{Value, json};

/// Reads a request.
pub fn read(mut fields: Fields, host: &Host) -> Result<Work, ApiError> {
    // What was asked for is part of the answer.
    let said = |given: &Value, usual: Value| if given.is_null() { usual } else { given.clone() };
    let tool_choice = said(fields.look("tool_choice"), "auto".into());
    let format = said(&fields.look("text")["format"], json!({ "type": "text" }));
    let mut ask = Ask::one(&mut fields, host)?.chat(Tools::responses(&mut fields)?);
    ask.max_tokens = fields.count("max_output_tokens", i32::MAX as usize)?;
    let instructions = fields.string("instructions")?;
    let mut messages: Vec<Value> = instructions.iter().map(|text| json!({ "role": "system", "content": text })).collect();
    match fields.take("input") {
        None => return Err(ApiError::field("input", "input is missing")),
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(list)) => {
            if list.is_empty() {
                return Err(ApiError::field("input", "input is empty; give at least one message"));
            }
            for (i, item) in list.into_iter().enumerate() {
                add(format!("input[{i}]"), item, &mut messages)?;
            }
        }
        Some(other) => return Err(wrong("input", &other, "a string or an array of messages")),
    }
    for name in ["previous_response_id", "conversation", "prompt"] {
        fields.only(name, |_| false, "the server stores nothing; send the whole conversation in input")?;
    }
    fields.only("truncation", |v| v == "disabled", "only \"disabled\" is supported")?;
    fields.only("background", |v| v == false, "is not supported")?;
    fields.only("reasoning", is_empty, "is not supported")?;
    fields.only("include", is_empty, "is not supported")?;
    fields.only("top_logprobs", |v| v.as_i64() == Some(0), "is not supported")?;
    if let Some(text) = fields.take("text") {
        let mut text = Fields::of("text".into(), text)?;
        if let Some(format) = text.take("format") {
            ask = ask.format(format::object("text.format", format, false)?);
        }
        text.ignore(&["verbosity"]);
        text.finish()?;
    }
    ask = ask.constrained(host)?;
    let metadata = fields.take("metadata").unwrap_or(json!({}));
    fields.ignore(&["store", "user", "service_tier", "safety_identifier", "prompt_cache_key", "max_tool_calls"]);
    fields.ignore(&["stream_options"]);
    fields.finish()?;
    let mut talk = Conversation::new(named_results(messages));
    talk.tools = ask.tools.offered().to_vec();
    let prompts = vec![host.texts.conversation(&talk)?];
    let settings = json!({ "instructions": instructions, "max_output_tokens": ask.max_tokens, "temperature": ask.sampling.temperature,
        "top_p": ask.sampling.top_p, "metadata": metadata, "tool_choice": tool_choice, "text": { "format": format }, "parallel_tool_calls": ask.tools.parallel,
        "tools": ask.tools.offered().iter().map(flat).collect::<Value>() });
    let item = format!("msg_{:016x}", random());
    let head = Head::new("resp_", host);
    let form = Response { head, settings, item, text: String::new(), open: false, output: vec![], finish: Finish::End, number: 0 };
    Ok(Work { ask, prompts, form: Box::new(form) })
}

/// A function in the form that responses have.
fn flat(tool: &Value) -> Value {
    let mut flat = json!({ "type": "function", "strict": false });
    for (name, v) in tool["function"].as_object().into_iter().flatten() {
        flat[name] = v.clone();
    }
    flat
}

/// Appends an item of the input as templates read it; calls belong to one message of the assistant's.
fn add(path: String, item: Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    match item["type"].as_str() {
        Some("function_call") => {
            let mut m = Fields::of(path, item)?;
            let [id, name, arguments] = ["call_id", "name", "arguments"].map(|field| m.string(field).map(Option::unwrap_or_default));
            m.ignore(&["type", "id", "status", "namespace", "caller"]);
            m.finish()?;
            let call = call_message(&id?, &name?, &arguments?);
            match messages.last_mut().filter(|last| last["role"] == "assistant") {
                Some(last) if last["tool_calls"].is_array() => {
                    last["tool_calls"].as_array_mut().into_iter().for_each(|all| all.push(call.clone()))
                }
                Some(last) => last["tool_calls"] = json!([call]),
                None => messages.push(json!({ "role": "assistant", "content": "", "tool_calls": [call] })),
            }
        }
        Some("function_call_output") => {
            let mut m = Fields::of(path, item)?;
            let id = m.string("call_id")?.unwrap_or_default();
            let name = m.name("output");
            let output = content(&name, m.take("output").unwrap_or_default(), &["input_text", "output_text", "text"])?;
            m.ignore(&["type", "id", "status", "caller"]);
            m.finish()?;
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
        }
        _ => messages.push(message(path, item)?),
    }
    Ok(())
}

/// A message of the input.
fn message(path: String, item: Value) -> Result<Value, ApiError> {
    let mut m = Fields::of(path, item)?;
    m.only("type", |t| t == "message", "only messages, calls of functions and their results are supported")?;
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
    /// Whether the message was begun.
    open: bool,
    /// What has ended.
    output: Vec<Value>,
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
            "previous_response_id": null, "store": false, "truncation": "disabled" });
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
        json!({ "item_id": self.item, "output_index": self.output.len(), "content_index": 0 })
    }

    /// Begins the message, where that was not done.
    fn open(&mut self, out: &mut String) {
        if std::mem::replace(&mut self.open, true) {
            return;
        }
        let item = self.message("in_progress", json!([]));
        self.event(out, "response.output_item.added", json!({ "output_index": self.output.len(), "item": item }));
        let mut value = self.place();
        value["part"] = self.part();
        self.event(out, "response.content_part.added", value);
    }

    /// Ends the message, if there is one.
    fn close(&mut self, out: &mut String) {
        if !std::mem::replace(&mut self.open, false) {
            return;
        }
        let mut value = self.place();
        value["text"] = self.text.clone().into();
        value["logprobs"] = json!([]);
        self.event(out, "response.output_text.done", value);
        let mut value = self.place();
        value["part"] = self.part();
        self.event(out, "response.content_part.done", value);
        let item = self.message(self.status(), json!([self.part()]));
        self.event(out, "response.output_item.done", json!({ "output_index": self.output.len(), "item": item }));
        self.output.push(item);
        // What follows a call is another message.
        self.item = format!("msg_{:016x}", random());
        self.text.clear();
    }

    /// Ends what is open; an answer without anything has an empty message.
    fn finished(&mut self, out: &mut String) {
        if self.output.is_empty() {
            self.open(out);
        }
        self.close(out);
    }

    fn call(&mut self, call: &Call, out: &mut String) {
        let index = self.output.len();
        let id = format!("fc_{:016x}", random());
        let item = |status: &str, arguments: &str| json!({ "id": id, "type": "function_call", "status": status, "call_id": call.id, "name": call.name, "arguments": arguments });
        self.event(out, "response.output_item.added", json!({ "output_index": index, "item": item("in_progress", "") }));
        let kind = "response.function_call_arguments";
        let place = json!({ "item_id": id, "output_index": index });
        let with = |name: &str| {
            let mut value = place.clone();
            value[name] = call.arguments.clone().into();
            value
        };
        self.event(out, &format!("{kind}.delta"), with("delta"));
        let mut done = with("arguments");
        done["name"] = call.name.clone().into();
        self.event(out, &format!("{kind}.done"), done);
        self.event(out, "response.output_item.done", json!({ "output_index": index, "item": item("completed", &call.arguments) }));
        self.output.push(item("completed", &call.arguments));
    }
}

impl Form for Response {
    fn whole(&mut self, answers: Vec<Whole>, usage: &Usage) -> Value {
        let Some(answer) = answers.into_iter().next() else { return self.object(self.status(), json!([]), Some(usage)) };
        self.finish = answer.finish.clone();
        // The events of a stream make the items; nobody hears them.
        let mut unheard = String::new();
        let piece = Piece {
            index: 0,
            text: answer.text,
            thought: answer.thought,
            calls: answer.calls,
            scores: vec![],
            finish: Some(answer.finish),
        };
        self.piece(piece, &mut unheard);
        self.finished(&mut unheard);
        self.object(self.status(), self.output.clone().into(), Some(usage))
    }

    fn begin(&mut self, _: &Usage, out: &mut String) {
        let response = self.object("in_progress", json!([]), None);
        self.event(out, "response.created", json!({ "response": response }));
        self.event(out, "response.in_progress", json!({ "response": response }));
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        if !piece.text.is_empty() {
            self.open(out);
            self.text += &piece.text;
            let mut value = self.place();
            value["delta"] = piece.text.into();
            value["logprobs"] = json!([]);
            self.event(out, "response.output_text.delta", value);
        }
        for call in &piece.calls {
            self.close(out);
            self.call(call, out);
        }
        if let Some(finish) = piece.finish {
            self.finish = finish;
        }
    }

    fn end(&mut self, usage: &Usage, out: &mut String) {
        self.finished(out);
        let response = self.object(self.status(), self.output.clone().into(), Some(usage));
        self.event(out, &format!("response.{}", self.status()), json!({ "response": response }));
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        let value = json!({ "code": error.code.unwrap_or("server_error"), "message": error.message, "param": error.param });
        self.event(out, "error", value);
    }
}
