//! What the engine promises about itself, its layers, its kernels as text, the engine backend.

mod architecture;
mod buffer_orders;
mod examples;
mod function_length;
#[cfg(feature = "gpu")]
mod idea_to_code;
mod kernel_ladder;
#[cfg(feature = "gpu")]
mod kernels;
#[cfg(feature = "gpu")]
mod metal;
mod promises;
#[cfg(feature = "gpu")]
#[allow(dead_code)] // What only `cargo xtask` needs.
#[path = "../../../xtask/src/samples.rs"]
mod samples;
mod shader_sources;
mod source;
