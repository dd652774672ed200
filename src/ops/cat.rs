//! Concatenating and splitting: cat, stack, split, chunk, unstack.

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::shape::{SignedIndex, dim};
use crate::tensor::{Grads, Inputs, Key, Lowered, Meta, Op, Tensor, Vjp};
use smallvec::SmallVec;
use std::borrow::Borrow;
use std::panic::Location;

/// Tensors side by side along a dimension. Each is stored in its window by whatever computes it.
struct Cat {
    dim: usize,
}

impl Op for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.dim as u64);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        Lowered::side_by_side(self.dim, inputs, outputs)
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let mut start = 0;
        let run = |t: &Tensor| {
            let n = t.shape()[self.dim];
            start += n;
            v.grad().narrow(self.dim, start - n, n).map(Some)
        };
        Some(v.inputs.iter().map(run).collect())
    }
}

impl Tensor {
    /// Tensors side by side along dimension `d`: a slice of tensors, or of references to them. Other sizes must agree; dtypes promote. Empty
    /// vectors fit everything, as in PyTorch. `[…,M,…]` and `[…,N,…]` → `[…,M+N,…]`.
    ///
    /// # Errors
    /// When there are no tensors, they are scalars, sizes differ outside of dimension `d`, or the dtypes do not promote.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[[1, 2]], &Device::cpu())?;
    /// let b = Tensor::new(&[[3, 4], [5, 6]], &Device::cpu())?;
    /// assert_eq!(Tensor::cat(&[&a, &b], 0)?.to_vec2::<i32>()?, [[1, 2], [3, 4], [5, 6]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn cat<T: Borrow<Tensor>>(tensors: &[T], d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let mut tensors: SmallVec<[&Tensor; 8]> = tensors.iter().map(Borrow::borrow).collect();
        if tensors.iter().any(|t| t.rank() > 1) {
            tensors.retain(|t| t.dims() != [0]);
        }
        let Some(&first) = tensors.first() else { return Err(TensorError::shape("cat", at, "no tensors")) };
        let k = dim(d, first.rank(), "cat", at)?;
        if first.rank() == 0 {
            return Err(TensorError::shape("cat", at, "scalars have no dimension; use stack"));
        }
        let mut dtype = first.dtype();
        let mut size = 0;
        for t in &tensors {
            let fits = t.rank() == first.rank() && (0..t.rank()).all(|i| i == k || t.shape()[i] == first.shape()[i]);
            if !fits {
                return Err(TensorError::shape("cat", at, format!("{} and {} differ outside dimension {k}", first.shape(), t.shape())));
            }
            dtype = dtype.promote(t.dtype()).map_err(|e| TensorError::dtype("cat", at, e.to_string()))?;
            size += t.shape()[k];
        }
        if dtype.is_block() {
            dtype = DType::F32;
        }
        let shape = crate::shape::Shape::new(first.shape().with(k, size).dims(), "cat", at)?;
        let mut inputs = Inputs::new();
        for t in tensors {
            inputs.push(t.cast(dtype)?);
        }
        Tensor::op1(Cat { dim: k }, inputs, Default::default(), Meta { dtype, shape }, at)
    }

    /// Tensors of one shape along a new dimension `d`: a slice of tensors, or of references to them.
    /// Of `n` tensors `[A,B]`, `[n,A,B]` along 0, `[A,B,n]` along -1.
    ///
    /// # Errors
    /// When there are no tensors, their shapes differ, or there is no such dimension in the result.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[1, 2], &Device::cpu())?;
    /// let b = Tensor::new(&[3, 4], &Device::cpu())?;
    /// assert_eq!(Tensor::stack(&[&a, &b], 1)?.to_vec2::<i32>()?, [[1, 3], [2, 4]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn stack<T: Borrow<Tensor>>(tensors: &[T], d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let tensors: SmallVec<[&Tensor; 8]> = tensors.iter().map(Borrow::borrow).collect();
        let Some(&first) = tensors.first() else { return Err(TensorError::shape("stack", at, "no tensors")) };
        if let Some(t) = tensors.iter().find(|t| t.shape() != first.shape()) {
            return Err(TensorError::shape("stack", at, format!("{} and {} differ", first.shape(), t.shape())));
        }
        let k = dim(d, first.rank() + 1, "stack", at)?;
        let mut rows = Vec::with_capacity(tensors.len());
        for t in tensors {
            rows.push(t.unsqueeze(k)?);
        }
        Tensor::cat(&rows, k)
    }

    /// One view per index of dimension `d`, which stays with size 1: the inverse of [`Tensor::cat`] over pieces of size 1.
    /// [`Tensor::unstack`] drops the dimension, [`Tensor::split_with_sizes`] and [`Tensor::chunk`] make larger pieces.
    /// `[…,N,…]` → N times `[…,1,…]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2], [3, 4]], &Device::cpu())?;
    /// let rows = x.split(0)?;
    /// assert_eq!(rows[1].to_vec2::<i32>()?, [[3, 4]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn split(&self, d: impl SignedIndex) -> TensorResult<Vec<Tensor>> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "split", at)?;
        let mut parts = Vec::new();
        for i in 0..self.size_for("split", k, at)? {
            parts.push(self.narrow(k, i, 1)?);
        }
        Ok(parts)
    }

    /// Views of these sizes, one after the other along dimension `d`: the inverse of [`Tensor::cat`]. The sizes must add up to the
    /// dimension's. `[…,M+N,…]` → `[…,M,…]` and `[…,N,…]`.
    ///
    /// # Errors
    /// When there is no such dimension, or the sizes do not add up to its size.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 2, 3], &Device::cpu())?;
    /// let parts = x.split_with_sizes(&[1, 2], 0)?;
    /// assert_eq!(parts[1].to_vec1::<i32>()?, [2, 3]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn split_with_sizes(&self, sizes: &[usize], d: impl SignedIndex) -> TensorResult<Vec<Tensor>> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "split_with_sizes", at)?;
        let size = self.size_for("split_with_sizes", k, at)?;
        if sizes.iter().sum::<usize>() != size {
            return Err(TensorError::shape(
                "split_with_sizes",
                at,
                format!("sizes {sizes:?} add up to {}, dimension {k} has {size}", sizes.iter().sum::<usize>()),
            ));
        }
        let (mut start, mut parts) = (0, Vec::with_capacity(sizes.len()));
        for &n in sizes {
            parts.push(self.narrow(k, start, n)?);
            start += n;
        }
        Ok(parts)
    }

    /// At most `n` views of equal size (the last may be smaller) along dimension `d`. `[…,N,…]` → `[…,⌈N/n⌉,…]` each.
    ///
    /// # Errors
    /// When there is no such dimension, or `n` is 0.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 2, 3], &Device::cpu())?;
    /// let parts = x.chunk(2, 0)?;
    /// assert_eq!((parts[0].dims(), parts[1].dims()), (&[2][..], &[1][..]));
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn chunk(&self, n: usize, d: impl SignedIndex) -> TensorResult<Vec<Tensor>> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "chunk", at)?;
        let size = self.size_for("chunk", k, at)?;
        if n == 0 {
            return Err(TensorError::shape("chunk", at, "0 chunks"));
        }
        let each = size.div_ceil(n).max(1);
        let sizes: Vec<usize> = (0..size.div_ceil(each)).map(|i| each.min(size - i * each)).collect();
        self.split_with_sizes(&sizes, d)
    }

    /// One view per index of dimension `d`, which goes: the inverse of [`Tensor::stack`]. `[A,N,B]` along 1 → N times `[A,B]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2], [3, 4]], &Device::cpu())?;
    /// assert_eq!(x.unstack(1)?[0].to_vec1::<i32>()?, [1, 3]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn unstack(&self, d: impl SignedIndex) -> TensorResult<Vec<Tensor>> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "unstack", at)?;
        let mut parts = Vec::new();
        for i in 0..self.size_for("unstack", k, at)? {
            parts.push(self.select(k, i)?);
        }
        Ok(parts)
    }
}
