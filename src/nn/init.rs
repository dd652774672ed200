//! Initialisation of parameters.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::ops::random::Rng;
use crate::tensor::Tensor;

/// Uniform in `-bound..bound`, f32.
///
/// # Errors
/// When the shape has more than eight dimensions or too many elements.
pub fn uniform(shape: &[usize], bound: f64, rng: &mut Rng, device: &Device) -> TensorResult<Tensor> {
    rng.uniform(shape, DType::F32, device)?.mul(2.0 * bound)?.sub(bound)
}

/// Normal with mean 0, f32.
///
/// # Errors
/// When the shape has more than eight dimensions or too many elements.
pub fn normal(shape: &[usize], std: f64, rng: &mut Rng, device: &Device) -> TensorResult<Tensor> {
    rng.normal(shape, DType::F32, device)?.mul(std)
}

/// Uniform within √(6 / fan_in · 1/(1 + a²)) with a = √5, like PyTorch's linear and convolution layers (He et al., 2015).
///
/// # Errors
/// When the shape has more than eight dimensions or too many elements.
pub fn kaiming_uniform(shape: &[usize], fan_in: usize, rng: &mut Rng, device: &Device) -> TensorResult<Tensor> {
    uniform(shape, (1.0 / fan_in.max(1) as f64).sqrt(), rng, device)
}

/// Uniform within √(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).
///
/// # Errors
/// When the shape has more than eight dimensions or too many elements.
pub fn xavier_uniform(shape: &[usize], fan_in: usize, fan_out: usize, rng: &mut Rng, device: &Device) -> TensorResult<Tensor> {
    uniform(shape, (6.0 / (fan_in + fan_out).max(1) as f64).sqrt(), rng, device)
}
