//! A module of which only the input is kept for the backward pass.

use super::{Module, ModuleExt};
use crate::autograd::checkpoint;
use crate::error::TensorResult;
use crate::tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A module's result. Only the input is kept for the backward pass, which recomputes the rest with the same dropout (Chen et al., 2016).
///
/// # Errors
/// Those of the module.
///
/// ```
/// # use std::sync::Arc;
/// # use tensorlogic::nn::{EncoderBlock, EncoderConfig, checkpointed};
/// # use tensorlogic::{DType, Device, Rng, TensorResult};
/// # fn main() -> TensorResult<()> {
/// let (device, mut rng) = (Device::cpu(), Rng::new(1));
/// let block = Arc::new(EncoderBlock::new(EncoderConfig::new(16, 2, 32), &mut rng, &device)?);
/// let x = rng.normal(&[2, 5, 16], DType::F32, &device)?.requires_grad()?;
/// checkpointed(&block, &x)?.sum_all()?.backward()?;
/// assert_eq!(x.grad().map(|g| g.dims().to_vec()), Some(vec![2, 5, 16]));
/// # Ok(())
/// # }
/// ```
pub fn checkpointed<M: Module + 'static>(module: &Arc<M>, x: &Tensor) -> TensorResult<Tensor> {
    let (module, before, again) = (module.clone(), module.random_state(), AtomicBool::new(false));
    let run = move |x: &[Tensor]| {
        if !again.swap(true, Ordering::Relaxed) {
            return module.forward(&x[0]);
        }
        let now = module.random_state();
        module.load_random_state(&before)?;
        let y = module.forward(&x[0]);
        module.load_random_state(&now)?;
        y
    };
    checkpoint(run, &[x])
}
