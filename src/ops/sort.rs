//! Elements in order: sorting, and the order itself.

use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::ops::pad::PadMode;
use crate::shape::{SignedIndex, dim};
use crate::tensor::{Mode, Tensor};
use std::panic::Location;

impl Tensor {
    /// The elements of dimension `d` in ascending or descending order, and the index (i32) that each had. Equal elements keep their order; NaN
    /// counts as largest. The gradient goes back to where each element came from. `[…,N,…]` → `[…,N,…]`, both.
    ///
    /// # Errors
    /// When there is no such dimension, or it is longer than 2³⁰.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[2.0, 3.0, 1.0], &Device::cpu())?;
    /// let (values, indices) = x.sort(0, false)?;
    /// assert_eq!(values.to_vec()?, [1.0, 2.0, 3.0]);
    /// assert_eq!(indices.to_vec1::<i32>()?, [2, 0, 1]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn sort(&self, d: impl SignedIndex, descending: bool) -> TensorResult<(Tensor, Tensor)> {
        self.sorted("sort", d, descending)
    }

    /// The indices (i32) that sort dimension `d`: see [`Tensor::sort`]. `[…,N,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// As for [`Tensor::sort`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[2.0, 3.0, 1.0], &Device::cpu())?;
    /// assert_eq!(x.argsort(0, true)?.to_vec1::<i32>()?, [1, 0, 2]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn argsort(&self, d: impl SignedIndex, descending: bool) -> TensorResult<Tensor> {
        Ok(self.detach().sorted("argsort", d, descending)?.1)
    }

    /// Dimension `d`, how many elements it has, and these values in a dtype that compares, for results with their places as i32.
    pub(super) fn ordered(&self, op: &'static str, d: impl SignedIndex, at: At) -> TensorResult<(usize, usize, Tensor)> {
        let k = dim(d, self.rank(), op, at)?;
        let n = if self.rank() == 0 { 1 } else { self.shape()[k] };
        if n > 1 << 30 {
            return Err(TensorError::shape(op, at, format!("{n} elements in a dimension")));
        }
        let x = self.cast(if self.dtype() == DType::Bool { DType::U8 } else { self.stored() })?;
        Ok((k, n, x))
    }

    #[track_caller]
    pub(super) fn sorted(&self, op: &'static str, d: impl SignedIndex, descending: bool) -> TensorResult<(Tensor, Tensor)> {
        let at = Location::caller();
        let (k, n, x) = self.ordered(op, d, at)?;
        let run = || {
            if n <= 1 || x.numel() == 0 {
                return Ok((x.clone(), Tensor::full(0.0, x.dims(), DType::I32, x.device())?));
            }
            let last = x.detach().transpose(k, -1)?;
            let rows = x.numel() / n;
            let (values, order) = network(&last.reshape(&[rows, n])?, descending)?;
            let back = |t: Tensor| t.narrow(1, 0, n)?.reshape(last.shape())?.transpose(k, -1);
            let order = back(order)?;
            Ok((if x.is_tracked() { x.gather(k, &order)? } else { back(values)? }, order))
        };
        let (values, order) = Mode { at: Some(at), ..Mode::current() }.run(run)?;
        Ok((values.cast(self.stored())?, order))
    }
}

/// The largest value of a dtype, or the smallest; of floats, infinity.
pub(super) fn extreme_of(dtype: DType, largest: bool) -> f64 {
    match (dtype, largest) {
        (d, true) if d.is_float() => f64::INFINITY,
        (d, false) if d.is_float() => f64::NEG_INFINITY,
        (DType::U8 | DType::U16 | DType::U32 | DType::U64, false) => 0.0,
        (DType::I8, false) => i8::MIN as f64,
        (DType::I16, false) => i16::MIN as f64,
        (DType::I32, false) => i32::MIN as f64,
        (_, false) => i64::MIN as f64,
        (DType::U8, true) => u8::MAX as f64,
        (DType::I8, true) => i8::MAX as f64,
        (DType::U16, true) => u16::MAX as f64,
        (DType::I16, true) => i16::MAX as f64,
        (DType::U64, true) => u64::MAX as f64,
        (DType::U32, true) => u32::MAX as f64,
        (DType::I32, true) => i32::MAX as f64,
        (_, true) => i64::MAX as f64,
    }
}

/// Rows of `[rows, n]` in order and their indices, both `[rows, m]` for the next power of two m: Batcher's bitonic network (1968), whose rounds
/// compare every element with one partner. What fills the rows up comes last.
fn network(x: &Tensor, descending: bool) -> TensorResult<(Tensor, Tensor)> {
    let (rows, n) = (x.shape()[0], x.shape()[1]);
    let m = n.next_power_of_two();
    let float = x.dtype().is_float();
    let last = if float && !descending { f64::NAN } else { extreme_of(x.dtype(), !descending) };
    let mut values = x.pad(&[(0, 0), (0, (m - n) as isize)], PadMode::Constant(last))?;
    let place = Tensor::arange(0.0, m as f64, 1.0, DType::I32, x.device())?;
    let mut order = place.broadcast_to(&[rows, m])?;
    let mut round = |sizes: &[usize], transposed: isize, half: usize| -> TensorResult<()> {
        let partner = |t: &Tensor| t.reshape(sizes)?.flip(transposed)?.reshape(&[rows, m]);
        let (other, other_order) = (partner(&values)?, partner(&order)?);
        // Whether an element comes before its partner: by value, else by place.
        let mut before = if descending { values.gt(&other)? } else { values.lt(&other)? };
        let mut same = values.eq(&other)?;
        if float {
            let (own_nan, other_nan) = (values.isnan()?, other.isnan()?);
            same = same.logical_or(&own_nan.logical_and(&other_nan)?)?;
            let wins = if descending {
                own_nan.logical_and(&other_nan.logical_not()?)?
            } else {
                other_nan.logical_and(&own_nan.logical_not()?)?
            };
            before = before.logical_or(&wins)?;
        }
        before = before.logical_or(&same.logical_and(&order.lt(&other_order)?)?)?;
        let lower = place.bitwise_and(half as i64)?.eq(0i64)?;
        let keep = before.eq(&lower)?;
        (values, order) = (keep.where_(&values, &other)?, keep.where_(&order, &other_order)?);
        Ok(())
    };
    let mut block = 2;
    while block <= m {
        // Each element of a block against its mirror image, then halves of halves.
        round(&[rows, m / block, block], -1, block / 2)?;
        let mut half = block / 4;
        while half > 0 {
            round(&[rows, m / (2 * half), 2, half], -2, half)?;
            half /= 2;
        }
        block *= 2;
    }
    Ok((values, order))
}
