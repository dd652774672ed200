//! What every route that writes text asks for: how tokens are chosen, how many, what ends an answer, and how it is sent.

use super::calls::Tools;
use super::error::ApiError;
use super::fields::{Fields, is_empty};
use super::format::{self, Format, Wanted};
use super::host::Host;
use serde_json::Value;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use tensorlogic::models::GenerationDefaults;
use tensorlogic::serving::{Constraint, Request, Sampling};
use tensorlogic::text::{AnswerReader, Tokenizer};

/// Answers to a request at most, over all of its prompts.
pub const MAX_ANSWERS: usize = 256;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;

/// What would change the answer, and what only OpenAI's older routes have.
const OF_OTHER_ROUTES: [&str; 15] = [
    "seed",
    "n",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
];

/// How answers are to be written and sent.
pub struct Ask {
    pub sampling: Sampling,
    /// Whether the seed was given; else each answer has a new one.
    seeded: bool,
    pub max_tokens: Option<usize>,
    /// Whether log-probabilities are wanted, and of how many of the most likely tokens.
    pub logprobs: Option<usize>,
    pub stops: Vec<String>,
    pub ends: Vec<u32>,
    /// Answers for each prompt.
    pub n: usize,
    pub stream: bool,
    /// Whether a stream ends with what it took.
    pub stream_usage: bool,
    /// Functions that the answer may call.
    pub tools: Tools,
    /// What answers must be.
    format: Option<Wanted>,
    constraint: Option<Box<dyn Constraint>>,
    /// Whether an answer's thoughts and calls are told apart from its text.
    pub chat: bool,
    cache_name: Arc<str>,
}

/// A number that nobody can foresee, though not for secrets.
pub fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

impl Ask {
    /// Reads what all of OpenAI's routes have in common, apart from the number of tokens.
    pub fn of(fields: &mut Fields, host: &Host) -> Result<Ask, ApiError> {
        host.engine()?;
        let mut sampling = sampling(fields, host)?;
        penalties(fields, &mut sampling, host)?;
        let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
        sampling.seed = seed.unwrap_or_default() as u64;
        let stops = match fields.take("stop") {
            None => Vec::new(),
            Some(Value::String(s)) => vec![s],
            Some(Value::Array(list)) => texts("stop", &list)?,
            Some(other) => return Err(super::fields::wrong("stop", &other, "a string or an array of strings")),
        };
        let mut ends = host.texts.tokenizer.end_tokens().to_vec();
        if fields.flag("ignore_eos")?.unwrap_or(false) {
            ends.clear();
        }
        if let Some(list) = fields.array("stop_token_ids")? {
            ends.extend(host.texts.ids("stop_token_ids", &list, host.vocab())?);
        }
        let stream = fields.flag("stream")?.unwrap_or(false);
        let mut stream_usage = false;
        if let Some(options) = fields.take("stream_options") {
            if !stream {
                return Err(ApiError::field("stream_options", "stream_options needs stream: true"));
            }
            let mut options = Fields::of("stream_options".into(), options)?;
            stream_usage = options.flag("include_usage")?.unwrap_or(false);
            options.ignore(&["include_obfuscation"]);
            options.finish()?;
        }
        let salt = fields.string("cache_salt")?.unwrap_or_default();
        let format = format::openai(fields)?;
        refuse(fields)?;
        let n = fields.count("n", 16)?.unwrap_or(1);
        Ask {
            sampling,
            seeded: seed.is_some(),
            max_tokens: None,
            logprobs: None,
            stops: Vec::new(),
            ends,
            n,
            stream,
            stream_usage,
            tools: Tools::none(),
            format,
            constraint: None,
            chat: false,
            cache_name: salt.into(),
        }
        .stopping("stop", stops)
    }

    /// What Anthropic's and OpenAI's newer routes have: one answer, by these settings.
    pub fn one(fields: &mut Fields, host: &Host) -> Result<Ask, ApiError> {
        host.engine()?;
        let sampling = sampling(fields, host)?;
        for name in OF_OTHER_ROUTES {
            let changes_nothing = |v: &Value| is_empty(v) || v == false || v.as_f64() == Some(if name == "n" { 1.0 } else { 0.0 });
            fields.only(name, changes_nothing, "this route does not support it; /v1/chat/completions does")?;
        }
        let stream = fields.flag("stream")?.unwrap_or(false);
        let ends = host.texts.tokenizer.end_tokens().to_vec();
        Ok(Ask {
            sampling,
            seeded: false,
            max_tokens: None,
            logprobs: None,
            stops: vec![],
            ends,
            n: 1,
            stream,
            stream_usage: true,
            tools: Tools::none(),
            format: None,
            constraint: None,
            chat: true,
            cache_name: "".into(),
        })
    }

    /// With texts that end the answer, which a field of this name gave.
    pub fn stopping(self, name: &str, stops: Vec<String>) -> Result<Ask, ApiError> {
        if stops.len() > MAX_STOPS {
            return Err(ApiError::field(name, format!("{name} has {} texts; at most {MAX_STOPS} are supported", stops.len())));
        }
        if stops.iter().any(|s| s.is_empty() || s.len() > MAX_STOP_BYTES) {
            return Err(ApiError::field(name, format!("{name}: a text must have 1 to {MAX_STOP_BYTES} bytes")));
        }
        Ok(Ask { stops, ..self })
    }

    /// The same, as part of a conversation in which these functions may be called.
    pub fn chat(self, tools: Tools) -> Ask {
        Ask { tools, chat: true, ..self }
    }

    /// The same, with a form of the answer.
    pub fn format(self, format: Option<Wanted>) -> Ask {
        Ask { format, ..self }
    }

    /// The same, with what makes sure of the form of answers, or of their calls.
    pub fn constrained(self, host: &Host) -> Result<Ask, ApiError> {
        let wanted = match (&self.format, self.tools.forced()) {
            (None, false) => return Ok(self),
            (Some((_, name)), true) => {
                return Err(ApiError::field(name, format!("{name} cannot be combined with a forced tool call")));
            }
            (Some(wanted), _) => wanted.clone(),
            (None, true) => (Format::Schema(self.tools.schema()), "tool_choice".to_string()),
        };
        Ok(Ask { constraint: Some(host.constraint(&wanted)?), ..self })
    }

    /// A reader of the answer to this prompt.
    pub fn reader(&self, host: &Host, prompt: &[u32]) -> Result<AnswerReader<Arc<Tokenizer>>, ApiError> {
        let plain = || AnswerReader::plain(host.texts.tokenizer.clone());
        let tools = !self.tools.offered().is_empty();
        match self.chat {
            _ if self.tools.forced() => Ok(plain().answering(&[], true)?),
            true if tools || self.constraint.is_none() => host.texts.reader(prompt, tools),
            _ => Ok(plain()),
        }
    }

    /// The engine's request for answer `k` of these tokens, on behalf of a client.
    pub fn request(&self, prompt: &[u32], k: usize, client: &str) -> Request {
        let seed = if self.seeded { self.sampling.seed.wrapping_add(k as u64) } else { random() };
        let cache_name =
            if client.is_empty() && self.cache_name.is_empty() { "".into() } else { format!("{client}\n{}", self.cache_name).into() };
        Request {
            prompt: prompt.to_vec(),
            max_tokens: self.max_tokens.unwrap_or(usize::MAX),
            sampling: Sampling { seed, ..self.sampling.clone() },
            ends: self.ends.clone(),
            logprobs: self.logprobs,
            constraint: self.constraint.clone(),
            cache_name,
        }
    }
}

/// What a model's files say about sampling, for requests that say nothing. A file that does not sample leaves the temperature at OpenAI's 1.
pub fn usual_sampling(defaults: &GenerationDefaults) -> Sampling {
    let GenerationDefaults { temperature, top_k, top_p, min_p, repetition_penalty, .. } = *defaults;
    let usual = Sampling { temperature: 1.0, repetition_penalty, ..Sampling::default() };
    if temperature > 0.0 { Sampling { temperature, top_k, top_p, min_p, ..usual } } else { usual }
}

/// How tokens are chosen.
fn sampling(fields: &mut Fields, host: &Host) -> Result<Sampling, ApiError> {
    let usual = &host.sampling;
    let temperature = fields.number("temperature", 0.0..=2.0)?.unwrap_or(usual.temperature);
    let top_p = fields.number("top_p", 0.0..=1.0)?.unwrap_or(usual.top_p);
    // OpenAI's smallest value means the most likely token.
    let top_p = if top_p == 0.0 { 1e-6 } else { top_p };
    let min_p = fields.number("min_p", 0.0..=1.0)?.unwrap_or(usual.min_p);
    let top_k = fields.integer("top_k", -1..=i64::from(i32::MAX))?.map_or(usual.top_k, |k| k.max(0) as usize);
    let repetition_penalty = fields.number("repetition_penalty", 0.01..=10.0)?.unwrap_or(usual.repetition_penalty);
    Ok(Sampling { temperature, top_k, top_p, min_p, repetition_penalty, ..usual.clone() })
}

/// What changes the logits of single tokens.
fn penalties(fields: &mut Fields, sampling: &mut Sampling, host: &Host) -> Result<(), ApiError> {
    sampling.presence_penalty = fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0);
    sampling.frequency_penalty = fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0);
    let Some(bias) = fields.take("logit_bias") else { return Ok(()) };
    let Value::Object(bias) = bias else { return Err(super::fields::wrong("logit_bias", &bias, "an object")) };
    for (token, v) in bias {
        let name = format!("logit_bias[{token:?}]");
        let id = token.parse::<u32>().ok().filter(|&id| (id as usize) < host.vocab());
        let id = id.ok_or_else(|| ApiError::field("logit_bias", format!("{name}: expected a token below {}", host.vocab())))?;
        let bias = v.as_f64().filter(|b| (-100.0..=100.0).contains(b));
        let bias = bias.ok_or_else(|| ApiError::field("logit_bias", format!("{name} is {v}; expected -100 to 100")))?;
        sampling.bias.push((id, bias as f32));
    }
    Ok(())
}

/// Strings of a list.
pub fn texts(name: &str, list: &[Value]) -> Result<Vec<String>, ApiError> {
    let read =
        |(i, v): (usize, &Value)| v.as_str().map(String::from).ok_or_else(|| super::fields::wrong(&format!("{name}[{i}]"), v, "a string"));
    list.iter().enumerate().map(read).collect()
}

/// Refuses what would change the answer and is not supported, and leaves out what changes nothing.
fn refuse(fields: &mut Fields) -> Result<(), ApiError> {
    let one = |v: &Value| v.as_f64() == Some(1.0);
    fields.only("functions", is_empty, "use tools")?;
    fields.only("function_call", |v| matches!(v.as_str(), Some("none" | "auto")), "use tool_choice")?;
    fields.only("best_of", one, "only 1 is supported")?;
    fields.only("skip_special_tokens", |v| v == true, "only true is supported")?;
    fields.only("include_stop_str_in_output", |v| v == false, "only false is supported")?;
    fields.ignore(&["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"]);
    fields.ignore(&["priority", "request_id"]);
    Ok(())
}
