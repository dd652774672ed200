//! The gradient of layer norm and RMS norm: one pass over each row, and sums down the columns in a fixed order.

use crate::backends::cpu::operand::{target, values};
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// x and the result's gradient, `[rows, cols]` each, then weight `[cols]` where there is one, to the gradient of x; then either the gradients of
/// weight and bias `[cols]`, or each row's mean and inverse deviation `[rows]`.
#[derive(Clone, Debug)]
pub struct NormGradKernel {
    /// Whether rows are only divided by their root mean square, not centred.
    pub rms: bool,
    /// Added to the variance.
    pub eps: f64,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether the columns are summed up here; else the rows' numbers are given, so that another kernel can.
    pub columns: bool,
}

impl NormGradKernel {
    fn run<T: Real>(&self, task: &dyn Task) {
        let shape = task.step().loads[0].shape;
        let (rows, cols) = (shape[0], shape[1]);
        // Rows whose sums are made together: their number depends on the shape alone, so that sums do not depend on the number of threads.
        let chunk = rows.div_ceil(256).max(16);
        let chunks = rows.div_ceil(chunk);
        let partial = task.shared(if self.columns { chunks * 2 * cols * size_of::<T>() } else { 64 }).cast::<T>();
        let weight = values::<T>(task, if self.weight { cols } else { 0 });
        if self.weight {
            task.load(2, 0, T::slice_mut(weight));
        }
        let (room, g, h) = (values::<T>(task, cols), values::<T>(task, cols), values::<T>(task, cols));
        let n = cols as f64;
        for c in share(chunks, 1, task.thread(), task.threads()) {
            let (sums, shifts): (&mut [T], &mut [T]) = if self.columns {
                // SAFETY: there is room for every chunk's sums, and each is written by one thread.
                let own = unsafe { std::slice::from_raw_parts_mut(partial.add(c * 2 * cols), 2 * cols) };
                own.fill(T::ZERO);
                own.split_at_mut(cols)
            } else {
                (&mut [], &mut [])
            };
            for row in c * chunk..rows.min((c + 1) * chunk) {
                let direct = target::<T>(task, 0, row * cols, cols);
                let in_place = direct.is_some();
                let x = direct.unwrap_or(&mut *room);
                task.load(0, row * cols, T::slice_mut(x));
                task.load(1, row * cols, T::slice_mut(g));
                let mean = if self.rms { T::ZERO } else { T::of(T::sum(x).wide() / n) };
                let scale = T::of(1.0 / (T::deviation(x, mean).wide() / n + self.eps).sqrt());
                T::normalize(x, mean, scale, &[], &[]);
                if self.columns {
                    T::multiply_add(sums, g, x);
                    T::axpy(shifts, T::of(1.0), g);
                } else {
                    task.store(1, row, T::slice_mut(&mut [mean]));
                    task.store(2, row, T::slice_mut(&mut [scale]));
                }
                let h: &[T] = if self.weight {
                    T::multiply(h, g, weight);
                    &*h
                } else {
                    &*g
                };
                let along = T::of(T::dot(h, x).wide() / n);
                let shift = if self.rms { T::ZERO } else { T::of(T::sum(h).wide() / n) };
                T::rest(x, h, along, shift, scale);
                if !in_place {
                    task.store(0, row * cols, T::slice_mut(x));
                }
            }
        }
        if !self.columns {
            return;
        }
        task.barrier();
        let total = values::<T>(task, COLUMNS);
        for k in 0..2 {
            for start in share(cols, COLUMNS, task.thread(), task.threads()).step_by(COLUMNS) {
                let total = &mut total[..COLUMNS.min(cols - start)];
                total.fill(T::ZERO);
                for c in 0..chunks {
                    // SAFETY: all were written before the barrier.
                    let part = unsafe { std::slice::from_raw_parts(partial.add((c * 2 + k) * cols + start), total.len()) };
                    T::axpy(total, T::of(1.0), part);
                }
                task.store(1 + k, start, T::slice_mut(total));
            }
        }
    }
}

/// Columns that are summed up together.
const COLUMNS: usize = 128;

impl Kernel for NormGradKernel {
    fn cpu(&self, task: &dyn Task) {
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.run::<f64>(task),
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        14 * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        if self.columns {
            return None;
        }
        super::grad_gpu::norm_grad(self.rms, self.eps as f32, self.weight, step, adapter)
    }
}

/// The gradient of a norm over the last dimension.
struct NormGrad(NormGradKernel);

impl Op for NormGrad {
    fn name(&self) -> &'static str {
        if self.0.rms { "rms_norm_grad" } else { "layer_norm_grad" }
    }
    fn key(&self, key: &mut Key) {
        key.word(self.0.eps.to_bits()).word(self.0.weight as u64 | (self.0.columns as u64) << 1);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        // Several results; the gradient of `layer_norm` in simpler operations is what they are tested against.
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let shape = inputs[0].shape;
        let cols = *shape.last().unwrap_or(&1);
        let logical = Shape::of(&[shape.count() / cols.max(1), cols]);
        let flat = Layout::contiguous(shape);
        let mut loads = vec![(0, flat, logical), (1, flat, logical)];
        if self.0.weight {
            loads.push((2, Layout::contiguous(inputs[2].shape), inputs[2].shape));
        }
        let mut stores = vec![(0, flat, logical)];
        stores.extend((1..3).map(|k| (k, Layout::contiguous(outputs[k].shape), outputs[k].shape)));
        Lowered::Kernel { kernel: Arc::new(self.0.clone()), loads, stores }
    }
}

/// The gradients of a norm's input, weight and bias.
pub(super) fn gradients(rms: bool, eps: f64, weight: bool, bias: bool, v: &Vjp) -> TensorResult<Grads> {
    let (x, g) = (&v.inputs[0], v.grad());
    let cols = *x.shape().last().expect("a norm is over the last dimension");
    let rows = x.numel() / cols.max(1);
    // Sums down columns belong to the same kernel, or to one of their own.
    let columns = x.device().capabilities().joint_gradients;
    let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let mut inputs: SmallVec<[Tensor; 3]> = smallvec![x.clone(), g.cast(x.dtype())?];
    if weight {
        inputs.push(v.inputs[1].clone());
    }
    let other = Meta { dtype: wide, shape: Shape::of(&[if columns { cols } else { rows }]) };
    let op = NormGrad(NormGradKernel { rms, eps, weight, columns });
    let out = Tensor::op(Arc::new(op), inputs, Default::default(), smallvec![x.meta(), other, other], x.node.at)?;
    let mut grads = vec![None; v.inputs.len()];
    grads[0] = Some(out[0].clone());
    let at = [weight.then_some(1), bias.then_some(1 + weight as usize)];
    if columns {
        for (k, i) in at.into_iter().enumerate() {
            if let Some(i) = i.filter(|&i| v.wants(i)) {
                grads[i] = Some(out[1 + k].clone());
            }
        }
        return Ok(grads);
    }
    let flat = |t: &Tensor| t.reshape(&[rows, cols])?.cast(wide);
    let column = |t: &Tensor| t.unsqueeze(1);
    if let Some(i) = at[0].filter(|&i| v.wants(i)) {
        let unit = flat(x)?.sub(&column(&out[1])?)?.mul(&column(&out[2])?)?;
        grads[i] = Some(flat(g)?.mul(&unit)?.sum(&[0], false)?);
    }
    if let Some(i) = at[1].filter(|&i| v.wants(i)) {
        grads[i] = Some(flat(g)?.sum(&[0], false)?);
    }
    Ok(grads)
}
