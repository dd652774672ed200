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
    #[track_caller]
    pub fn zeros(shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        nullary(device, Prim::Lit(0f64.to_bits()), &[], dtype, Shape::new(shape, "zeros", at)?, at)
    }

    /// Ones.
    #[track_caller]
    pub fn ones(shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        nullary(device, Prim::Lit(1f64.to_bits()), &[], dtype, Shape::new(shape, "ones", at)?, at)
    }

    /// One value everywhere. The value is a run-time parameter: other values reuse the plan.
    #[track_caller]
    pub fn full(value: f64, shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        nullary(device, Prim::Param(0), &[value], dtype, Shape::new(shape, "full", at)?, at)
    }

    /// `start, start + step, …` below `end`, as many as fit.
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
            _ if whole => DType::I32,
            _ => DType::F32,
        };
        let iota = nullary(device, Prim::Source(0), &[], work, shape, at)?;
        let number = |v: f64| if whole { Rhs::Int(v as i64) } else { Rhs::Float(v) };
        let mut t = iota;
        if step != 1.0 {
            t = t.binary_at(Binary::Mul, number(step), at)?;
        }
        if start != 0.0 {
            t = t.binary_at(Binary::Add, number(start), at)?;
        }
        t.cast_at(dtype, at)
    }

    /// The `n` by `n` identity matrix.
    #[track_caller]
    pub fn eye(n: usize, dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        let i = nullary(device, Prim::Source(0), &[], DType::I32, Shape::new(&[n], "eye", at)?, at)?;
        i.unsqueeze(1)?.binary_at(Binary::Eq, Rhs::Tensor(&i), at)?.cast_at(dtype, at)
    }

    /// Zeros of this tensor's shape, dtype and device.
    #[track_caller]
    pub fn zeros_like(&self) -> TensorResult<Tensor> {
        Tensor::zeros(self.dims(), self.dtype(), self.device())
    }

    /// Ones of this tensor's shape, dtype and device.
    #[track_caller]
    pub fn ones_like(&self) -> TensorResult<Tensor> {
        Tensor::ones(self.dims(), self.dtype(), self.device())
    }

    /// The same values on another device. Evaluates; the copy goes through the host, and so does its gradient, which is evaluated by
    /// `backward`. i64 becomes i32 on a GPU, and a value that does not fit is an error.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> TensorResult<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let at = Location::caller();
        if self.dtype() == DType::I64 && !device.supports(DType::I64) {
            let wide = self.to_vec_of::<i64>()?;
            let narrow = wide.iter().map(|&v| i32::try_from(v)).collect::<Result<Vec<i32>, _>>();
            let narrow = narrow.map_err(|_| crate::error::TensorError::dtype("to_device", at, "an i64 value does not fit i32"))?;
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
