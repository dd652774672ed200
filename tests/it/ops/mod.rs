//! Operations of tensors, and how they fuse.

mod batches;
mod byte_entropy;
mod conformance;
mod custom;
mod elementwise_exponents;
mod fusion;
mod kinks;
mod precision;
mod products;
pub mod random_graphs;
mod reductions;
mod vectors;
mod vectors_support;
