//! A lazy, fusing tensor engine for GPUs and CPUs, with language models on top.
#![doc = include_str!("../README.md")]
#![warn(clippy::missing_errors_doc)]
// A library says nothing on its own account: events and errors carry what there is to say.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod dtype;
pub mod error;
pub mod events;
pub mod layout;
#[doc(hidden)]
pub mod scalar;
pub mod shape;

pub mod plan;
#[doc(hidden)]
pub mod shader;
pub mod strategy;
pub mod tuning;

pub mod backends;
pub mod device;

pub mod tensor;

pub mod autograd;
mod compile;
pub mod cpu_fallback;
mod crossover;
pub mod diagnose;
pub mod eval;
pub mod metrics;
mod transfer;

mod display;
pub mod ops;
pub mod quant;

pub mod data;
pub mod distributed;
pub mod io;
pub mod leaks;
pub mod measure;
#[cfg(any(feature = "gpu", all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal))))]
pub mod metal;
pub mod models;
pub mod nn;
pub mod optim;
pub mod prelude;
pub mod profile;
pub mod serving;
#[cfg(feature = "text")]
pub mod text;
pub mod train;

pub use device::Device;
pub use dtype::{DType, Element};
pub use error::{TensorError, TensorResult};
pub use ops::random::{Rng, manual_seed};
pub use shape::Shape;
pub use strategy::PipelineStrategy;
pub use tensor::Tensor;

/// Pages whose code blocks are run with the tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../docs/chat.md")]
    mod chat {}
    #[doc = include_str!("../docs/custom-kernels.md")]
    mod custom_kernels {}
    #[doc = include_str!("../docs/distributed.md")]
    mod distributed {}
    #[doc = include_str!("../docs/fine-tuning.md")]
    mod fine_tuning {}
    #[doc = include_str!("../docs/serving.md")]
    mod serving {}
    #[doc = include_str!("../docs/training.md")]
    mod training {}
    #[doc = include_str!("../docs/guide/1-fusion.md")]
    mod fusion {}
    #[doc = include_str!("../docs/guide/2-memory.md")]
    mod memory {}
    #[doc = include_str!("../docs/guide/3-batches.md")]
    mod batches {}
    #[doc = include_str!("../docs/guide/4-precision.md")]
    mod precision {}
    #[doc = include_str!("../docs/guide/5-transfers.md")]
    mod transfers {}
    #[doc = include_str!("../docs/guide/6-profiling.md")]
    mod profiling {}
    #[doc = include_str!("../docs/guide/7-patterns.md")]
    mod patterns {}
    #[doc = include_str!("../docs/guide/9-troubleshooting.md")]
    mod troubleshooting {}
    #[doc = include_str!("../docs/guide/10-custom-kernels.md")]
    mod guide_custom_kernels {}
    #[doc = include_str!("../docs/guide/11-inference.md")]
    mod inference {}
    #[doc = include_str!("../docs/guide/12-byte-entropy.md")]
    mod byte_entropy {}
    #[doc = include_str!("../docs/guide/13-affine-quantization.md")]
    mod affine_quantization {}
    #[doc = include_str!("../docs/guide/14-strategies.md")]
    mod strategies {}
    #[doc = include_str!("../docs/guide/18-caches.md")]
    mod guide_caches {}
    #[doc = include_str!("../docs/guide/19-training-blocks.md")]
    mod training_blocks {}
    #[doc = include_str!("../docs/guide/15-memory-planning.md")]
    mod memory_planning {}
    #[doc = include_str!("../docs/guide/16-observability.md")]
    mod observability {}
    #[doc = include_str!("../docs/guide/17-diagnosis.md")]
    mod diagnosis {}
    #[doc = include_str!("../docs/guide/20-embeddings.md")]
    mod embeddings {}
    #[cfg(feature = "gpu")]
    #[doc = include_str!("../docs/metal.md")]
    mod metal {}
}
