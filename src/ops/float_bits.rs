//! What the bits of floats say: signs, also of zeros, and neighbours.

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::ops::Rhs;
use crate::scalar::Binary;
use crate::tensor::Tensor;
use std::panic::Location;

impl Tensor {
    /// Whether the sign is set, as bool: of negative numbers, of −0, and of NaN with that bit.
    ///
    /// # Errors
    /// For block formats.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-1.0, -0.0, 0.0, 2.0], &Device::cpu())?;
    /// assert_eq!(x.signbit()?.cast(DType::U8)?.to_vec1::<u8>()?, [1, 1, 0, 0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn signbit(&self) -> TensorResult<Tensor> {
        match self.dtype() {
            d if d.is_block() => Err(TensorError::dtype("signbit", Location::caller(), format!("{d} is for weights; cast it first"))),
            DType::Bool => Tensor::zeros(self.dims(), DType::Bool, self.device()),
            d if d.is_float() => self.ones_like()?.copysign(self)?.lt(0.0),
            _ => self.lt(0),
        }
    }

    /// The float next to each element in the direction of `rhs`; `rhs` where they are equal, NaN where one is NaN. Its derivative counts as zero.
    ///
    /// # Errors
    /// For dtypes other than f32 and f64, in which values are not computed, when the dtypes differ, or when the shapes do not broadcast.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 0.0], &Device::cpu())?;
    /// let to = Tensor::new(&[2.0, -1.0], &Device::cpu())?;
    /// assert_eq!(x.nextafter(&to)?.to_vec()?, [1.0 + f32::EPSILON, -f32::from_bits(1)]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn nextafter(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        if self.dtype() != rhs.dtype() || !matches!(self.dtype(), DType::F32 | DType::F64) {
            let m = format!("{} and {}: expected f32 or f64, both the same", self.dtype(), rhs.dtype());
            return Err(TensorError::dtype("nextafter", Location::caller(), m));
        }
        self.binary(Binary::Nextafter, Rhs::Tensor(rhs))
    }
}
