//! Training.

mod encoder;
mod lanes;
mod training_examples;
mod training_parity;
