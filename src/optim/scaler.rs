//! Dynamic loss scaling (Micikevicius et al., 2018), decided on the device, so that nothing waits.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::ops::Lit;
use crate::tensor::Tensor;

/// Good steps after which the scale doubles.
const GROWTH_INTERVAL: f64 = 2000.0;

/// A factor for the loss that halves when gradients overflow and doubles after 2,000 steps without.
#[derive(Clone)]
pub struct LossScaler {
    scale: Tensor,
    good: Tensor,
    skipped: Tensor,
}

impl LossScaler {
    pub(super) fn new(device: &Device) -> TensorResult<LossScaler> {
        let number = |v: f32| Tensor::from_vec(vec![v], &[], device);
        Ok(LossScaler { scale: number(65536.0)?, good: number(0.0)?, skipped: number(0.0)? })
    }

    /// The factor, a scalar on the device.
    pub fn scale(&self) -> &Tensor {
        &self.scale
    }

    /// Steps that were skipped because a gradient was not finite.
    ///
    /// # Errors
    /// Those of the evaluation.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{Optimizer, Sgd};
    ///
    /// let p = Param::new(&Tensor::new(&[1.0], &Device::cpu())?)?;
    /// let mut optimizer = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 0.5)?.mixed_precision(DType::F16)?;
    /// p.set_grad(Some(Tensor::new(&[f32::INFINITY], &Device::cpu())?.cast(DType::F16)?));
    /// optimizer.step()?;
    /// let scaler = optimizer.loss_scaler().expect("f16 has one");
    /// assert_eq!((scaler.skipped()?, scaler.scale().item()?), (1, 32768.0)); // half of what it was
    /// assert_eq!(p.get().item()?, 1.0);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn skipped(&self) -> TensorResult<u64> {
        Ok(self.skipped.item()? as u64)
    }

    pub(super) fn state(&self) -> Vec<&Tensor> {
        vec![&self.scale, &self.good, &self.skipped]
    }

    pub(super) fn set_state(&mut self, parts: Vec<Tensor>) {
        if let Ok([scale, good, skipped]) = <[Tensor; 3]>::try_from(parts) {
            *self = LossScaler { scale, good, skipped };
        }
    }

    /// The gradients without the factor, and whether all of them are finite; takes the decision about the next factor.
    pub(super) fn unscale(&mut self, grads: &[Tensor]) -> TensorResult<(Vec<Tensor>, Tensor)> {
        let inverse = self.scale.reciprocal()?;
        let mut worst: Option<Tensor> = None;
        for g in grads {
            // A sum of magnitudes is finite only if all are; the largest passes NaN on.
            let m = g.abs()?.max_all()?;
            worst = Some(match worst {
                Some(w) => w.maximum(&m)?,
                None => m,
            });
        }
        let finite = match worst {
            Some(w) => w.isfinite()?,
            None => Tensor::ones(&[], DType::Bool, self.scale.device())?,
        };
        let grads = grads.iter().map(|g| g.mul(&inverse)).collect::<TensorResult<_>>()?;
        self.decide(&finite)?;
        Ok((grads, finite))
    }

    /// Takes the decision about the next factor: whether all gradients of this step are finite is known.
    pub(super) fn decide(&mut self, finite: &Tensor) -> TensorResult<()> {
        let good = finite.where_(&self.good.add(Lit(1.0))?, &self.good.zeros_like()?)?;
        let due = good.ge(Lit(GROWTH_INTERVAL))?;
        let grown = due.where_(&self.scale.mul(Lit(2.0))?, &self.scale)?;
        let halved = self.scale.mul(Lit(0.5))?.clamp(Some(1.0), None)?;
        let skipped = finite.where_(&self.skipped, &self.skipped.add(Lit(1.0))?)?;
        self.scale = finite.where_(&grown, &halved)?;
        self.good = due.where_(&good.zeros_like()?, &good)?;
        self.skipped = skipped;
        Ok(())
    }
}
