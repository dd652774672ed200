//! A lazy, fusing tensor engine for GPUs and CPUs, with language models on top.

pub mod backends;
pub mod dtype;
pub mod error;
pub mod layout;
pub mod plan;
pub mod quant;
pub mod scalar;
pub mod shape;

pub use dtype::{DType, Element};
pub use error::{TensorError, TensorResult};
pub use shape::Shape;
