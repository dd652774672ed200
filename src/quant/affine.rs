//! Affine quantization, x ≈ scale · (q − zero point): how a tensor is divided into groups, and what a group's numbers are.

use crate::error::TensorError;

/// Bits of a quantized integer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Bits {
    /// −8 … 7.
    Four,
    /// −128 … 127.
    Eight,
}

impl TryFrom<u32> for Bits {
    type Error = TensorError;
    fn try_from(bits: u32) -> Result<Bits, TensorError> {
        match bits {
            4 => Ok(Bits::Four),
            8 => Ok(Bits::Eight),
            _ => Err(TensorError::Value(format!("affine quantization to {bits} bits: expected 4 or 8"))),
        }
    }
}

/// Whether a group's zero point is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mapping {
    /// The zero point is 0: −a … a becomes −128 … 127.5, cut off at 127.
    Symmetric,
    /// The least value becomes the least integer, and the largest the largest.
    Asymmetric,
}

/// Which elements share a scale and a zero point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Granularity {
    /// All of them.
    PerTensor,
    /// Those with the same index in this dimension; a negative one counts from the end.
    PerChannel(isize),
    /// So many neighbours in the last dimension. The last block of a row is filled up with zeros.
    Block(usize),
}

/// How a tensor is quantized: `Affine::int8().symmetric().per_channel(0)`.
///
/// The arithmetic is that of PyTorch's `choose_qparams_affine` and `quantize_affine` (torchao) with their mappings `SYMMETRIC` and
/// `ASYMMETRIC`, in f32: the range of a group always includes 0, so that 0 is exact, and a scale is at least 2⁻¹²⁶, the smallest normal
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Affine {
    /// Bits of an integer.
    pub bits: Bits,
    /// Whether the zero point is chosen.
    pub mapping: Mapping,
    /// Which elements share a scale.
    pub granularity: Granularity,
}

/// The numbers of a group.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AffineParams {
    /// The distance of neighbouring values; NaN where the group holds NaN or an infinity, or is wider than f32 can say.
    pub scale: f32,
    /// What values are multiplied by: 1 / scale; 0 where the scale is NaN.
    pub inverse: f32,
    /// The integer that stands for 0.
    pub zero_point: i32,
}

impl Affine {
    /// Eight bits, asymmetric, one scale for the tensor.
    pub const fn int8() -> Affine {
        Affine { bits: Bits::Eight, mapping: Mapping::Asymmetric, granularity: Granularity::PerTensor }
    }
    /// Four bits, asymmetric, one scale for the tensor.
    pub const fn int4() -> Affine {
        Affine { bits: Bits::Four, ..Affine::int8() }
    }
    /// The same with zero points of 0.
    pub const fn symmetric(self) -> Affine {
        Affine { mapping: Mapping::Symmetric, ..self }
    }
    /// The same with a scale for each index of a dimension.
    pub const fn per_channel(self, axis: isize) -> Affine {
        Affine { granularity: Granularity::PerChannel(axis), ..self }
    }
    /// The same with a scale for each block of `n` neighbours in the last dimension.
    pub const fn block(self, n: usize) -> Affine {
        Affine { granularity: Granularity::Block(n), ..self }
    }

    /// The least and the largest integer.
    pub const fn range(&self) -> [i32; 2] {
        match self.bits {
            Bits::Four => [-8, 7],
            Bits::Eight => [-128, 127],
        }
    }

    /// What a group's span is divided by: the largest value less the least, or the largest magnitude.
    pub(crate) fn steps(&self) -> f32 {
        let [least, most] = self.range();
        let steps = (most - least) as f32;
        if self.mapping == Mapping::Symmetric { steps / 2.0 } else { steps }
    }

    /// The numbers of a group whose values lie between `low` and `high`.
    pub fn params(&self, low: f32, high: f32) -> AffineParams {
        let symmetric = self.mapping == Mapping::Symmetric;
        let [least, most] = self.range();
        let finite = low.is_finite() && high.is_finite();
        let (low, high) = (low.min(0.0), high.max(0.0));
        let span = if symmetric { high.max(-low) } else { high - low };
        if !finite || !span.is_finite() {
            return AffineParams { scale: f32::NAN, inverse: 0.0, zero_point: 0 };
        }
        let scale = (span / self.steps()).max(f32::MIN_POSITIVE);
        let zero_point = if symmetric { 0 } else { (least + (-low / scale).round_ties_even() as i32).min(most) };
        AffineParams { scale, inverse: 1.0 / scale, zero_point }
    }
}
