//! The language: each op's meaning, kernel and methods in one file. This is the list.

pub(crate) mod activation;
pub mod affine;
pub(crate) mod arithmetic;
pub mod attention;
pub mod byte_entropy;
pub(crate) mod cat;
pub mod convolution;
pub(crate) mod create;
pub(crate) mod cross_entropy;
pub mod custom;
pub(crate) mod cutoff;
pub(crate) mod einsum;
pub(crate) mod elementwise;
pub(crate) mod expert_matmul;
pub(crate) mod fft;
pub(crate) mod float_bits;
pub(crate) mod fused;
pub(crate) mod gather;
pub mod index;
pub mod index_add;
pub mod interpolate;
pub(crate) mod linear_algebra;
pub(crate) mod linear_scan;
#[cfg(test)]
#[path = "tests/locations.rs"]
mod locations;
pub mod loss;
pub(crate) mod matmul;
pub(crate) mod named;
pub(crate) mod norm;
pub mod operators;
pub mod pad;
pub mod random;
pub(crate) mod reduce;
pub mod rope;
pub(crate) mod scan;
pub(crate) mod search;
pub mod sizes;
pub(crate) mod softmax;
pub(crate) mod sort;
#[cfg(all(test, feature = "gpu"))]
mod tests;
pub(crate) mod topk;
pub(crate) mod unpack;
pub mod values;
pub(crate) mod view;
pub(crate) mod write;

pub use attention::{AttentionDropout, AttentionOptions};
pub use convolution::{ConvOptions, Divisor, WindowOptions};
pub use elementwise::{Lit, Rhs};
pub use fused::Activation;
pub use index::{Pick, Picks};
pub use index_add::Combine;
pub use interpolate::{Interpolation, Resize};
pub use loss::{NllOptions, Reduction};
pub use pad::PadMode;
pub use random::{Rng, manual_seed};
pub use rope::RopePairs;
pub use sizes::{Size, Sizes};
pub use values::{Value, Values};

/// Kernels by themselves, for `cargo xtask kernels`, which writes the variants of their shaders. No part of the API.
#[doc(hidden)]
pub mod kernels {
    pub use crate::ops::affine::params::affine_params;
    pub use crate::ops::cross_entropy::CrossEntropyKernel;
    pub use crate::ops::cutoff::Cutoff;
    pub use crate::ops::matmul::fused_gemv::FusedGemvKernel;
    pub use crate::ops::norm::NormKernel;
    pub use crate::ops::norm::grad::NormGradKernel;
    pub use crate::ops::reduce::{ReduceKernel, ReduceOp};
    pub use crate::ops::softmax::SoftmaxKernel;
    pub use crate::ops::unpack::Unpack;
}
