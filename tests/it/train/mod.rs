//! Training.

mod training_examples;
mod training_parity;
