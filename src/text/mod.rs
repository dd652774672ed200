//! Text: tokenizers, streaming decoders and chat templates.
#![cfg(feature = "text")]

pub mod answer;
pub mod chat;
pub mod gguf;
pub mod learn;
pub mod stream;
pub mod tokenizer;
pub mod tool_call;

mod bigram;
mod hub;
mod jinja;
mod pipeline;
mod vocabulary;

pub use answer::{AnswerPart, AnswerReader};
pub use chat::{ChatTemplate, Message};
pub use stream::StreamDecoder;
pub use tokenizer::{Tokenizer, TokenizerMetadata};
pub use tool_call::{ToolCall, tool_calls};
