//! Fully connected layers.

use super::{Module, Param, init};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::ops::random::Rng;
use crate::tensor::Tensor;

/// `x·Wᵀ + b` for `x` `[…, inputs]`, `W` `[outputs, inputs]`.
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Param,
    /// `[outputs]`.
    pub bias: Option<Param>,
}

impl Linear {
    /// A layer initialised like PyTorch's: uniform within 1/√inputs.
    ///
    /// # Errors
    /// When a parameter would have too many elements.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::Linear;
    ///
    /// let layer = Linear::new(4, 3, true, &mut Rng::new(1), &Device::cpu())?;
    /// assert_eq!(layer.weight.get().dims(), [3, 4]);
    /// assert!(layer.weight.get().abs()?.max_all()?.item()? <= 0.5); // 1/√4
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(inputs: usize, outputs: usize, bias: bool, rng: &mut Rng, device: &Device) -> TensorResult<Linear> {
        let weight = Param::new(&init::kaiming_uniform(&[outputs, inputs], inputs, rng, device)?)?;
        let bias = if bias { Some(Param::new(&init::kaiming_uniform(&[outputs], inputs, rng, device)?)?) } else { None };
        Ok(Linear { weight, bias })
    }

    /// A layer with normally distributed weights of this standard deviation and a zero bias.
    ///
    /// # Errors
    /// When a parameter would have too many elements.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::Linear;
    ///
    /// let layer = Linear::normal(4, 3, true, 0.02, &mut Rng::new(1), &Device::cpu())?;
    /// let y = layer.forward(&Tensor::zeros(&[1, 4], DType::F32, &Device::cpu())?)?;
    /// assert_eq!(y.to_vec()?, [0.0; 3]); // the bias
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn normal(inputs: usize, outputs: usize, bias: bool, std: f64, rng: &mut Rng, device: &Device) -> TensorResult<Linear> {
        let weight = Param::new(&init::normal(&[outputs, inputs], std, rng, device)?)?;
        let bias = if bias { Some(Param::new(&Tensor::zeros(&[outputs], DType::F32, device)?)?) } else { None };
        Ok(Linear { weight, bias })
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let y = x.matmul(&self.weight.get().t()?)?;
        match &self.bias {
            Some(b) => y.add(&b.get()),
            None => Ok(y),
        }
    }
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        [("weight", &self.weight)].into_iter().chain(self.bias.as_ref().map(|b| ("bias", b))).collect()
    }
}
