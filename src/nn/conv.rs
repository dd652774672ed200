//! Layers of convolution and pooling over one or two dimensions.

use super::{Module, Param, init};
use crate::device::Device;
use crate::error::TensorResult;
use crate::ops::convolution::{ConvOptions, Divisor, WindowOptions};
use crate::ops::random::Rng;
use crate::tensor::Tensor;

fn options(dims: usize, stride: usize, padding: usize) -> ConvOptions {
    let windows = WindowOptions { stride: vec![stride; dims], padding: vec![(padding, padding); dims], ..Default::default() };
    ConvOptions { windows, ..Default::default() }
}

fn strided(stride: usize) -> WindowOptions {
    WindowOptions { stride: vec![stride; 2], ..Default::default() }
}

/// Two-dimensional convolution (cross-correlation, as in PyTorch) of `[N, C, H, W]`.
pub struct Conv2d {
    /// `[outputs, inputs, kernel, kernel]`.
    pub weight: Param,
    /// `[outputs]`.
    pub bias: Option<Param>,
    stride: usize,
    padding: usize,
}

impl Conv2d {
    /// A layer from so many channels to so many, initialised like PyTorch's.
    ///
    /// # Errors
    /// When a parameter would have too many elements.
    ///
    /// ```
    /// use tensorlogic::nn::{Conv2d, Module};
    /// use tensorlogic::prelude::*;
    /// let (cpu, mut rng) = (Device::cpu(), Rng::new(1));
    /// let layer = Conv2d::new([3, 8], 3, 2, 1, true, &mut rng, &cpu)?;
    /// assert_eq!(layer.forward(&Tensor::zeros(&[2, 3, 10, 10], DType::F32, &cpu)?)?.dims(), [2, 8, 5, 5]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        stride: usize,
        padding: usize,
        bias: bool,
        rng: &mut Rng,
        device: &Device,
    ) -> TensorResult<Conv2d> {
        let fan_in = inputs * kernel * kernel;
        let weight = Param::new(&init::kaiming_uniform(&[outputs, inputs, kernel, kernel], fan_in, rng, device)?)?;
        let bias = if bias { Some(Param::new(&init::kaiming_uniform(&[outputs], fan_in, rng, device)?)?) } else { None };
        Ok(Conv2d { weight, bias, stride: stride.max(1), padding })
    }
}

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let bias = self.bias.as_ref().map(Param::get);
        x.conv(&self.weight.get(), bias.as_ref(), &options(2, self.stride, self.padding))
    }
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        [("weight", &self.weight)].into_iter().chain(self.bias.as_ref().map(|b| ("bias", b))).collect()
    }
}

/// One-dimensional convolution (cross-correlation) of `[N, C, L]`.
pub struct Conv1d {
    /// `[outputs, inputs, kernel]`.
    pub weight: Param,
    /// `[outputs]`.
    pub bias: Option<Param>,
    stride: usize,
    padding: usize,
}

impl Conv1d {
    /// A layer from so many channels to so many, initialised like PyTorch's.
    ///
    /// # Errors
    /// When a parameter would have too many elements.
    ///
    /// ```
    /// use tensorlogic::nn::{Conv1d, Module};
    /// use tensorlogic::prelude::*;
    /// let (cpu, mut rng) = (Device::cpu(), Rng::new(1));
    /// let layer = Conv1d::new([3, 8], 5, 1, 0, false, &mut rng, &cpu)?;
    /// assert_eq!(layer.forward(&Tensor::zeros(&[2, 3, 10], DType::F32, &cpu)?)?.dims(), [2, 8, 6]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        stride: usize,
        padding: usize,
        bias: bool,
        rng: &mut Rng,
        device: &Device,
    ) -> TensorResult<Conv1d> {
        let fan_in = inputs * kernel;
        let weight = Param::new(&init::kaiming_uniform(&[outputs, inputs, kernel], fan_in, rng, device)?)?;
        let bias = if bias { Some(Param::new(&init::kaiming_uniform(&[outputs], fan_in, rng, device)?)?) } else { None };
        Ok(Conv1d { weight, bias, stride: stride.max(1), padding })
    }
}

impl Module for Conv1d {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let bias = self.bias.as_ref().map(Param::get);
        x.conv(&self.weight.get(), bias.as_ref(), &options(1, self.stride, self.padding))
    }
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        [("weight", &self.weight)].into_iter().chain(self.bias.as_ref().map(|b| ("bias", b))).collect()
    }
}

/// Maximum of each window of `[N, C, H, W]`.
pub struct MaxPool2d {
    /// Size of the window.
    pub kernel: usize,
    /// Stride between windows.
    pub stride: usize,
}

impl Module for MaxPool2d {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        x.max_pool(&[self.kernel; 2], &strided(self.stride))
    }
}

/// Mean of each window of `[N, C, H, W]`.
pub struct AvgPool2d {
    /// Size of the window.
    pub kernel: usize,
    /// Stride between windows.
    pub stride: usize,
}

impl Module for AvgPool2d {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        x.avg_pool(&[self.kernel; 2], Divisor::Elements, &strided(self.stride))
    }
}
