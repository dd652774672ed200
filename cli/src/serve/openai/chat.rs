//! `/v1/chat/completions`.

use super::{Head, usage};
use crate::serve::Server;
use crate::serve::answer::{Piece, Scored, Usage, Whole};
use crate::serve::ask::Ask;
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::routes::Work;
use crate::serve::sse::{Form, data};
use crate::serve::texts::Conversation;
use serde_json::{Value, json};
use tensorlogic::serving::Request;

/// Reads a request.
pub fn read(mut fields: Fields, server: &Server) -> Result<Work, ApiError> {
    let mut ask = Ask::of(&mut fields, server)?;
    let old = fields.count("max_tokens", i32::MAX as usize)?;
    ask.max_tokens = fields.count("max_completion_tokens", i32::MAX as usize)?.or(old);
    let top = fields.integer("top_logprobs", 0..=Request::MOST_LOGPROBS as i64)?;
    ask.logprobs = fields.flag("logprobs")?.unwrap_or(false).then_some(top.unwrap_or(0) as usize);
    if top.is_some_and(|n| n > 0) && ask.logprobs.is_none() {
        return Err(ApiError::field("top_logprobs", "top_logprobs needs logprobs: true"));
    }
    fields.only("modalities", |v| *v == json!(["text"]), "the model writes text only")?;
    let talk = Conversation::of(&mut fields)?;
    fields.finish()?;
    let prompts = vec![server.texts.conversation(&talk)?];
    let form =
        Chat { head: Head::new("chatcmpl-", server), named: vec![false; ask.n], usage: ask.stream_usage, scored: ask.logprobs.is_some() };
    Ok(Work { ask, prompts, form: Box::new(form) })
}

/// The form of answers.
struct Chat {
    head: Head,
    /// Whether an answer's role was said: with its first text, so that the first part is the first token.
    named: Vec<bool>,
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
            json!({ "index": index, "message": { "role": "assistant", "content": a.text, "refusal": null }, "logprobs": self.scores(&a.scores),
                "finish_reason": a.finish.reason() })
        };
        let mut value = self.head.object("chat.completion", answers.into_iter().enumerate().map(choice).collect());
        value["usage"] = usage(used);
        value
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        let mut send = |delta: Value, scores: Value, finish: Option<&str>| {
            let choice = json!({ "index": piece.index, "delta": delta, "logprobs": scores, "finish_reason": finish });
            data(out, &self.part(json!([choice])));
        };
        if !self.named[piece.index] {
            send(json!({ "role": "assistant", "content": piece.text }), self.scores(&piece.scores), None);
        } else if !piece.text.is_empty() || !piece.scores.is_empty() {
            send(json!({ "content": piece.text }), self.scores(&piece.scores), None);
        }
        if let Some(finish) = &piece.finish {
            send(json!({}), Value::Null, Some(finish.reason()));
        }
        self.named[piece.index] = true;
    }

    fn end(&mut self, used: &Usage, out: &mut String) {
        super::end(self.usage.then(|| self.part(json!([]))), used, out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        super::fail(error, out);
    }
}
