//! The largest or smallest few elements: of rows of floats by passes over each row, else by sorting.

pub(crate) mod gpu;
#[cfg(all(test, feature = "gpu"))]
mod tests;

use crate::backends::cpu::operand::values;
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::plan::{AdapterInfo, Kernel, SliceMut, Step, Task, Wgsl};
use crate::shape::{Shape, SignedIndex, dim};
use crate::tensor::{Grads, Key, Lowered, Meta, Mode, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// How many elements are found by passes over a row, one each, at most.
const MAX_K: usize = 32;
/// Elements of a row up to which that is done.
const MAX_ROW_ELEMENTS: usize = 1 << 14;

/// Rows of load 0 `[rows, n]` to the places of their `k` largest elements, or smallest, in order `[rows, k]`, and those elements or their softmax where
/// there is a second store. Equal elements keep their order; NaN counts as largest.
#[derive(Clone, Copy, Debug)]
pub struct TopKKernel {
    /// How many.
    pub k: usize,
    /// Whether the largest, not the smallest.
    pub largest: bool,
    /// Whether the second store has the softmax of the elements, which are the largest.
    pub softmax: bool,
}

impl TopKKernel {
    fn run<T: Real + PartialOrd>(&self, task: &dyn Task) {
        let &[rows, n] = task.step().loads[0].shape.dims() else { return };
        let row: &mut [T] = values(task, n);
        let nan = |v: T| v.partial_cmp(&v).is_none();
        let before = |a: T, b: T| match (nan(a), nan(b)) {
            (false, false) if self.largest => a > b,
            (false, false) => a < b,
            (a, b) => a != b && a == self.largest,
        };
        for r in share(rows, (4096 / n.max(1)).max(1), task.thread(), task.threads()) {
            task.load(0, r * n, T::slice_mut(row));
            // The best so far, the best first.
            let (mut best, mut count) = ([0i32; MAX_K], 0);
            for (i, &v) in row.iter().enumerate() {
                let place = best[..count].iter().rposition(|&b| !before(v, row[b as usize])).map_or(0, |p| p + 1);
                if place < self.k {
                    count = (count + 1).min(self.k);
                    best.copy_within(place..count - 1, place + 1);
                    best[place] = i as i32;
                }
            }
            if task.step().stores.len() > 1 {
                let mut elements = [T::ZERO; MAX_K];
                for (element, &place) in elements.iter_mut().zip(&best[..self.k]) {
                    *element = row[place as usize];
                }
                if self.softmax {
                    let chosen = elements;
                    T::softmax_rows(&mut elements[..self.k], &chosen[..self.k], self.k, 0);
                }
                task.store(1, r * self.k, T::slice_mut(&mut elements[..self.k]));
            }
            task.store(0, r * self.k, SliceMut::I32(&mut best[..self.k]));
        }
    }
}

impl Kernel for TopKKernel {
    fn cpu(&self, task: &dyn Task) {
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.run::<f64>(task),
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        (2 * self.k * step.loads[0].shape.count()) as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::topk(self, step, adapter)
    }
}

impl Op for TopKKernel {
    fn name(&self) -> &'static str {
        "topk"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.k as u64).word(u64::from(self.largest) | u64::from(self.softmax) << 1);
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
    /// The `k` largest elements of dimension `d` (or the smallest) in order, and the index (i32) that each had.
    /// `[…,N,…]` → `[…,k,…]`, both.
    ///
    /// # Errors
    /// When the dimension has fewer elements than `k`; those of [`Tensor::sort`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[2.0, 3.0, 1.0], &Device::cpu())?;
    /// let (values, indices) = x.topk(2, 0, true)?;
    /// assert_eq!(values.to_vec()?, [3.0, 2.0]);
    /// assert_eq!(indices.to_vec1::<i32>()?, [1, 0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn topk(&self, k: usize, d: impl SignedIndex, largest: bool) -> TensorResult<(Tensor, Tensor)> {
        let at = Location::caller();
        self.first_of_rows(k, d, largest, false, at)
    }

    /// As [`Tensor::topk`] of the largest, with the softmax of the elements instead of these.
    #[track_caller]
    pub(crate) fn topk_softmax(&self, k: usize, d: impl SignedIndex) -> TensorResult<(Tensor, Tensor)> {
        self.first_of_rows(k, d, true, true, Location::caller())
    }

    fn first_of_rows(&self, k: usize, d: impl SignedIndex, largest: bool, softmax: bool, at: At) -> TensorResult<(Tensor, Tensor)> {
        let axis = dim(d, self.rank(), "topk", at)?;
        let n = if self.rank() == 0 { 1 } else { self.size_for("topk", axis, at)? };
        if k > n {
            return Err(TensorError::shape("topk", at, format!("{k} of the {n} elements in dimension {axis}")));
        }
        let by_passes = self.dtype().is_float() && (1..=MAX_K).contains(&k) && (2..=MAX_ROW_ELEMENTS).contains(&n) && self.numel() > 0;
        if !by_passes {
            let (values, indices) = self.sorted("topk", d, largest)?;
            let first = |t: Tensor| if t.rank() == 0 { Ok(t) } else { t.narrow(axis, 0, k) };
            let values = first(values)?;
            return Ok((if softmax { values.softmax(d)? } else { values }, first(indices)?));
        }
        let run = || {
            let last = self.detach().transpose(axis, -1)?;
            let rows = last.reshape(&[self.numel() / n, n])?;
            let shape = Shape::of(&[rows.dims()[0], k]);
            let mut metas = smallvec::smallvec![Meta { dtype: DType::I32, shape }];
            // Elements have the gradient of a gather.
            let learns = Mode::learns([self]);
            if !learns {
                metas.push(Meta { dtype: self.dtype(), shape });
            }
            let found = Tensor::op(
                Arc::new(TopKKernel { k, largest, softmax: softmax && !learns }),
                smallvec::smallvec![rows],
                Default::default(),
                metas,
                at,
            )?;
            let mut sizes: Vec<usize> = last.dims().to_vec();
            sizes[self.rank() - 1] = k;
            let in_place = |t: &Tensor| t.reshape(&sizes)?.transpose(axis, -1);
            let indices = in_place(&found[0])?;
            let values = found.get(1).map_or_else(|| self.gather(axis, &indices), in_place)?;
            Ok((if softmax && learns { values.softmax(d)? } else { values }, indices))
        };
        Mode { at: Some(at), ..Mode::current() }.run(run)
    }
}
