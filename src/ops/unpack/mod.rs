//! A weight in a block format as f16: for products of many rows, which would unpack it again for each tile.

pub(crate) mod gpu;
#[cfg(all(test, feature = "gpu"))]
mod tests;

use crate::backends::cpu::operand::values;
use crate::backends::cpu::share;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// Elements that are unpacked at a time.
const ELEMENTS_PER_PASS: usize = 4096;

/// Load 0 to store 0, element by element.
#[derive(Clone, Copy, Debug)]
pub struct Unpack;

impl Kernel for Unpack {
    fn cpu(&self, task: &dyn Task) {
        let buffer: &mut [f32] = values(task, ELEMENTS_PER_PASS);
        let mine = share(task.step().loads[0].shape.count(), ELEMENTS_PER_PASS, task.thread(), task.threads());
        for start in mine.clone().step_by(ELEMENTS_PER_PASS) {
            let len = ELEMENTS_PER_PASS.min(mine.end - start);
            task.load(0, start, f32::slice_mut(&mut buffer[..len]));
            task.store(0, start, f32::slice_mut(&mut buffer[..len]));
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        2 * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::unpack(step, adapter)
    }
}

impl Op for Unpack {
    fn name(&self) -> &'static str {
        "unpack"
    }
    fn key(&self, _: &mut Key) {}
    fn define(&self, inputs: &[Tensor]) -> Option<TensorResult<Tensor>> {
        Some(inputs[0].cast(DType::F16))
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        Lowered::plain(Arc::new(*self), inputs, outputs)
    }
    fn grad(&self, _: &Vjp) -> Option<TensorResult<Grads>> {
        Some(Ok(vec![None]))
    }
}

impl Tensor {
    /// This weight `[N,K]` as the product with `x` `[…,K]` had best read it: unpacked where `x` has many rows of f16, the backend is faster
    /// for it, and nothing is learnt, for which it would have to be kept.
    #[track_caller]
    pub(crate) fn unpacked_for(&self, x: &Tensor) -> TensorResult<Tensor> {
        if let Some(parts) = self.parts() {
            return Tensor::each_part(parts, Location::caller(), |part| part.unpacked_for(x));
        }
        let rows = x.numel() / self.dims().last().copied().unwrap_or(1).max(1);
        let wanted = self.dtype().is_block() && x.dtype() == DType::F16 && x.device().backend().unpacks(rows, self.numel());
        if !wanted || x.node.tracked {
            return Ok(self.clone());
        }
        let meta = Meta { dtype: DType::F16, shape: *self.shape() };
        Tensor::op1(Unpack, smallvec::smallvec![self.clone()], Default::default(), meta, Location::caller())
    }
}
