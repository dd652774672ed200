//! The kernels of Apple's GPUs, executed on Linux: plans become WGSL, that becomes Metal's language as on a Mac, clang++ compiles it as C++
//! behind a stand-in for `<metal_stdlib>`, and fibers run it. See docs/metal.md, "What has been checked".
//!
//! Without clang++ 19 (`scripts/clang.sh`) these tests say so and pass, unless `TL_REQUIRE_MSL=1`.
#![cfg(all(feature = "gpu", feature = "text", unix, not(target_vendor = "apple"), any(target_arch = "x86_64", target_arch = "aarch64")))]

#[path = "../../xtask/src/apple_kernels.rs"]
mod apple_kernels;
mod apple_sources;
mod backend;
mod bodies;
mod clang;
mod common;
mod faults;
mod kernel;
#[allow(dead_code)] // Kernels for other GPUs, which `it` translates.
#[path = "../../xtask/src/kernels.rs"]
mod kernels;
mod record;
#[allow(dead_code)] // What only `cargo xtask` needs.
#[path = "../../xtask/src/samples.rs"]
mod samples;
mod source;
mod toolchain;
mod traps;
mod vectors;
#[path = "../it/ops/vectors_support/mod.rs"]
mod vectors_support;
mod work;

use samples::msl_kernel;

// The tests of the program `it` that open their GPU by `common`: here on the device that executes Metal sources.
#[path = "../it/ops/custom.rs"]
mod custom;
#[path = "../it/ops/fusion.rs"]
mod fusion;
#[path = "../it/autograd/gradients.rs"]
mod gradients;
#[path = "../it/models/parity.rs"]
mod parity;
#[path = "../it/ops/products.rs"]
mod products;
#[path = "../it/ops/reductions.rs"]
mod reductions;
#[path = "../it/models/tiny.rs"]
mod tiny;
#[path = "../it/train/training_parity.rs"]
mod training_parity;
