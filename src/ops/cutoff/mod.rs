//! The least logit that may be drawn: what top-k, top-p and min-p leave.

pub(crate) mod gpu;
mod rows;
#[cfg(all(test, feature = "gpu"))]
mod tests;
pub(crate) use rows::SETTINGS;

use crate::backends::cpu::operand::values;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// Which logits may be drawn. Logits that are equal are all drawn from or none of them is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cutoff {
    /// What logits are divided by, more than 0.
    pub temperature: f64,
    /// The `top_k` largest; 0 for all.
    pub top_k: usize,
    /// Of those, the fewest largest that together have this share of their probability; 1 for all.
    pub top_p: f64,
    /// Those at least `min_p` times as probable as the largest; 0 for all.
    pub min_p: f64,
}

impl Cutoff {
    /// The least of these logits, of which none is NaN, that may be drawn. Sorts them, the largest first.
    pub fn of(&self, logits: &mut [f32]) -> f32 {
        logits.sort_unstable_by(|a, b| b.total_cmp(a));
        let Some(&top) = logits.first() else { return f32::NEG_INFINITY };
        let mut cut = logits[if self.top_k > 0 { self.top_k.min(logits.len()) } else { logits.len() } - 1];
        if self.top_p < 1.0 {
            let weight = |l: f32| if l == top { 1.0 } else { ((l as f64 - top as f64) / self.temperature).exp() };
            let kept = &logits[..logits.partition_point(|l| *l >= cut)];
            let enough = kept.iter().map(|l| weight(*l)).sum::<f64>() * self.top_p;
            let mut sum = 0.0;
            cut = kept
                .iter()
                .copied()
                .find(|l| {
                    sum += weight(*l);
                    sum >= enough
                })
                .unwrap_or(cut);
        }
        cut.max((top as f64 + self.temperature * self.min_p.ln()) as f32)
    }
}

impl Kernel for Cutoff {
    fn cpu(&self, task: &dyn Task) {
        if task.thread() == 0 {
            let logits = values::<f32>(task, task.step().loads[0].shape.count());
            task.load(0, 0, f32::slice_mut(logits));
            task.store(0, 0, f32::slice_mut(&mut [self.of(logits)]));
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        8 * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::cutoff(self, step, adapter)
    }
}

impl Op for Cutoff {
    fn name(&self) -> &'static str {
        "cutoff"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.top_k as u64).word(self.temperature.to_bits()).word(self.top_p.to_bits()).word(self.min_p.to_bits());
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        Lowered::plain(Arc::new(*self), inputs, outputs)
    }
    fn grad(&self, _: &Vjp) -> Option<TensorResult<Grads>> {
        Some(Ok(vec![None]))
    }
}

impl Tensor {
    /// The least of logits `[V]` that may be drawn, `[1]` f32; where one is NaN, any number.
    #[track_caller]
    pub(crate) fn cutoff(&self, of: Cutoff) -> TensorResult<Tensor> {
        let meta = Meta { dtype: DType::F32, shape: Shape::of(&[1]) };
        Tensor::op1(of, smallvec::smallvec![self.cast(DType::F32)?], Default::default(), meta, Location::caller())
    }
}
