//! `+`, `-`, `*`, `/` between tensors, references, numbers and unread results; `-x`.
//!
//! Operators give `TensorResult<Tensor>`, as the methods do, so that a shape that does not fit is an error on the operator's line. The result of
//! one operator may follow a tensor without `?` in between:
//!
//! ```
//! # use tensorlogic::prelude::*;
//! let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
//! let y = (1.0 - &x)?; // numbers: f64 and i32; an f32 in a variable is `f64::from(v)`
//! assert_eq!(y.to_vec()?, [0.0, -1.0]);
//! let z = &x * &y + &x; // (x · y) + x
//! assert_eq!(z?.to_vec()?, [1.0, 0.0]);
//! assert_eq!((x.clone() + y)?.to_vec()?, [1.0, 1.0]);
//! assert_eq!((-x)?.to_vec()?, [-1.0, -2.0]);
//! # Ok::<(), TensorError>(())
//! ```

use crate::error::TensorResult;
use crate::scalar::Binary;
use crate::tensor::Tensor;
use std::ops::{Add, Div, Mul, Neg, Sub};

macro_rules! impls {
    ($tr:ident $method:ident $a:ty, $b:ty, |$x:ident, $y:ident| $run:expr) => {
        impl $tr<$b> for $a {
            type Output = TensorResult<Tensor>;
            #[track_caller]
            fn $method(self, rhs: $b) -> TensorResult<Tensor> {
                let ($x, $y) = (self, rhs);
                $run
            }
        }
    };
}

macro_rules! operators {
    ($($tr:ident $m:ident $b:ident;)*) => { $(
        impls!($tr $m &Tensor, &Tensor, |a, b| Tensor::$m(a, b));
        impls!($tr $m &Tensor, Tensor, |a, b| Tensor::$m(a, &b));
        impls!($tr $m Tensor, &Tensor, |a, b| Tensor::$m(&a, b));
        impls!($tr $m Tensor, Tensor, |a, b| Tensor::$m(&a, &b));
        impls!($tr $m &Tensor, TensorResult<Tensor>, |a, b| Tensor::$m(a, &b?));
        impls!($tr $m Tensor, TensorResult<Tensor>, |a, b| Tensor::$m(&a, &b?));
        impls!($tr $m TensorResult<Tensor>, &Tensor, |a, b| Tensor::$m(&a?, b));
        impls!($tr $m TensorResult<Tensor>, Tensor, |a, b| Tensor::$m(&a?, &b));
        operators!(number $tr $m $b f64 i32);
    )* };
    (number $tr:ident $m:ident $b:ident $($n:ty)*) => { $(
        impls!($tr $m &Tensor, $n, |a, b| Tensor::$m(a, b));
        impls!($tr $m Tensor, $n, |a, b| Tensor::$m(&a, b));
        impls!($tr $m $n, &Tensor, |a, b| b.after_number(Binary::$b, a.into()));
        impls!($tr $m $n, Tensor, |a, b| b.after_number(Binary::$b, a.into()));
    )* };
}
// No other number types: with f32 next to f64, or i64 next to i32, the compiler could not tell what the literal in `(1.0 - &x)?` is.
operators! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
}

impl Neg for &Tensor {
    type Output = TensorResult<Tensor>;
    #[track_caller]
    fn neg(self) -> TensorResult<Tensor> {
        Tensor::neg(self)
    }
}
impl Neg for Tensor {
    type Output = TensorResult<Tensor>;
    #[track_caller]
    fn neg(self) -> TensorResult<Tensor> {
        Tensor::neg(&self)
    }
}
