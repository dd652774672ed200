//! Elementwise methods that are a few primitives each: limits, quotients, interpolation, logic.

use super::elementwise::{Lit, Rhs, floating};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::scalar::Binary;
use crate::tensor::Tensor;
use std::panic::Location;

/// What several steps of arithmetic in this dtype are done in.
fn wide(d: DType) -> DType {
    if matches!(d, DType::F16 | DType::BF16) { DType::F32 } else { floating(d) }
}

/// Whether `addcmul` and `addcdiv` keep what is on the way in range: f32 and f64, and a number that scales.
fn stays_in_range(d: DType, value: f64) -> bool {
    matches!(d, DType::F32 | DType::F64) && value.is_finite() && value != 0.0
}

impl Tensor {
    /// `value` where `mask` (bool) holds, else `self`.
    ///
    /// # Errors
    /// When `mask` is not bool, or the shapes do not broadcast.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0, 3.0], &Device::cpu())?;
    /// let mask = Tensor::new(&[true, false, true], &Device::cpu())?;
    /// assert_eq!(x.masked_fill(&mask, -1.0)?.to_vec()?, [-1.0, 2.0, -1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> TensorResult<Tensor> {
        mask.where_(self.number(value), self)?.cast(self.stored())
    }

    /// What a sum with these values is scaled by and scaled back, so that a term of twice its size is in range: 1/2 and 2 where a value is above 1.
    #[track_caller]
    fn headroom(&self) -> TensorResult<[Tensor; 2]> {
        let large = self.abs()?.gt(Lit(1.0))?;
        let one = Tensor::full(1.0, &[], self.dtype(), self.device())?;
        Ok([large.where_(Lit(0.5), &one)?, large.where_(Lit(2.0), &one)?])
    }

    /// How a sum of this tensor and `value · a · b` is computed, where the other factor's absolute values are `size`: what the sum is scaled by and scaled
    /// back, the scaled number, and where `a` takes it. A number below 1 goes to the larger factor, another to the smaller: then no product is out of
    /// range that the whole is not.
    #[track_caller]
    fn sum_in_range(&self, value: f64, a: &Tensor, size: &Tensor) -> TensorResult<[Tensor; 4]> {
        let [down, up] = self.headroom()?;
        let number = down.mul(Lit(value))?;
        let to_a = if value.abs() < 1.0 { a.abs()?.gt(size)? } else { a.abs()?.lt(size)? };
        Ok([down, up, number, to_a])
    }

    /// A limit of this tensor's values: beyond the range of an integer dtype it is the end of the range, where `number` would wrap.
    fn limit(&self, v: f64) -> Rhs<'static> {
        let (low, high) = match self.dtype() {
            DType::U8 => (0.0, 255.0),
            DType::I8 => (-128.0, 127.0),
            DType::U16 => (0.0, 65_535.0),
            DType::I16 => (-32_768.0, 32_767.0),
            DType::U32 => (0.0, f64::from(u32::MAX)),
            DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
            // A literal, since as an integer it would be an i64.
            DType::U64 if v.fract() == 0.0 || v.is_infinite() => return Rhs::Lit(v.clamp(0.0, u64::MAX as f64)),
            _ => return self.number(v),
        };
        self.number(v.clamp(low, high))
    }

    /// Values limited to `low..=high`; either may be absent. NaN stays NaN. No gradient passes at the limits, as in PyTorch.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.5, 3.0], &Device::cpu())?;
    /// assert_eq!(x.clamp(Some(-1.0), Some(1.0))?.to_vec()?, [-1.0, 0.5, 1.0]);
    /// assert_eq!(x.clamp(Some(0.0), None)?.to_vec()?, [0.0, 0.5, 3.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn clamp(&self, low: Option<f64>, high: Option<f64>) -> TensorResult<Tensor> {
        let t = match low {
            Some(v) => self.maximum(self.limit(v))?,
            None => self.clone(),
        };
        match high {
            Some(v) => t.minimum(self.limit(v)),
            None => Ok(t),
        }
    }

    /// Values limited to what `low` and `high` have at the same place; either may be absent. Shapes broadcast, NaN of any of them is kept, and
    /// where `low` is above `high` the result is `high`.
    ///
    /// The gradient goes to the tensor whose value is the result. Where x is equal to one of two different limits they share it in halves; where
    /// both limits are equal, so that there is one value to take, x has all of it there and the lower limit below: PyTorch's choices.
    ///
    /// # Errors
    /// When shapes do not broadcast, or dtypes have none in common.
    ///
    /// ```
    /// use tensorlogic::{Device, Tensor};
    ///
    /// let of = |v: [f32; 3]| Tensor::from_vec(v.to_vec(), &[3], &Device::cpu());
    /// let x = of([-1.0, 0.5, 9.0])?;
    /// assert_eq!(x.clamp_tensors(Some(&of([0.0; 3])?), Some(&of([1.0, 2.0, 3.0])?))?.to_vec()?, [0.0, 0.5, 3.0]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    #[track_caller]
    pub fn clamp_tensors(&self, low: Option<&Tensor>, high: Option<&Tensor>) -> TensorResult<Tensor> {
        let raised = match low {
            Some(low) => self.maximum(low)?,
            None => self.clone(),
        };
        let Some(high) = high else { return Ok(raised) };
        let limited = raised.minimum(high)?;
        let Some(low) = low.filter(|_| limited.node.tracked) else { return Ok(limited) };
        // The same values; of equal limits the gradients differ.
        let beyond = self.gt(high)?.where_(high, self)?;
        let one = self.lt(low)?.where_(low, &beyond)?;
        low.eq(high)?.where_(&one, &limited)
    }

    /// The quotient rounded toward zero.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[7, -7], &Device::cpu())?;
    /// assert_eq!(x.div_trunc(2)?.to_vec1::<i32>()?, [3, -3]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn div_trunc<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        let q = self.binary(Binary::Div, rhs.into())?;
        if q.dtype().is_float() { q.trunc() } else { Ok(q) }
    }

    /// The quotient rounded down.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[7, -7], &Device::cpu())?;
    /// assert_eq!(x.div_floor(2)?.to_vec1::<i32>()?, [3, -4]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn div_floor<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        let (at, rhs) = (Location::caller(), rhs.into());
        if rhs.promote(self.dtype(), "div_floor", at)?.is_float() {
            return self.binary(Binary::Div, rhs)?.floor();
        }
        // (a − a mod b) / b is exact.
        self.sub(&self.remainder(rhs)?)?.binary(Binary::Div, rhs)
    }

    /// Whether each element is finite.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, f32::INFINITY, f32::NAN], &Device::cpu())?;
    /// assert_eq!(x.isfinite()?.to_vec1::<u8>()?, [1, 0, 0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn isfinite(&self) -> TensorResult<Tensor> {
        let bad = self.isnan()?.bitwise_or(&self.isinf()?)?;
        bad.logical_not()
    }

    /// x².
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.square()?.to_vec()?, [4.0, 0.0, 9.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn square(&self) -> TensorResult<Tensor> {
        self.mul(self)
    }

    /// What rounding toward zero takes away.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.25, -1.25], &Device::cpu())?;
    /// assert_eq!(x.frac()?.to_vec()?, [0.25, -0.25]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn frac(&self) -> TensorResult<Tensor> {
        self.sub(&self.trunc()?)
    }

    /// NaN replaced by `nan`, infinities by `posinf` and `neginf`; without these, by the largest and smallest finite value of the dtype.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[f32::NAN, f32::INFINITY, 1.0], &Device::cpu())?;
    /// assert_eq!(x.nan_to_num(0.0, Some(9.0), None)?.to_vec()?, [0.0, 9.0, 1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn nan_to_num(&self, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> TensorResult<Tensor> {
        let max = match self.dtype() {
            DType::F16 => half::f16::MAX.to_f64(),
            DType::BF16 => half::bf16::MAX.to_f64(),
            DType::F64 => f64::MAX,
            d if d.is_float() => f32::MAX as f64,
            _ => return Ok(self.clone()),
        };
        let (posinf, neginf) = (posinf.unwrap_or(max), neginf.unwrap_or(-max));
        let high = self.eq(Lit(f64::INFINITY))?.where_(posinf, self)?;
        let both = self.eq(Lit(f64::NEG_INFINITY))?.where_(neginf, &high)?;
        self.isnan()?.where_(nan, &both)
    }

    /// The way from `self` to `end` that `weight` (a number or a tensor) says: 0 stays, 1 is the end. Exact at both. Infinite only where the result
    /// is, also where `end − self` would be.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[0.0, 10.0], &Device::cpu())?;
    /// let b = Tensor::new(&[4.0, 20.0], &Device::cpu())?;
    /// assert_eq!(a.lerp(&b, 0.25)?.to_vec()?, [1.0, 12.5]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn lerp<'a>(&self, end: &Tensor, weight: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        let (at, weight) = (Location::caller(), weight.into());
        let ends = end.dtype().promote(self.dtype()).map_err(|e| TensorError::dtype("lerp", at, e.to_string()))?;
        let out = weight.promote(ends, "lerp", at)?;
        if !out.is_float() {
            let way = end.sub(self)?;
            return match weight {
                Rhs::Int(w) => end.sub(&way.mul(1 - w)?),
                Rhs::Float(w) | Rhs::Lit(w) => end.sub(&way.mul(Lit(1.0 - w))?),
                Rhs::Tensor(w) => end.sub(&way.mul(&w.neg()?.add(Lit(1.0))?)?),
            };
        }
        let (from, to) = (self.cast(wide(out))?, end.cast(wide(out))?);
        let size = from.abs()?.maximum(&to.abs()?)?;
        let [down, up] = size.headroom()?;
        // A difference of tiny values is subnormal, which a GPU may take as 0 and a weight may multiply.
        let tiny = size.lt(Lit(2f64.powi(-100)))?;
        let [down, up] = [tiny.where_(Lit(2f64.powi(24)), &down)?, tiny.where_(Lit(2f64.powi(-24)), &up)?];
        let (from, to) = (from.mul(&down)?, to.mul(&down)?);
        let way = to.sub(&from)?;
        // From the nearer side.
        let scaled = match weight {
            Rhs::Tensor(w) => {
                let w = w.cast(wide(out))?;
                let rest = w.neg()?.add(Lit(1.0))?;
                let near = w.abs()?.lt(Lit(0.5))?;
                near.where_(&way.mul(&w)?.add(&from)?, &to.sub(&way.mul(&rest)?)?)?
            }
            Rhs::Float(w) | Rhs::Lit(w) if w.abs() < 0.5 => way.mul(w)?.add(&from)?,
            Rhs::Float(w) | Rhs::Lit(w) => to.sub(&way.mul(1.0 - w)?)?,
            Rhs::Int(w) => to.sub(&way.mul(1 - w)?)?,
        };
        scaled.mul(&up)?.cast(out)
    }

    /// `self + value · a · b`. In f32 and f64 infinite or 0 only where the result is, also where a product on the way would be.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 1.0], &Device::cpu())?;
    /// let a = Tensor::new(&[2.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.addcmul(&a, &a, 0.5)?.to_vec()?, [3.0, 5.5]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn addcmul(&self, a: &Tensor, b: &Tensor, value: f64) -> TensorResult<Tensor> {
        let at = Location::caller();
        let promote = |x: DType, y: DType| x.promote(y).map_err(|e| TensorError::dtype("addcmul", at, e.to_string()));
        let out = promote(self.dtype(), self.number(value).promote(promote(a.dtype(), b.dtype())?, "addcmul", at)?)?;
        if !stays_in_range(out, value) {
            let product = a.mul(b)?;
            return self.add(&product.mul(product.number(value))?);
        }
        // Not by a closure, whose nodes would have its line.
        let (x, a, b) = (self.cast(out)?, a.cast(out)?, b.cast(out)?);
        let [down, up, number, to_a] = x.sum_in_range(value, &a, &b.abs()?)?;
        let product = to_a.where_(&a.mul(&number)?, &a)?.mul(&to_a.where_(&b, &b.mul(&number)?)?)?;
        x.mul(&down)?.add(&product)?.mul(&up)
    }

    /// `self + value · a / b`. In f32 and f64 infinite or 0 only where the result is, also where a quotient on the way would be. Integers are divided
    /// as f32.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 1.0], &Device::cpu())?;
    /// let a = Tensor::new(&[2.0, 3.0], &Device::cpu())?;
    /// let b = Tensor::new(&[4.0, 2.0], &Device::cpu())?;
    /// assert_eq!(x.addcdiv(&a, &b, 2.0)?.to_vec()?, [2.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn addcdiv(&self, a: &Tensor, b: &Tensor, value: f64) -> TensorResult<Tensor> {
        let at = Location::caller();
        let promote = |x: DType, y: DType| x.promote(y).map_err(|e| TensorError::dtype("addcdiv", at, e.to_string()));
        let out = promote(self.dtype(), floating(promote(a.dtype(), b.dtype())?))?;
        if !stays_in_range(out, value) {
            return self.add(&a.div(b)?.mul(value)?);
        }
        // Not by a closure, whose nodes would have its line.
        let (x, a, b) = (self.cast(out)?, a.cast(out)?, b.cast(out)?);
        // The other factor is 1/b.
        let [down, up, number, to_a] = x.sum_in_range(value, &a, &b.abs()?.reciprocal()?)?;
        let quotient = to_a.where_(&a.mul(&number)?, &a)?.div(&to_a.where_(&b, &b.div(&number)?)?)?;
        x.mul(&down)?.add(&quotient)?.mul(&up)
    }

    /// `self · ln(rhs)`, and 0 where `self` is 0.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[0.0, 2.0], &Device::cpu())?;
    /// let y = Tensor::new(&[0.0, 1.0], &Device::cpu())?;
    /// assert_eq!(x.xlogy(&y)?.to_vec()?, [0.0, 0.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn xlogy<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        let rhs = rhs.into();
        let y = self.float_beside(rhs)?;
        let product = y.log()?.mul(self)?;
        let zero = self.eq(Lit(0.0))?;
        let nan = y.isnan()?.logical_not()?;
        zero.bitwise_and(&nan)?.where_(Lit(0.0), &product)
    }

    /// An operand as a float tensor that broadcasts with this one.
    #[track_caller]
    fn float_beside(&self, rhs: Rhs) -> TensorResult<Tensor> {
        let at = Location::caller();
        let d = floating(rhs.promote(self.dtype(), "cast", at)?);
        match rhs {
            Rhs::Tensor(t) => t.cast(d),
            Rhs::Float(v) | Rhs::Lit(v) => Tensor::full(v, &[], d, self.device()),
            Rhs::Int(v) => Tensor::full(v as f64, &[], d, self.device()),
        }
    }

    /// ln(eᵃ + eᵇ), without overflow.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1000.0, 0.0], &Device::cpu())?;
    /// let got = x.logaddexp(&x)?.to_vec()?;
    /// assert!(got.iter().zip([1000.693147, 0.693147]).all(|(a, b)| (a - b).abs() < 1e-3), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn logaddexp(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        let (a, b) = (self.cast(floating(self.dtype()))?, rhs.cast(floating(rhs.dtype()))?);
        let max = a.maximum(&b)?;
        let far = a.sub(&b)?.abs()?;
        let tail = far.neg()?.exp()?.log1p()?;
        // Equal infinities have no difference.
        let sum = max.add(&tail)?;
        max.isinf()?.where_(&max, &sum)
    }

    /// √(a² + b²), without overflow on the way.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[3.0, 3e30], &Device::cpu())?;
    /// let b = Tensor::new(&[4.0, 4e30], &Device::cpu())?;
    /// let y = a.hypot(&b)?.to_vec()?;
    /// assert!(y[0] == 5.0 && (y[1] / 5e30 - 1.0).abs() < 1e-6);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn hypot(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        let (a, b) = (self.cast(floating(self.dtype()))?.abs()?, rhs.abs()?);
        let (high, low) = (a.maximum(&b)?, a.minimum(&b)?);
        let ratio = low.div(&high)?;
        let root = ratio.mul(&ratio)?.add(Lit(1.0))?;
        let long = root.sqrt()?.mul(&high)?;
        // 0/0 and ∞/∞ have no ratio; an infinite side wins also over NaN.
        let plain = high.eq(Lit(0.0))?.bitwise_or(&high.isinf()?)?;
        let long = plain.where_(&high, &long)?;
        let endless = a.isinf()?.bitwise_or(&b.isinf()?)?;
        endless.where_(Lit(f64::INFINITY), &long)
    }

    /// The larger; of NaN and a number, the number.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[1.0, f32::NAN], &Device::cpu())?;
    /// let b = Tensor::new(&[2.0, 0.0], &Device::cpu())?;
    /// assert_eq!(a.fmax(&b)?.to_vec()?, [2.0, 0.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn fmax(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        self.number_of(Binary::Max, rhs)
    }

    /// The smaller; of NaN and a number, the number.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[1.0, f32::NAN], &Device::cpu())?;
    /// let b = Tensor::new(&[2.0, 0.0], &Device::cpu())?;
    /// assert_eq!(a.fmin(&b)?.to_vec()?, [1.0, 0.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn fmin(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        self.number_of(Binary::Min, rhs)
    }

    #[track_caller]
    fn number_of(&self, b: Binary, rhs: &Tensor) -> TensorResult<Tensor> {
        let both = self.binary(b, Rhs::Tensor(rhs))?;
        if !both.dtype().is_float() {
            return Ok(both);
        }
        let left = rhs.isnan()?.where_(self, &both)?;
        self.isnan()?.where_(rhs, &left)
    }

    #[track_caller]
    fn logical(&self, b: Binary, rhs: &Tensor) -> TensorResult<Tensor> {
        self.truth()?.binary(b, Rhs::Tensor(&rhs.truth()?))
    }

    /// Whether both are not zero, as bool.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[0, 1, 2], &Device::cpu())?;
    /// let b = Tensor::new(&[1, 0, 3], &Device::cpu())?;
    /// assert_eq!(a.logical_and(&b)?.to_vec1::<u8>()?, [0, 0, 1]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn logical_and(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        self.logical(Binary::And, rhs)
    }

    /// Whether one is not zero, as bool.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[0, 1, 0], &Device::cpu())?;
    /// let b = Tensor::new(&[1, 0, 0], &Device::cpu())?;
    /// assert_eq!(a.logical_or(&b)?.to_vec1::<u8>()?, [1, 1, 0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn logical_or(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        self.logical(Binary::Or, rhs)
    }

    /// Whether exactly one is not zero, as bool.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[0, 1, 2], &Device::cpu())?;
    /// let b = Tensor::new(&[1, 0, 3], &Device::cpu())?;
    /// assert_eq!(a.logical_xor(&b)?.to_vec1::<u8>()?, [1, 1, 0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn logical_xor(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        self.logical(Binary::Xor, rhs)
    }

    /// 1 − erf(x). Loses relative accuracy for large x.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[0.0, 1.0], &Device::cpu())?;
    /// let got = x.erfc()?.to_vec()?;
    /// assert!(got.iter().zip([1.0, 0.157299]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn erfc(&self) -> TensorResult<Tensor> {
        self.erf()?.neg()?.add(Lit(1.0))
    }
}
