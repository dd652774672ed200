//! Elementwise nodes: the operands of a method, their common type, and a method for each scalar primitive.

use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::scalar::{Binary, Prim, Unary, binary_primitives, unary_primitives};
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
    pub(crate) fn promote(&self, other: DType, op: &'static str, at: At) -> TensorResult<DType> {
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
pub(crate) fn floating(d: DType) -> DType {
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

    /// A number as an operand that leaves this tensor's dtype as it is where the value allows that: integers stay integers for whole numbers.
    pub(crate) fn number(&self, v: f64) -> Rhs<'static> {
        if self.dtype().is_float() || v.fract() != 0.0 { Rhs::Float(v) } else { Rhs::Int(v as i64) }
    }

    /// The dtype of results that keep this tensor's values.
    pub(crate) fn stored(&self) -> DType {
        if self.dtype().is_block() { DType::F32 } else { self.dtype() }
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

    /// Whether each element is not zero.
    #[track_caller]
    pub(crate) fn truth(&self) -> TensorResult<Tensor> {
        if self.dtype() == DType::Bool { Ok(self.clone()) } else { self.ne(Lit(0.0)) }
    }
}

/// The documented example of a method.
macro_rules! example {
    ($name:ident, ($x:expr => $y:expr)) => {
        concat!(
            "```\n# use tensorlogic::prelude::*;\nlet x = Tensor::new(&[",
            stringify!($x),
            "], &Device::cpu())?;\nlet y = x.",
            stringify!($name),
            "()?.to_vec()?;\nassert!((y[0] - ",
            stringify!($y),
            ").abs() < 2e-6);\n# Ok::<(), TensorError>(())\n```"
        )
    };
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, grad: $grad:tt, })*) => {
        impl Tensor { $(
            $(#[$doc])*
            ///
            /// # Errors
            /// For dtypes that the function is not defined on, as bits of floats; most functions take numbers of every dtype.
            ///
            #[doc = example!($name, $example)]
            #[track_caller]
            pub fn $name(&self) -> TensorResult<Tensor> { self.unary(Unary::$v) }
        )* }
    };
}
unary_primitives!(unary_methods);

/// The method of a primitive of two arguments, unless it is written by hand.
macro_rules! binary_method {
    ([$(#[$doc:meta])*] $v:ident $name:ident (none)) => {};
    ([$(#[$doc:meta])*] $v:ident $name:ident ($x:expr, $y:expr => $z:expr)) => {
        impl Tensor {
            $(#[$doc])*
            /// Shapes broadcast; dtypes promote as [`DType::promote`] says.
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
            pub fn $name<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> { self.binary(Binary::$v, rhs.into()) }
        }
    };
}
macro_rules! binary_methods {
    ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, int: $int:tt, left: $left:tt, right: $right:tt, })*) => { $(binary_method!([$(#[$doc])*] $v $name $example);)* };
}
binary_primitives!(binary_methods);
