//! Operations.

pub mod attention;
pub mod gather;
pub mod matmul;
pub mod norm;
pub mod reduce;
pub mod softmax;
