//! Running sums and products along a dimension.

use crate::dtype::DType;
use crate::error::{At, TensorResult};
use crate::ops::Rhs;
use crate::ops::pad::PadMode;
use crate::scalar::Binary;
use crate::shape::dim;
use crate::tensor::{Mode, Tensor};
use std::panic::Location;

impl Tensor {
    /// For each element the sum of those up to it along dimension `d`, itself included; accumulated in f32 (integers: i64 on the CPU, i32
    /// on a GPU).
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
    pub fn cumsum(&self, d: isize) -> TensorResult<Tensor> {
        self.scan("cumsum", d, Binary::Add, 0.0, Location::caller())
    }

    /// For each element the product of those up to it along dimension `d`, itself included; accumulated as [`Tensor::cumsum`].
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
    pub fn cumprod(&self, d: isize) -> TensorResult<Tensor> {
        self.scan("cumprod", d, Binary::Mul, 1.0, Location::caller())
    }

    /// In ⌈log₂ n⌉ rounds, each of which joins every element with the one 1, 2, 4, … places before it (Hillis and Steele, 1986).
    fn scan(&self, op: &'static str, d: isize, join: Binary, neutral: f64, at: At) -> TensorResult<Tensor> {
        let k = dim(d, self.rank(), op, at)?;
        let whole = if self.device().supports(DType::I64) { DType::I64 } else { DType::I32 };
        let (work, result) = match self.stored() {
            DType::F16 | DType::BF16 => (DType::F32, self.stored()),
            t if t.is_float() => (t, t),
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
                x = x.binary(join, Rhs::Tensor(&before))?;
                reach *= 2;
            }
            x.cast(result)
        };
        Mode { at: Some(at), ..Mode::current() }.run(run)
    }
}
