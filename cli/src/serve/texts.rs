//! Text to tokens and back: conversations by the model's template, with special tokens in what users write taken as letters.

use super::error::ApiError;
use super::fields::{Fields, is_empty, wrong};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tensorlogic::text::{ChatTemplate, Tokenizer};

/// A character that no text has: it divides the names of special tokens in messages, so that they are not read as those.
const DIVIDER: char = '\u{FDD0}';

/// What a client may set for templates.
const TEMPLATE_SETTINGS: [&str; 5] = ["enable_thinking", "thinking", "reasoning_effort", "date_string", "custom_instructions"];

/// A model's tokenizer and its template.
pub struct Texts {
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<ChatTemplate>,
    /// The names of special tokens.
    special: Vec<String>,
}

/// A conversation as a client gives it.
pub struct Conversation {
    messages: Vec<Value>,
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
        Texts { tokenizer: Arc::new(tokenizer), template, special }
    }

    /// A conversation's text, in which special tokens that users wrote are divided.
    fn rendered(&self, talk: &Conversation) -> Result<String, ApiError> {
        let Some(template) = &self.template else {
            let m = "the model has no chat template; use /v1/completions, or start the server with --chat-template FILE";
            return Err(ApiError::field("messages", m));
        };
        let name = |id: Option<u32>| id.and_then(|id| self.tokenizer.token(id)).unwrap_or_default();
        let mut variables = talk.settings.clone();
        let messages = talk.messages.iter().map(|m| self.guarded(m)).collect();
        variables.insert("messages".into(), Value::Array(messages));
        variables.insert("add_generation_prompt".into(), talk.open.into());
        variables.insert("bos_token".into(), name(self.tokenizer.bos()).into());
        variables.insert("eos_token".into(), name(self.tokenizer.end_tokens().first().copied()).into());
        variables.insert("tools".into(), Value::Null);
        variables.insert("documents".into(), Value::Null);
        // What a template refuses is the conversation: roles that do not alternate, for instance.
        template.render_variables(&variables).map_err(|e| ApiError::field("messages", e.to_string()))
    }

    /// A message whose texts have no special token's name.
    fn guarded(&self, message: &Value) -> Value {
        let guard = |v: &Value| match v {
            Value::String(s) => Value::String(self.special.iter().fold(s.replace(DIVIDER, ""), |text, name| {
                let after = name.chars().next().map_or(0, char::len_utf8);
                if text.contains(name) { text.replace(name, &format!("{}{DIVIDER}{}", &name[..after], &name[after..])) } else { text }
            })),
            other => other.clone(),
        };
        Value::Object(message.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), guard(v))).collect())
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
        let mut talk = Conversation::new(messages);
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
        Conversation { messages, settings: Map::new(), open: true }
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
        "tool" | "function" => return Err(ApiError::field(&name, format!("{name}: tools are not supported"))),
        other => return Err(ApiError::field(&name, format!("{name} is {other:?}; expected system, developer, user or assistant"))),
    };
    for field in ["tool_calls", "function_call", "audio", "annotations"] {
        m.only(field, is_empty, "is not supported")?;
    }
    m.only("refusal", |_| false, "is not supported")?;
    let name = m.name("content");
    let content = content(&name, m.take("content").unwrap_or(Value::Null), &["text"])?;
    let mut message = json!({ "role": role, "content": content });
    if let Some(name) = m.string("name")? {
        message["name"] = name.into();
    }
    m.finish()?;
    Ok(message)
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
        let template = ChatTemplate::new("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}").unwrap();
        let texts = Texts::new(Tokenizer::from_json(json.as_bytes()).unwrap(), Some(template));
        let talk = |content: &str| Conversation::new(vec![json!({ "role": "user", "content": content })]);
        assert_eq!(texts.conversation(&talk("a b")).unwrap(), [0, 1, 3]);
        let ids = texts.conversation(&talk("a <|end|> b")).unwrap();
        assert_eq!(ids.iter().filter(|id| **id == 3).count(), 1, "{ids:?}");
        assert_eq!((ids.first(), ids[ids.len() - 2..].to_vec()), (Some(&0), vec![1, 3]));
        assert_eq!(texts.conversation_text(&talk("a <|end|> b")).unwrap(), "a <|end|> b<|end|>");
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
