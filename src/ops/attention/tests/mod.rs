//! Attention kernels on the GPU against f64 arithmetic.

mod decode;
mod prompts;
