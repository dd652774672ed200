//! PyTorch's names for short compositions of other methods.

use crate::error::{TensorError, TensorResult};
use crate::ops::Combine;
use crate::ops::sizes::Sizes;
use crate::shape::{SignedIndex, dim};
use crate::tensor::{Mode, Tensor};
use smallvec::SmallVec;
use std::borrow::Borrow;
use std::panic::Location;

impl Tensor {
    /// The products of two batches of matrices: `[B,M,K]` and `[B,K,N]` give `[B,M,N]`. [`Tensor::matmul`] with strict shapes.
    ///
    /// # Errors
    /// When the shapes are not these, or as for [`Tensor::matmul`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[[[1.0, 2.0]], [[3.0, 4.0]]], &Device::cpu())?;
    /// let b = Tensor::new(&[[[1.0], [1.0]], [[2.0], [0.0]]], &Device::cpu())?;
    /// assert_eq!(a.bmm(&b)?.to_vec3::<f32>()?, [[[3.0]], [[6.0]]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn bmm(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        if self.rank() != 3 || rhs.rank() != 3 || self.dims()[0] != rhs.dims()[0] {
            let m = format!("{}·{}: expected [B,M,K]·[B,K,N]", self.shape(), rhs.shape());
            return Err(TensorError::shape("bmm", Location::caller(), m));
        }
        self.matmul(rhs)
    }

    /// [`Tensor::scatter`] with [`Combine::Add`]: `source`'s elements are added to those of dimension `d` that `index` names.
    /// `[…,N,…]` with `index` and `source` of `[…,K,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// As for [`Tensor::scatter`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let index = Tensor::new(&[0, 2, 0], &device)?;
    /// let source = Tensor::new(&[1.0, 2.0, 3.0], &device)?;
    /// let sums = Tensor::zeros(&[3], DType::F32, &device)?.scatter_add(0, &index, &source)?;
    /// assert_eq!(sums.to_vec()?, [4.0, 0.0, 2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn scatter_add(&self, d: impl SignedIndex, index: &Tensor, source: &Tensor) -> TensorResult<Tensor> {
        self.scatter(d, index, source, Combine::Add)
    }

    /// Dimension `from` moved to place `to`; the others keep their order. A view. `[A,B,C]` from 0 to 2 → `[B,C,A]`.
    ///
    /// # Errors
    /// When there is no such dimension or place.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::zeros(&[2, 3, 5], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.movedim(0, -1)?.dims(), [3, 5, 2]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn movedim(&self, from: impl SignedIndex, to: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let (from, to) = (dim(from, self.rank(), "movedim", at)?, dim(to, self.rank(), "movedim", at)?);
        if self.rank() == 0 {
            return Ok(self.clone());
        }
        let mut order: SmallVec<[usize; 8]> = (0..self.rank()).collect();
        let moved = order.remove(from);
        order.insert(to, moved);
        self.permute(&order)
    }

    /// Dimension `d` split into these sizes, one of which may be left open: the inverse of [`Tensor::flatten`]. `[…,M·N,…]` → `[…,M,N,…]`.
    ///
    /// # Errors
    /// When there is no such dimension, or its size is not the product of the sizes.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::zeros(&[4, 12], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.unflatten(1, (3, ()))?.dims(), [4, 3, 4]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn unflatten(&self, d: impl SignedIndex, sizes: impl Sizes) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "unflatten", at)?;
        let size = self.size_for("unflatten", k, at)?;
        let inner = sizes.sizes();
        let known = inner.iter().filter(|&&s| s >= 0).try_fold(1usize, |n, &s| n.checked_mul(s as usize));
        let open = inner.iter().filter(|&&s| s < 0).count();
        let fits = match (known, open) {
            (Some(n), 0) => n == size,
            (Some(n), 1) => n > 0 && size % n == 0,
            _ => false,
        };
        if !fits || inner.iter().any(|&s| s < -1) {
            let m = format!("dimension {k} of {}, which has {size}, does not split into {inner:?}", self.shape());
            return Err(TensorError::shape("unflatten", at, m));
        }
        let mut all: SmallVec<[isize; 16]> = self.dims()[..k].sizes().into_iter().collect();
        all.extend(inner.iter().map(|&s| if s < 0 { (size / known.unwrap_or(1)) as isize } else { s }));
        all.extend(self.dims()[k + 1..].sizes());
        self.reshape(&all)
    }

    /// The middle element of dimension `d` in ascending order (of an even number the lower one, as in PyTorch), and its index (i32). NaN where one is
    /// NaN. The dimension goes. `[A,N,B]` along 1 → `[A,B]`, both.
    ///
    /// # Errors
    /// When there is no such dimension, or it is empty; those of [`Tensor::sort`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[5.0, 1.0, 3.0], [9.0, 8.0, 7.0]], &Device::cpu())?;
    /// let (values, indices) = x.median(1)?;
    /// assert_eq!(values.to_vec()?, [3.0, 8.0]);
    /// assert_eq!(indices.to_vec1::<i32>()?, [2, 1]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn median(&self, d: impl SignedIndex) -> TensorResult<(Tensor, Tensor)> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "median", at)?;
        if self.rank() == 0 {
            return self.sort(0, false);
        }
        let n = self.shape()[k];
        if n == 0 {
            return Err(TensorError::shape("median", at, format!("dimension {k} of {} is empty", self.shape())));
        }
        let (values, order) = self.sort(d, false)?;
        let run = || {
            let entry = |t: &Tensor, i: usize| t.select(k, i);
            let (value, index) = (entry(&values, (n - 1) / 2)?, entry(&order, (n - 1) / 2)?);
            if !self.dtype().is_float() {
                return Ok((value, index));
            }
            // NaN is sorted last.
            let (last, place) = (entry(&values, n - 1)?, entry(&order, n - 1)?);
            let nan = last.isnan()?;
            Ok((nan.where_(&last, &value)?, nan.where_(&place, &index)?))
        };
        Mode { at: Some(at), ..Mode::current() }.run(run)
    }

    /// The coordinates of a grid: for vectors of `n0, n1, …` elements as many views `[n0, n1, …]`, of which each varies along its own dimension only
    /// (PyTorch's `indexing="ij"`).
    ///
    /// # Errors
    /// When one is neither a vector nor a scalar, or there are none or more than eight.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let grid = Tensor::meshgrid(&[Tensor::new(&[1, 2], &device)?, Tensor::new(&[3, 4, 5], &device)?])?;
    /// assert_eq!(grid[0].to_vec2::<i32>()?, [[1, 1, 1], [2, 2, 2]]);
    /// assert_eq!(grid[1].to_vec2::<i32>()?, [[3, 4, 5], [3, 4, 5]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn meshgrid<T: Borrow<Tensor>>(vectors: &[T]) -> TensorResult<Vec<Tensor>> {
        let at = Location::caller();
        if let Some(t) = vectors.iter().map(Borrow::borrow).find(|t| t.rank() > 1) {
            return Err(TensorError::shape("meshgrid", at, format!("{} is not a vector", t.shape())));
        }
        if vectors.is_empty() {
            return Err(TensorError::shape("meshgrid", at, "no vectors"));
        }
        let sizes: SmallVec<[usize; 8]> = vectors.iter().map(|t| t.borrow().numel()).collect();
        let shape = crate::shape::Shape::new(&sizes, "meshgrid", at)?;
        let run = || {
            let grid = vectors.iter().enumerate().map(|(i, t)| {
                let mut own: SmallVec<[usize; 8]> = smallvec::smallvec![1; sizes.len()];
                own[i] = sizes[i];
                t.borrow().reshape(&own)?.expand(shape)
            });
            grid.collect()
        };
        Mode { at: Some(at), ..Mode::current() }.run(run)
    }
}
