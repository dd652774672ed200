//! Layer norm and RMS norm along rows.

use crate::backends::cpu::operand::{target, values};
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Wgsl};

/// x `[rows, cols]`, then weight `[cols]` and bias `[cols]` where there are, to `[rows, cols]`.
#[derive(Clone, Debug)]
pub struct NormKernel {
    /// Whether rows are only divided by their root mean square, not centred.
    pub rms: bool,
    /// Added to the variance.
    pub eps: f32,
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
            task.load(1, 0, T::lane(weight));
        }
        let bias = values::<T>(task, if self.bias { cols } else { 0 });
        if self.bias {
            task.load(1 + self.weight as usize, 0, T::lane(bias));
        }
        let buffer = values::<T>(task, cols);
        let n = cols as f64;
        for row in range {
            let direct = target::<T>(task, 0, row * cols, cols);
            let in_place = direct.is_some();
            let x = direct.unwrap_or(&mut *buffer);
            task.load(0, row * cols, T::lane(x));
            let mean = if self.rms { T::ZERO } else { T::of(T::sum(x).wide() / n) };
            let variance = T::deviation(x, mean).wide() / n;
            T::normalize(x, mean, T::of(1.0 / (variance + self.eps as f64).sqrt()), weight, bias);
            if !in_place {
                task.store(0, row * cols, T::lane(x));
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
    fn wgsl(&self, _step: &Step, _adapter: &AdapterInfo) -> Option<Wgsl> {
        None
    }
}
