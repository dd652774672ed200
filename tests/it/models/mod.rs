//! Models: their files, settings and logits.

mod adapters;
mod architectures;
mod concurrent;
mod configurations;
mod convert;
mod encoders;
mod every_key;
mod experts;
mod full_memory;
mod gguf_decoders;
mod gguf_encoders;
mod gguf_keys;
mod gguf_layouts;
mod gguf_multipliers;
mod gguf_states;
#[cfg(feature = "images")]
mod images;
mod inference;
mod layouts;
mod model_files;
mod model_settings;
mod mutations;
mod parity;
mod seq2seq;
mod smollm2;
mod stages;
mod strategies;
mod supported;
mod text_side;
mod thread_counts;
mod tiny;
mod vision;
mod weight_types;
