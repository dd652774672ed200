//! Places by value: where values stand in a sorted row, and which elements are not zero.

use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::shape::Shape;
use crate::tensor::{Mode, Tensor};
use smallvec::SmallVec;
use std::panic::Location;

impl Tensor {
    /// For each of `values`, the place (i32) in a row of this sorted tensor before which it would be inserted: the number of elements that are less than it,
    /// and with `right` also of those that equal it. NaN counts as largest. A row is the last dimension: one row serves values of any shape, and rows
    /// `[…,n]` serve values `[…,m]` of the same leading sizes. No gradient flows. A row that is not sorted gives some place in it, as in PyTorch.
    ///
    /// # Errors
    /// When the leading sizes differ, this tensor has no dimensions, a row is longer than 2³⁰, or a block format is compared.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let row = Tensor::new(&[1.0, 3.0, 3.0, 7.0], &Device::cpu())?;
    /// let values = Tensor::new(&[[0.0, 3.0], [8.0, 4.0]], &Device::cpu())?;
    /// assert_eq!(row.searchsorted(&values, false)?.to_vec2::<i32>()?, [[0, 1], [4, 3]]);
    /// assert_eq!(row.searchsorted(&values, true)?.to_vec2::<i32>()?, [[0, 3], [4, 3]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn searchsorted(&self, values: &Tensor, right: bool) -> TensorResult<Tensor> {
        let at = Location::caller();
        let Some((&n, leading)) = self.dims().split_last() else {
            return Err(TensorError::shape("searchsorted", at, "a sorted tensor without dimensions"));
        };
        let same = values.dims().split_last().is_some_and(|(_, of_values)| of_values == leading);
        if !leading.is_empty() && !same {
            let m = format!("rows {} and values {}: the leading sizes differ", self.shape(), values.shape());
            return Err(TensorError::shape("searchsorted", at, m));
        }
        if n > 1 << 30 {
            return Err(TensorError::shape("searchsorted", at, format!("rows of {n} elements")));
        }
        let mode = Mode { at: Some(at), grad: false };
        mode.run(|| {
            if n == 0 || values.numel() == 0 {
                return Tensor::zeros(values.dims(), DType::I32, self.device());
            }
            let sizes: SmallVec<[usize; 8]> = values.dims().iter().copied().collect();
            let flat = if leading.is_empty() { values.reshape(&[values.numel()])? } else { values.clone() };
            self.detach().bisected(&flat.detach(), n, right)?.reshape(&sizes)
        })
    }

    /// [`Tensor::searchsorted`] for rows of n > 0 elements, and values of as many dimensions: each round halves the places that are left.
    fn bisected(&self, values: &Tensor, n: usize, right: bool) -> TensorResult<Tensor> {
        let mut low = Tensor::zeros(values.dims(), DType::I32, self.device())?;
        let mut high = Tensor::full(n as f64, values.dims(), DType::I32, self.device())?;
        for _ in 0..usize::BITS - n.leading_zeros() {
            let middle = low.add(&high)?.bitwise_right_shift(1)?;
            // Where nothing is left, the middle may lie behind the end.
            let found = self.gather(-1, &middle.minimum(n as i64 - 1)?)?;
            let behind = if right { found.gt(values)? } else { found.ge(values)? };
            let after = behind.logical_not()?.logical_and(&low.lt(&high)?)?;
            low = after.where_(&middle.add(1)?, &low)?;
            high = after.where_(&high, &middle)?;
        }
        Ok(low)
    }

    /// The places of the elements that are not zero, in row-major order: `[count, rank]`, i32. NaN is not zero. The number of elements has to be known:
    /// this evaluates the tensor and waits.
    ///
    /// # Errors
    /// When a size does not fit i32; for what the evaluation met.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[0.0, 2.0], [3.0, 0.0]], &Device::cpu())?;
    /// assert_eq!(x.nonzero()?.to_vec2::<i32>()?, [[0, 1], [1, 0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn nonzero(&self) -> TensorResult<Tensor> {
        let at = Location::caller();
        let places = self.ne(0)?.true_places("nonzero", at)?;
        let mut coordinates = Vec::with_capacity(places.len() * self.rank());
        for place in &places {
            let mut rest = *place as usize;
            let first = coordinates.len();
            for &size in self.dims().iter().rev() {
                coordinates.push((rest % size) as i32);
                rest /= size;
            }
            coordinates[first..].reverse();
        }
        Tensor::from_vec(coordinates, &[places.len(), self.rank()], self.device())
    }

    /// The elements where `mask` (bool, of a shape that broadcasts with this one) is true, in row-major order: `[count]`. The gradient goes back to where
    /// each element came from. The number of elements has to be known: this evaluates the mask and waits.
    ///
    /// # Errors
    /// When the mask is not bool, the shapes do not broadcast, or there are more than 2³¹ − 1 elements; for what the evaluation met.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &Device::cpu())?;
    /// assert_eq!(x.masked_select(&x.gt(2.0)?)?.to_vec()?, [3.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn masked_select(&self, mask: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        if mask.dtype() != DType::Bool {
            return Err(TensorError::dtype("masked_select", at, format!("the mask is {}, not bool", mask.dtype())));
        }
        let full: Shape = self.shape().broadcast(mask.shape(), "masked_select", at)?;
        let places = mask.broadcast_to(&full)?.true_places("masked_select", at)?;
        let count = places.len();
        let index = Tensor::from_vec(places, &[count], self.device())?;
        self.broadcast_to(&full)?.reshape(&[full.count()])?.index_select(0, &index)
    }

    /// The places of true elements among all, read from the device.
    fn true_places(&self, op: &'static str, at: At) -> TensorResult<Vec<i32>> {
        if self.numel() > i32::MAX as usize {
            return Err(TensorError::shape(op, at, format!("{} elements: places do not fit i32", self.numel())));
        }
        let flags = self.cast(DType::U8)?.to_vec_of::<u8>()?;
        Ok(flags.iter().enumerate().filter(|(_, flag)| **flag != 0).map(|(i, _)| i as i32).collect())
    }
}
