//! Views: other shapes over the same elements. None moves data, but `reshape` of a view that strides cannot express.

use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::ops::sizes::Sizes;
use crate::shape::{Shape, SignedIndex, dim};
use crate::tensor::Tensor;
use std::panic::Location;

impl Tensor {
    /// The same elements, in row-major order, under another shape; one size may be left open, as `()` in a tuple or -1 in an array, and is
    /// worked out. Copies only where the tensor is a view whose elements no strides reach in that order.
    /// `[A,B,C]` by `(A, ())` → `[A,B·C]`.
    ///
    /// # Errors
    /// When the sizes do not hold the elements, more than one is left open, or rows of a block format would be split.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2, 3], [4, 5, 6]], &Device::cpu())?;
    /// assert_eq!(x.reshape((3, ()))?.to_vec2::<i32>()?, [[1, 2], [3, 4], [5, 6]]);
    /// assert_eq!(x.reshape(&[-1])?.dims(), [6]);
    /// assert!(x.reshape([4, 2]).is_err());
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn reshape(&self, sizes: impl Sizes) -> TensorResult<Tensor> {
        self.reshaped(&sizes.sizes())
    }

    #[track_caller]
    fn reshaped(&self, sizes: &[isize]) -> TensorResult<Tensor> {
        let at = Location::caller();
        let count = self.numel();
        let wrong = || TensorError::shape("reshape", at, format!("{} elements of {} do not fit {sizes:?}", count, self.shape()));
        let known = sizes.iter().filter(|&&s| s >= 0).try_fold(1usize, |n, &s| n.checked_mul(s as usize)).ok_or_else(wrong)?;
        let free = sizes.iter().filter(|&&s| s < 0).count();
        if free > 1 || sizes.iter().any(|&s| s < -1) || (free == 1 && (known == 0 || count % known != 0)) || (free == 0 && known != count) {
            return Err(wrong());
        }
        let dims: smallvec::SmallVec<[usize; 8]> = sizes.iter().map(|&s| if s < 0 { count / known } else { s as usize }).collect();
        let shape = Shape::new(&dims, "reshape", at)?;
        if shape == *self.shape() {
            return Ok(self.clone());
        }
        if self.dtype().is_block() && shape.last() != self.shape().last() {
            return Err(TensorError::shape("reshape", at, format!("{} rows cannot be split or joined; cast first", self.dtype())));
        }
        match self.layout().reshape(shape) {
            Some(l) => Ok(self.view(l, at)),
            None => {
                let t = self.contiguous()?;
                let l = t.layout().reshape(shape).ok_or_else(wrong)?;
                Ok(t.view(l, at))
            }
        }
    }

    /// Dimensions in another order: dimension `i` of the result is dimension `order[i]`. `[A,B,C]` by 2, 0, 1 → `[C,A,B]`.
    ///
    /// # Errors
    /// When `order` is not an order of the dimensions.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::zeros(&[2, 3, 5], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.permute(&[2, 0, 1])?.dims(), [5, 2, 3]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn permute(&self, order: &[usize]) -> TensorResult<Tensor> {
        let at = Location::caller();
        let mut seen = [false; 8];
        let ok = order.len() == self.rank() && order.iter().all(|&o| o < self.rank() && !std::mem::replace(&mut seen[o], true));
        if !ok {
            return Err(TensorError::shape(
                "permute",
                at,
                format!("{order:?} is not an order of the {} dimensions of {}", self.rank(), self.shape()),
            ));
        }
        self.permuted(order, at)
    }

    fn permuted(&self, order: &[usize], at: crate::error::At) -> TensorResult<Tensor> {
        match self.parts() {
            Some((k, parts)) => {
                let to = order.iter().position(|&o| o == k).unwrap_or(k);
                Tensor::each_part((to, parts), at, |part| part.permuted(order, at))
            }
            None => Ok(self.view(self.layout().permute(order), at)),
        }
    }

    /// Two dimensions exchanged. `[…,A,…,B,…]` → `[…,B,…,A,…]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::zeros(&[2, 3, 5], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.transpose(0, -1)?.dims(), [5, 3, 2]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn transpose(&self, a: impl SignedIndex, b: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let (a, b) = (dim(a, self.rank(), "transpose", at)?, dim(b, self.rank(), "transpose", at)?);
        let mut order: smallvec::SmallVec<[usize; 8]> = (0..self.rank()).collect();
        if self.rank() > 0 {
            order.swap(a, b);
        }
        self.permuted(&order, at)
    }

    /// The matrix transposed: the last two dimensions exchanged. `[…,M,N]` → `[…,N,M]`.
    ///
    /// # Errors
    /// Never; it is a `Result` so that it chains like the other methods.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2, 3], [4, 5, 6]], &Device::cpu())?;
    /// assert_eq!(x.t()?.to_vec2::<i32>()?, [[1, 4], [2, 5], [3, 6]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn t(&self) -> TensorResult<Tensor> {
        if self.rank() < 2 {
            return Ok(self.clone());
        }
        self.transpose(-2, -1)
    }

    /// `len` elements of dimension `d` from `start`. `[…,N,…]` → `[…,len,…]`.
    ///
    /// # Errors
    /// When there is no such dimension, or it ends before `start + len`.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2, 3], [4, 5, 6]], &Device::cpu())?;
    /// assert_eq!(x.narrow(1, 1, 2)?.to_vec2::<i32>()?, [[2, 3], [5, 6]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn narrow(&self, d: impl SignedIndex, start: usize, len: usize) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "narrow", at)?;
        let size = self.size_for("narrow", k, at)?;
        if start.checked_add(len).is_none_or(|end| end > size) {
            return Err(TensorError::shape(
                "narrow",
                at,
                format!("{start}..{start}+{len} of dimension {k} of {}, which has {size}", self.shape()),
            ));
        }
        self.blocks_whole("narrow", k, start, len, at)?;
        match self.parts() {
            Some((dim, parts)) if dim == k => return Tensor::narrow_parts((dim, parts), start, len, at),
            Some(parts) => return Tensor::each_part(parts, at, |part| part.narrow(k, start, len)),
            None => {}
        }
        Ok(self.view(self.layout().slice(k, start, len, 1), at))
    }

    /// Elements `start, start + step, …` below `end` of dimension `d`, as Python's `x[start:end:step]` with a positive step and clipped ends.
    /// `[…,N,…]` → `[…,⌈(end-start)/step⌉,…]`.
    ///
    /// # Errors
    /// When there is no such dimension, or `step` is 0.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2, 3], [4, 5, 6]], &Device::cpu())?;
    /// assert_eq!(x.slice(1, 0, 9, 2)?.to_vec2::<i32>()?, [[1, 3], [4, 6]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn slice(&self, d: impl SignedIndex, start: usize, end: usize, step: usize) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "slice", at)?;
        let size = self.size_for("slice", k, at)?;
        if step == 0 {
            return Err(TensorError::shape("slice", at, "a step of 0"));
        }
        let (start, end) = (start.min(size), end.min(size));
        let len = end.saturating_sub(start).div_ceil(step);
        if step > 1 {
            self.blocks_whole("slice", k, 1, 1, at)?;
        }
        self.blocks_whole("slice", k, start, len, at)?;
        Ok(self.view(self.layout().slice(k, start, len, step as isize), at))
    }

    /// Dimension `d` in reverse order. `[…,N,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2, 3], [4, 5, 6]], &Device::cpu())?;
    /// assert_eq!(x.flip(1)?.to_vec2::<i32>()?, [[3, 2, 1], [6, 5, 4]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn flip(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "flip", at)?;
        let size = self.size_for("flip", k, at)?;
        self.blocks_whole("flip", k, 1, 1, at)?;
        Ok(self.view(self.layout().slice(k, size.saturating_sub(1), size, -1), at))
    }

    /// Element `index` of dimension `d`; the dimension goes. `[A,N,B]` along 1 → `[A,B]`.
    ///
    /// # Errors
    /// When there is no such dimension or element.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2, 3], [4, 5, 6]], &Device::cpu())?;
    /// assert_eq!(x.select(1, 2)?.to_vec1::<i32>()?, [3, 6]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn select(&self, d: impl SignedIndex, index: usize) -> TensorResult<Tensor> {
        let k = dim(d, self.rank(), "select", Location::caller())?;
        self.narrow(k, index, 1)?.squeeze(k)
    }

    /// Repeated along dimensions of size 1, and along new leading ones, without copying. A size left open (`()` or -1) is kept.
    /// `[N,1]` to `[A,N,M]` → `[A,N,M]`.
    ///
    /// # Errors
    /// When a size differs from one that is not 1, or a new dimension's size is left open.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1], [2]], &Device::cpu())?;
    /// assert_eq!(x.expand(((), 3))?.to_vec2::<i32>()?, [[1, 1, 1], [2, 2, 2]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn expand(&self, sizes: impl Sizes) -> TensorResult<Tensor> {
        self.expanded(&sizes.sizes())
    }

    #[track_caller]
    fn expanded(&self, sizes: &[isize]) -> TensorResult<Tensor> {
        let at = Location::caller();
        let wrong = || TensorError::shape("expand", at, format!("{} does not expand to {sizes:?}", self.shape()));
        if sizes.len() < self.rank() {
            return Err(wrong());
        }
        let lead = sizes.len() - self.rank();
        let mut dims: smallvec::SmallVec<[usize; 8]> = Default::default();
        for (i, &s) in sizes.iter().enumerate() {
            let own = (i >= lead).then(|| self.shape()[i - lead]);
            dims.push(match (own, s) {
                (Some(o), -1) => o,
                (_, s) if s < 0 => return Err(wrong()),
                (None | Some(1), s) => s as usize,
                (Some(o), s) if o == s as usize => o,
                _ => return Err(wrong()),
            });
        }
        let shape = Shape::new(&dims, "expand", at)?;
        if shape == *self.shape() {
            return Ok(self.clone());
        }
        if self.dtype().is_block() && lead == 0 && self.shape().last() != shape.last() {
            return Err(wrong());
        }
        Ok(self.view(self.layout().broadcast_to(shape), at))
    }

    /// As [`Tensor::expand`] to the sizes of `shape`. `[N,1]` to `[A,N,M]` → `[A,N,M]`.
    ///
    /// # Errors
    /// When a size differs from one that is not 1.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 2], &Device::cpu())?;
    /// assert_eq!(x.broadcast_to(&[2, 2])?.to_vec2::<i32>()?, [[1, 2], [1, 2]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn broadcast_to(&self, shape: &[usize]) -> TensorResult<Tensor> {
        self.expand(shape)
    }

    /// Without dimension `d`, which has size 1; other sizes leave the tensor as it is. `[A,1,B]` along 1 → `[A,B]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::zeros(&[1, 3], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.squeeze(0)?.dims(), [3]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn squeeze(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "squeeze", at)?;
        if self.rank() == 0 || self.shape()[k] != 1 {
            return Ok(self.clone());
        }
        Ok(self.drop_dims(|i, _| i == k, at))
    }

    /// Without any dimension of size 1. `[A,1,B,1]` → `[A,B]`.
    ///
    /// # Errors
    /// Never; it is a `Result` so that it chains like the other methods.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::zeros(&[1, 3, 1], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.squeeze_all()?.dims(), [3]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn squeeze_all(&self) -> TensorResult<Tensor> {
        Ok(self.drop_dims(|_, size| size == 1, Location::caller()))
    }

    fn drop_dims(&self, gone: impl Fn(usize, usize) -> bool, at: crate::error::At) -> Tensor {
        let l = self.layout();
        let keep: smallvec::SmallVec<[usize; 8]> = (0..self.rank()).filter(|&i| !gone(i, self.shape()[i])).collect();
        let dims: smallvec::SmallVec<[usize; 8]> = keep.iter().map(|&i| self.shape()[i]).collect();
        let mut out = Layout { shape: Shape::of(&dims), strides: [0; 8], offset: l.offset };
        for (n, &i) in keep.iter().enumerate() {
            out.strides[n] = l.strides[i];
        }
        self.view(out, at)
    }

    /// With a new dimension of size 1 before dimension `d`; -1 puts it last. `[A,B]` along 1 → `[A,1,B]`.
    ///
    /// # Errors
    /// When there is no such place, or there are eight dimensions already.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::zeros(&[3], DType::F32, &Device::cpu())?;
    /// assert_eq!((x.unsqueeze(0)?.dims(), x.unsqueeze(-1)?.dims()), (&[1, 3][..], &[3, 1][..]));
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn unsqueeze(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank() + 1, "unsqueeze", at)?;
        let l = self.layout();
        let mut dims: smallvec::SmallVec<[usize; 9]> = self.dims().into();
        dims.insert(k, 1);
        let shape = Shape::new(&dims, "unsqueeze", at)?;
        let mut out = Layout { shape, strides: [0; 8], offset: l.offset };
        for i in 0..self.rank() {
            out.strides[i + (i >= k) as usize] = l.strides[i];
        }
        Ok(self.view(out, at))
    }

    /// Dimensions `from..=to` joined into one. `[A,B,C,D]` from 1 to 2 → `[A,B·C,D]`.
    ///
    /// # Errors
    /// When there is no such dimension, or `from` comes after `to`.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::zeros(&[2, 3, 5], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.flatten(0, 1)?.dims(), [6, 5]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn flatten(&self, from: impl SignedIndex, to: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let (a, b) = (dim(from, self.rank(), "flatten", at)?, dim(to, self.rank(), "flatten", at)?);
        if a > b {
            return Err(TensorError::shape("flatten", at, format!("dimension {} comes after {}", from.signed(), to.signed())));
        }
        if self.rank() == 0 {
            return self.reshape(&[1]);
        }
        let mut sizes: smallvec::SmallVec<[usize; 8]> = self.shape()[..a].iter().copied().collect();
        sizes.push(self.shape()[a..=b].iter().product());
        sizes.extend(self.shape()[b + 1..].iter().copied());
        self.reshape(&sizes)
    }

    pub(crate) fn size_for(&self, op: &'static str, k: usize, at: crate::error::At) -> TensorResult<usize> {
        self.shape().get(k).copied().ok_or_else(|| TensorError::shape(op, at, "a scalar has no dimensions"))
    }

    /// Block formats can be cut between blocks of their rows only.
    fn blocks_whole(&self, op: &'static str, k: usize, start: usize, len: usize, at: crate::error::At) -> TensorResult<()> {
        let block = self.dtype().block();
        // The dimension whose stride is 1 holds the blocks.
        if block > 1 && self.layout().strides[k] == 1 && (start % block != 0 || len % block != 0) {
            return Err(TensorError::shape(op, at, format!("{} rows come in blocks of {block}; cast first", self.dtype())));
        }
        Ok(())
    }
}
