//! A lazy, fusing tensor engine for GPUs and CPUs, with language models on top.
#![doc = include_str!("../README.md")]

pub mod dtype;
pub mod error;
pub mod layout;
pub mod scalar;
pub mod shape;

pub mod plan;

pub mod backends;
pub mod device;

pub mod tensor;

pub mod adaptive;
pub mod autograd;
mod compile;
pub mod eval;
mod transfer;

mod display;
pub mod ops;
pub mod quant;

pub mod io;
pub mod measure;
#[cfg(feature = "gpu")]
pub mod metal;
pub mod models;
pub mod nn;
pub mod optim;
pub mod profile;
#[cfg(feature = "text")]
pub mod text;

pub use device::Device;
pub use dtype::{DType, Element};
pub use error::{TensorError, TensorResult};
pub use ops::random::Rng;
pub use shape::Shape;
pub use tensor::Tensor;
