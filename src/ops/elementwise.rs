//! Elementwise methods: one scalar primitive each, or a few.

use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::scalar::{Binary, Prim, Unary};
use crate::tensor::{Arg, Inputs, Meta, Tensor, same_device};
use smallvec::SmallVec;
use std::panic::Location;

/// The other operand of an elementwise method: a tensor, or a number.
#[derive(Clone, Copy)]
pub enum Rhs<'a> {
    /// A tensor, broadcast as in PyTorch.
    Tensor(&'a Tensor),
    /// A float: a run-time parameter of the plan. Integer tensors become f32.
    Float(f64),
    /// An integer: likewise, and integer tensors stay what they are.
    Int(i64),
    /// A literal: part of the plan's structure.
    Lit(f64),
}
/// A number that is part of a definition rather than a run-time parameter, so that the compiler may simplify with it.
#[derive(Clone, Copy)]
pub struct Lit(pub f64);

impl<'a> From<&'a Tensor> for Rhs<'a> {
    fn from(t: &'a Tensor) -> Self {
        Rhs::Tensor(t)
    }
}
impl From<f64> for Rhs<'_> {
    fn from(v: f64) -> Self {
        Rhs::Float(v)
    }
}
impl From<f32> for Rhs<'_> {
    fn from(v: f32) -> Self {
        Rhs::Float(v as f64)
    }
}
impl From<i32> for Rhs<'_> {
    fn from(v: i32) -> Self {
        Rhs::Int(v as i64)
    }
}
impl From<i64> for Rhs<'_> {
    fn from(v: i64) -> Self {
        Rhs::Int(v)
    }
}
impl From<Lit> for Rhs<'_> {
    fn from(v: Lit) -> Self {
        Rhs::Lit(v.0)
    }
}

impl Rhs<'_> {
    /// The dtype that an operation with `other` computes in.
    fn promote(&self, other: DType, op: &'static str, at: At) -> TensorResult<DType> {
        match self {
            Rhs::Tensor(t) => t.dtype().promote(other).map_err(|e| TensorError::dtype(op, at, e.to_string())),
            Rhs::Float(_) | Rhs::Lit(_) if other.is_float() => Ok(other),
            Rhs::Float(_) => Ok(DType::F32),
            Rhs::Lit(v) if v.fract() == 0.0 && other != DType::Bool => Ok(other),
            Rhs::Lit(_) => Ok(DType::F32),
            Rhs::Int(_) if other == DType::Bool => Ok(DType::I32),
            Rhs::Int(_) => Ok(other),
        }
    }
}

/// Builds one elementwise node over operands that are converted to `dtype`'s compute type where theirs differs.
#[track_caller]
fn build(op: &'static str, prim: Prim, first: &Tensor, operands: &[Rhs], dtypes: &[DType], result: DType) -> TensorResult<Tensor> {
    let at = Location::caller();
    let mut args = [Arg::None; 3];
    let mut inputs = Inputs::new();
    let mut params: SmallVec<[f64; 2]> = SmallVec::new();
    let mut shape = *first.shape();
    for (k, (o, &dtype)) in operands.iter().zip(dtypes).enumerate() {
        args[k] = match *o {
            Rhs::Tensor(t) => {
                same_device(op, first, t, at)?;
                if t.shape() != &shape {
                    shape = shape.broadcast(t.shape(), op, at)?;
                }
                let t = if t.dtype().compute() == dtype.compute() { t.clone() } else { t.cast(dtype)? };
                let n = inputs.iter().position(|i| std::sync::Arc::ptr_eq(&i.node, &t.node) && i.out == t.out).unwrap_or_else(|| {
                    inputs.push(t);
                    inputs.len() - 1
                });
                Arg::In(n as u8)
            }
            Rhs::Float(v) => {
                params.push(v);
                Arg::Param(params.len() as u8 - 1, dtype)
            }
            Rhs::Int(v) => {
                params.push(v as f64);
                Arg::Param(params.len() as u8 - 1, dtype)
            }
            Rhs::Lit(v) => Arg::Lit(v.to_bits(), dtype),
        };
    }
    let device = first.device();
    if result != first.dtype() {
        device.require(result)?;
    }
    Ok(Tensor::map(device, prim, args, inputs, params, Meta { dtype: result, shape }, at))
}

/// The float dtype that a float function of a tensor of dtype `d` gives: floats keep theirs, integers and blocks become f32.
fn floating(d: DType) -> DType {
    if d.is_float() && !d.is_block() { d } else { DType::F32 }
}

impl Tensor {
    #[track_caller]
    pub(crate) fn unary(&self, u: Unary) -> TensorResult<Tensor> {
        let at = Location::caller();
        let d = self.dtype();
        let (arg, result) = if u == Unary::LogicalNot {
            (d, DType::Bool)
        } else if d.is_float() || !u.takes_int() {
            if !u.takes_float() {
                return Err(TensorError::dtype(u.name(), at, format!("expected integers or bool, got {d}; cast first")));
            }
            (floating(d), u.result(floating(d)))
        } else if u == Unary::BitNot && d == DType::Bool {
            return self.logical_not();
        } else {
            (d, u.result(d))
        };
        build(u.name(), Prim::Unary(u), self, &[Rhs::Tensor(self)], &[arg], result)
    }

    #[track_caller]
    pub(crate) fn binary(&self, b: Binary, rhs: Rhs) -> TensorResult<Tensor> {
        let at = Location::caller();
        let mut d = rhs.promote(self.dtype(), b.name(), at)?;
        if d.is_block() {
            d = DType::F32;
        }
        if b.bits() && d.is_float() {
            return Err(TensorError::dtype(b.name(), at, format!("expected integers or bool, got {d}; cast first")));
        }
        if b.float_only() {
            d = floating(d);
        }
        if d == DType::Bool && !b.compares() && !b.bits() {
            return match b {
                Binary::Mul | Binary::Min => self.bitwise_and(rhs),
                Binary::Add | Binary::Max => self.bitwise_or(rhs),
                _ => Err(TensorError::dtype(b.name(), at, "is not defined on bool; cast to i32 first")),
            };
        }
        build(b.name(), Prim::Binary(b), self, &[Rhs::Tensor(self), rhs], &[d, d], b.result(d))
    }

    /// `number b self`, where the number comes first: `1 - x`, `1 / x`.
    #[track_caller]
    pub(crate) fn after_number(&self, b: Binary, number: Rhs) -> TensorResult<Tensor> {
        let at = Location::caller();
        let mut d = number.promote(self.dtype(), b.name(), at)?;
        if d.is_block() || b == Binary::Div && !d.is_float() {
            d = DType::F32;
        }
        if d == DType::Bool {
            return Err(TensorError::dtype(b.name(), at, "is not defined on bool; cast to i32 first"));
        }
        build(b.name(), Prim::Binary(b), self, &[number, Rhs::Tensor(self)], &[d, d], b.result(d))
    }

    /// Converts to another dtype: floats to integers drop the fraction and saturate, anything nonzero is true, f16 and bf16 round to nearest even.
    /// Block formats can be read but not made.
    ///
    /// # Errors
    /// When `dtype` is a block format, or the device lacks it.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.75, -1.75, 300.0], &Device::cpu())?;
    /// assert_eq!(x.cast(DType::I32)?.to_vec1::<i32>()?, [1, -1, 300]);
    /// assert_eq!(x.cast(DType::U8)?.to_vec1::<u8>()?, [1, 0, 255]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> TensorResult<Tensor> {
        let at = Location::caller();
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        if dtype.is_block() {
            return Err(TensorError::dtype("cast", at, format!("cannot make {dtype}; quantize the weights instead")));
        }
        let from = self.dtype();
        build("cast", Prim::Cast, self, &[Rhs::Tensor(self)], &[from], dtype)
    }

    /// The same values in row-major memory of their own.
    ///
    /// # Errors
    /// When the result is too large for the device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &Device::cpu())?;
    /// assert_eq!(x.t()?.contiguous()?.to_vec()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn contiguous(&self) -> TensorResult<Tensor> {
        if !matches!(self.node.kind, crate::tensor::Kind::View(_)) {
            return Ok(self.clone());
        }
        let d = if self.dtype().is_block() { DType::F32 } else { self.dtype() };
        build("contiguous", Prim::Cast, self, &[Rhs::Tensor(self)], &[self.dtype()], d)
    }

    /// Elementwise choice: `a` where `self` (bool) holds, else `b`. Shapes broadcast.
    ///
    /// # Errors
    /// When this tensor is not bool, the shapes do not broadcast, or the dtypes do not promote.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-1.0, 2.0], &Device::cpu())?;
    /// assert_eq!(x.gt(0.0)?.where_(&x, 0.0)?.to_vec()?, [0.0, 2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn where_<'a>(&self, a: impl Into<Rhs<'a>>, b: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        let (at, a, b) = (Location::caller(), a.into(), b.into());
        if self.dtype() != DType::Bool {
            return Err(TensorError::dtype("where", at, format!("the condition is {}, not bool; compare first", self.dtype())));
        }
        let d = match (a, b) {
            (Rhs::Tensor(t), o) | (o, Rhs::Tensor(t)) => o.promote(t.dtype(), "where", at)?,
            (Rhs::Int(_), Rhs::Int(_)) => DType::I32,
            _ => DType::F32,
        };
        build("where", Prim::Where, self, &[Rhs::Tensor(self), a, b], &[DType::Bool, d, d], d)
    }

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

    /// A number as an operand that leaves this tensor's dtype as it is where the value allows that: integers stay integers for whole numbers.
    pub(crate) fn number(&self, v: f64) -> Rhs<'static> {
        if self.dtype().is_float() || v.fract() != 0.0 { Rhs::Float(v) } else { Rhs::Int(v as i64) }
    }

    /// The dtype of results that keep this tensor's values.
    pub(crate) fn stored(&self) -> DType {
        if self.dtype().is_block() { DType::F32 } else { self.dtype() }
    }

    /// A limit of this tensor's values: beyond the range of an integer dtype it is the end of the range, where `number` would wrap.
    fn limit(&self, v: f64) -> Rhs<'static> {
        let (low, high) = match self.dtype() {
            DType::U8 => (0.0, 255.0),
            DType::I8 => (-128.0, 127.0),
            DType::U32 => (0.0, f64::from(u32::MAX)),
            DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
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

    /// True division; integers are divided as f32. See [`Tensor::div_trunc`] and [`Tensor::div_floor`] for whole quotients.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[7, -7], &Device::cpu())?;
    /// assert_eq!(x.div(2)?.to_vec()?, [3.5, -3.5]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn div<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        let (at, rhs) = (Location::caller(), rhs.into());
        let d = rhs.promote(self.dtype(), "div", at)?;
        if d.is_float() {
            return self.binary(Binary::Div, rhs);
        }
        let rhs_float;
        let rhs = match rhs {
            Rhs::Tensor(t) => {
                rhs_float = t.cast(DType::F32)?;
                Rhs::Tensor(&rhs_float)
            }
            o => o,
        };
        self.cast(DType::F32)?.binary(Binary::Div, rhs)
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

    /// The way from `self` to `end` that `weight` (a number or a tensor) says: 0 stays, 1 is the end. Exact at both.
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
        let weight = weight.into();
        let way = end.sub(self)?;
        // From the nearer side.
        match weight {
            Rhs::Tensor(w) => {
                let rest = w.neg()?.add(Lit(1.0))?;
                let near = w.abs()?.lt(Lit(0.5))?;
                near.where_(&way.mul(w)?.add(self)?, &end.sub(&way.mul(&rest)?)?)
            }
            Rhs::Float(w) | Rhs::Lit(w) if w.abs() < 0.5 => way.mul(w)?.add(self),
            Rhs::Float(w) | Rhs::Lit(w) => end.sub(&way.mul(1.0 - w)?),
            Rhs::Int(w) => end.sub(&way.mul(1 - w)?),
        }
    }

    /// `self + value · a · b`.
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
        let product = a.mul(b)?;
        self.add(&product.mul(product.number(value))?)
    }

    /// `self + value · a / b`.
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
        self.add(&a.div(b)?.mul(value)?)
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

    /// Whether each element is not zero.
    #[track_caller]
    pub(crate) fn truth(&self) -> TensorResult<Tensor> {
        if self.dtype() == DType::Bool { Ok(self.clone()) } else { self.ne(Lit(0.0)) }
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

macro_rules! unary_methods {
    ($($(#[$d:meta])* $name:ident = $u:ident, $x:expr => $y:expr;)*) => {
        impl Tensor { $(
            $(#[$d])*
            ///
            /// # Errors
            /// For dtypes that the function is not defined on, as bits of floats; most functions take numbers of every dtype.
            ///
            #[doc = concat!(
                "```\n# use tensorlogic::prelude::*;\nlet x = Tensor::new(&[", stringify!($x), "], &Device::cpu())?;\n",
                "let y = x.", stringify!($name), "()?.to_vec()?;\nassert!((y[0] - ", stringify!($y), ").abs() < 2e-6);\n",
                "# Ok::<(), TensorError>(())\n```"
            )]
            #[track_caller]
            pub fn $name(&self) -> TensorResult<Tensor> { self.unary(Unary::$u) }
        )* }
    };
}
unary_methods! {
    /// −x.
    neg = Neg, 2.0 => -2.0;
    /// |x|.
    abs = Abs, -2.0 => 2.0;
    /// −1, 0 or 1.
    sign = Sign, -2.0 => -1.0;
    /// √x.
    sqrt = Sqrt, 4.0 => 2.0;
    /// 1/√x.
    rsqrt = Rsqrt, 4.0 => 0.5;
    /// 1/x.
    reciprocal = Recip, 4.0 => 0.25;
    /// eˣ.
    exp = Exp, 1.0 => 2.718282;
    /// 2ˣ.
    exp2 = Exp2, 3.0 => 8.0;
    /// eˣ − 1.
    expm1 = Expm1, 1.0 => 1.718282;
    /// Natural logarithm.
    log = Log, 2.0 => 0.693147;
    /// Base-2 logarithm.
    log2 = Log2, 8.0 => 3.0;
    /// Base-10 logarithm.
    log10 = Log10, 100.0 => 2.0;
    /// ln(1 + x).
    log1p = Log1p, 1.0 => 0.693147;
    /// Sine.
    sin = Sin, 1.0 => 0.841471;
    /// Cosine.
    cos = Cos, 1.0 => 0.540302;
    /// Tangent.
    tan = Tan, 1.0 => 1.557408;
    /// Arc sine.
    asin = Asin, 1.0 => 1.570796;
    /// Arc cosine.
    acos = Acos, 0.0 => 1.570796;
    /// Arc tangent.
    atan = Atan, 1.0 => 0.785398;
    /// Hyperbolic sine.
    sinh = Sinh, 1.0 => 1.175201;
    /// Hyperbolic cosine.
    cosh = Cosh, 1.0 => 1.543081;
    /// Hyperbolic tangent.
    tanh = Tanh, 1.0 => 0.761594;
    /// Inverse hyperbolic sine.
    asinh = Asinh, 1.0 => 0.881374;
    /// Inverse hyperbolic cosine.
    acosh = Acosh, 2.0 => 1.316958;
    /// Inverse hyperbolic tangent.
    atanh = Atanh, 0.5 => 0.549306;
    /// Error function.
    erf = Erf, 1.0 => 0.842701;
    /// 1/(1 + e⁻ˣ).
    sigmoid = Sigmoid, 1.0 => 0.731059;
    /// Largest integer not above x.
    floor = Floor, -1.5 => -2.0;
    /// Smallest integer not below x.
    ceil = Ceil, -1.5 => -1.0;
    /// Nearest integer, halves to even.
    round = Round, 2.5 => 2.0;
    /// The integer part.
    trunc = Trunc, -1.5 => -1.0;
    /// Whether each element is NaN.
    isnan = IsNan, f32::NAN => 1.0;
    /// Whether each element is an infinity.
    isinf = IsInf, f32::INFINITY => 1.0;
    /// Whether each element is zero.
    logical_not = LogicalNot, 0.0 => 1.0;
    /// Bits inverted.
    bitwise_not = BitNot, 5 => -6.0;
}

macro_rules! binary_methods {
    ($($doc:literal $name:ident = $b:ident, $x:expr, $y:expr => $z:expr;)*) => {
        impl Tensor { $(
            #[doc = concat!($doc, " Shapes broadcast; dtypes promote as [`DType::promote`] says.")]
            ///
            /// # Errors
            /// When the shapes do not broadcast, the dtypes do not promote or have no such function, or the tensors are on different devices.
            ///
            #[doc = concat!(
                "```\n# use tensorlogic::prelude::*;\nlet x = Tensor::new(&[", stringify!($x), "], &Device::cpu())?;\n",
                "let y = x.", stringify!($name), "(", stringify!($y), ")?.to_vec()?;\nassert!((y[0] - ", stringify!($z), ").abs() < 2e-6);\n",
                "# Ok::<(), TensorError>(())\n```"
            )]
            #[track_caller]
            pub fn $name<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> { self.binary(Binary::$b, rhs.into()) }
        )* }
    };
}
binary_methods! {
    "Sum." add = Add, 2.0, 3.0 => 5.0;
    "Difference." sub = Sub, 2.0, 3.0 => -1.0;
    "Product." mul = Mul, 2.0, 3.0 => 6.0;
    "Power." pow = Pow, 2.0, 3.0 => 8.0;
    "Remainder with the sign of the dividend, as C's `fmod`." fmod = Fmod, -7.0, 3.0 => -1.0;
    "Remainder with the sign of the divisor, as Python's `%`." remainder = Remainder, -7.0, 3.0 => 2.0;
    "The smaller; NaN if either is NaN." minimum = Min, 2.0, 3.0 => 2.0;
    "The larger; NaN if either is NaN." maximum = Max, 2.0, 3.0 => 3.0;
    "The angle of the point (rhs, self)." atan2 = Atan2, 1.0, 1.0 => 0.785398;
    "The magnitude of self with the sign of rhs." copysign = Copysign, 3.0, -1.0 => -3.0;
    "Equal, as bool." eq = Eq, 2.0, 2.0 => 1.0;
    "Not equal, as bool." ne = Ne, 2.0, 2.0 => 0.0;
    "Less, as bool." lt = Lt, 2.0, 3.0 => 1.0;
    "Less or equal, as bool." le = Le, 2.0, 2.0 => 1.0;
    "Greater, as bool." gt = Gt, 2.0, 3.0 => 0.0;
    "Greater or equal, as bool." ge = Ge, 2.0, 3.0 => 0.0;
    "Bits and." bitwise_and = And, 6, 3 => 2.0;
    "Bits or." bitwise_or = Or, 6, 3 => 7.0;
    "Bits exclusive or." bitwise_xor = Xor, 6, 3 => 5.0;
    "Bits shifted left." bitwise_left_shift = Shl, 6, 1 => 12.0;
    "Bits shifted right, with the sign for signed integers." bitwise_right_shift = Shr, 6, 1 => 3.0;
}
