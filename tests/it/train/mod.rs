//! Training.

mod encoder;
mod training_examples;
mod training_parity;
