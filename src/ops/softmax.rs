//! Softmax and its logarithm along rows.

use crate::backends::cpu::operand::{target, values};
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Wgsl};

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
        let buffer = values::<T>(task, cols);
        for row in share(rows, 1, task.thread(), task.threads()) {
            let direct = target::<T>(task, 0, row * cols, cols);
            let in_place = direct.is_some();
            let x = direct.unwrap_or(&mut *buffer);
            task.load(0, row * cols, T::lane(x));
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
                task.store(0, row * cols, T::lane(x));
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
    fn wgsl(&self, _step: &Step, _adapter: &AdapterInfo) -> Option<Wgsl> {
        None
    }
}
