mod common;
#[path = "it/serving/engine.rs"]
mod engine;
