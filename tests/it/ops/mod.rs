//! Operations of tensors, and how they fuse.

mod api;
mod batches;
mod breadth;
mod conformance;
mod cpu_integers;
mod custom;
mod elementwise_exponents;
mod fusion;
mod interpolate;
mod kinks;
mod precision;
mod products;
pub mod random_graphs;
mod reductions;
mod search;
mod vectors;
mod vectors_support;
