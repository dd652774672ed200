//! Text: tokenizers and streaming decoders.
#![cfg(feature = "text")]

pub mod chat;
pub mod stream;
pub mod tokenizer;

mod bigram;
mod hub;
mod pipeline;
mod vocabulary;

pub use chat::{ChatTemplate, Message};
pub use stream::StreamDecoder;
pub use tokenizer::{Tokenizer, TokenizerMetadata};
