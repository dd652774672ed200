//! Window writes: a tensor with a window of it replaced; in place when nothing else holds the old value (the KV cache's way).

use crate::error::At;
use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::shape::{SignedIndex, dim};
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;

/// `base` with the window at a run-time start along `dim` replaced by the second input.
struct Write {
    dim: usize,
    len: usize,
    /// Whether start · stride is a multiple of 8 elements: kernels of different alignment are different plans.
    aligned: bool,
}

impl Op for Write {
    fn name(&self) -> &'static str {
        "write"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.dim as u64 | (self.aligned as u64) << 8).word(self.len as u64);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, _: &[Meta], outputs: &[Meta]) -> Lowered {
        let window = Layout::contiguous(outputs[0].shape).slice(self.dim, 0, self.len, 1);
        // All of it begins at 0, always.
        let offset = (self.len < outputs[0].shape[self.dim]).then_some(0);
        Lowered::Windows { base: Some(0), pieces: vec![(1, window, offset)] }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let run = || {
            let (g, value) = (v.grad(), &v.inputs[1]);
            let d = self.dim;
            let start = v.params[0] as usize / Layout::contiguous(*g.shape()).strides[self.dim].max(1) as usize;
            let below = if v.wants(0) { Some(g.write(&value.zeros_like()?, d, start)?) } else { None };
            Ok(vec![below, Some(g.narrow(d, start, self.len)?)])
        };
        Some(run())
    }
    fn in_place(&self) -> bool {
        true
    }
}

/// The first input; the others are computed as well.
struct After;

impl Op for After {
    fn name(&self) -> &'static str {
        "after"
    }
    fn key(&self, _: &mut Key) {}
    fn define(&self, inputs: &[Tensor]) -> Option<TensorResult<Tensor>> {
        Some(Ok(inputs[0].clone()))
    }
    fn lower(&self, _: &[Meta], _: &[Meta]) -> Lowered {
        Lowered::Windows { base: Some(0), pieces: Vec::new() }
    }
}

/// Pieces in windows of a tensor: the transpose of a view.
struct Windows {
    windows: SmallVec<[Layout; 2]>,
    /// Whether the pieces leave places free, which input 0 (zeros) fills.
    base: bool,
}

impl Op for Windows {
    fn name(&self) -> &'static str {
        "windows"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.base as u64);
        for w in &self.windows {
            key.word((w.offset % 8 == 0) as u64);
            w.shape.iter().zip(w.strides()).for_each(|(&n, &s)| {
                key.word(n as u64).word(s as u64);
            });
        }
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, _: &[Meta], _: &[Meta]) -> Lowered {
        let first = usize::from(self.base);
        let pieces = self.windows.iter().enumerate().map(|(i, w)| (first + i, Layout { offset: 0, ..*w }, Some(i))).collect();
        Lowered::Windows { base: self.base.then_some(0), pieces }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let run = || {
            let g = v.grad().contiguous()?;
            let views = self.windows.iter().map(|&w| Some(g.view(w, g.node.at)));
            Ok(self.base.then_some(None).into_iter().chain(views).collect())
        };
        Some(run())
    }
}

/// A tensor of this dtype and shape with each piece in its window of the row-major elements, and zeros elsewhere. The windows share no element.
pub(crate) fn windows(meta: Meta, pieces: Vec<(Layout, Tensor)>, at: At) -> TensorResult<Tensor> {
    let device = pieces[0].1.device().clone();
    let base = pieces.iter().map(|(w, _)| w.shape.count()).sum::<usize>() < meta.shape.count();
    let mut inputs = crate::tensor::Inputs::new();
    if base {
        inputs.push(Tensor::zeros(meta.shape.dims(), meta.dtype, &device)?);
    }
    let params = pieces.iter().map(|(w, _)| w.offset as f64).collect();
    let windows = pieces.iter().map(|(w, _)| *w).collect();
    for (_, t) in &pieces {
        inputs.push(t.cast(meta.dtype)?);
    }
    Ok(Tensor::op(Arc::new(Windows { windows, base }), inputs, params, smallvec::smallvec![meta], at)?.remove(0))
}

impl Tensor {
    /// This tensor, which is there only when `other` is: an evaluation that is asked for it writes that one too.
    #[track_caller]
    pub(crate) fn after(&self, other: &Tensor) -> TensorResult<Tensor> {
        let inputs = smallvec::smallvec![self.clone(), other.clone()];
        Tensor::op1(After, inputs, Default::default(), self.meta(), Location::caller())
    }

    /// This tensor with elements `start..` of dimension `d` replaced by `value`, whose other sizes are this tensor's.
    /// `[…,N,…]` with `[…,K,…]` → `[…,N,…]`.
    ///
    /// The start is a run-time parameter: other starts reuse the plan. The write happens in place when, at evaluation, no other handle, view
    /// or pending node holds the old value, so replace the variable: `cache = cache.write(&new, 1, pos)?`. Otherwise it copies.
    ///
    /// # Errors
    /// When there is no such dimension, it ends before the value does, the other sizes differ, or this tensor is in a block format.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let cache = Tensor::zeros(&[4], DType::F32, &Device::cpu())?;
    /// let cache = cache.write(&Tensor::new(&[1.0, 2.0], &Device::cpu())?, 0, 1)?;
    /// assert_eq!(cache.to_vec()?, [0.0, 1.0, 2.0, 0.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn write(&self, value: &Tensor, d: impl SignedIndex, start: usize) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "write", at)?;
        let size = self.size_for("write", k, at)?;
        let fits = value.rank() == self.rank() && (0..self.rank()).all(|i| i == k || value.shape()[i] == self.shape()[i]);
        if !fits {
            return Err(TensorError::shape(
                "write",
                at,
                format!("{} does not fit into {} along dimension {k}", value.shape(), self.shape()),
            ));
        }
        let len = value.shape()[k];
        if start.checked_add(len).is_none_or(|end| end > size) {
            return Err(TensorError::shape(
                "write",
                at,
                format!("{start}..{start}+{len} of dimension {k} of {}, which has {size}", self.shape()),
            ));
        }
        if self.dtype().is_block() {
            return Err(TensorError::dtype("write", at, format!("{} is read-only", self.dtype())));
        }
        let offset = start * Layout::contiguous(*self.shape()).strides[k] as usize;
        let value = value.cast(self.dtype())?;
        let op = Write { dim: k, len, aligned: offset % 8 == 0 };
        Tensor::op1(op, smallvec::smallvec![self.clone(), value], smallvec::smallvec![offset as f64], self.meta(), at)
    }
}
