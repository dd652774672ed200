//! Seeded random numbers. Counter-based: element i of a draw depends on seed, draw number and i alone, on every backend.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{At, TensorResult};
use crate::ops::Rhs;
use crate::ops::create::nullary;
use crate::scalar::{Binary, Prim, Unary};
use crate::shape::Shape;
use crate::tensor::{Arg, Meta, Tensor};
use smallvec::smallvec;
use std::panic::Location;

/// A stream of random tensors from one seed. Each draw takes the next number of the stream.
#[derive(Clone, Debug)]
pub struct Rng {
    /// The seed.
    pub seed: u64,
    /// Draws made so far: set it to continue where another run stopped.
    pub draws: u32,
}

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng { seed, draws: 0 }
    }

    /// 32 random bits per element, as u32 (Philox4x32-10, Salmon et al., SC 2011).
    #[track_caller]
    pub fn bits(&mut self, shape: &[usize], device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        self.draw(Shape::new(shape, "random", at)?, device, at)
    }

    fn draw(&mut self, shape: Shape, device: &Device, at: At) -> TensorResult<Tensor> {
        let iota = nullary(device, Prim::Source(0), &[], DType::U32, shape, at)?;
        // Both halves of the seed count; the key is mixed so that near seeds share nothing.
        let key = (self.seed as u32) ^ ((self.seed >> 32) as u32).wrapping_mul(0x9E37_79B9);
        let args = [Arg::In(0), Arg::Param(0, DType::U32), Arg::Param(1, DType::U32)];
        let t = Tensor::map(
            device,
            Prim::Philox,
            args,
            smallvec![iota],
            smallvec![self.draws as f64, key as f64],
            Meta { dtype: DType::U32, shape },
            at,
        );
        self.draws = self.draws.wrapping_add(1);
        Ok(t)
    }

    fn unit(&mut self, shape: Shape, device: &Device, at: At) -> TensorResult<Tensor> {
        // 24 bits fill an f32's mantissa exactly: the same value on every backend.
        let bits = self.draw(shape, device, at)?.binary_at(Binary::Shr, Rhs::Lit(8.0), at)?;
        bits.cast_at(DType::F32, at)?.binary_at(Binary::Mul, Rhs::Lit(1.0 / 16_777_216.0), at)
    }

    /// Uniform in [0, 1), in steps of 2⁻²⁴. The same bits on every backend in f32.
    #[track_caller]
    pub fn uniform(&mut self, shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        self.unit(Shape::new(shape, "uniform", at)?, device, at)?.cast_at(dtype, at)
    }

    /// Integers in `low..high`, as i32. The span is at most 2¹⁶ so that the multiplication stays exact.
    #[track_caller]
    pub fn integers(&mut self, low: i32, high: i32, shape: &[usize], device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        let span = high as i64 - low as i64;
        if span <= 0 || span > 65_536 {
            return Err(crate::error::TensorError::Invalid(format!("integers: the range {low}..{high} must hold 1 to 65536 values")));
        }
        let bits = self.draw(Shape::new(shape, "integers", at)?, device, at)?.binary_at(Binary::Shr, Rhs::Lit(16.0), at)?;
        let scaled = bits.binary_at(Binary::Mul, Rhs::Int(span), at)?.binary_at(Binary::Shr, Rhs::Lit(16.0), at)?;
        scaled.cast_at(DType::I32, at)?.binary_at(Binary::Add, Rhs::Int(low as i64), at)
    }

    /// Standard normal, by Box and Muller's transform of two uniform draws.
    #[track_caller]
    pub fn normal(&mut self, shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        let shape = Shape::new(shape, "normal", at)?;
        // 1 − u lies in (0, 1]: the logarithm is finite.
        let u = self.unit(shape, device, at)?.unary_at(Unary::Neg, at)?.binary_at(Binary::Add, Rhs::Lit(1.0), at)?;
        let radius = u.unary_at(Unary::Log, at)?.binary_at(Binary::Mul, Rhs::Lit(-2.0), at)?.unary_at(Unary::Sqrt, at)?;
        let angle = self.unit(shape, device, at)?.binary_at(Binary::Mul, Rhs::Lit(2.0 * std::f64::consts::PI), at)?;
        radius.binary_at(Binary::Mul, Rhs::Tensor(&angle.unary_at(Unary::Cos, at)?), at)?.cast_at(dtype, at)
    }
}
