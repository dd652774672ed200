//! The tests that share a process: what `X` is for is found in the folder of `X`, in a file of its name.
//!
//! Programs of their own are beside this folder: they count what a device does or holds, measure time, replace the allocator, or start themselves.
//! `cargo test --test it ops::fusion` runs one file.

#[path = "../common/mod.rs"]
mod common;
#[path = "../conformance_support/mod.rs"]
mod conformance_support;
#[cfg(feature = "gpu")]
#[allow(dead_code)] // What only timing needs.
#[path = "../../benches/kernels/mod.rs"]
mod kernels;
#[cfg(feature = "text")]
#[path = "../text_support/mod.rs"]
mod text_support;

mod autograd;
mod engine;
mod models;
mod ops;
mod quant;
mod serving;
#[cfg(feature = "text")]
mod text;
mod threads;
mod train;
