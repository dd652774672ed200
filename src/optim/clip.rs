//! Gradient clipping.

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::nn::Param;
use crate::ops::Lit;
use crate::tensor::Tensor;

/// The global norm of all tensors, f32.
pub(super) fn norm_of(grads: &[Tensor]) -> TensorResult<Tensor> {
    let mut sum: Option<Tensor> = None;
    for g in grads {
        let g = g.cast(DType::F32)?;
        let s = g.mul(&g)?.sum_all()?;
        sum = Some(match sum {
            Some(t) => t.add(&s)?,
            None => s,
        });
    }
    match sum {
        Some(s) => s.sqrt(),
        None => Tensor::zeros(&[], DType::F32, &Device::cpu()),
    }
}

/// The factor, at most 1, that reduces a norm to `max`.
pub(super) fn factor(norm: &Tensor, max: f64) -> TensorResult<Tensor> {
    norm.add(Lit(1e-6))?.reciprocal()?.mul(max)?.clamp(None, Some(1.0))
}

/// Scales the gradients so that their global norm is at most `max_norm` (Pascanu et al., 2013), and returns the previous norm, pending. An
/// optimizer with `max_grad_norm` does this automatically.
///
/// # Errors
/// When the gradients are on different devices.
///
/// ```
/// # use tensorlogic::prelude::*;
/// use tensorlogic::optim::clip_grad_norm;
///
/// let p = Param::new(&Tensor::zeros(&[2], DType::F32, &Device::cpu())?)?;
/// p.set_grad(Some(Tensor::new(&[3.0, 4.0], &Device::cpu())?));
/// assert_eq!(clip_grad_norm(&[p.clone()], 1.0)?.item()?, 5.0); // what it was
/// let grad = p.grad().expect("was set").to_vec()?;
/// assert!((grad[0] - 0.6).abs() < 1e-5 && (grad[1] - 0.8).abs() < 1e-5);
/// # Ok::<(), TensorError>(())
/// ```
pub fn clip_grad_norm(params: &[Param], max_norm: f64) -> TensorResult<Tensor> {
    no_grad(|| {
        let grads: Vec<Tensor> = params.iter().filter_map(Param::grad).collect();
        let norm = norm_of(&grads)?;
        let factor = factor(&norm, max_norm)?;
        for p in params {
            if let Some(g) = p.grad() {
                p.set_grad(Some(g.mul(&factor.cast(g.dtype())?)?));
            }
        }
        Ok(norm)
    })
}

/// Clips every element of the gradients to `-limit..=limit`.
///
/// # Errors
/// Those of [`Tensor::clamp`].
///
/// ```
/// # use tensorlogic::prelude::*;
/// use tensorlogic::optim::clip_grad_value;
///
/// let p = Param::new(&Tensor::zeros(&[2], DType::F32, &Device::cpu())?)?;
/// p.set_grad(Some(Tensor::new(&[3.0, -0.5], &Device::cpu())?));
/// clip_grad_value(&[p.clone()], 1.0)?;
/// assert_eq!(p.grad().expect("was set").to_vec()?, [1.0, -0.5]);
/// # Ok::<(), TensorError>(())
/// ```
pub fn clip_grad_value(params: &[Param], limit: f64) -> TensorResult<()> {
    no_grad(|| {
        for p in params {
            if let Some(g) = p.grad() {
                p.set_grad(Some(g.clamp(Some(-limit), Some(limit))?));
            }
        }
        Ok(())
    })
}
