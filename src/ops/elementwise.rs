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
fn build(op: &'static str, prim: Prim, first: &Tensor, operands: &[Rhs], dtypes: &[DType], result: DType, at: At) -> TensorResult<Tensor> {
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
                let t = if t.dtype().compute() == dtype.compute() { t.clone() } else { t.cast_at(dtype, at)? };
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
        self.unary_at(u, Location::caller())
    }

    pub(crate) fn unary_at(&self, u: Unary, at: At) -> TensorResult<Tensor> {
        let d = self.dtype();
        let (arg, result) = if u == Unary::LogicalNot {
            (d, DType::Bool)
        } else if d.is_float() || !u.takes_int() {
            if !u.takes_float() {
                return Err(TensorError::dtype(u.name(), at, format!("wants integers or bool, not {d}; cast first")));
            }
            (floating(d), u.result(floating(d)))
        } else if u == Unary::BitNot && d == DType::Bool {
            return self.unary_at(Unary::LogicalNot, at);
        } else {
            (d, u.result(d))
        };
        build(u.name(), Prim::Unary(u), self, &[Rhs::Tensor(self)], &[arg], result, at)
    }

    pub(crate) fn binary_at(&self, b: Binary, rhs: Rhs, at: At) -> TensorResult<Tensor> {
        let mut d = rhs.promote(self.dtype(), b.name(), at)?;
        if d.is_block() {
            d = DType::F32;
        }
        if b.bits() && d.is_float() {
            return Err(TensorError::dtype(b.name(), at, format!("wants integers or bool, not {d}; cast first")));
        }
        if b.float_only() {
            d = floating(d);
        }
        if d == DType::Bool && !b.compares() && !b.bits() {
            return match b {
                Binary::Mul | Binary::Min => self.binary_at(Binary::And, rhs, at),
                Binary::Add | Binary::Max => self.binary_at(Binary::Or, rhs, at),
                _ => Err(TensorError::dtype(b.name(), at, "is not defined on bool; cast to i32 first")),
            };
        }
        build(b.name(), Prim::Binary(b), self, &[Rhs::Tensor(self), rhs], &[d, d], b.result(d), at)
    }

    /// Converts to another dtype: floats to integers drop the fraction and saturate, anything nonzero is true, f16 and bf16 round to nearest even.
    /// Block formats can be read but not made.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> TensorResult<Tensor> {
        self.cast_at(dtype, Location::caller())
    }

    pub(crate) fn cast_at(&self, dtype: DType, at: At) -> TensorResult<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        if dtype.is_block() {
            return Err(TensorError::dtype("cast", at, format!("cannot make {dtype}; quantize the weights instead")));
        }
        let from = self.dtype();
        build("cast", Prim::Cast, self, &[Rhs::Tensor(self)], &[from], dtype, at)
    }

    /// The same values in row-major memory of their own.
    #[track_caller]
    pub fn contiguous(&self) -> TensorResult<Tensor> {
        if !matches!(self.node.kind, crate::tensor::Kind::View(_)) {
            return Ok(self.clone());
        }
        let d = if self.dtype().is_block() { DType::F32 } else { self.dtype() };
        build("contiguous", Prim::Cast, self, &[Rhs::Tensor(self)], &[self.dtype()], d, Location::caller())
    }

    /// Elementwise choice: `a` where `self` (bool) holds, else `b`. Shapes broadcast.
    #[track_caller]
    pub fn where_<'a>(&self, a: impl Into<Rhs<'a>>, b: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        let at = Location::caller();
        let (a, b) = (a.into(), b.into());
        if self.dtype() != DType::Bool {
            return Err(TensorError::dtype("where", at, format!("the condition is {}, not bool; compare first", self.dtype())));
        }
        let d = match (a, b) {
            (Rhs::Tensor(t), o) | (o, Rhs::Tensor(t)) => o.promote(t.dtype(), "where", at)?,
            (Rhs::Int(_), Rhs::Int(_)) => DType::I32,
            _ => DType::F32,
        };
        build("where", Prim::Where, self, &[Rhs::Tensor(self), a, b], &[DType::Bool, d, d], d, at)
    }

    /// `value` where `mask` (bool) holds, else `self`.
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> TensorResult<Tensor> {
        mask.where_(if self.dtype().is_float() { Rhs::Float(value) } else { Rhs::Int(value as i64) }, self)
    }

    /// Values limited to `low..=high`; either may be absent. NaN stays NaN.
    #[track_caller]
    pub fn clamp(&self, low: Option<f64>, high: Option<f64>) -> TensorResult<Tensor> {
        let at = Location::caller();
        let limit = |v: f64| if v.fract() == 0.0 { Rhs::Int(v as i64) } else { Rhs::Float(v) };
        let t = match low {
            Some(v) => self.binary_at(Binary::Max, limit(v), at)?,
            None => self.clone(),
        };
        match high {
            Some(v) => t.binary_at(Binary::Min, limit(v), at),
            None => Ok(t),
        }
    }

    /// True division; integers are divided as f32. See [`Tensor::div_trunc`] and [`Tensor::div_floor`] for whole quotients.
    #[track_caller]
    pub fn div<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        let (at, rhs) = (Location::caller(), rhs.into());
        let d = rhs.promote(self.dtype(), "div", at)?;
        if d.is_float() {
            return self.binary_at(Binary::Div, rhs, at);
        }
        let rhs_float;
        let rhs = match rhs {
            Rhs::Tensor(t) => {
                rhs_float = t.cast_at(DType::F32, at)?;
                Rhs::Tensor(&rhs_float)
            }
            o => o,
        };
        self.cast_at(DType::F32, at)?.binary_at(Binary::Div, rhs, at)
    }

    /// The quotient rounded toward zero.
    #[track_caller]
    pub fn div_trunc<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        let at = Location::caller();
        let q = self.binary_at(Binary::Div, rhs.into(), at)?;
        if q.dtype().is_float() { q.unary_at(Unary::Trunc, at) } else { Ok(q) }
    }

    /// The quotient rounded down.
    #[track_caller]
    pub fn div_floor<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        let (at, rhs) = (Location::caller(), rhs.into());
        if rhs.promote(self.dtype(), "div_floor", at)?.is_float() {
            return self.binary_at(Binary::Div, rhs, at)?.unary_at(Unary::Floor, at);
        }
        // (a − a mod b) / b is exact.
        self.binary_at(Binary::Sub, Rhs::Tensor(&self.binary_at(Binary::Remainder, rhs, at)?), at)?.binary_at(Binary::Div, rhs, at)
    }

    /// max(x, 0).
    #[track_caller]
    pub fn relu(&self) -> TensorResult<Tensor> {
        self.binary_at(Binary::Max, Rhs::Lit(0.0), Location::caller())
    }

    /// x · sigmoid(x), also called swish.
    #[track_caller]
    pub fn silu(&self) -> TensorResult<Tensor> {
        let at = Location::caller();
        self.binary_at(Binary::Mul, Rhs::Tensor(&self.unary_at(Unary::Sigmoid, at)?), at)
    }

    /// x · Φ(x) by the error function: PyTorch's `gelu` (Hendrycks and Gimpel, 2016).
    #[track_caller]
    pub fn gelu(&self) -> TensorResult<Tensor> {
        let at = Location::caller();
        let e = self.binary_at(Binary::Mul, Rhs::Lit(std::f64::consts::FRAC_1_SQRT_2), at)?.unary_at(Unary::Erf, at)?;
        let half = e.binary_at(Binary::Add, Rhs::Lit(1.0), at)?.binary_at(Binary::Mul, Rhs::Lit(0.5), at)?;
        self.binary_at(Binary::Mul, Rhs::Tensor(&half), at)
    }

    /// The tanh approximation of gelu, as GPT-2 and Gemma use it: `0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
    #[track_caller]
    pub fn gelu_tanh(&self) -> TensorResult<Tensor> {
        // 0.5·(1 + tanh(u)) = sigmoid(2u): one primitive less, and no cancellation for negative x.
        let at = Location::caller();
        let cube = self.binary_at(Binary::Mul, Rhs::Tensor(self), at)?.binary_at(Binary::Mul, Rhs::Lit(0.044715), at)?.binary_at(
            Binary::Add,
            Rhs::Lit(1.0),
            at,
        )?;
        let u2 =
            self.binary_at(Binary::Mul, Rhs::Tensor(&cube), at)?.binary_at(Binary::Mul, Rhs::Lit(2.0 * 0.797_884_560_802_865_4), at)?;
        self.binary_at(Binary::Mul, Rhs::Tensor(&u2.unary_at(Unary::Sigmoid, at)?), at)
    }

    /// Whether each element is finite.
    #[track_caller]
    pub fn isfinite(&self) -> TensorResult<Tensor> {
        let at = Location::caller();
        let bad = self.unary_at(Unary::IsNan, at)?.binary_at(Binary::Or, Rhs::Tensor(&self.unary_at(Unary::IsInf, at)?), at)?;
        bad.unary_at(Unary::LogicalNot, at)
    }

    /// x².
    #[track_caller]
    pub fn square(&self) -> TensorResult<Tensor> {
        self.binary_at(Binary::Mul, Rhs::Tensor(self), Location::caller())
    }

    /// ln(1 + eˣ), without overflow.
    #[track_caller]
    pub fn softplus(&self) -> TensorResult<Tensor> {
        let at = Location::caller();
        // max(x, 0) + log1p(exp(−|x|))
        let tail = self.unary_at(Unary::Abs, at)?.unary_at(Unary::Neg, at)?.unary_at(Unary::Exp, at)?.unary_at(Unary::Log1p, at)?;
        self.binary_at(Binary::Max, Rhs::Lit(0.0), at)?.binary_at(Binary::Add, Rhs::Tensor(&tail), at)
    }

    /// 1 − erf(x). Loses relative accuracy for large x.
    #[track_caller]
    pub fn erfc(&self) -> TensorResult<Tensor> {
        let at = Location::caller();
        self.unary_at(Unary::Erf, at)?.unary_at(Unary::Neg, at)?.binary_at(Binary::Add, Rhs::Lit(1.0), at)
    }
}

macro_rules! unary_methods {
    ($($(#[$d:meta])* $name:ident = $u:ident;)*) => {
        impl Tensor { $(
            $(#[$d])*
            #[track_caller]
            pub fn $name(&self) -> TensorResult<Tensor> { self.unary(Unary::$u) }
        )* }
    };
}
unary_methods! {
    /// −x.
    neg = Neg;
    /// |x|.
    abs = Abs;
    /// −1, 0 or 1.
    sign = Sign;
    /// √x.
    sqrt = Sqrt;
    /// 1/√x.
    rsqrt = Rsqrt;
    /// 1/x.
    reciprocal = Recip;
    /// eˣ.
    exp = Exp;
    /// 2ˣ.
    exp2 = Exp2;
    /// eˣ − 1.
    expm1 = Expm1;
    /// Natural logarithm.
    log = Log;
    /// Base-2 logarithm.
    log2 = Log2;
    /// Base-10 logarithm.
    log10 = Log10;
    /// ln(1 + x).
    log1p = Log1p;
    /// Sine.
    sin = Sin;
    /// Cosine.
    cos = Cos;
    /// Tangent.
    tan = Tan;
    /// Arc sine.
    asin = Asin;
    /// Arc cosine.
    acos = Acos;
    /// Arc tangent.
    atan = Atan;
    /// Hyperbolic sine.
    sinh = Sinh;
    /// Hyperbolic cosine.
    cosh = Cosh;
    /// Hyperbolic tangent.
    tanh = Tanh;
    /// Inverse hyperbolic sine.
    asinh = Asinh;
    /// Inverse hyperbolic cosine.
    acosh = Acosh;
    /// Inverse hyperbolic tangent.
    atanh = Atanh;
    /// Error function.
    erf = Erf;
    /// 1/(1 + e⁻ˣ).
    sigmoid = Sigmoid;
    /// Largest integer not above x.
    floor = Floor;
    /// Smallest integer not below x.
    ceil = Ceil;
    /// Nearest integer, halves to even.
    round = Round;
    /// The integer part.
    trunc = Trunc;
    /// Whether each element is NaN.
    isnan = IsNan;
    /// Whether each element is an infinity.
    isinf = IsInf;
    /// Whether each element is zero.
    logical_not = LogicalNot;
    /// Bits inverted.
    bitwise_not = BitNot;
}

macro_rules! binary_methods {
    ($($doc:literal $name:ident = $b:ident;)*) => {
        impl Tensor { $(
            #[doc = concat!($doc, " Shapes broadcast; dtypes promote as [`DType::promote`] says.")]
            #[track_caller]
            pub fn $name<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> { self.binary_at(Binary::$b, rhs.into(), Location::caller()) }
        )* }
    };
}
binary_methods! {
    "Sum." add = Add;
    "Difference." sub = Sub;
    "Product." mul = Mul;
    "Power." pow = Pow;
    "Remainder with the sign of the dividend, as C's `fmod`." fmod = Fmod;
    "Remainder with the sign of the divisor, as Python's `%`." remainder = Remainder;
    "The smaller; NaN if either is NaN." minimum = Min;
    "The larger; NaN if either is NaN." maximum = Max;
    "The angle of the point (rhs, self)." atan2 = Atan2;
    "The magnitude of self with the sign of rhs." copysign = Copysign;
    "Equal, as bool." eq = Eq;
    "Not equal, as bool." ne = Ne;
    "Less, as bool." lt = Lt;
    "Less or equal, as bool." le = Le;
    "Greater, as bool." gt = Gt;
    "Greater or equal, as bool." ge = Ge;
    "Bits and." bitwise_and = And;
    "Bits or." bitwise_or = Or;
    "Bits exclusive or." bitwise_xor = Xor;
    "Bits shifted left." bitwise_left_shift = Shl;
    "Bits shifted right, with the sign for signed integers." bitwise_right_shift = Shr;
}

macro_rules! operators {
    ($($tr:ident $m:ident $call:ident;)*) => { $(
        impl<'a> std::ops::$tr<&'a Tensor> for &Tensor {
            type Output = TensorResult<Tensor>;
            #[track_caller]
            fn $m(self, rhs: &'a Tensor) -> TensorResult<Tensor> { self.$call(rhs) }
        }
        impl std::ops::$tr<f64> for &Tensor {
            type Output = TensorResult<Tensor>;
            #[track_caller]
            fn $m(self, rhs: f64) -> TensorResult<Tensor> { self.$call(rhs) }
        }
        impl std::ops::$tr<TensorResult<Tensor>> for &Tensor {
            type Output = TensorResult<Tensor>;
            #[track_caller]
            fn $m(self, rhs: TensorResult<Tensor>) -> TensorResult<Tensor> { self.$call(&rhs?) }
        }
    )* };
}
operators! {
    Add add add;
    Sub sub sub;
    Mul mul mul;
    Div div div;
}
impl std::ops::Neg for &Tensor {
    type Output = TensorResult<Tensor>;
    #[track_caller]
    fn neg(self) -> TensorResult<Tensor> {
        Tensor::neg(self)
    }
}
