//! Text: tokenizers, streaming decoders and chat templates.
#![cfg(feature = "text")]

pub mod chat;
pub mod gguf;
pub mod learn;
pub mod stream;
pub mod tokenizer;

mod bigram;
mod hub;
mod jinja;
mod pipeline;
mod vocabulary;

pub use chat::{ChatTemplate, Message};
pub use stream::StreamDecoder;
pub use tokenizer::{Tokenizer, TokenizerMetadata};
