//! `/v1/completions`.

use super::{Head, usage};
use crate::serve::answer::{Finish, Piece, Scored, Usage, Whole};
use crate::serve::ask::{Ask, MAX_ANSWERS};
use crate::serve::error::ApiError;
use crate::serve::fields::{Fields, wrong};
use crate::serve::host::Host;
use crate::serve::routes::Work;
use crate::serve::sse::{Form, data};
use serde_json::{Value, json};
use tensorlogic::serving::Request;

/// Tokens of an answer where the request does not say it.
const MAX_TOKENS: usize = 16;

/// Reads a request.
pub fn read(mut fields: Fields, host: &Host) -> Result<Work, ApiError> {
    let mut ask = Ask::of(&mut fields, host)?.constrained(host)?;
    ask.max_tokens = Some(fields.count("max_tokens", i32::MAX as usize)?.unwrap_or(MAX_TOKENS));
    ask.logprobs = fields.integer("logprobs", 0..=Request::MAX_LOGPROBS as i64)?.map(|n| n as usize);
    fields.only("suffix", |v| v == "", "is not supported")?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && ask.logprobs.is_some() {
        return Err(ApiError::field("echo", "echo with logprobs is not supported"));
    }
    let prompt = fields.take("prompt").ok_or_else(|| ApiError::field("prompt", "prompt is missing"))?;
    let prompts = prompts(&prompt, host)?;
    fields.finish()?;
    if prompts.len() * ask.n > MAX_ANSWERS {
        return Err(ApiError::field("prompt", format!("{} answers; at most {MAX_ANSWERS} are supported", prompts.len() * ask.n)));
    }
    let texts = |ids: &Vec<u32>| host.texts.tokenizer.decode(ids, true).map_err(ApiError::from);
    let echo = if echo { prompts.iter().map(texts).collect::<Result<_, _>>()? } else { vec![String::new(); prompts.len()] };
    let echo = echo.into_iter().flat_map(|text| vec![text; ask.n]).collect();
    let (usage, scored) = (ask.stream_usage, ask.logprobs.is_some());
    let form = Completion { head: Head::new("cmpl-", host), written: vec![0; prompts.len() * ask.n], echo, usage, scored };
    Ok(Work { ask, prompts, form: Box::new(form) })
}

/// A text, tokens, or a list of either.
fn prompts(prompt: &Value, host: &Host) -> Result<Vec<Vec<u32>>, ApiError> {
    let (texts, vocab) = (&host.texts, host.vocab());
    match prompt {
        Value::String(text) => Ok(vec![texts.encode(text, true)?]),
        Value::Array(list) if list.is_empty() => Err(ApiError::field("prompt", "prompt is empty; give at least one token")),
        Value::Array(list) if list[0].is_number() => Ok(vec![texts.ids("prompt", list, vocab)?]),
        Value::Array(list) => {
            let each = |(i, v): (usize, &Value)| match v {
                Value::String(text) => texts.encode(text, true),
                Value::Array(ids) => texts.ids(&format!("prompt[{i}]"), ids, vocab),
                other => Err(wrong(&format!("prompt[{i}]"), other, "a string or an array of tokens")),
            };
            list.iter().enumerate().map(each).collect()
        }
        other => Err(wrong("prompt", other, "a string, an array of tokens, or an array of either")),
    }
}

/// The form of answers.
struct Completion {
    head: Head,
    /// What each answer begins with.
    echo: Vec<String>,
    /// Characters of each answer so far.
    written: Vec<usize>,
    usage: bool,
    /// Whether log-probabilities were asked for.
    scored: bool,
}

impl Completion {
    fn choice(&mut self, index: usize, text: &str, scores: &[Scored], finish: Option<&Finish>) -> Value {
        let scores = if self.scored { self.scores(index, scores) } else { Value::Null };
        let text = std::mem::take(&mut self.echo[index]) + text;
        json!({ "index": index, "text": text, "logprobs": scores, "finish_reason": finish.map(Finish::reason) })
    }

    fn scores(&mut self, index: usize, scores: &[Scored]) -> Value {
        let mut offsets = Vec::new();
        for s in scores {
            offsets.push(self.written[index]);
            self.written[index] += s.text().chars().count();
        }
        let top = |s: &Scored| Value::Object(s.top.iter().map(|t| (t.text(), t.log_prob.into())).collect());
        json!({ "tokens": scores.iter().map(Scored::text).collect::<Vec<_>>(), "token_logprobs": scores.iter().map(|s| s.log_prob).collect::<Vec<_>>(),
            "top_logprobs": scores.iter().map(top).collect::<Vec<_>>(), "text_offset": offsets })
    }
}

impl Form for Completion {
    fn whole(&mut self, answers: Vec<Whole>, used: &Usage) -> Value {
        let choices = answers.iter().enumerate().map(|(i, a)| self.choice(i, &a.text, &a.scores, Some(&a.finish))).collect();
        let mut value = self.head.object("text_completion", choices);
        value["usage"] = usage(used);
        value
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        let choice = self.choice(piece.index, &piece.text, &piece.scores, piece.finish.as_ref());
        let mut value = self.head.object("text_completion", json!([choice]));
        if self.usage {
            value["usage"] = Value::Null;
        }
        data(out, &value);
    }

    fn end(&mut self, used: &Usage, out: &mut String) {
        super::end(self.usage.then(|| self.head.object("text_completion", json!([]))), used, out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        super::fail(error, out);
    }
}
