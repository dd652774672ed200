//! Normalization layers.

use super::{Module, Param};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::tensor::Tensor;

/// Layer normalization (Ba et al., 2016) over the last dimension.
pub struct LayerNorm {
    /// `[width]`.
    pub weight: Param,
    /// `[width]`.
    pub bias: Option<Param>,
    /// Added to the variance.
    pub eps: f64,
}

impl LayerNorm {
    /// Weight 1, bias 0.
    ///
    /// # Errors
    /// When a parameter would have too many elements.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::LayerNorm;
    ///
    /// let norm = LayerNorm::new(2, true, 1e-5, &Device::cpu())?;
    /// let y = norm.forward(&Tensor::new(&[[1.0, 3.0]], &Device::cpu())?)?.to_vec()?;
    /// assert!(y.iter().zip([-1.0, 1.0]).all(|(a, b)| (a - b).abs() < 1e-4), "{y:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(width: usize, bias: bool, eps: f64, device: &Device) -> TensorResult<LayerNorm> {
        let weight = Param::new(&Tensor::ones(&[width], DType::F32, device)?)?;
        let bias = if bias { Some(Param::new(&Tensor::zeros(&[width], DType::F32, device)?)?) } else { None };
        Ok(LayerNorm { weight, bias, eps })
    }
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        x.layer_norm(Some(&self.weight.get()), self.bias.as_ref().map(Param::get).as_ref(), self.eps)
    }
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        [("weight", &self.weight)].into_iter().chain(self.bias.as_ref().map(|b| ("bias", b))).collect()
    }
}

/// Root-mean-square normalization (Zhang and Sennrich, 2019) over the last dimension.
pub struct RMSNorm {
    /// `[width]`.
    pub weight: Param,
    /// Added to the mean square.
    pub eps: f64,
}

impl RMSNorm {
    /// Weight 1.
    ///
    /// # Errors
    /// When a parameter would have too many elements.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::RMSNorm;
    ///
    /// let norm = RMSNorm::new(2, 1e-5, &Device::cpu())?;
    /// let y = norm.forward(&Tensor::new(&[[1.0, 7.0]], &Device::cpu())?)?.to_vec()?; // the root of the mean square is 5
    /// assert!(y.iter().zip([0.2, 1.4]).all(|(a, b)| (a - b).abs() < 1e-4), "{y:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(width: usize, eps: f64, device: &Device) -> TensorResult<RMSNorm> {
        Ok(RMSNorm { weight: Param::new(&Tensor::ones(&[width], DType::F32, device)?)?, eps })
    }
}

impl Module for RMSNorm {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        x.rms_norm(Some(&self.weight.get()), self.eps)
    }
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        vec![("weight", &self.weight)]
    }
}
