//! Attention kernels on the GPU against f64 arithmetic.

mod decode;
mod prompts;

/// A score as the softmax takes it, where `c` is not 0.
fn capped(score: f64, c: f64) -> f64 {
    if c > 0.0 { c * (score / c).tanh() } else { score }
}
