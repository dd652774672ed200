//! What the engine promises about itself, its layers, its kernels as source, the engine backend.

mod architecture;
mod buffer_orders;
mod documented;
mod examples;
mod function_length;
mod glossary;
mod idea_to_code;
mod kernel_numbers;
#[cfg(feature = "gpu")]
mod kernel_variants;
#[cfg(feature = "gpu")]
mod kernels;
#[cfg(feature = "gpu")]
mod metal;
mod package;
mod promises;
#[cfg(feature = "gpu")]
#[allow(dead_code)] // What only `cargo xtask` needs.
#[path = "../../../xtask/src/samples.rs"]
mod samples;
mod shader_sources;
mod source;
