//! Running sums, products and extremes along a dimension.

use crate::dtype::DType;
use crate::error::{At, TensorResult};
use crate::ops::Rhs;
use crate::ops::pad::PadMode;
use crate::ops::sort::extreme_of;
use crate::scalar::Binary;
use crate::shape::{SignedIndex, dim};
use crate::tensor::{Mode, Tensor};
use std::panic::Location;

impl Tensor {
    /// For each element the sum of those up to it along dimension `d`, itself included; accumulated in f32 (integers: i64 on the CPU, i32
    /// on a GPU). `[…,N,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 2, 3], &Device::cpu())?;
    /// assert_eq!(x.cumsum(0)?.to_vec()?, [1.0, 3.0, 6.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn cumsum(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        self.scan("cumsum", d, Binary::Add, 0.0, Location::caller())
    }

    /// For each element the product of those up to it along dimension `d`, itself included; accumulated as [`Tensor::cumsum`].
    /// `[…,N,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.cumprod(0)?.to_vec()?, [1.0, 2.0, 6.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn cumprod(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        self.scan("cumprod", d, Binary::Mul, 1.0, Location::caller())
    }

    /// For each element the largest of those up to it along dimension `d`, itself included, and the place (i32) of that one: of equal ones the last. NaN
    /// counts as largest. The gradient goes back to where each value came from. `[…,N,…]` → `[…,N,…]`, both.
    ///
    /// # Errors
    /// When there is no such dimension, or it is longer than 2³⁰.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[2.0, 1.0, 2.0, 3.0], &Device::cpu())?;
    /// let (values, places) = x.cummax(0)?;
    /// assert_eq!(values.to_vec()?, [2.0, 2.0, 2.0, 3.0]);
    /// assert_eq!(places.to_vec1::<i32>()?, [0, 0, 2, 3]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn cummax(&self, d: impl SignedIndex) -> TensorResult<(Tensor, Tensor)> {
        self.running_extreme("cummax", d, true, Location::caller())
    }

    /// For each element the smallest of those up to it along dimension `d`, and its place: see [`Tensor::cummax`]. NaN counts as smallest.
    /// `[…,N,…]` → `[…,N,…]`, both.
    ///
    /// # Errors
    /// As for [`Tensor::cummax`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[2, 3, 1], &Device::cpu())?;
    /// let (values, places) = x.cummin(0)?;
    /// assert_eq!(values.to_vec1::<i32>()?, [2, 2, 1]);
    /// assert_eq!(places.to_vec1::<i32>()?, [0, 0, 2]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn cummin(&self, d: impl SignedIndex) -> TensorResult<(Tensor, Tensor)> {
        self.running_extreme("cummin", d, false, Location::caller())
    }

    /// As [`Tensor::scan`], of pairs: a value and its place.
    fn running_extreme(&self, op: &'static str, d: impl SignedIndex, largest: bool, at: At) -> TensorResult<(Tensor, Tensor)> {
        let (k, n, x) = self.ordered(op, d, at)?;
        let run = || {
            if self.rank() == 0 || x.numel() == 0 {
                return Ok((x.clone(), Tensor::zeros(self.dims(), DType::I32, self.device())?));
            }
            let mut sizes = vec![1; self.rank()];
            sizes[k] = n;
            let mut places = Tensor::arange(0.0, n as f64, 1.0, DType::I32, self.device())?.reshape(&sizes)?.broadcast_to(self.dims())?;
            let mut values = x.detach();
            let neutral = extreme_of(x.dtype(), !largest);
            let mut margins = vec![(0, 0); self.rank()];
            let mut reach = 1;
            while reach < n {
                margins[k] = (reach as isize, -(reach as isize));
                let (before, place) = (values.pad(&margins, PadMode::Constant(neutral))?, places.pad(&margins, PadMode::Constant(0.0))?);
                let mut earlier = if largest { values.lt(&before)? } else { values.gt(&before)? };
                if x.dtype().is_float() {
                    earlier = earlier.logical_or(&before.isnan()?.logical_and(&values.isnan()?.logical_not()?)?)?;
                }
                (values, places) = (earlier.where_(&before, &values)?, earlier.where_(&place, &places)?);
                reach *= 2;
            }
            Ok((if x.is_tracked() { x.gather(k, &places)? } else { values }, places))
        };
        let (values, places) = Mode { at: Some(at), ..Mode::current() }.run(run)?;
        Ok((values.cast(self.stored())?, places))
    }

    /// In ⌈log₂ n⌉ rounds, each of which combines every element with the one 1, 2, 4, … places before it (Hillis and Steele, 1986).
    fn scan(&self, op: &'static str, d: impl SignedIndex, combine: Binary, neutral: f64, at: At) -> TensorResult<Tensor> {
        let k = dim(d, self.rank(), op, at)?;
        let whole = if self.device().supports(DType::I64) { DType::I64 } else { DType::I32 };
        let (work, result) = match self.stored() {
            DType::F16 | DType::BF16 => (DType::F32, self.stored()),
            t if t.is_float() || t == DType::U64 => (t, t),
            _ => (whole, whole),
        };
        let mut x = self.cast(work)?;
        let n = if self.rank() == 0 { 1 } else { self.shape()[k] };
        let run = || {
            let mut margins = vec![(0, 0); self.rank()];
            let mut reach = 1;
            while reach < n {
                margins[k] = (reach as isize, -(reach as isize));
                let before = x.pad(&margins, PadMode::Constant(neutral))?;
                x = x.binary(combine, Rhs::Tensor(&before))?;
                reach *= 2;
            }
            x.cast(result)
        };
        Mode { at: Some(at), ..Mode::current() }.run(run)
    }
}
