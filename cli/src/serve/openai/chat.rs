//! `/v1/chat/completions`.

use super::{Head, usage};
use crate::serve::answer::{Piece, Scored, Usage, Whole};
use crate::serve::ask::Ask;
use crate::serve::calls::{Call, Tools};
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::host::Host;
use crate::serve::routes::Work;
use crate::serve::sse::{Form, data};
use crate::serve::texts::Conversation;
use serde_json::{Map, Value, json};
use tensorlogic::serving::Request;

/// Reads a request.
pub fn read(mut fields: Fields, host: &Host) -> Result<Work, ApiError> {
    let mut ask = Ask::of(&mut fields, host)?.chat(Tools::chat(&mut fields)?).constrained(host)?;
    let old = fields.count("max_tokens", i32::MAX as usize)?;
    ask.max_tokens = fields.count("max_completion_tokens", i32::MAX as usize)?.or(old);
    let top = fields.integer("top_logprobs", 0..=Request::MAX_LOGPROBS as i64)?;
    ask.logprobs = fields.flag("logprobs")?.unwrap_or(false).then_some(top.unwrap_or(0) as usize);
    if top.is_some_and(|n| n > 0) && ask.logprobs.is_none() {
        return Err(ApiError::field("top_logprobs", "top_logprobs needs logprobs: true"));
    }
    fields.only("modalities", |v| *v == json!(["text"]), "the model writes text only")?;
    let mut talk = Conversation::of(&mut fields)?;
    talk.tools = ask.tools.offered().to_vec();
    fields.finish()?;
    let prompts = vec![host.texts.conversation(&talk)?];
    let (usage, scored) = (ask.stream_usage, ask.logprobs.is_some());
    let form = Chat { head: Head::new("chatcmpl-", host), named: vec![false; ask.n], calls: vec![0; ask.n], usage, scored };
    Ok(Work { ask, prompts, form: Box::new(form) })
}

/// The form of answers.
struct Chat {
    head: Head,
    /// Whether an answer's role was said: with its first text, so that the first part is the first token.
    named: Vec<bool>,
    /// Calls of each answer so far.
    calls: Vec<usize>,
    usage: bool,
    /// Whether log-probabilities were asked for.
    scored: bool,
}

impl Chat {
    fn part(&self, choices: Value) -> Value {
        let mut value = self.head.object("chat.completion.chunk", choices);
        if self.usage {
            value["usage"] = Value::Null;
        }
        value
    }

    fn scores(&self, scores: &[Scored]) -> Value {
        let one = |s: &Scored| json!({ "token": s.text(), "logprob": s.log_prob, "bytes": s.bytes });
        let all = scores.iter().map(|s| {
            let mut value = one(s);
            value["top_logprobs"] = s.top.iter().map(one).collect();
            value
        });
        if self.scored { json!({ "content": all.collect::<Value>(), "refusal": null }) } else { Value::Null }
    }
}

impl Form for Chat {
    fn whole(&mut self, answers: Vec<Whole>, used: &Usage) -> Value {
        let choice = |(index, a): (usize, Whole)| {
            let mut message = json!({ "role": "assistant", "content": a.text, "refusal": null });
            if !a.calls.is_empty() {
                message["tool_calls"] = a.calls.iter().map(Call::openai).collect();
                if a.text.is_empty() {
                    message["content"] = Value::Null;
                }
            }
            if !a.thought.is_empty() {
                message["reasoning_content"] = a.thought.into();
            }
            json!({ "index": index, "message": message, "logprobs": self.scores(&a.scores), "finish_reason": a.finish.reason() })
        };
        let mut value = self.head.object("chat.completion", answers.into_iter().enumerate().map(choice).collect());
        value["usage"] = usage(used);
        value
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        let n = piece.index;
        let send = |form: &Chat, delta: Value, scores: &[Scored], finish: Option<&str>, out: &mut String| {
            let scores = if finish.is_some() { Value::Null } else { form.scores(scores) };
            let choice = json!({ "index": n, "delta": delta, "logprobs": scores, "finish_reason": finish });
            data(out, &form.part(json!([choice])));
        };
        let mut delta = Map::new();
        if !std::mem::replace(&mut self.named[n], true) {
            delta.insert("role".into(), "assistant".into());
        }
        if !piece.thought.is_empty() {
            delta.insert("reasoning_content".into(), piece.thought.into());
        }
        // The first part says that there is text, or that there is none yet.
        if !piece.text.is_empty() || (!delta.is_empty() && piece.calls.is_empty()) {
            delta.insert("content".into(), piece.text.into());
        }
        if !delta.is_empty() || (!piece.scores.is_empty() && piece.calls.is_empty()) {
            delta.entry("content").or_insert(if piece.calls.is_empty() { "".into() } else { Value::Null });
            send(self, delta.into(), &piece.scores, None, out);
        }
        for call in &piece.calls {
            // First who is called, then with what: clients join the arguments' parts.
            let mut value = call.openai();
            value["index"] = self.calls[n].into();
            let arguments = value["function"]["arguments"].take();
            value["function"]["arguments"] = "".into();
            send(self, json!({ "tool_calls": [value] }), &[], None, out);
            let rest = json!({ "index": self.calls[n], "function": { "arguments": arguments } });
            send(self, json!({ "tool_calls": [rest] }), &[], None, out);
            self.calls[n] += 1;
        }
        if let Some(finish) = &piece.finish {
            send(self, json!({}), &[], Some(finish.reason()), out);
        }
    }

    fn end(&mut self, used: &Usage, out: &mut String) {
        super::end(self.usage.then(|| self.part(json!([]))), used, out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        super::fail(error, out);
    }
}
