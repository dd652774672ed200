//! Products and triangles by the names that linear algebra and PyTorch give them. All are matmul and elementwise work.

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::ops::Rhs;
use crate::ops::create::nullary;
use crate::scalar::{Binary, Prim};
use crate::shape::{Shape, SignedIndex};
use crate::tensor::Tensor;
use std::panic::Location;

impl Tensor {
    /// The sum of the products of two vectors' elements. `[N]·[N]` → `[]`.
    ///
    /// # Errors
    /// When the tensors are not two vectors of one length.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.dot(&x)?.item()?, 14.0);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn dot(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        if self.rank() != 1 || rhs.rank() != 1 {
            let m = format!("{} and {}: expected two vectors", self.shape(), rhs.shape());
            return Err(TensorError::shape("dot", Location::caller(), m));
        }
        self.matmul(rhs)
    }

    /// The matrix of all products of two vectors' elements. `[M]` and `[N]` → `[M,N]`.
    ///
    /// # Errors
    /// When the tensors are not two vectors.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// assert_eq!(x.outer(&x)?.to_vec2::<f32>()?, [[1.0, 2.0], [2.0, 4.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn outer(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        if self.rank() != 1 || rhs.rank() != 1 {
            return Err(TensorError::shape("outer", at, format!("{} and {}: expected two vectors", self.shape(), rhs.shape())));
        }
        self.unsqueeze(1)?.mul(rhs)
    }

    /// `x · weightᵀ + bias` with a weight `[out, in]`, as a layer stores it.
    ///
    /// # Errors
    /// When the inner sizes differ, or the bias does not broadcast.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0]], &Device::cpu())?;
    /// let weight = Tensor::new(&[[1.0, 1.0], [0.0, 3.0]], &Device::cpu())?;
    /// let bias = Tensor::new(&[0.5, 0.0], &Device::cpu())?;
    /// assert_eq!(x.linear(&weight, Some(&bias))?.to_vec()?, [3.5, 6.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> TensorResult<Tensor> {
        let y = self.matmul(&weight.t()?)?;
        match bias {
            Some(b) => y.add(b),
            None => Ok(y),
        }
    }

    /// `beta · self + alpha · a · b` for matrices, a matrix and a vector, or batches of matrices. With a `beta` of 0, `self` only gives its shape.
    /// `self` broadcasts to `[M,N]`, the shape of `[M,K]·[K,N]`.
    ///
    /// # Errors
    /// When the inner sizes differ, or this tensor does not broadcast to the product.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0]], &Device::cpu())?;
    /// let b = Tensor::new(&[[1.0, 0.0], [0.0, 1.0]], &Device::cpu())?;
    /// assert_eq!(x.addmm(&x, &b, 10.0, 1.0)?.to_vec()?, [11.0, 22.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn addmm(&self, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> TensorResult<Tensor> {
        let at = Location::caller();
        let mut product = a.matmul(b)?;
        if alpha != 1.0 {
            product = product.mul(product.number(alpha))?;
        }
        let full = self.shape().broadcast(product.shape(), "addmm", at)?;
        if full != *product.shape() {
            return Err(TensorError::shape("addmm", at, format!("{} does not broadcast to {}", self.shape(), product.shape())));
        }
        match beta {
            0.0 => Ok(product),
            1.0 => self.add(&product),
            _ => self.mul(self.number(beta))?.add(&product),
        }
    }

    /// Zeros above diagonal `k` of the last two dimensions; 0 is the main diagonal, positive ones lie above it. `[…,M,N]` → `[…,M,N]`.
    ///
    /// # Errors
    /// When there are fewer than two dimensions.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2], [3, 4]], &Device::cpu())?;
    /// assert_eq!(x.tril(0)?.to_vec2::<i32>()?, [[1, 0], [3, 4]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn tril(&self, k: i64) -> TensorResult<Tensor> {
        self.triangle("tril", Binary::Le, k)
    }

    /// Zeros below diagonal `k` of the last two dimensions; 0 is the main diagonal, positive ones lie above it. `[…,M,N]` → `[…,M,N]`.
    ///
    /// # Errors
    /// When there are fewer than two dimensions.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2], [3, 4]], &Device::cpu())?;
    /// assert_eq!(x.triu(1)?.to_vec2::<i32>()?, [[0, 2], [0, 0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn triu(&self, k: i64) -> TensorResult<Tensor> {
        self.triangle("triu", Binary::Ge, k)
    }

    #[track_caller]
    fn triangle(&self, op: &'static str, keep: Binary, k: i64) -> TensorResult<Tensor> {
        let at = Location::caller();
        let r = self.rank();
        if r < 2 {
            return Err(TensorError::shape(op, at, format!("{} has no rows and columns", self.shape())));
        }
        let iota = |n: usize| nullary(self.device(), Prim::Source(0), &[], DType::I32, Shape::of(&[n]), at);
        let (rows, cols) = (iota(self.shape()[r - 2])?.unsqueeze(1)?, iota(self.shape()[r - 1])?);
        // Diagonals far outside are all or nothing; they must fit i32.
        let k = k.clamp(-(1 << 30), 1 << 30);
        let kept = cols.sub(&rows)?.binary(keep, Rhs::Int(k))?;
        kept.where_(self, self.number(0.0))?.cast(self.stored())
    }

    /// 1 at each index along a new last dimension of size `classes`, else 0, in the dtype of the indices. `[…]` → `[…,classes]`.
    ///
    /// # Errors
    /// When this tensor does not hold integers, or has eight dimensions already.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 0], &Device::cpu())?;
    /// assert_eq!(x.one_hot(3)?.to_vec2::<i32>()?, [[0, 1, 0], [1, 0, 0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> TensorResult<Tensor> {
        let at = Location::caller();
        if !self.dtype().is_int() {
            return Err(TensorError::dtype("one_hot", at, format!("the indices are {}, not integers", self.dtype())));
        }
        let iota = nullary(self.device(), Prim::Source(0), &[], DType::I32, Shape::new(&[classes], "one_hot", at)?, at)?;
        self.unsqueeze(-1)?.eq(&iota)?.cast(self.dtype())
    }

    /// The cosine of the angle between two tensors along dimension `d`; lengths below `eps` (PyTorch: 1e-8) count as `eps`.
    /// `[A,N,B]` and the same along 1 → `[A,B]`.
    ///
    /// # Errors
    /// When the shapes do not broadcast, or there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[[1.0, 0.0], [2.0, 0.0]], &Device::cpu())?;
    /// let b = Tensor::new(&[[0.0, 5.0], [3.0, 0.0]], &Device::cpu())?;
    /// assert_eq!(a.cosine_similarity(&b, 1, 1e-8)?.to_vec()?, [0.0, 1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn cosine_similarity(&self, rhs: &Tensor, d: impl SignedIndex, eps: f64) -> TensorResult<Tensor> {
        let at = Location::caller();
        let full = self.shape().broadcast(rhs.shape(), "cosine_similarity", at)?;
        let stored = self.stored().promote(rhs.stored()).map_err(|e| TensorError::dtype("cosine_similarity", at, e.to_string()))?;
        // Near 1 and -1 the parts of the gradient cancel: 16 bits would leave their rounding.
        let wide = |x: &Tensor| if stored.is_float() { x.cast(stored.compute()) } else { Ok(x.clone()) };
        let (a, b) = (wide(self)?.broadcast_to(&full)?, wide(rhs)?.broadcast_to(&full)?);
        let d = [d.signed()];
        let (long_a, long_b) = (a.norm(2.0, &d, true)?, b.norm(2.0, &d, true)?);
        let y = a.div(&long_a.clamp(Some(eps), None)?)?.mul(&b.div(&long_b.clamp(Some(eps), None)?)?)?.sum(&d, false)?;
        if stored.is_float() { y.cast(stored) } else { Ok(y) }
    }

    /// Divided by the `p`-norm along dimension `d`; norms below `eps` (PyTorch: 1e-12) count as `eps`. `[…,N,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[3.0, 4.0]], &Device::cpu())?;
    /// let got = x.normalize(2.0, 1, 1e-12)?.to_vec()?;
    /// assert!(got.iter().zip([0.6, 0.8]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn normalize(&self, p: f64, d: impl SignedIndex, eps: f64) -> TensorResult<Tensor> {
        let x = self.cast(if self.dtype().compute() == DType::F64 { DType::F64 } else { DType::F32 })?;
        let long = x.norm(p, &[d.signed()], true)?.clamp(Some(eps), None)?;
        let y = x.div(&long)?;
        if self.dtype().is_float() { y.cast(self.stored()) } else { Ok(y) }
    }
}
