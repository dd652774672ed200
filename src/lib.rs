//! A lazy, fusing tensor engine for GPUs and CPUs, with language models on top.

pub mod dtype;
pub mod error;
pub mod layout;
pub mod shape;

pub mod backends;
pub mod ops;
pub mod plan;
pub mod scalar;

pub mod quant;
pub mod io;
pub mod text;

pub use dtype::{DType, Element};
pub use error::{TensorError, TensorResult};
pub use shape::Shape;
