//! The same of several rows, each with settings of its own, which are data: one plan serves all settings.

use super::{Cutoff, gpu};
use crate::backends::cpu::operand::values;
use crate::backends::cpu::share;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// Numbers of a row: see [`Cutoff::settings`].
pub(crate) const SETTINGS: usize = 5;

#[derive(Clone, Copy, Debug)]
struct CutoffRows;

impl Cutoff {
    /// As [`Tensor::cutoff_rows`] takes them: 1/temperature, top-k, top-p, temperature · ln(min-p), temperature.
    pub(crate) fn settings(&self) -> [f32; SETTINGS] {
        // No number is minus infinity.
        let number = |v: f64| (v as f32).max(-3e38);
        // Integers are exact in f32 up to here, and no vocabulary is as large.
        let top_k = self.top_k.min(1 << 24) as f32;
        let temperature = self.temperature;
        [number(1.0 / temperature), top_k, number(self.top_p), number(temperature * self.min_p.ln()), number(temperature)]
    }
}

impl Kernel for CutoffRows {
    fn cpu(&self, task: &dyn Task) {
        let &[rows, count] = task.step().loads[0].shape.dims() else { return };
        let logits = values::<f32>(task, count);
        for row in share(rows, 1, task.thread(), task.threads()) {
            let mut settings = [0f32; SETTINGS];
            task.load(1, row * SETTINGS, f32::slice_mut(&mut settings));
            let [_, top_k, top_p, shift, temperature] = settings.map(f64::from);
            let mut cut = f32::NEG_INFINITY;
            if top_k > 0.0 || top_p < 1.0 || shift > -1e38 {
                task.load(0, row * count, f32::slice_mut(logits));
                let min_p = if shift > -1e38 { (shift / temperature).exp() } else { 0.0 };
                cut = Cutoff { temperature, top_k: top_k as usize, top_p, min_p }.of(logits);
            }
            task.store(0, row, f32::slice_mut(&mut [cut]));
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        8 * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::cutoff_rows(step, adapter)
    }
}

impl Op for CutoffRows {
    fn name(&self) -> &'static str {
        "cutoff"
    }
    fn key(&self, key: &mut Key) {
        key.text("rows");
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let whole = |i: usize| (i, Layout::contiguous(inputs[i].shape), inputs[i].shape);
        let out = outputs[0].shape;
        Lowered::Kernel { kernel: Arc::new(*self), loads: vec![whole(0), whole(1)], stores: vec![(0, Layout::contiguous(out), out)] }
    }
    fn grad(&self, _: &Vjp) -> Option<TensorResult<Grads>> {
        Some(Ok(vec![None, None]))
    }
}

impl Tensor {
    /// The least of each row of logits `[B,V]` that may be drawn by that row's settings `[B,5]` ([`Cutoff::settings`]): `[B,1]` f32.
    #[track_caller]
    pub(crate) fn cutoff_rows(&self, settings: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        let rows = match self.dims() {
            &[rows, _] if settings.dims() == [rows, SETTINGS] && settings.dtype() == DType::F32 => rows,
            _ => {
                return Err(TensorError::shape("cutoff", at, format!("{} by {}: expected [B,V] by [B,5]", self.shape(), settings.shape())));
            }
        };
        let meta = Meta { dtype: DType::F32, shape: Shape::of(&[rows, 1]) };
        Tensor::op1(CutoffRows, smallvec::smallvec![self.cast(DType::F32)?, settings.clone()], Default::default(), meta, at)
    }
}
