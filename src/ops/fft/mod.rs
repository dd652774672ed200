//! Discrete Fourier transforms along a dimension, on the CPU, by the crate `rustfft`. Complex numbers are pairs in a last dimension of 2.

#[cfg(all(test, feature = "gpu"))]
mod tests;

use crate::backends::cpu::operand::values;
use crate::backends::cpu::share;
use crate::dtype::{DType, Element};
use crate::error::{At, TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shape::{Shape, SignedIndex, dim};
use crate::tensor::{Grads, Key, Lowered, Meta, Mode, Op, Tensor, Vjp};
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftDirection, FftNum, FftPlanner};
use std::panic::Location;
use std::sync::Arc;

/// Rows `[rows, n, 2]` of complex numbers to their transforms times `scale`.
struct FftKernel {
    /// In the type that the rows are computed in.
    narrow: Option<Arc<dyn Fft<f32>>>,
    wide: Option<Arc<dyn Fft<f64>>>,
    scale: f64,
}

impl FftKernel {
    fn run<T: FftNum + Value + Element>(&self, fft: &dyn Fft<T>, scale: T, task: &dyn Task) {
        let shape = &task.step().loads[0].shape;
        let (rows, n) = (shape[0], shape[1]);
        let flat = values::<T>(task, 2 * n);
        let mut row = vec![Complex::<T>::new(T::zero(), T::zero()); n];
        let mut scratch = vec![Complex::<T>::new(T::zero(), T::zero()); fft.get_inplace_scratch_len()];
        for i in share(rows, 1, task.thread(), task.threads()) {
            task.load(0, i * 2 * n, T::slice_mut(flat));
            row.iter_mut().zip(flat.chunks_exact(2)).for_each(|(c, v)| *c = Complex::new(v[0], v[1]));
            fft.process_with_scratch(&mut row, &mut scratch);
            flat.chunks_exact_mut(2).zip(&row).for_each(|(v, c)| (v[0], v[1]) = (c.re * scale, c.im * scale));
            task.store(0, i * 2 * n, T::slice_mut(flat));
        }
    }
}

impl Kernel for FftKernel {
    fn cpu(&self, task: &dyn Task) {
        match (&self.narrow, &self.wide) {
            (Some(fft), _) => self.run(&**fft, self.scale as f32, task),
            (_, Some(fft)) => self.run(&**fft, self.scale, task),
            _ => {}
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        let (rows, n) = (step.loads[0].shape[0] as u64, step.loads[0].shape[1] as u64);
        // Cooley and Tukey's count.
        5 * rows * n * u64::from(n.max(1).ilog2() + 1)
    }
    fn wgsl(&self, _: &Step, _: &AdapterInfo) -> Option<Wgsl> {
        None
    }
}

/// The transform along dimension `dim` of `[…, 2]`.
#[derive(Clone, Copy)]
struct Transform {
    dim: usize,
    inverse: bool,
    scale: f64,
}

impl Op for Transform {
    fn name(&self) -> &'static str {
        if self.inverse { "ifft" } else { "fft" }
    }
    fn key(&self, key: &mut Key) {
        key.word(self.dim as u64).word(self.inverse.into()).word(self.scale.to_bits());
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], _: &[Meta]) -> Lowered {
        let shape = inputs[0].shape;
        let n = shape[self.dim];
        let mut order: Vec<usize> = (0..shape.rank()).filter(|&d| d != self.dim).collect();
        order.insert(shape.rank() - 2, self.dim);
        let layout = Layout::contiguous(shape).permute(&order);
        let rows = Shape::of(&[shape.count() / (2 * n).max(1), n, 2]);
        let direction = if self.inverse { FftDirection::Inverse } else { FftDirection::Forward };
        let wide = inputs[0].dtype == DType::F64;
        let kernel = FftKernel {
            narrow: (!wide).then(|| FftPlanner::new().plan_fft(n, direction)),
            wide: wide.then(|| FftPlanner::new().plan_fft(n, direction)),
            scale: self.scale,
        };
        Lowered::Kernel { kernel: Arc::new(kernel), loads: vec![(0, layout, rows)], stores: vec![(0, layout, rows)] }
    }
    /// The transform is linear and its matrix symmetric: gradients go through its conjugate, the transform of the other direction.
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let back = Transform { inverse: !self.inverse, ..*self };
        Some(back.of(v.grad(), v.grad().node.at).map(|g| vec![Some(g)]))
    }
}

impl Transform {
    fn of(self, x: &Tensor, at: At) -> TensorResult<Tensor> {
        Tensor::op1(self, smallvec::smallvec![x.clone()], Default::default(), x.meta(), at)
    }
}

impl Tensor {
    /// The Fourier transform Σ x_j·exp(−2πi·jk/n) along dimension `d` of complex numbers `[…,2]`, pairs of real and imaginary parts. Dimensions are
    /// counted without the last one, which holds the pairs: −1 is the one before it. It runs on the CPU, in f32 or f64.
    ///
    /// # Errors
    /// When this tensor holds no floats in a last dimension of 2, there is no such dimension, or it is empty; [`TensorError::UnsupportedDevice`] on a GPU.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]], &Device::cpu())?;
    /// assert_eq!(x.fft(-1)?.to_vec2::<f32>()?, [[0.0, 0.0], [2.0, 0.0], [0.0, 0.0], [2.0, 0.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn fft(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        self.transform("fft", d, false, Location::caller())
    }

    /// The inverse of [`Tensor::fft`]: with exp(2πi·jk/n), divided by n. `[…,N,…,2]` → `[…,N,…,2]`.
    ///
    /// # Errors
    /// As for [`Tensor::fft`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[0.0, 0.0], [2.0, 0.0], [0.0, 0.0], [2.0, 0.0]], &Device::cpu())?;
    /// assert_eq!(x.ifft(0)?.to_vec2::<f32>()?, [[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn ifft(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        self.transform("ifft", d, true, Location::caller())
    }

    /// The first ⌊n/2⌋ + 1 numbers of the Fourier transform of real numbers along dimension `d`, with a last dimension of 2 for pairs of real and imaginary
    /// parts; the others are their conjugates. See [`Tensor::fft`]. `[…,N,…]` → `[…,⌊N/2⌋+1,…,2]`.
    ///
    /// # Errors
    /// When this tensor does not hold floats, there is no such dimension, or it is empty; [`TensorError::UnsupportedDevice`] on a GPU.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 0.0, -1.0, 0.0], &Device::cpu())?;
    /// assert_eq!(x.rfft(0)?.to_vec2::<f32>()?, [[0.0, 0.0], [2.0, 0.0], [0.0, 0.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn rfft(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "rfft", at)?;
        Mode { at: Some(at), ..Mode::current() }.run(|| {
            let n = self.size_for("rfft", k, at)?;
            let pairs = Tensor::stack(&[self.clone(), self.zeros_like()?], -1)?;
            pairs.transform("rfft", k, false, at)?.narrow(k, 0, n / 2 + 1)
        })
    }

    /// The `n` real numbers whose [`Tensor::rfft`] along dimension `d` this is, `[…,2]`. Imaginary parts that no real numbers give are left out: that of
    /// the first number and, for an even `n`, of the last.
    ///
    /// # Errors
    /// When dimension `d`, counted without the last one, does not have ⌊n/2⌋ + 1 entries; as for [`Tensor::fft`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[0.0, 0.0], [2.0, 0.0], [0.0, 0.0]], &Device::cpu())?;
    /// assert_eq!(x.irfft(4, 0)?.to_vec()?, [1.0, 0.0, -1.0, 0.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn irfft(&self, n: usize, d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = self.complex_dim("irfft", d, at)?;
        let half = self.shape()[k];
        if n == 0 || half != n / 2 + 1 {
            let m = format!("{half} entries of dimension {k} for {n} real numbers, whose transform has {}", n / 2 + 1);
            return Err(TensorError::shape("irfft", at, m));
        }
        Mode { at: Some(at), ..Mode::current() }.run(|| {
            let d = k;
            let mirrored = self.narrow(d, 1, n - half)?.flip(d)?;
            let conjugate = mirrored.mul(&Tensor::new(&[1.0, -1.0], self.device())?.cast(self.dtype())?)?;
            Tensor::cat(&[self.clone(), conjugate], d)?.transform("irfft", d, true, at)?.select(-1, 0)
        })
    }

    /// A dimension of complex numbers.
    fn complex_dim(&self, op: &'static str, d: impl SignedIndex, at: At) -> TensorResult<usize> {
        let pairs = self.dims().split_last().filter(|(last, _)| **last == 2).map(|(_, dims)| dims.len());
        let Some(rank) = pairs.filter(|_| self.dtype().is_float() && !self.dtype().is_block()) else {
            let m = format!("{}{}: expected floats with a last dimension of 2 for real and imaginary parts", self.dtype(), self.shape());
            return Err(TensorError::shape(op, at, m));
        };
        dim(d, rank, op, at)
    }

    fn transform(&self, op: &'static str, d: impl SignedIndex, inverse: bool, at: At) -> TensorResult<Tensor> {
        let k = self.complex_dim(op, d, at)?;
        if !self.device().capabilities().host_memory {
            let m = format!("{op} runs on the CPU, not on {}; move the tensor there by to_device(&Device::cpu())", self.device().name());
            return Err(TensorError::UnsupportedDevice(m));
        }
        let n = self.size_for(op, k, at)?;
        if n == 0 {
            return Err(TensorError::shape(op, at, format!("dimension {k} of {} is empty", self.shape())));
        }
        Transform { dim: k, inverse, scale: if inverse { 1.0 / n as f64 } else { 1.0 } }.of(self, at)
    }
}
