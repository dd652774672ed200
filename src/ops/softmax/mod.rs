//! Softmax and its logarithm along rows.

pub(crate) mod gpu;
#[cfg(all(test, feature = "gpu"))]
mod tests;

use crate::backends::cpu::operand::{ahead, slice, target, values};
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Wgsl};
use crate::shape::{Shape, SignedIndex, dim};
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// `[rows, cols]` to `[rows, cols]`.
#[derive(Clone, Debug)]
pub struct SoftmaxKernel {
    /// Whether the logarithm is wanted.
    pub log: bool,
}

impl SoftmaxKernel {
    fn run<T: Real>(&self, task: &dyn Task) {
        let shape = task.step().loads[0].shape;
        let (rows, cols) = (shape[0], shape[1]);
        let range = share(rows, 1, task.thread(), task.threads());
        let elements = range.start * cols..range.end * cols;
        if let Some(x) = slice::<T>(task, 0)
            && !self.log
            && cols > 0
            && let Some(y) = target::<T>(task, 0, elements.start, elements.len())
        {
            return T::softmax_rows(y, &x[elements], cols, ahead(cols));
        }
        let buffer = values::<T>(task, cols);
        for row in range {
            let direct = target::<T>(task, 0, row * cols, cols);
            let in_place = direct.is_some();
            let x = direct.unwrap_or(&mut *buffer);
            task.load(0, row * cols, T::slice_mut(x));
            let max = T::max(x);
            if self.log {
                let sum = T::sum_exp(x, max);
                T::shift(x, max);
                T::shift(x, T::of(sum.wide().ln()));
            } else {
                let sum = T::exp_sum(x, max);
                T::scale(x, T::of(1.0 / sum.wide()));
            }
            if !in_place {
                task.store(0, row * cols, T::slice_mut(x));
            }
        }
    }
}

impl Kernel for SoftmaxKernel {
    fn cpu(&self, task: &dyn Task) {
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.run::<f64>(task),
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        16 * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::softmax(self.log, step, adapter)
    }
}

/// Softmax or its logarithm along a dimension.
struct Softmax {
    log: bool,
    dim: usize,
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }
    fn key(&self, key: &mut Key) {
        key.word(self.dim as u64);
    }
    fn define(&self, t: &[Tensor]) -> Option<TensorResult<Tensor>> {
        let d = self.dim as isize;
        let run = || {
            let x = t[0].sub(&t[0].max(&[d], true)?)?;
            let total = x.exp()?.sum(&[d], true)?;
            if self.log { x.sub(&total.log()?) } else { x.exp()?.div(&total) }
        };
        Some(run())
    }
    fn lower(&self, inputs: &[Meta], _: &[Meta]) -> Lowered {
        let shape = inputs[0].shape;
        let mut order: Vec<usize> = (0..shape.rank()).filter(|&d| d != self.dim).collect();
        order.push(self.dim);
        let cols = shape.get(self.dim).copied().unwrap_or(1);
        let logical = Shape::of(&[shape.count() / cols.max(1), cols]);
        let layout = if shape.rank() == 0 { Layout::contiguous(shape) } else { Layout::contiguous(shape).permute(&order) };
        Lowered::Kernel {
            kernel: Arc::new(SoftmaxKernel { log: self.log }),
            loads: vec![(0, layout, logical)],
            stores: vec![(0, layout, logical)],
        }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let d = [self.dim as isize];
        let run = || {
            let (g, y) = (v.grad(), &v.outputs[0]);
            if v.inputs[0].rank() == 0 {
                return Ok(vec![Some(g.zeros_like()?)]);
            }
            let x = if self.log { g.sub(&y.exp()?.mul(&g.sum(&d, true)?)?)? } else { y.mul(&g.sub(&g.mul(y)?.sum(&d, true)?)?)? };
            Ok(vec![Some(x)])
        };
        Some(run())
    }
}

impl Tensor {
    #[track_caller]
    fn softmax_of(&self, log: bool, d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), if log { "log_softmax" } else { "softmax" }, at)?;
        let dtype = if self.dtype().is_float() && !self.dtype().is_block() { self.dtype() } else { DType::F32 };
        let x = if self.dtype().is_float() { self.clone() } else { self.cast(dtype)? };
        Tensor::op1(Softmax { log, dim: k }, smallvec::smallvec![x], Default::default(), Meta { dtype, shape: *self.shape() }, at)
    }

    /// eˣ / Σ eˣ along dimension `d`, computed in f32 from the row's maximum. `[…,N,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 1.0, 1.0, 1.0]], &Device::cpu())?;
    /// assert_eq!(x.softmax(1)?.to_vec()?, [0.25; 4]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn softmax(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        self.softmax_of(false, d)
    }

    /// The logarithm of [`Tensor::softmax`], without forming it. `[…,N,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1000.0, 1000.0]], &Device::cpu())?;
    /// let got = x.log_softmax(1)?.to_vec()?;
    /// assert!(got.iter().zip([-0.693147, -0.693147]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn log_softmax(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        self.softmax_of(true, d)
    }
}
