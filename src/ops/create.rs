//! Tensors from nothing: constants and ranges.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{At, TensorResult};
use crate::ops::Rhs;
use crate::scalar::{Binary, Prim};
use crate::shape::Shape;
use crate::tensor::{Arg, Inputs, Meta, Mode, Tensor};
use std::panic::Location;

/// A node without inputs.
pub(crate) fn nullary(device: &Device, prim: Prim, params: &[f64], dtype: DType, shape: Shape, at: At) -> TensorResult<Tensor> {
    device.require(dtype)?;
    Ok(Tensor::map(device, prim, [Arg::None; 3], Inputs::new(), params.into(), Meta { dtype, shape }, at))
}

impl Tensor {
    /// Zeros.
    ///
    /// # Errors
    /// When the shape has more than eight dimensions or too many elements, or the device lacks the dtype.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::zeros(&[2, 3], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.to_vec()?, [0.0; 6]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn zeros(shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        nullary(device, Prim::Lit(0f64.to_bits()), &[], dtype, Shape::new(shape, "zeros", at)?, at)
    }

    /// Ones.
    ///
    /// # Errors
    /// When the shape has more than eight dimensions or too many elements, or the device lacks the dtype.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::ones(&[2, 3], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.to_vec()?, [1.0; 6]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn ones(shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        nullary(device, Prim::Lit(1f64.to_bits()), &[], dtype, Shape::new(shape, "ones", at)?, at)
    }

    /// One value everywhere. The value is a run-time parameter: other values reuse the plan.
    ///
    /// # Errors
    /// When the shape has more than eight dimensions or too many elements, or the device lacks the dtype.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::full(2.5, &[2], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.to_vec()?, [2.5, 2.5]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn full(value: f64, shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        nullary(device, Prim::Param(0), &[value], dtype, Shape::new(shape, "full", at)?, at)
    }

    /// `start, start + step, …` below `end`, as many as fit.
    ///
    /// # Errors
    /// When the numbers are not finitely many, or the device lacks the dtype.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::arange(1.0, 2.0, 0.25, DType::F32, &Device::cpu())?;
    /// assert_eq!(x.to_vec()?, [1.0, 1.25, 1.5, 1.75]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn arange(start: f64, end: f64, step: f64, dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        let n = ((end - start) / step).ceil();
        if !n.is_finite() || n > u32::MAX as f64 {
            let m = format!("{start}, {end}, {step} give no finite range");
            return Err(crate::error::TensorError::shape("arange", at, m));
        }
        let shape = Shape::new(&[n.max(0.0) as usize], "arange", at)?;
        let whole = start.fract() == 0.0 && step.fract() == 0.0;
        let work = match dtype {
            DType::F64 | DType::I64 | DType::F32 | DType::I32 => dtype,
            DType::U64 if whole => DType::I64,
            _ if whole => DType::I32,
            _ => DType::F32,
        };
        let iota = nullary(device, Prim::Source(0), &[], work, shape, at)?;
        let number = |v: f64| if whole { Rhs::Int(v as i64) } else { Rhs::Float(v) };
        let mut t = iota;
        if step != 1.0 {
            t = t.mul(number(step))?;
        }
        if start != 0.0 {
            t = t.add(number(start))?;
        }
        t.cast(dtype)
    }

    /// `steps` numbers from `start` to `end`, both included, in equal distances: `[steps]`. The step is a run-time parameter: other bounds reuse
    /// the plan. Integers are rounded toward zero.
    ///
    /// # Errors
    /// When the device lacks the dtype, a bound is not finite, or there are too many steps.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::linspace(-1.0, 1.0, 5, DType::F32, &Device::cpu())?;
    /// assert_eq!(x.to_vec()?, [-1.0, -0.5, 0.0, 0.5, 1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn linspace(start: f64, end: f64, steps: usize, dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        if !start.is_finite() || !end.is_finite() || steps > u32::MAX as usize {
            let m = format!("{start}, {end}, {steps} give no finite range");
            return Err(crate::error::TensorError::shape("linspace", at, m));
        }
        let shape = Shape::new(&[steps], "linspace", at)?;
        let work = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let place = nullary(device, Prim::Source(0), &[], DType::I32, shape, at)?;
        // From each end to the middle, so that both are exact and the numbers lie symmetrically.
        let step = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
        let left = place.cast(work)?.mul(step)?.add(start)?;
        let right = place.after_number(Binary::Sub, Rhs::Int(steps as i64 - 1))?.cast(work)?.mul(-step)?.add(end)?;
        let near = place.lt(steps.div_ceil(2) as i64)?;
        near.where_(&left, &right)?.cast(dtype)
    }

    /// The `n` by `n` identity matrix.
    ///
    /// # Errors
    /// When the shape has more than eight dimensions or too many elements, or the device lacks the dtype.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::eye(2, DType::F32, &Device::cpu())?;
    /// assert_eq!(x.to_vec2::<f32>()?, [[1.0, 0.0], [0.0, 1.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn eye(n: usize, dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        let i = nullary(device, Prim::Source(0), &[], DType::I32, Shape::new(&[n], "eye", at)?, at)?;
        i.unsqueeze(1)?.eq(&i)?.cast(dtype)
    }

    /// Zeros of this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// As for [`Tensor::zeros`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2]], &Device::cpu())?;
    /// assert_eq!(x.zeros_like()?.to_vec2::<i32>()?, [[0, 0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn zeros_like(&self) -> TensorResult<Tensor> {
        Tensor::zeros(self.dims(), self.dtype(), self.device())
    }

    /// Ones of this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// As for [`Tensor::zeros`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[5, 2]], &Device::cpu())?;
    /// assert_eq!(x.ones_like()?.to_vec2::<i32>()?, [[1, 1]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn ones_like(&self) -> TensorResult<Tensor> {
        Tensor::ones(self.dims(), self.dtype(), self.device())
    }

    /// One value everywhere, in this tensor's shape and dtype and on its device.
    ///
    /// # Errors
    /// As for [`Tensor::zeros`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[5.0, 2.0]], &Device::cpu())?;
    /// assert_eq!(x.full_like(0.5)?.to_vec2::<f32>()?, [[0.5, 0.5]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn full_like(&self, value: f64) -> TensorResult<Tensor> {
        Tensor::full(value, self.dims(), self.dtype(), self.device())
    }

    /// The same values on another device. Evaluates; the copy goes through the host, and so does its gradient, which is evaluated by
    /// `backward`. i64 becomes i32 on a GPU, and a value that does not fit is an error.
    ///
    /// # Errors
    /// When the device lacks the dtype, has no room, or an i64 value does not fit; for what the evaluation met.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// let device = Device::auto()?; // the GPU where there is one
    /// assert_eq!(x.to_device(&device)?.to_vec()?, [1.0, 2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> TensorResult<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let at = Location::caller();
        if self.dtype().is_int() && !device.supports(self.dtype()) {
            let narrow: Option<Vec<i32>> = match self.dtype() {
                DType::I64 => self.to_vec_of::<i64>()?.iter().map(|&v| i32::try_from(v).ok()).collect(),
                DType::U64 => self.to_vec_of::<u64>()?.iter().map(|&v| i32::try_from(v).ok()).collect(),
                _ => Some(self.cast(DType::I32)?.to_vec_of::<i32>()?),
            };
            let m = || format!("{} has no {}, and a value does not fit i32", device.name(), self.dtype());
            let narrow = narrow.ok_or_else(|| crate::error::TensorError::dtype("to_device", at, m()))?;
            return Tensor::from_vec(narrow, self.dims(), device);
        }
        device.require(self.dtype())?;
        let bytes = self.to_bytes()?;
        let copy = Tensor::from_bytes(crate::backends::Bytes::Owned(std::sync::Arc::new(bytes)), self.dtype(), self.dims(), device)?;
        if !self.is_tracked() || !Mode::current().grad {
            return Ok(copy);
        }
        let home = self.device().clone();
        Ok(copy.result_of(std::slice::from_ref(self), std::sync::Arc::new(move |_, g| Ok(vec![Some(g.to_device(&home)?)])), at))
    }
}
