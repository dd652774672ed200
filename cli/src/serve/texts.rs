//! Text to tokens and back: conversations by the model's template, with special tokens in what users write taken as letters.

use super::calls::as_text;
use super::error::ApiError;
use super::fields::{Fields, is_empty, wrong};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use tensorlogic::text::{AnswerReader, ChatTemplate, Tokenizer};

/// A character that no text has: it divides the names of special tokens in messages, so that they are not read as those.
const DIVIDER: char = '\u{FDD0}';

/// What a client may set for templates.
const TEMPLATE_SETTINGS: [&str; 5] = ["enable_thinking", "thinking", "reasoning_effort", "date_string", "custom_instructions"];

/// A model's tokenizer and its template.
pub struct Texts {
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<ChatTemplate>,
    /// What knows the marks of calls and thoughts in answers: the template, and where that knows no functions, the marks of which it is told.
    marks: Option<ChatTemplate>,
    /// The names of special tokens.
    special: Vec<String>,
}

/// The marks of calls in answers of models whose template knows no functions.
const CALL_MARKS: &str = "<tool_call></tool_call>";

/// A conversation as a client gives it.
pub struct Conversation {
    messages: Vec<Value>,
    /// Functions that the model may call, in OpenAI's form.
    pub tools: Vec<Value>,
    /// Further variables of the template.
    settings: Map<String, Value>,
    /// Whether the model is to speak next.
    open: bool,
}

impl Texts {
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Texts {
        let ids = 0..tokenizer.vocab_size() as u32;
        let special = ids.filter(|&id| tokenizer.is_special(id)).filter_map(|id| tokenizer.token(id).map(String::from));
        // A name of one letter cannot be divided, and is no name that a user would have to be kept from.
        let special = special.filter(|s| s.chars().count() > 1).collect();
        let marks = template.as_ref().filter(|t| !t.mentions("tools")).map(ChatTemplate::source).unwrap_or_default();
        let marks = ChatTemplate::new(&format!("{{# {CALL_MARKS} #}}{marks}")).ok();
        Texts { tokenizer: Arc::new(tokenizer), template, marks, special }
    }

    /// A reader of the answer to this prompt.
    pub fn reader(&self, prompt: &[u32], tools: bool) -> Result<AnswerReader<Arc<Tokenizer>>, ApiError> {
        let native = self.template.as_ref().filter(|t| !tools || t.mentions("tools"));
        Ok(AnswerReader::new(self.tokenizer.clone(), native.or(self.marks.as_ref())).answering(prompt, tools)?)
    }

    /// A conversation's text, in which special tokens that users wrote are divided.
    fn rendered(&self, talk: &Conversation) -> Result<String, ApiError> {
        let Some(template) = &self.template else {
            let m = "the model has no chat template; use /v1/completions, or start the server with --chat-template FILE";
            return Err(ApiError::field("messages", m));
        };
        let name = |id: Option<u32>| id.and_then(|id| self.tokenizer.token(id)).unwrap_or_default();
        let guarded = |(name, v): (&String, &Value)| (name.clone(), self.guarded(v));
        let mut variables: Map<String, Value> = talk.settings.iter().map(guarded).collect();
        let mut messages: Vec<Value> = talk.messages.iter().map(|m| self.guarded(m)).collect();
        let mut tools: Vec<Value> = talk.tools.iter().map(|t| self.guarded(t)).collect();
        let calls = |m: &Value| m["role"] == "tool" || m["tool_calls"].is_array();
        if !template.mentions("tools") && (!tools.is_empty() || messages.iter().any(calls)) {
            messages = as_text(messages, &tools);
            tools.clear();
        }
        variables.insert("messages".into(), Value::Array(messages));
        variables.insert("add_generation_prompt".into(), talk.open.into());
        variables.insert("bos_token".into(), name(self.tokenizer.bos()).into());
        variables.insert("eos_token".into(), name(self.tokenizer.end_tokens().first().copied()).into());
        variables.insert("tools".into(), if tools.is_empty() { Value::Null } else { Value::Array(tools) });
        variables.insert("documents".into(), Value::Null);
        // What a template refuses is the conversation: roles that do not alternate, for instance.
        template.render_variables(&variables).map_err(|e| ApiError::field("messages", e.to_string()))
    }

    /// A message, a function or a setting whose texts and keys have no special token's name.
    fn guarded(&self, value: &Value) -> Value {
        match value {
            Value::String(s) => Value::String(self.divided(s)),
            Value::Array(list) => list.iter().map(|v| self.guarded(v)).collect(),
            Value::Object(map) => Value::Object(map.iter().map(|(k, v)| (self.divided(k), self.guarded(v))).collect()),
            other => other.clone(),
        }
    }

    /// A text in which the names of special tokens are divided.
    fn divided(&self, text: &str) -> String {
        self.special.iter().fold(text.replace(DIVIDER, ""), |text, name| {
            let after = name.chars().next().map_or(0, char::len_utf8);
            if text.contains(name) { text.replace(name, &format!("{}{DIVIDER}{}", &name[..after], &name[after..])) } else { text }
        })
    }

    /// A conversation as the text that the model reads.
    pub fn conversation_text(&self, talk: &Conversation) -> Result<String, ApiError> {
        Ok(self.rendered(talk)?.replace(DIVIDER, ""))
    }

    /// A conversation as tokens.
    pub fn conversation(&self, talk: &Conversation) -> Result<Vec<u32>, ApiError> {
        let text = self.rendered(talk)?;
        let mut ids = Vec::new();
        for part in text.split(DIVIDER).filter(|part| !part.is_empty()) {
            // Templates write the begin token themselves.
            ids.extend(self.tokenizer.encode_with(part, false, true).map_err(|e| ApiError::bad(e.to_string()))?);
        }
        Ok(ids)
    }

    /// A text that is to be continued, as tokens.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ApiError> {
        self.tokenizer.encode(text, add_special).map_err(|e| ApiError::bad(e.to_string()))
    }

    /// Tokens that a client gives, which must be the model's.
    pub fn ids(&self, name: &str, list: &[Value], vocab: usize) -> Result<Vec<u32>, ApiError> {
        let read = |(i, v): (usize, &Value)| match v.as_u64() {
            Some(id) if (id as usize) < vocab => Ok(id as u32),
            Some(id) => Err(ApiError::field(name, format!("{name}[{i}] is token {id}; the vocabulary has {vocab}"))),
            None => Err(wrong(&format!("{name}[{i}]"), v, "a token")),
        };
        list.iter().enumerate().map(read).collect()
    }

    /// A token's text, as it stands alone; a part of a character becomes U+FFFD.
    pub fn token_text(&self, id: u32) -> String {
        self.tokenizer.decode(&[id], false).unwrap_or_default()
    }
}

impl Conversation {
    /// Of these fields: `messages`, and settings for the template.
    pub fn of(fields: &mut Fields) -> Result<Conversation, ApiError> {
        let list = fields.array("messages")?.ok_or_else(|| ApiError::field("messages", "messages is missing"))?;
        if list.is_empty() {
            return Err(ApiError::field("messages", "messages is empty; give at least one"));
        }
        let messages = list.into_iter().enumerate().map(|(i, m)| message(format!("messages[{i}]"), m)).collect::<Result<_, _>>()?;
        let mut talk = Conversation::new(named_results(messages));
        talk.open = fields.flag("add_generation_prompt")?.unwrap_or(true);
        if let Some(given) = fields.take("chat_template_kwargs") {
            let mut given = Fields::of("chat_template_kwargs".into(), given)?;
            for name in TEMPLATE_SETTINGS {
                if let Some(v) = given.take(name) {
                    talk.settings.insert(name.into(), v);
                }
            }
            given.finish()?;
        }
        Ok(talk)
    }

    pub fn new(messages: Vec<Value>) -> Conversation {
        Conversation { messages, tools: Vec::new(), settings: Map::new(), open: true }
    }
}

/// A message in OpenAI's form as templates read it.
fn message(path: String, value: Value) -> Result<Value, ApiError> {
    let mut m = Fields::of(path, value)?;
    let name = m.name("role");
    let role = m.string("role")?.ok_or_else(|| ApiError::field(&name, format!("{name} is missing")))?;
    let role = match role.as_str() {
        "developer" | "system" => "system",
        "user" | "assistant" => &role,
        "tool" => "tool",
        other => return Err(ApiError::field(&name, format!("{name} is {other:?}; expected system, developer, user, assistant or tool"))),
    };
    let calls = match role {
        "assistant" => m.array("tool_calls")?.unwrap_or_default(),
        _ => Vec::new(),
    };
    let list = m.name("tool_calls");
    let calls = calls.into_iter().enumerate().map(|(i, c)| tool_call(format!("{list}[{i}]"), c)).collect::<Result<Vec<_>, _>>()?;
    for field in ["tool_calls", "function_call", "audio", "annotations"] {
        m.only(field, is_empty, "is not supported")?;
    }
    m.only("refusal", |_| false, "is not supported")?;
    // What an answer of ours had; templates leave it out themselves.
    let thought = m.string("reasoning_content")?.filter(|_| role == "assistant");
    let name = m.name("content");
    let content = match m.take("content") {
        // An answer that is nothing but calls has no content.
        None if !calls.is_empty() => String::new(),
        given => content(&name, given.unwrap_or(Value::Null), &["text"])?,
    };
    let mut message = json!({ "role": role, "content": content });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    if let Some(thought) = thought {
        message["reasoning_content"] = thought.into();
    }
    if role == "tool" {
        let name = m.name("tool_call_id");
        let id = m.string("tool_call_id")?.ok_or_else(|| ApiError::field(&name, format!("{name} is missing")))?;
        message["tool_call_id"] = id.into();
    }
    if let Some(name) = m.string("name")? {
        message["name"] = name.into();
    }
    m.finish()?;
    Ok(message)
}

/// A call in a message as templates read it: its arguments are an object.
fn tool_call(path: String, value: Value) -> Result<Value, ApiError> {
    let mut call = Fields::of(path, value)?;
    call.only("type", |t| t == "function", "only \"function\" is supported")?;
    call.ignore(&["index"]);
    let id = call.string("id")?.unwrap_or_default();
    let name = call.name("function");
    let mut own = Fields::of(name.clone(), call.take("function").ok_or_else(|| ApiError::field(&name, format!("{name} is missing")))?)?;
    call.finish()?;
    let name = own.name("name");
    let function = own.string("name")?.ok_or_else(|| ApiError::field(&name, format!("{name} is missing")))?;
    let arguments = own.string("arguments")?.unwrap_or_default();
    own.finish()?;
    Ok(call_message(&id, &function, &arguments))
}

/// A call of an assistant's message as templates read it; arguments that are no JSON stay text.
pub fn call_message(id: &str, name: &str, arguments: &str) -> Value {
    let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| Value::String(arguments.into()));
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// Messages whose results have the names of the functions that were called, which some templates write.
pub fn named_results(mut messages: Vec<Value>) -> Vec<Value> {
    let mut names: HashMap<String, Value> = HashMap::new();
    for m in &mut messages {
        for call in m["tool_calls"].as_array().into_iter().flatten() {
            names.insert(call["id"].as_str().unwrap_or_default().into(), call["function"]["name"].clone());
        }
        if m["role"] == "tool" && m["name"].is_null() {
            m["name"] = m["tool_call_id"].as_str().and_then(|id| names.get(id)).cloned().unwrap_or_else(|| "function".into());
        }
    }
    messages
}

/// The text of a message's content: a string, or a list of parts of these types.
pub fn content(name: &str, value: Value, types: &[&str]) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Null => Err(ApiError::field(name, format!("{name} is missing"))),
        Value::Array(parts) => {
            let mut text = String::new();
            for (i, part) in parts.into_iter().enumerate() {
                let mut part = Fields::of(format!("{name}[{i}]"), part)?;
                let own = part.name("type");
                let kind = part.string("type")?.unwrap_or_default();
                if !types.contains(&kind.as_str()) {
                    return Err(ApiError::field(&own, format!("{own} is {kind:?}; the model reads text only")));
                }
                part.ignore(&["annotations", "logprobs", "cache_control", "prompt_cache_breakpoint"]);
                let own = part.name("text");
                text += &part.string("text")?.ok_or_else(|| ApiError::field(&own, format!("{own} is missing")))?;
                part.finish()?;
            }
            Ok(text)
        }
        other => Err(wrong(name, &other, "a string or a list of parts")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_that_users_write_end_no_turn() {
        let json = r#"{"version": "1.0", "added_tokens": [{"id": 3, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "WordLevel", "unk_token": "<unk>",
            "vocab": {"a": 0, "b": 1, "<unk>": 2, "<|end|>": 3}}}"#;
        let template =
            "{{ date_string }}{% for m in messages %}{{ m.content }}<|end|>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}";
        let template = ChatTemplate::new(template).unwrap();
        let texts = Texts::new(Tokenizer::from_json(json.as_bytes()).unwrap(), Some(template));
        let talk = |content: &str| Conversation::new(vec![json!({ "role": "user", "content": content })]);
        assert_eq!(texts.conversation(&talk("a b")).unwrap(), [0, 1, 3]);
        let ids = texts.conversation(&talk("a <|end|> b")).unwrap();
        assert_eq!(ids.iter().filter(|id| **id == 3).count(), 1, "{ids:?}");
        assert_eq!((ids.first(), ids[ids.len() - 2..].to_vec()), (Some(&0), vec![1, 3]));
        assert_eq!(texts.conversation_text(&talk("a <|end|> b")).unwrap(), "a <|end|> b<|end|>");
        // Nor in the names of arguments and in settings.
        let mut named = talk("a b");
        named.tools = vec![json!({ "type": "function", "function": { "name": "f", "parameters": { "properties": { "<|end|>": {} } } } })];
        named.settings.insert("date_string".into(), "<|end|>".into());
        let ids = texts.conversation(&named).unwrap();
        assert_eq!(ids.iter().filter(|id| **id == 3).count(), 1, "{ids:?}");
        // The divider itself cannot be used to get around this.
        let ids = texts.conversation(&talk("a <|e\u{FDD0}nd|> b")).unwrap();
        assert_eq!(ids.iter().filter(|id| **id == 3).count(), 1, "{ids:?}");
    }

    #[test]
    fn contents_are_texts() {
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        assert_eq!(content("c", parts, &["text"]).unwrap(), "ab");
        let image = json!([{ "type": "image_url", "image_url": { "url": "http://127.0.0.1/" } }]);
        assert_eq!(content("c", image, &["text"]).unwrap_err().param.as_deref(), Some("c[0].type"));
        assert_eq!(content("c", json!(7), &["text"]).unwrap_err().message, "c is an integer; expected a string or a list of parts");
    }
}
