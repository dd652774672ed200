//! Convolution and pooling, as products over views of windows.

use super::{Module, Param, init};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::ops::pad::PadMode;
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use std::panic::Location;

/// Windows of the last two dimensions of `[N, C, H, W]`: `[N, C, H', W', kh, kw]`.
fn windows(x: &Tensor, kernel: [usize; 2], stride: [usize; 2]) -> TensorResult<Tensor> {
    x.unfold(2, kernel[0], stride[0])?.unfold(3, kernel[1], stride[1])
}

#[track_caller]
fn check(op: &'static str, x: &Tensor, rank: usize, channels: Option<usize>) -> TensorResult<()> {
    if x.rank() != rank || channels.is_some_and(|c| x.shape()[1] != c) {
        let want = channels.map_or(String::new(), |c| format!(" with {c} channels"));
        return Err(TensorError::shape(op, Location::caller(), format!("the input is {}, not of {rank} dimensions{want}", x.shape())));
    }
    Ok(())
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
    /// A layer that begins as PyTorch's.
    pub fn new(
        inputs: usize,
        outputs: usize,
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
        let w = self.weight.get();
        let (outputs, inputs, k) = (w.shape()[0], w.shape()[1], w.shape()[2]);
        check("conv2d", x, 4, Some(inputs))?;
        let p = self.padding as isize;
        let x = if p > 0 { x.pad(&[(0, 0), (0, 0), (p, p), (p, p)], PadMode::Constant(0.0))? } else { x.clone() };
        let win = windows(&x, [k, k], [self.stride, self.stride])?;
        let [n, h, wd] = [win.shape()[0], win.shape()[2], win.shape()[3]].map(|v| v as isize);
        // [N, H', W', C, kh, kw] rows against rows of the weight.
        let rows = win.permute(&[0, 2, 3, 1, 4, 5])?.reshape(&[n * h * wd, (inputs * k * k) as isize])?;
        let mut y = rows.matmul(&w.reshape(&[outputs as isize, -1])?.t()?)?;
        if let Some(b) = &self.bias {
            y = y.add(&b.get())?;
        }
        y.reshape(&[n, h, wd, outputs as isize])?.permute(&[0, 3, 1, 2])
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
    /// A layer that begins as PyTorch's.
    pub fn new(
        inputs: usize,
        outputs: usize,
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
        let w = self.weight.get();
        let (outputs, inputs, k) = (w.shape()[0], w.shape()[1], w.shape()[2]);
        check("conv1d", x, 3, Some(inputs))?;
        let p = self.padding as isize;
        let x = if p > 0 { x.pad(&[(0, 0), (0, 0), (p, p)], PadMode::Constant(0.0))? } else { x.clone() };
        let win = x.unfold(2, k, self.stride)?;
        let [n, l] = [win.shape()[0], win.shape()[2]].map(|v| v as isize);
        let rows = win.permute(&[0, 2, 1, 3])?.reshape(&[n * l, (inputs * k) as isize])?;
        let mut y = rows.matmul(&w.reshape(&[outputs as isize, -1])?.t()?)?;
        if let Some(b) = &self.bias {
            y = y.add(&b.get())?;
        }
        y.reshape(&[n, l, outputs as isize])?.permute(&[0, 2, 1])
    }
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        [("weight", &self.weight)].into_iter().chain(self.bias.as_ref().map(|b| ("bias", b))).collect()
    }
}

/// The largest of each window of `[N, C, H, W]`.
pub struct MaxPool2d {
    /// Edge of the window.
    pub kernel: usize,
    /// Steps between windows.
    pub stride: usize,
}

impl Module for MaxPool2d {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        check("max_pool2d", x, 4, None)?;
        windows(x, [self.kernel; 2], [self.stride; 2])?.max(&[-2, -1], false)
    }
}

/// The mean of each window of `[N, C, H, W]`.
pub struct AvgPool2d {
    /// Edge of the window.
    pub kernel: usize,
    /// Steps between windows.
    pub stride: usize,
}

impl Module for AvgPool2d {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        check("avg_pool2d", x, 4, None)?;
        windows(x, [self.kernel; 2], [self.stride; 2])?.mean(&[-2, -1], false)
    }
}
