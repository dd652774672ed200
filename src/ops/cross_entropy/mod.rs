//! The negative log-probability of a class by row of logits, and its gradient: the probabilities are never stored.

pub(crate) mod gpu;
#[cfg(all(test, feature = "gpu"))]
mod tests;

use crate::backends::cpu::operand::{target, values};
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::ops::Rhs;
use crate::plan::{AdapterInfo, Kernel, SliceMut, Step, Task, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Mode, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// Logits `[rows, classes]` and targets `[rows]` to the loss and the logarithm of Σ e^logit, both `[rows]`; or with those logarithms and the
/// losses' gradients `[rows]` to the logits' gradient.
#[derive(Clone, Debug)]
pub struct CrossEntropyKernel {
    /// Rows with this target count nothing.
    pub ignore: i64,
    /// Whether the gradient is asked for.
    pub backward: bool,
    /// Whether the target takes part in the gradient: without it, it is that of the logarithm of Σ e^logit alone.
    pub hot: bool,
}

/// Targets that are read at a time.
const TARGETS: usize = 64;

impl CrossEntropyKernel {
    fn run<T: Real>(&self, task: &dyn Task) {
        let shape = task.step().loads[0].shape;
        let (rows, cols) = (shape[0], shape[1]);
        let room: &mut [T] = values(task, cols);
        let one = |k: usize, row: usize| {
            let mut x = [T::ZERO];
            task.load(k, row, T::slice_mut(&mut x));
            x[0]
        };
        let range = share(rows, TARGETS, task.thread(), task.threads());
        for first in range.clone().step_by(TARGETS) {
            let n = TARGETS.min(range.end - first);
            let mut classes = [0i64; TARGETS];
            read(task, first, &mut classes[..n]);
            let (mut losses, mut sums) = ([T::ZERO; TARGETS], [T::ZERO; TARGETS]);
            for i in 0..n {
                let row = first + i;
                let ignored = classes[i] == self.ignore;
                if !ignored && (classes[i] < 0 || classes[i] as u64 >= cols as u64) {
                    task.fail(classes[i], cols);
                }
                let class = (classes[i].max(0) as usize).min(cols.max(1) - 1);
                if !self.backward {
                    task.load(0, row * cols, T::slice_mut(room));
                    let max = T::max(room);
                    sums[i] = T::of(max.wide() + T::sum_exp(room, max).wide().ln());
                    if !ignored && cols > 0 {
                        losses[i] = sums[i] - room[class];
                    }
                    continue;
                }
                let direct = target::<T>(task, 0, row * cols, cols);
                let in_place = direct.is_some();
                let x = direct.unwrap_or(&mut *room);
                if ignored {
                    x.fill(T::ZERO);
                } else if cols > 0 {
                    let g = one(3, row);
                    task.load(0, row * cols, T::slice_mut(x));
                    T::exp_sum(x, one(2, row));
                    T::scale(x, g);
                    if self.hot {
                        x[class] = x[class] - g;
                    }
                }
                if !in_place {
                    task.store(0, row * cols, T::slice_mut(x));
                }
            }
            if !self.backward {
                task.store(0, first, T::slice_mut(&mut losses[..n]));
                task.store(1, first, T::slice_mut(&mut sums[..n]));
            }
        }
    }
}

/// Targets from `start` on.
fn read(task: &dyn Task, start: usize, out: &mut [i64]) {
    macro_rules! lane {
        ($t:ty, $v:ident) => {{
            let mut x = [0 as $t; TARGETS];
            task.load(1, start, SliceMut::$v(&mut x[..out.len()]));
            out.iter_mut().zip(&x).for_each(|(o, &x)| *o = x as i64);
        }};
    }
    match task.step().loads[1].dtype().compute() {
        DType::I64 => lane!(i64, I64),
        DType::U64 => lane!(u64, U64),
        DType::U32 => lane!(u32, U32),
        _ => lane!(i32, I32),
    }
}

impl Kernel for CrossEntropyKernel {
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
        gpu::cross_entropy(self, step, adapter)
    }
}

/// Losses by row, and the logarithm of Σ e^logit, along dimension `class`.
struct CrossEntropy {
    class: usize,
    ignore: i64,
}

/// The gradient of the logits.
struct CrossEntropyGrad {
    class: usize,
    ignore: i64,
    /// Whether it is that of the loss, and not of the sum.
    hot: bool,
}

/// Logits with the classes last, and how many of them there are.
fn by_row(shape: Shape, class: usize) -> (Layout, Shape) {
    let mut order: Vec<usize> = (0..shape.rank()).filter(|&d| d != class).collect();
    order.push(class);
    let cols = shape[class];
    (Layout::contiguous(shape).permute(&order), Shape::of(&[shape.count() / cols.max(1), cols]))
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.class as u64).word(self.ignore as u64);
    }
    fn define(&self, t: &[Tensor]) -> Option<TensorResult<Tensor>> {
        let run = || {
            let kept = t[1].ne(self.ignore)?;
            let class = self.class;
            let index = kept.where_(&t[1], 0i64)?.unsqueeze(class)?;
            let picked = t[0].log_softmax(class)?.gather(class, &index)?.squeeze(class)?;
            kept.where_(&picked.neg()?, 0.0)
        };
        Some(run())
    }
    fn lower(&self, inputs: &[Meta], _: &[Meta]) -> Lowered {
        let (layout, shape) = by_row(inputs[0].shape, self.class);
        let rows = Shape::of(&[shape[0]]);
        let flat = Layout::contiguous(inputs[1].shape);
        Lowered::Kernel {
            kernel: Arc::new(CrossEntropyKernel { ignore: self.ignore, backward: false, hot: true }),
            loads: vec![(0, layout, shape), (1, flat, rows)],
            stores: vec![(0, flat, rows), (1, flat, rows)],
        }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let (x, target) = (&v.inputs[0], &v.inputs[1]);
        let run = || {
            // The gradient of the logarithm of the sum is the softmax: with both, (softmax − one-hot) · both + one-hot · the sum's.
            let (loss, sum) = (v.grads[0].as_ref(), v.grads[1].as_ref());
            let both = match (loss, sum) {
                (Some(l), Some(s)) => l.add(s)?,
                (Some(g), None) | (None, Some(g)) => g.clone(),
                (None, None) => return Ok(vec![None; 2]),
            };
            let hot = loss.is_some();
            let mut dx = if Mode::current().grad {
                self.differentiable(x, target, &both, hot)?
            } else {
                let op = CrossEntropyGrad { class: self.class, ignore: self.ignore, hot };
                let inputs = smallvec::smallvec![x.clone(), target.clone(), v.outputs[1].clone(), both];
                let dtype = if x.dtype().is_block() { DType::F32 } else { x.dtype() };
                let meta = Meta { dtype, shape: *x.shape() };
                Tensor::op1(op, inputs, Default::default(), meta, x.node.at)?
            };
            if let Some(s) = sum.filter(|_| hot) {
                let hot = self.hot(x, target)?;
                let s = s.unsqueeze(self.class)?.cast(dx.dtype())?;
                dx = dx.add(&hot.where_(Rhs::Tensor(&s), Rhs::Lit(0.0))?)?;
            }
            Ok(vec![Some(dx), None])
        };
        Some(run())
    }
}

impl CrossEntropy {
    /// Where the class is the target.
    fn hot(&self, x: &Tensor, target: &Tensor) -> TensorResult<Tensor> {
        let mut sizes = vec![1; x.rank()];
        sizes[self.class] = x.shape()[self.class];
        let number = Tensor::arange(0.0, x.shape()[self.class] as f64, 1.0, DType::I32, x.device())?.reshape(&sizes)?;
        number.eq(&target.unsqueeze(self.class)?)
    }

    /// The gradient in operations that have gradients themselves: (softmax − one-hot) · g where the target counts.
    fn differentiable(&self, x: &Tensor, target: &Tensor, g: &Tensor, hot: bool) -> TensorResult<Tensor> {
        let class = self.class;
        let mut p = x.softmax(class)?;
        if hot {
            p = p.sub(&self.hot(x, target)?.cast(g.dtype())?)?;
        }
        p.mul(&target.ne(self.ignore)?.where_(Rhs::Tensor(g), Rhs::Lit(0.0))?.unsqueeze(class)?)
    }
}

impl Op for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_grad"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.class as u64).word(self.ignore as u64).word(self.hot as u64);
    }
    fn define(&self, t: &[Tensor]) -> Option<TensorResult<Tensor>> {
        Some(CrossEntropy { class: self.class, ignore: self.ignore }.differentiable(&t[0], &t[1], &t[3], self.hot))
    }
    fn lower(&self, inputs: &[Meta], _: &[Meta]) -> Lowered {
        let (layout, shape) = by_row(inputs[0].shape, self.class);
        let rows = Shape::of(&[shape[0]]);
        let flat = Layout::contiguous(inputs[1].shape);
        Lowered::Kernel {
            kernel: Arc::new(CrossEntropyKernel { ignore: self.ignore, backward: true, hot: self.hot }),
            loads: vec![(0, layout, shape), (1, flat, rows), (2, flat, rows), (3, flat, rows)],
            stores: vec![(0, layout, shape)],
        }
    }
}

impl Tensor {
    /// −log softmax(self) at each target, along dimension `class`; 0 where the target is `ignore`; and ln Σ eˣ of each row, through which no
    /// gradient may flow where the target is `ignore`. f32, or f64 for f64.
    #[track_caller]
    pub(crate) fn class_losses(&self, target: &Tensor, class: usize, ignore: i64) -> TensorResult<(Tensor, Tensor)> {
        let at = Location::caller();
        let fits = self.rank() >= 1 && *target.shape() == self.shape().without(class);
        if !fits || !target.dtype().is_int() {
            let m = format!("{}{} for {}: expected integers, one per row of classes", target.dtype(), target.shape(), self.shape());
            return Err(TensorError::shape("cross_entropy", at, m));
        }
        if self.shape()[class] == 0 && target.numel() > 0 {
            return Err(TensorError::shape("cross_entropy", at, format!("no classes (shape {})", self.shape())));
        }
        let x = if self.dtype().is_float() { self.clone() } else { self.cast(DType::F32)? };
        let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let meta = Meta { dtype, shape: *target.shape() };
        let op = CrossEntropy { class, ignore };
        let inputs = smallvec::smallvec![x, target.clone()];
        let mut outs = Tensor::op(Arc::new(op), inputs, Default::default(), smallvec::smallvec![meta, meta], at)?;
        let sums = outs.swap_remove(1);
        Ok((outs.swap_remove(0), sums))
    }

    /// ln Σ eˣ along dimension `class` (which goes) in one pass; its gradient stores no probabilities besides. f32, or f64 for f64.
    #[track_caller]
    pub(crate) fn class_sums(&self, class: usize) -> TensorResult<Tensor> {
        let any = Tensor::full(0.0, &self.shape().without(class), DType::I32, self.device())?;
        Ok(self.class_losses(&any, class, -100)?.1)
    }
}
