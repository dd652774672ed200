//! The language: each op's meaning, kernel and methods in one file. This is the list.

pub mod activation;
pub mod attention;
pub mod convolution;
pub mod create;
pub mod cross_entropy;
pub mod custom;
pub mod cutoff;
pub mod einsum;
pub mod elementwise;
pub mod fused;
pub mod gather;
pub mod index_add;
pub mod join;
pub mod linear_algebra;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod pad;
pub mod random;
pub mod reduce;
pub mod rope;
pub mod scan;
pub mod softmax;
pub mod sort;
#[cfg(all(test, feature = "gpu"))]
mod tests;
pub mod unpack;
pub mod view;
pub mod write;

pub use elementwise::{Lit, Rhs};
pub use fused::Activation;
