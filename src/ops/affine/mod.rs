//! Affine quantization of tensors: integers, scales and zero points as tensors of their own, and products that read them as they are.

mod decode;
mod gpu;
mod matmul;
pub(crate) mod params;
#[cfg(test)]
mod tests;
mod weights;

use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::eval::eval_all;
use crate::ops::Lit;
use crate::ops::pad::PadMode;
use crate::quant::{Affine, Bits, Granularity};
use crate::shape::{Shape, SignedIndex, dim};
use crate::tensor::{Meta, Tensor};
use matmul::AffineMatMul;
use std::panic::Location;
use weights::AffineWeights;

use params::affine_params;

/// A tensor as integers with scales and zero points: x ≈ scale · (q − zero point), made by [`Tensor::quantize`].
///
/// Each element's error is at most half its scale, to the rounding of f32.
#[derive(Clone, Debug)]
pub struct Quantized {
    affine: Affine,
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    shape: Shape,
    /// The shape whose last dimension is quantized row by row: `shape`, or all elements in one row.
    rows: Shape,
}

impl Quantized {
    /// How it was quantized.
    pub fn affine(&self) -> Affine {
        self.affine
    }
    /// The integers as they are stored. Eight bits: i8 in the tensor's shape. Four bits: u8 with two integers a byte, the first in the low
    /// half, in two's complement; rows are half as long, rounded up. With blocks, rows are whole blocks, filled up with the integers of 0.
    pub fn q(&self) -> &Tensor {
        &self.q
    }
    /// Scales, f32: `[]`, `[channels]`, or for blocks the tensor's shape with the number of blocks as last dimension.
    pub fn scale(&self) -> &Tensor {
        &self.scale
    }
    /// The integers that stand for 0, i32, in the shape of the scales.
    pub fn zero_point(&self) -> &Tensor {
        &self.zero_point
    }
    /// The shape of the tensor that was quantized.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
    /// Bytes of integers, scales and zero points.
    pub fn bytes(&self) -> usize {
        [&self.q, &self.scale, &self.zero_point].map(|t| t.numel() * t.dtype().block_bytes()).iter().sum()
    }

    /// Integers of a row, with those that fill up its last block.
    fn row_len(&self) -> usize {
        let cols = self.rows[self.rows.rank() - 1];
        match self.affine.granularity {
            Granularity::Block(n) => cols.next_multiple_of(n),
            _ => cols,
        }
    }

    /// The integers one by one, as i8 `[…, row]`: with blocks, a row is whole blocks.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::quant::Affine;
    ///
    /// let x = Tensor::new(&[[-5.0, 0.0, 10.0]], &Device::cpu())?;
    /// let q = x.quantize(&Affine::int4())?; // the scale is 1 and the zero point −3
    /// assert_eq!(q.q().dims(), [1, 2]); // two integers a byte
    /// assert_eq!(q.values()?.to_vec2::<i8>()?, [[-8, -3, 7]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn values(&self) -> TensorResult<Tensor> {
        let mut dims = self.rows.dims().to_vec();
        let (last, len) = (dims.len() - 1, self.row_len());
        if self.affine.bits == Bits::Eight {
            dims[last] = len;
            return self.q.reshape(&dims);
        }
        dims[last] = len.div_ceil(2);
        decode::unpack(&self.q.reshape(&dims)?)?.narrow(-1, 0, len)?.cast(DType::I8)
    }

    /// The tensor that the integers stand for, in f32.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::quant::Affine;
    ///
    /// let x = Tensor::new(&[[-5.0, 0.25, 10.0]], &Device::cpu())?;
    /// let q = x.quantize(&Affine::int4())?; // the scale is 1
    /// assert_eq!(q.dequantize()?.to_vec2::<f32>()?, [[-5.0, 0.0, 10.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn dequantize(&self) -> TensorResult<Tensor> {
        let values = self.values()?;
        let last = self.rows.rank() - 1;
        let mut dims = values.dims().to_vec();
        let decoded = match self.affine.granularity {
            Granularity::PerTensor => decode::scaled(&values, &self.scale, &self.zero_point)?,
            Granularity::PerChannel(axis) => {
                let mut shape = vec![1; self.rows.rank()];
                shape[dim(axis, self.rows.rank(), "dequantize", Location::caller())?] = self.scale.numel();
                decode::scaled(&values, &self.scale.reshape(&shape)?, &self.zero_point.reshape(&shape)?)?
            }
            Granularity::Block(n) => {
                let mut blocks = dims.clone();
                blocks[last] /= n;
                let mut groups = blocks.clone();
                groups.push(1);
                blocks.push(n);
                let each = |t: &Tensor| t.reshape(&groups);
                let decoded = decode::scaled(&values.reshape(&blocks)?, &each(&self.scale)?, &each(&self.zero_point)?)?;
                dims[last] = values.dims()[last];
                decoded.reshape(&dims)?.narrow(-1, 0, self.rows[last])?
            }
        };
        decoded.reshape(self.shape)
    }

    /// How a product reads these weights.
    fn weights(&self, at: At) -> TensorResult<AffineWeights> {
        let op = "matmul_quantized";
        let &[n, k] = self.shape.dims() else {
            return Err(TensorError::shape(op, at, format!("weights {}: expected [outputs, inputs]", self.shape)));
        };
        let (group, row_groups, len) = match self.affine.granularity {
            Granularity::PerTensor => (k, 0, k),
            Granularity::PerChannel(axis) => match dim(axis, 2, op, at)? {
                0 => (k, 1, k),
                _ => (1, 0, k),
            },
            Granularity::Block(b) if self.rows == self.shape || k % b == 0 => (b, k.div_ceil(b), k.next_multiple_of(b)),
            Granularity::Block(b) => {
                let m = format!("rows of {k} are not whole blocks of {b}; did you mean w.quantize(&Affine::int8().block({b}))?");
                return Err(TensorError::shape(op, at, m));
            }
        };
        let row_bytes = if self.affine.bits == Bits::Four { len.div_ceil(2) } else { len };
        Ok(AffineWeights { bits: self.affine.bits, n, k, row_bytes, group: group.max(1), row_groups })
    }
}

/// Least and largest values of each group of `x`, and the shape in which scales are multiplied with it.
fn ranges(x: &Tensor, affine: &Affine, at: At) -> TensorResult<(Tensor, Tensor, Vec<usize>)> {
    let rank = x.rank();
    let (dims, apart) = match affine.granularity {
        Granularity::PerTensor => (vec![], vec![]),
        Granularity::PerChannel(axis) => {
            let axis = dim(axis, rank, "quantize", at)?;
            let mut apart = vec![1; rank];
            apart[axis] = x.dims()[axis];
            ((0..rank as isize).filter(|&d| d != axis as isize).collect(), apart)
        }
        Granularity::Block(_) => {
            let mut apart = x.dims().to_vec();
            apart[rank - 1] = 1;
            (vec![-1], apart)
        }
    };
    // A vector by its one dimension: each element is a group.
    if rank == 1 && matches!(affine.granularity, Granularity::PerChannel(_)) {
        return Ok((x.clone(), x.clone(), apart));
    }
    Ok((x.min(&dims, false)?, x.max(&dims, false)?, apart))
}

/// The first group whose scale is not a number, which values that are not finite give.
fn check(scale: &Tensor, at: At) -> TensorResult<()> {
    let scales = scale.to_vec()?;
    let Some(group) = scales.iter().position(|s| s.is_nan()) else { return Ok(()) };
    let m = format!("group {group} of {} holds NaN or an infinity, or its values are further apart than f32 can say", scales.len());
    Err(TensorError::shape("quantize", at, m))
}

/// Quantizes the rows of `x`, f32 of at least one dimension. The result has the shape `x` has.
fn quantize(x: &Tensor, affine: &Affine, at: At) -> TensorResult<Quantized> {
    let rows = *x.shape();
    let last = rows.rank() - 1;
    let mut blocked = x.clone();
    let group_dims: Vec<usize> = match affine.granularity {
        Granularity::PerTensor => vec![],
        Granularity::PerChannel(axis) => vec![rows[dim(axis, rows.rank(), "quantize", at)?]],
        Granularity::Block(0) => return Err(TensorError::shape("quantize", at, "blocks of 0 elements; expected 1 or more")),
        Granularity::Block(n) => {
            let groups = rows[last].div_ceil(n);
            let mut dims = rows.dims().to_vec();
            dims[last] = groups;
            let mut shape = dims.clone();
            shape.push(n);
            if rows[last] % n != 0 {
                let mut margins = vec![(0, 0); rows.rank()];
                margins[last].1 = (n - rows[last] % n) as isize;
                blocked = x.pad(&margins, PadMode::Constant(0.0))?;
            }
            blocked = blocked.reshape(&shape)?;
            dims
        }
    };
    let stored = |len: usize| {
        let mut dims = rows.dims().to_vec();
        dims[last] = len;
        dims
    };
    let device = x.device();
    let (q, scale, zero_point) = if x.numel() == 0 {
        let scale = Tensor::full(f64::from(f32::MIN_POSITIVE), &group_dims, DType::F32, device)?;
        let zero_point = Tensor::full(0.0, &group_dims, DType::I32, device)?;
        (Tensor::full(0.0, rows.dims(), DType::I32, device)?, scale, zero_point)
    } else {
        let (low, high, apart) = ranges(&blocked, affine, at)?;
        let [scale, zero_point, inverse] = affine_params(*affine, low, high, at)?;
        let [least, most] = affine.range().map(f64::from);
        let (zero, inverse) = (zero_point.cast(DType::F32)?.reshape(&apart)?, inverse.reshape(&apart)?);
        let q = blocked.mul(&inverse)?.round()?.add(&zero)?.clamp(Some(least), Some(most))?;
        // What is not finite has no integer.
        let q = inverse.gt(0.0)?.where_(&q, Lit(0.0))?.cast(DType::I32)?;
        let len = q.numel() / rows.dims()[..last].iter().product::<usize>().max(1);
        (q.reshape(&stored(len))?, scale, zero_point)
    };
    let q = if affine.bits == Bits::Four { decode::pack(&q)? } else { q.cast(DType::I8)? };
    eval_all(&[&q, &scale, &zero_point])?;
    check(&scale, at)?;
    Ok(Quantized { affine: *affine, q, scale, zero_point, shape: rows, rows })
}

impl Tensor {
    /// This tensor (f32, f16 or bf16) as integers of 8 or 4 bits with scales and zero points, x ≈ scale · (q − zero point). Evaluated at
    /// once, so that the floats can be dropped. The integers are the same on every device, save that a GPU may take numbers below 2⁻¹²⁶ for
    /// 0. Dequantized, it has this tensor's shape `[…,K]` again.
    ///
    /// The range of each group includes 0, so that 0 is exact; a scale is at least 2⁻¹²⁶, also where all elements are 0 or there are none.
    /// An element's error is at most half its scale, to the rounding of f32. The arithmetic is torchao's (`choose_qparams_affine`,
    /// `quantize_affine`).
    ///
    /// # Errors
    /// When the tensor holds NaN or an infinity, or is not of floats, or the axis or the block size does not exist.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::quant::Affine;
    ///
    /// let x = Tensor::new(&[[-1.0, 0.0, 1.55], [10.0, 20.0, 25.5]], &Device::cpu())?;
    /// let q = x.quantize(&Affine::int8().per_channel(0))?;
    /// assert_eq!((q.scale().to_vec()?, q.zero_point().to_vec1::<i32>()?), (vec![0.01, 0.1], vec![-28, -128]));
    /// assert_eq!(q.q().to_vec2::<i8>()?, [[-128, -28, 127], [-28, 72, 127]]);
    /// assert!(q.dequantize()?.sub(&x)?.abs()?.max_all()?.item()? <= 0.05);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn quantize(&self, affine: &Affine) -> TensorResult<Quantized> {
        let at = Location::caller();
        if !matches!(self.dtype(), DType::F32 | DType::F16 | DType::BF16) {
            let m = format!("{}{}: expected f32, f16 or bf16; did you mean .cast(DType::F32)?", self.dtype(), self.shape());
            return Err(TensorError::dtype("quantize", at, m));
        }
        let x = self.cast(DType::F32)?;
        if self.rank() > 0 {
            return quantize(&x, affine, at);
        }
        if affine.granularity != Granularity::PerTensor {
            return Err(TensorError::shape("quantize", at, "a scalar has neither channels nor blocks; use Granularity::PerTensor"));
        }
        Ok(Quantized { shape: *self.shape(), ..quantize(&x.reshape(&[1])?, affine, at)? })
    }

    /// The product with the transpose of quantized weights, as in a linear layer: x `[…, K]` and weights `[N, K]` give `[…, N]` of x's
    /// type. The integers are read as they are stored and decoded on their way into the sums, which are f32: no decoded copy of the weights
    /// exists in memory.
    ///
    /// It is the product with [`Quantized::dequantize`], to the rounding of the sums. Its gradient with respect to x decodes the weights,
    /// and so does x in f64.
    ///
    /// # Errors
    /// When x does not hold floats, the weights do not have two dimensions, or the inner sizes differ.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::quant::Affine;
    ///
    /// let w = Tensor::new(&[[0.0, 1.0], [0.5, -1.0], [0.25, 0.75]], &Device::cpu())?.quantize(&Affine::int8())?;
    /// let x = Tensor::new(&[[2.0, 4.0]], &Device::cpu())?;
    /// let y = x.matmul_quantized(&w)?;
    /// assert!(y.sub(&x.matmul(&w.dequantize()?.t()?)?)?.abs()?.max_all()?.item()? < 1e-5);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn matmul_quantized(&self, w: &Quantized) -> TensorResult<Tensor> {
        let at = Location::caller();
        let weights = w.weights(at)?;
        if !self.dtype().is_float() || self.dtype().is_block() {
            let m = format!("{}{}: expected floats; did you mean .cast(DType::F32)?", self.dtype(), self.shape());
            return Err(TensorError::dtype("matmul_quantized", at, m));
        }
        let Some((&k, lead)) = self.dims().split_last() else {
            return Err(TensorError::shape("matmul_quantized", at, "a scalar has no matrix product; use mul"));
        };
        if k != weights.k {
            let m = format!("{}·{}ᵀ: inner sizes {k} and {} differ", self.shape(), w.shape, weights.k);
            return Err(TensorError::shape("matmul_quantized", at, m));
        }
        let shape = Shape::new(&[lead, &[weights.n]].concat(), "matmul_quantized", at)?;
        if k == 0 {
            return Tensor::full(0.0, shape.dims(), self.dtype(), self.device());
        }
        if self.dtype() == DType::F64 {
            return self.matmul(&w.dequantize()?.cast(DType::F64)?.t()?);
        }
        let inputs = smallvec::smallvec![self.clone(), w.q.clone(), w.scale.clone(), w.zero_point.clone()];
        Tensor::op1(AffineMatMul(weights), inputs, Default::default(), Meta { dtype: self.dtype(), shape }, at)
    }
}

/// Quantizes weights by their own least and largest values, with no calibration data.
///
/// ```
/// # use tensorlogic::prelude::*;
/// use tensorlogic::ops::affine::DynamicQuantizer;
///
/// let weights = Rng::new(1).normal(&[64, 128], DType::F32, &Device::cpu())?;
/// let quantizer = DynamicQuantizer::new(8)?.per_channel(0);
/// let q = quantizer.quantize_weights(&weights)?;
/// assert!(quantizer.dequantize_weights(&q)?.sub(&weights)?.abs()?.max_all()?.item()? < 0.02);
/// # Ok::<(), TensorError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DynamicQuantizer {
    /// How it quantizes.
    pub affine: Affine,
}

impl DynamicQuantizer {
    /// To integers of 8 or 4 bits, asymmetric, with one scale for the tensor.
    ///
    /// # Errors
    /// For other numbers of bits.
    ///
    /// ```
    /// use tensorlogic::ops::affine::DynamicQuantizer;
    /// use tensorlogic::quant::Affine;
    ///
    /// assert_eq!(DynamicQuantizer::new(4)?.affine, Affine::int4());
    /// assert!(DynamicQuantizer::new(3).is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn new(bits: u32) -> TensorResult<DynamicQuantizer> {
        Ok(DynamicQuantizer { affine: Affine { bits: Bits::try_from(bits)?, ..Affine::int8() } })
    }
    /// The same with a scale for each index of a dimension.
    pub fn per_channel(self, axis: impl SignedIndex) -> DynamicQuantizer {
        DynamicQuantizer { affine: self.affine.per_channel(axis.signed()) }
    }
    /// The same with zero points of 0.
    pub fn symmetric(self) -> DynamicQuantizer {
        DynamicQuantizer { affine: self.affine.symmetric() }
    }
    /// See [`Tensor::quantize`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::ops::affine::DynamicQuantizer;
    ///
    /// let weights = Tensor::new(&[[0.0, 255.0], [0.0, 510.0]], &Device::cpu())?;
    /// let q = DynamicQuantizer::new(8)?.per_channel(0).quantize_weights(&weights)?;
    /// assert_eq!(q.scale().to_vec()?, [1.0, 2.0]);
    /// assert_eq!(q.q().to_vec2::<i8>()?, [[-128, 127], [-128, 127]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn quantize_weights(&self, weights: &Tensor) -> TensorResult<Quantized> {
        weights.quantize(&self.affine)
    }
    /// See [`Quantized::dequantize`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::ops::affine::DynamicQuantizer;
    ///
    /// let weights = Tensor::new(&[[0.0, 255.0], [0.0, 510.0]], &Device::cpu())?;
    /// let quantizer = DynamicQuantizer::new(8)?.per_channel(0);
    /// let q = quantizer.quantize_weights(&weights)?;
    /// assert_eq!(quantizer.dequantize_weights(&q)?.to_vec2::<f32>()?, [[0.0, 255.0], [0.0, 510.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn dequantize_weights(&self, weights: &Quantized) -> TensorResult<Tensor> {
        weights.dequantize()
    }
}

/// All elements of a tensor in blocks of `block_size` (128 is usual), row by row and across the ends of rows, in eight bits, each with a
/// scale and a zero point: integers `[blocks, block_size]`, scales and zero points `[blocks]`. The last block is filled up with zeros.
///
/// [`Affine::block`] has blocks within rows instead, which products can read for rows of any length.
///
/// # Errors
/// As for [`Tensor::quantize`].
///
/// ```
/// # use tensorlogic::prelude::*;
/// use tensorlogic::ops::affine::block_wise_quantize;
///
/// let x = Rng::new(1).normal(&[10, 100], DType::F32, &Device::cpu())?;
/// let q = block_wise_quantize(&x, 128)?;
/// assert_eq!((q.q().dims(), q.scale().dims(), q.shape().dims()), (&[8, 128][..], &[8][..], &[10, 100][..]));
/// assert_eq!(q.dequantize()?.dims(), [10, 100]);
/// # Ok::<(), TensorError>(())
/// ```
#[track_caller]
pub fn block_wise_quantize(tensor: &Tensor, block_size: usize) -> TensorResult<Quantized> {
    let flat = tensor.reshape(&[tensor.numel()])?.quantize(&Affine::int8().block(block_size))?;
    let q = flat.q.reshape(&[flat.scale.numel(), block_size])?;
    Ok(Quantized { q, shape: *tensor.shape(), ..flat })
}
