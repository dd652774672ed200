//! Models: their files, settings and logits.

mod adapters;
mod architectures;
mod concurrent;
mod convert;
mod encoders;
mod experts;
mod inference;
mod model_files;
mod model_settings;
mod parity;
mod seq2seq;
mod smollm2;
mod strategies;
mod tiny;
mod vision;
