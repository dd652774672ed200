//! Layer norm and RMS norm along rows.

pub(crate) mod gpu;
pub mod grad;
pub(crate) mod grad_gpu;
#[cfg(all(test, feature = "gpu"))]
mod tests;

use crate::backends::cpu::operand::{ahead, slice, target, values};
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::ops::Lit;
use crate::plan::{AdapterInfo, Kernel, Normalization, Step, Task, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Mode, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// x `[rows, cols]`, then weight `[cols]` and bias `[cols]` where there are, to `[rows, cols]`.
#[derive(Clone, Debug)]
pub struct NormKernel {
    /// Whether rows are only divided by their root mean square, not centred.
    pub rms: bool,
    /// Added to the variance.
    pub eps: f64,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether there is a bias.
    pub bias: bool,
}

impl NormKernel {
    fn run<T: Real>(&self, task: &dyn Task) {
        let shape = task.step().loads[0].shape;
        let (rows, cols) = (shape[0], shape[1]);
        let range = share(rows, 1, task.thread(), task.threads());
        if range.is_empty() {
            return;
        }
        let weight = values::<T>(task, if self.weight { cols } else { 0 });
        if self.weight {
            task.load(1, 0, T::slice_mut(weight));
        }
        let bias = values::<T>(task, if self.bias { cols } else { 0 });
        if self.bias {
            task.load(1 + self.weight as usize, 0, T::slice_mut(bias));
        }
        let elements = range.start * cols..range.end * cols;
        if let Some(x) = slice::<T>(task, 0)
            && cols > 0
            && let Some(y) = target::<T>(task, 0, elements.start, elements.len())
        {
            return T::norm_rows(y, &x[elements], cols, (self.rms, self.eps), weight, bias, ahead(cols));
        }
        let buffer = values::<T>(task, cols);
        for row in range {
            let direct = target::<T>(task, 0, row * cols, cols);
            let in_place = direct.is_some();
            let x = direct.unwrap_or(&mut *buffer);
            task.load(0, row * cols, T::slice_mut(x));
            let (mean, factor) = T::moments(x, (self.rms, self.eps));
            T::normalize(x, mean, factor, weight, bias);
            if !in_place {
                task.store(0, row * cols, T::slice_mut(x));
            }
        }
    }
}

impl Kernel for NormKernel {
    fn cpu(&self, task: &dyn Task) {
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.run::<f64>(task),
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        6 * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::norm(self.rms, self.eps as f32, self.weight, self.bias, step, adapter)
    }
    fn normalization(&self) -> Option<Normalization> {
        Some(Normalization { rms: self.rms, eps: self.eps, weight: self.weight, bias: self.bias })
    }
}

/// Layer norm or RMS norm over the last dimension.
struct Norm {
    rms: bool,
    eps: f64,
    weight: bool,
    bias: bool,
}

impl Op for Norm {
    fn name(&self) -> &'static str {
        if self.rms { "rms_norm" } else { "layer_norm" }
    }
    fn key(&self, key: &mut Key) {
        key.word(self.eps.to_bits()).word(self.weight as u64 | (self.bias as u64) << 1);
    }
    fn define(&self, t: &[Tensor]) -> Option<TensorResult<Tensor>> {
        let run = || {
            let x = if self.rms { t[0].clone() } else { t[0].sub(&t[0].mean(&[-1], true)?)? };
            let mut y = x.mul(&x.mul(&x)?.mean(&[-1], true)?.add(Lit(self.eps))?.rsqrt()?)?;
            if self.weight {
                y = y.mul(&t[1])?;
            }
            if self.bias {
                y = y.add(&t[1 + self.weight as usize])?;
            }
            Ok(y)
        };
        Some(run())
    }
    fn lower(&self, inputs: &[Meta], _: &[Meta]) -> Lowered {
        let shape = inputs[0].shape;
        let cols = *shape.last().unwrap_or(&1);
        let logical = Shape::of(&[shape.count() / cols.max(1), cols]);
        let mut loads = vec![(0, Layout::contiguous(shape), logical)];
        for (k, m) in inputs.iter().enumerate().skip(1) {
            loads.push((k, Layout::contiguous(m.shape), m.shape));
        }
        let kernel = NormKernel { rms: self.rms, eps: self.eps, weight: self.weight, bias: self.bias };
        Lowered::Kernel { kernel: Arc::new(kernel), loads, stores: vec![(0, Layout::contiguous(shape), logical)] }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        if !Mode::current().grad {
            return Some(grad::gradients(self.rms, self.eps, self.weight, self.bias, v));
        }
        // In operations that have gradients themselves.
        let run = || {
            let (x, g) = (&v.inputs[0], v.grad());
            let wide = if x.dtype().is_block() || x.dtype() == DType::F64 { x.dtype() } else { DType::F32 };
            let (xf, gf) = (x.cast(wide)?, g.cast(wide)?);
            let centred = if self.rms { xf } else { xf.sub(&xf.mean(&[-1], true)?)? };
            let scale = centred.mul(&centred)?.mean(&[-1], true)?.add(Lit(self.eps))?.rsqrt()?;
            let unit = centred.mul(&scale)?;
            let mut grads = vec![None; v.inputs.len()];
            if v.wants(0) {
                let h = if self.weight { gf.mul(&v.inputs[1])? } else { gf.clone() };
                let along = unit.mul(&h.mul(&unit)?.mean(&[-1], true)?)?;
                let rest = if self.rms { h } else { h.sub(&h.mean(&[-1], true)?)? };
                grads[0] = Some(rest.sub(&along)?.mul(&scale)?);
            }
            let rows = |t: Tensor, to: &Tensor| t.sum_to(to.shape()).map(Some);
            if self.weight && v.wants(1) {
                grads[1] = rows(gf.mul(&unit)?, &v.inputs[1])?;
            }
            let bias = 1 + self.weight as usize;
            if self.bias && v.wants(bias) {
                grads[bias] = rows(gf, &v.inputs[bias])?;
            }
            Ok(grads)
        };
        Some(run())
    }
}

impl Tensor {
    #[track_caller]
    fn normalized(&self, rms: bool, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> TensorResult<Tensor> {
        let at = Location::caller();
        let name = if rms { "rms_norm" } else { "layer_norm" };
        let Some(&cols) = self.shape().last() else { return Err(TensorError::shape(name, at, "a scalar has no last dimension")) };
        let dtype = if self.dtype().is_float() && !self.dtype().is_block() { self.dtype() } else { DType::F32 };
        let mut inputs: crate::tensor::Inputs = smallvec::smallvec![if self.dtype().is_float() { self.clone() } else { self.cast(dtype)? }];
        for (what, t) in [("weight", weight), ("bias", bias)] {
            let Some(t) = t else { continue };
            if t.dims() != [cols] {
                return Err(TensorError::shape(
                    name,
                    at,
                    format!("{what} {} does not match the last dimension of {}", t.shape(), self.shape()),
                ));
            }
            inputs.push(if t.dtype().compute() == dtype.compute() { t.clone() } else { t.cast(dtype)? });
        }
        let op = Norm { rms, eps, weight: weight.is_some(), bias: bias.is_some() };
        Tensor::op1(op, inputs, Default::default(), Meta { dtype, shape: *self.shape() }, at)
    }

    /// Layer normalization (Ba et al., 2016) over the last dimension: zero mean and unit (biased) variance, times `weight`, plus `bias`.
    /// `[…,N]` with `[N]` and `[N]` → `[…,N]`.
    ///
    /// # Errors
    /// When there is no dimension, or `weight` or `bias` does not have one entry per element of the last dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 3.0]], &Device::cpu())?;
    /// let got = x.layer_norm(None, None, 0.0)?.to_vec()?;
    /// assert!(got.iter().zip([-1.0, 1.0]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn layer_norm(&self, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> TensorResult<Tensor> {
        self.normalized(false, weight, bias, eps)
    }

    /// Root-mean-square normalization (Zhang and Sennrich, 2019) over the last dimension, times `weight`. `[…,N]` with `[N]` → `[…,N]`.
    ///
    /// # Errors
    /// When there is no dimension, or `weight` does not have one entry per element of the last dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[3.0, 4.0]], &Device::cpu())?;
    /// let got = x.rms_norm(None, 0.0)?.to_vec()?;
    /// assert!(got.iter().zip([0.848528, 1.131371]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn rms_norm(&self, weight: Option<&Tensor>, eps: f64) -> TensorResult<Tensor> {
        self.normalized(true, weight, None, eps)
    }

    /// Group normalization (Wu and He, 2018) of `[N, C, …]`: each of `groups` runs of channels is centred and scaled by itself, then
    /// multiplied by `weight` and moved by `bias`, which have one entry per channel. With as many groups as channels, instance normalization.
    ///
    /// # Errors
    /// When the channels do not split into the groups, or `weight` or `bias` does not have one entry per channel.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 3.0, 10.0, 14.0]], &Device::cpu())?;
    /// let got = x.group_norm(2, None, None, 0.0)?.to_vec()?;
    /// assert!(got.iter().zip([-1.0, 1.0, -1.0, 1.0]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn group_norm(&self, groups: usize, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> TensorResult<Tensor> {
        let at = Location::caller();
        let channels = self.shape().get(1).copied().unwrap_or(0);
        if groups == 0 || channels == 0 || channels % groups != 0 {
            return Err(TensorError::shape("group_norm", at, format!("{groups} groups of the channels of {}", self.shape())));
        }
        let rows = self.shape()[0] * groups;
        let sizes: smallvec::SmallVec<[usize; 8]> = self.dims().iter().copied().collect();
        let width = self.numel().checked_div(rows).unwrap_or(1);
        let mut y = self.reshape(&[rows, width])?.layer_norm(None, None, eps)?.reshape(&sizes)?;
        let mut spread: smallvec::SmallVec<[usize; 8]> = smallvec::smallvec![1; self.rank()];
        spread[1] = channels;
        if let Some(w) = weight {
            y = y.mul(&w.reshape(&spread)?)?;
        }
        if let Some(b) = bias {
            y = y.add(&b.reshape(&spread)?)?;
        }
        y.cast(self.stored())
    }

    /// Batch normalization (Ioffe and Szegedy, 2015) of `[N, C, …]`: each channel is centred and scaled by `statistics`, a mean and a variance
    /// per channel, or without them by its own over batch and places; then multiplied by `weight` and moved by `bias`. Computed in f32.
    ///
    /// # Errors
    /// When there are no channels, or the other tensors are not one entry per channel.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0], [3.0]], &Device::cpu())?;
    /// let got = x.batch_norm(None, None, None, 0.0)?.to_vec()?;
    /// assert!(got.iter().zip([-1.0, 1.0]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn batch_norm(
        &self,
        statistics: Option<(&Tensor, &Tensor)>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> TensorResult<Tensor> {
        let at = Location::caller();
        let channels = self.shape().get(1).copied().unwrap_or(0);
        let given = statistics.iter().flat_map(|s| [s.0, s.1]).chain(weight).chain(bias);
        if let Some(t) = given.into_iter().find(|t| t.dims() != [channels]) {
            return Err(TensorError::shape("batch_norm", at, format!("{} for the channels of {}", t.shape(), self.shape())));
        }
        if self.rank() < 2 {
            return Err(TensorError::shape("batch_norm", at, format!("{} has no channels", self.shape())));
        }
        let wide = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let x = self.cast(wide)?;
        let mut spread: smallvec::SmallVec<[usize; 8]> = smallvec::smallvec![1; self.rank()];
        spread[1] = channels;
        let (mean, variance) = match statistics {
            Some((mean, variance)) => (mean.cast(wide)?.reshape(&spread)?, variance.cast(wide)?.reshape(&spread)?),
            None => {
                let others: Vec<isize> = (0..self.rank() as isize).filter(|&d| d != 1).collect();
                (x.mean(&others, true)?, x.var(&others, 0, true)?)
            }
        };
        let mut y = x.sub(&mean)?.mul(&variance.add(eps)?.rsqrt()?)?;
        if let Some(w) = weight {
            y = y.mul(&w.cast(wide)?.reshape(&spread)?)?;
        }
        if let Some(b) = bias {
            y = y.add(&b.cast(wide)?.reshape(&spread)?)?;
        }
        y.cast(self.stored())
    }
}
