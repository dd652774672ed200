//! Seeded random numbers. Counter-based: element i of a draw depends on seed, draw number and i alone, on every backend.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{At, TensorResult};
use crate::ops::Lit;
use crate::ops::create::nullary;
use crate::scalar::Prim;
use crate::shape::Shape;
use crate::tensor::{Arg, Meta, Tensor};
use smallvec::smallvec;
use std::hash::{BuildHasher, Hasher};
use std::panic::Location;
use std::sync::{Mutex, MutexGuard};

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
    ///
    /// # Errors
    /// When the shape has more than eight dimensions or too many elements.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let bits = Rng::new(7).bits(&[4], &Device::cpu())?;
    /// assert_eq!((bits.dtype(), bits.dims()), (DType::U32, &[4][..]));
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn bits(&mut self, shape: &[usize], device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        self.draw(Shape::new(shape, "random", at)?, device)
    }

    #[track_caller]
    fn draw(&mut self, shape: Shape, device: &Device) -> TensorResult<Tensor> {
        let t = bits_of(shape, f64::from(self.draws), f64::from(self.key()), device, Location::caller())?;
        self.draws = self.draws.wrapping_add(1);
        Ok(t)
    }

    /// The key of the stream. Both halves of the seed count; they are mixed so that near seeds share nothing.
    pub(crate) fn key(&self) -> u32 {
        (self.seed as u32) ^ ((self.seed >> 32) as u32).wrapping_mul(0x9E37_79B9)
    }

    #[track_caller]
    fn unit(&mut self, shape: Shape, device: &Device) -> TensorResult<Tensor> {
        unit_of(&self.draw(shape, device)?)
    }

    /// Uniform in [0, 1), in steps of 2⁻²⁴. The same bits on every backend in f32.
    ///
    /// # Errors
    /// When the shape has more than eight dimensions or too many elements, or `dtype` is a block format or one that the device lacks.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Rng::new(7).uniform(&[100], DType::F32, &Device::cpu())?.to_vec()?;
    /// assert!(x.iter().all(|v| (0.0..1.0).contains(v)));
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn uniform(&mut self, shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        self.unit(Shape::new(shape, "uniform", Location::caller())?, device)?.cast(dtype)
    }

    /// Integers in `low..high`, as i32. The span is at most 2¹⁶ so that the multiplication stays exact.
    ///
    /// # Errors
    /// When the shape has more than eight dimensions or too many elements, or `low..high` does not hold 1 to 65,536 values.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let dice = Rng::new(7).integers(1, 7, &[100], &Device::cpu())?.to_vec1::<i32>()?;
    /// assert!(dice.iter().all(|v| (1..=6).contains(v)));
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn integers(&mut self, low: i32, high: i32, shape: &[usize], device: &Device) -> TensorResult<Tensor> {
        let at = Location::caller();
        let span = high as i64 - low as i64;
        if span <= 0 || span > 65_536 {
            return Err(crate::error::TensorError::Value(format!("integers: the range {low}..{high} must hold 1 to 65536 values")));
        }
        let bits = self.draw(Shape::new(shape, "integers", at)?, device)?.bitwise_right_shift(Lit(16.0))?;
        let scaled = bits.mul(span)?.bitwise_right_shift(Lit(16.0))?;
        scaled.cast(DType::I32)?.add(low as i64)
    }

    /// Standard normal, by Box and Muller's transform of two uniform draws.
    ///
    /// # Errors
    /// When the shape has more than eight dimensions or too many elements, or `dtype` is a block format or one that the device lacks.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Rng::new(7).normal(&[10_000], DType::F32, &Device::cpu())?;
    /// assert!(x.mean_all()?.to_vec()?[0].abs() < 0.05);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn normal(&mut self, shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        let shape = Shape::new(shape, "normal", Location::caller())?;
        // 1 − u lies in (0, 1]: the logarithm is finite.
        let u = self.unit(shape, device)?.neg()?.add(Lit(1.0))?;
        let radius = u.log()?.mul(Lit(-2.0))?.sqrt()?;
        let angle = self.unit(shape, device)?.mul(Lit(2.0 * std::f64::consts::PI))?;
        radius.mul(&angle.cos()?)?.cast(dtype)
    }
}

/// The random bits of a draw by its number and the stream's key, which may differ from run to run of one plan.
fn bits_of(shape: Shape, draw: f64, key: f64, device: &Device, at: At) -> TensorResult<Tensor> {
    let iota = nullary(device, Prim::Source(0), &[], DType::U32, shape, at)?;
    let args = [Arg::In(0), Arg::Param(0, DType::U32), Arg::Param(1, DType::U32)];
    Ok(Tensor::map(device, Prim::Philox, args, smallvec![iota], smallvec![draw, key], Meta { dtype: DType::U32, shape }, at))
}

/// 32 random bits for each of `count` numbers of several streams: a draw of each by its number and the stream's key, both u32 `[B,1]`: u32 `[B,count]`.
/// A row's bits are those of [`Rng::bits`] for `[count]`.
#[track_caller]
pub(crate) fn bits_of_streams(draws: &Tensor, keys: &Tensor, count: usize) -> TensorResult<Tensor> {
    let (at, device) = (Location::caller(), draws.device());
    let shape = Shape::new(&[draws.dims()[0], count], "random", at)?;
    let iota = nullary(device, Prim::Source(0), &[], DType::U32, Shape::of(&[1, count]), at)?;
    let inputs = [&iota, draws, keys].into_iter().map(|t| t.broadcast_to(shape.dims())).collect::<TensorResult<_>>()?;
    let args = [Arg::In(0), Arg::In(1), Arg::In(2)];
    Ok(Tensor::map(device, Prim::Philox, args, inputs, Default::default(), Meta { dtype: DType::U32, shape }, at))
}

/// 24 bits fill an f32's mantissa exactly: the same value on every backend.
#[track_caller]
fn unit_of(bits: &Tensor) -> TensorResult<Tensor> {
    bits.bitwise_right_shift(Lit(8.0))?.cast(DType::F32)?.mul(Lit(1.0 / 16_777_216.0))
}

/// What [`Rng::uniform`] gives for a draw by its number and the stream's key.
pub(crate) fn uniform_of(shape: Shape, draw: f64, key: f64, device: &Device, at: At) -> TensorResult<Tensor> {
    unit_of(&bits_of(shape, draw, key, device, at)?)
}

/// The stream that [`Tensor::rand`] and [`Tensor::randn`] draw from, once there is one.
static SHARED: Mutex<Option<Rng>> = Mutex::new(None);

fn shared() -> MutexGuard<'static, Option<Rng>> {
    SHARED.lock().unwrap_or_else(|e| e.into_inner())
}

/// Seeds what [`Tensor::rand`] and [`Tensor::randn`] draw from in this process; without it, each process draws other numbers. An [`Rng`] of one's
/// own is the better source where several threads draw, and where a run is to be continued.
pub fn manual_seed(seed: u64) {
    *shared() = Some(Rng::new(seed));
}

/// The shared stream, which begins with a seed from the system: the standard library seeds its hashers from there.
fn begun(shared: &mut Option<Rng>) -> &mut Rng {
    shared.get_or_insert_with(|| Rng::new(std::hash::RandomState::new().build_hasher().finish()))
}

impl Tensor {
    /// Uniform in [0, 1), as [`Rng::uniform`], from a stream of this process: see [`manual_seed`].
    ///
    /// # Errors
    /// When the shape is too large, or the device lacks the dtype.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::rand(&[2, 3], DType::F32, &Device::cpu())?;
    /// assert!(x.to_vec()?.iter().all(|v| (0.0..1.0).contains(v)));
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn rand(shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        begun(&mut shared()).uniform(shape, dtype, device)
    }

    /// Standard normal, as [`Rng::normal`], from a stream of this process: see [`manual_seed`].
    ///
    /// # Errors
    /// As for [`Tensor::rand`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// manual_seed(7);
    /// let x = Tensor::randn(&[2, 3], DType::F32, &Device::cpu())?;
    /// manual_seed(7);
    /// assert_eq!(x.to_vec()?, Tensor::randn(&[2, 3], DType::F32, &Device::cpu())?.to_vec()?);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn randn(shape: &[usize], dtype: DType, device: &Device) -> TensorResult<Tensor> {
        begun(&mut shared()).normal(shape, dtype, device)
    }
}
