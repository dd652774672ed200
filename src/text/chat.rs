//! `ChatTemplate`: a conversation as the text that a model was trained on.

use std::path::Path;

use serde_json::{Map, Value};

use super::jinja::{Body, RenderLimits, parse, render};
use crate::error::{TensorError, TensorResult};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// A Jinja chat template, as `tokenizer_config.json`, `chat_template.jinja` and GGUF's `tokenizer.chat_template` carry it.
///
/// It runs with Python's semantics and the settings that `transformers` uses. Templates come with downloaded models, so they
/// are not trusted: steps, memory and output are bounded, and nothing outside the given variables can be reached.
pub struct ChatTemplate {
    body: Body,
    source: String,
}

/// A template is a few KiB; anything larger is not one.
const MAX_SOURCE: usize = 256 << 10;
/// The step limit of a render: for an empty conversation, and per byte of the conversation.
const RENDER_STEPS: (usize, usize) = (500_000, 4);
const BYTES: (usize, usize) = (8 << 20, 64);
const OUTPUT: (usize, usize) = (1 << 20, 4);

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the template is larger than 256 KiB or cannot be parsed.
    ///
    /// ```
    /// use tensorlogic::text::ChatTemplate;
    ///
    /// let template = ChatTemplate::new("{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}; {% endfor %}")?;
    /// assert!(template.mentions("bos_token") && !template.mentions("tools"));
    /// assert!(ChatTemplate::new("{% for %}").is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn new(source: &str) -> TensorResult<Self> {
        if source.len() > MAX_SOURCE {
            return Err(TensorError::format("chat template", format!("it has {} bytes, more than {MAX_SOURCE}", source.len())));
        }
        let body = parse(source).map_err(|message| TensorError::format("chat template", message))?;
        Ok(ChatTemplate { body, source: source.to_string() })
    }

    /// The template of a model folder as on the Hub: `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`.
    /// `None` if it has neither.
    ///
    /// # Errors
    /// [`TensorError::Format`] where `tokenizer_config.json` is not JSON; those of [`ChatTemplate::new`]. A file that cannot be read counts
    /// as missing.
    ///
    /// ```
    /// use tensorlogic::text::ChatTemplate;
    ///
    /// let folder = std::env::temp_dir().join(format!("tl-doc-chat-template-{}", std::process::id()));
    /// std::fs::create_dir_all(&folder)?;
    /// assert!(ChatTemplate::from_folder(&folder)?.is_none());
    /// std::fs::write(folder.join("tokenizer_config.json"), r#"{"chat_template": "{{ messages[0].content }}"}"#)?;
    /// assert_eq!(ChatTemplate::from_folder(&folder)?.expect("a template").source(), "{{ messages[0].content }}");
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_folder(folder: impl AsRef<Path>) -> TensorResult<Option<Self>> {
        let folder = folder.as_ref();
        if let Ok(source) = std::fs::read_to_string(folder.join("chat_template.jinja")) {
            return Self::new(&source).map(Some);
        }
        let path = folder.join("tokenizer_config.json");
        let Ok(bytes) = std::fs::read(&path) else { return Ok(None) };
        let config: Value = serde_json::from_slice(&bytes).map_err(|e| TensorError::format("tokenizer_config.json", e.to_string()))?;
        let source = match config.get("chat_template") {
            Some(Value::String(source)) => Some(source.as_str()),
            // Several templates by name.
            Some(Value::Array(list)) => {
                let named = list.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"));
                named.and_then(|t| t.get("template")).and_then(Value::as_str)
            }
            _ => None,
        };
        source.map(Self::new).transpose()
    }

    /// Whether the template names this variable, such as `tools`: one that it does not name changes nothing.
    pub fn mentions(&self, variable: &str) -> bool {
        self.source.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == variable)
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The conversation as text. `add_generation_prompt` ends it where the assistant begins to speak. `bos` and `eos` are the texts
    /// of the begin and end tokens, and `tools` a list of functions in OpenAI's format.
    ///
    /// The text already has the special tokens it needs: encode it with `encode_with(text, false, true)`.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::render_variables`].
    ///
    /// ```
    /// use tensorlogic::text::{ChatTemplate, Message};
    ///
    /// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    /// let text = ChatTemplate::new(source)?.render(&[Message::new("user", "Hello!")], true, "<s>", "</s>", None)?;
    /// assert_eq!(text, "<user>Hello!<assistant>");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        bos: &str,
        eos: &str,
        tools: Option<&Value>,
    ) -> TensorResult<String> {
        let messages: Vec<Value> = messages.iter().map(|m| serde_json::json!({ "role": m.role, "content": m.content })).collect();
        let mut variables = Map::new();
        variables.insert("tools".into(), tools.cloned().unwrap_or(Value::Null));
        self.render_messages(&messages, add_generation_prompt, bos, eos, variables)
    }

    /// Like [`ChatTemplate::render`] with messages as JSON, which may have `tool_calls` and `reasoning_content`, and with further variables, such as
    /// `tools` and `enable_thinking`.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::render_variables`].
    ///
    /// ```
    /// use serde_json::{Map, json};
    /// use tensorlogic::text::ChatTemplate;
    /// let template = ChatTemplate::new("{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}!{% endif %}{% endfor %}")?;
    /// let call = json!({ "function": { "name": "f", "arguments": {} } });
    /// let messages = [json!({ "role": "assistant", "content": "x", "tool_calls": [call] })];
    /// assert_eq!(template.render_messages(&messages, false, "", "", Map::new())?, "assistant: x!");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn render_messages(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        bos: &str,
        eos: &str,
        mut variables: Map<String, Value>,
    ) -> TensorResult<String> {
        variables.insert("messages".into(), Value::Array(messages.to_vec()));
        variables.insert("add_generation_prompt".into(), Value::Bool(add_generation_prompt));
        variables.insert("bos_token".into(), Value::String(bos.into()));
        variables.insert("eos_token".into(), Value::String(eos.into()));
        variables.entry("tools").or_insert(Value::Null);
        variables.entry("documents").or_insert(Value::Null);
        self.render_variables(&variables)
    }

    /// Like [`ChatTemplate::render`] with any variables: messages with tool calls, `enable_thinking`, `date_string` and so on.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the template raises an error, does what is not allowed, or exceeds a limit of steps, memory or output.
    ///
    /// ```
    /// use serde_json::{Map, json};
    /// use tensorlogic::text::ChatTemplate;
    ///
    /// let template = ChatTemplate::new("Today is {{ date_string }}.{% if enable_thinking %} Think first.{% endif %}")?;
    /// let variables = Map::from_iter([("date_string".to_string(), json!("Monday")), ("enable_thinking".to_string(), json!(true))]);
    /// assert_eq!(template.render_variables(&variables)?, "Today is Monday. Think first.");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn render_variables(&self, variables: &Map<String, Value>) -> TensorResult<String> {
        let size: usize = variables.iter().map(|(k, v)| k.len() + size_of_json(v)).sum();
        let limit = |(base, each): (usize, usize)| size.saturating_mul(each).saturating_add(base);
        let output = OUTPUT.0.max(size.saturating_mul(OUTPUT.1));
        let limits = RenderLimits { steps: limit(RENDER_STEPS), bytes: limit(BYTES), output };
        render(&self.body, variables, &limits).map_err(|message| TensorError::format("chat template", message))
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish()
    }
}

/// About how many bytes a JSON value has as text.
fn size_of_json(value: &Value) -> usize {
    match value {
        Value::String(s) => s.len() + 2,
        Value::Array(a) => a.iter().map(size_of_json).sum::<usize>() + 2,
        Value::Object(o) => o.iter().map(|(k, v)| k.len() + size_of_json(v) + 4).sum::<usize>() + 2,
        _ => 5,
    }
}
