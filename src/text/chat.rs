//! Chat templates: a conversation in, the text that the model was trained on out (Jinja, as transformers renders it).

use crate::error::{TensorError, TensorResult};
use minijinja::{Environment, ErrorKind, context};

/// One turn of a conversation.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: &str, content: &str) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// A model's chat template.
pub struct ChatTemplate {
    env: Environment<'static>,
}

/// The most instructions that a rendering may take.
const FUEL: u64 = 1_000_000;

impl ChatTemplate {
    /// Parses the template.
    pub fn new(source: &str) -> TensorResult<ChatTemplate> {
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_fuel(Some(FUEL));
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |text: String| -> Result<String, minijinja::Error> { Err(minijinja::Error::new(ErrorKind::InvalidOperation, text)) });
        env.add_template_owned("chat", source.to_string()).map_err(|e| bad(&e))?;
        Ok(ChatTemplate { env })
    }

    /// Renders a conversation. `start` asks for the beginning of the answer.
    pub fn render(&self, messages: &[Message], start: bool, bos: &str, eos: &str) -> TensorResult<String> {
        let template = self.env.get_template("chat").map_err(|e| bad(&e))?;
        template
            .render(context! { messages => messages, add_generation_prompt => start, bos_token => bos, eos_token => eos })
            .map_err(|e| bad(&e))
    }
}

fn bad(e: &minijinja::Error) -> TensorError {
    TensorError::format("chat template", e.to_string())
}
