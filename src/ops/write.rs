//! Window writes: a tensor with a window of it replaced; in place when nothing else holds the old value (the KV cache's way).

use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::shape::dim;
use crate::tensor::{Key, Lowered, Meta, Op, Tensor};
use std::panic::Location;

/// `base` with the window at a run-time start along `dim` replaced by the second input.
struct Write {
    dim: usize,
    len: usize,
    /// Whether start · stride is a multiple of 4 elements: kernels of different alignment are different plans.
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
        Lowered::Windows { base: Some(0), pieces: vec![(1, window, Some(0))] }
    }
    fn in_place(&self) -> bool {
        true
    }
}

impl Tensor {
    /// This tensor with elements `start..` of dimension `d` replaced by `value`, whose other sizes are this tensor's.
    ///
    /// The start is a run-time parameter: other starts reuse the plan. The write happens in place when, at evaluation, no other handle, view
    /// or pending node holds the old value, so replace the variable: `cache = cache.write(&new, 1, pos)?`. Otherwise it copies.
    #[track_caller]
    pub fn write(&self, value: &Tensor, d: isize, start: usize) -> TensorResult<Tensor> {
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
        let value = value.cast_at(self.dtype(), at)?;
        let op = Write { dim: k, len, aligned: offset % 4 == 0 };
        Tensor::op1(op, smallvec::smallvec![self.clone(), value], smallvec::smallvec![offset as f64], self.meta(), at)
    }
}
