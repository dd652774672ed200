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
///
/// ```
/// # use tensorlogic::prelude::*;
/// use tensorlogic::nn::init;
///
/// let w = init::uniform(&[20, 50], 0.5, &mut Rng::new(1), &Device::cpu())?.to_vec()?;
/// assert!(w.iter().all(|v| (-0.5..0.5).contains(v)));
/// # Ok::<(), TensorError>(())
/// ```
pub fn uniform(shape: &[usize], bound: f64, rng: &mut Rng, device: &Device) -> TensorResult<Tensor> {
    rng.uniform(shape, DType::F32, device)?.mul(2.0 * bound)?.sub(bound)
}

/// Normal with mean 0, f32.
///
/// # Errors
/// When the shape has more than eight dimensions or too many elements.
///
/// ```
/// # use tensorlogic::prelude::*;
/// use tensorlogic::nn::init;
///
/// let w = init::normal(&[100, 100], 0.02, &mut Rng::new(1), &Device::cpu())?;
/// assert!((w.std(&[], 0, false)?.item()? - 0.02).abs() < 0.002);
/// # Ok::<(), TensorError>(())
/// ```
pub fn normal(shape: &[usize], std: f64, rng: &mut Rng, device: &Device) -> TensorResult<Tensor> {
    rng.normal(shape, DType::F32, device)?.mul(std)
}

/// Uniform within √(6 / fan_in · 1/(1 + a²)) with a = √5, like PyTorch's linear and convolution layers (He et al., 2015).
///
/// # Errors
/// When the shape has more than eight dimensions or too many elements.
///
/// ```
/// # use tensorlogic::prelude::*;
/// use tensorlogic::nn::init;
///
/// let w = init::kaiming_uniform(&[64, 16], 16, &mut Rng::new(1), &Device::cpu())?;
/// let largest = w.abs()?.max_all()?.item()?;
/// assert!(largest > 0.2 && largest <= 0.25); // within 1/√16
/// # Ok::<(), TensorError>(())
/// ```
pub fn kaiming_uniform(shape: &[usize], fan_in: usize, rng: &mut Rng, device: &Device) -> TensorResult<Tensor> {
    uniform(shape, (1.0 / fan_in.max(1) as f64).sqrt(), rng, device)
}

/// Uniform within √(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).
///
/// # Errors
/// When the shape has more than eight dimensions or too many elements.
///
/// ```
/// # use tensorlogic::prelude::*;
/// use tensorlogic::nn::init;
///
/// let w = init::xavier_uniform(&[14, 10], 10, 14, &mut Rng::new(1), &Device::cpu())?;
/// assert!(w.abs()?.max_all()?.item()? <= 0.5); // √(6 / 24)
/// # Ok::<(), TensorError>(())
/// ```
pub fn xavier_uniform(shape: &[usize], fan_in: usize, fan_out: usize, rng: &mut Rng, device: &Device) -> TensorResult<Tensor> {
    uniform(shape, (6.0 / (fan_in + fan_out).max(1) as f64).sqrt(), rng, device)
}
