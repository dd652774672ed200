//! Tokenizers. Chat templates have a program of their own, `tests/chat_template.rs`: they are timed.

mod pairs;
mod tokenizer;
