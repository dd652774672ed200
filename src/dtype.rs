//! Element types: the plain ones that programs compute with, and the block-quantized ones that weights are stored in.

use crate::error::{TensorError, TensorResult};
use crate::quant::{BlockFormat, Coded, FORMATS};
use std::fmt;

/// The type of a tensor's elements.
///
/// f16 and bf16 are storage: all arithmetic on them is done in f32 and rounded at the store.
/// f64, i64, i16, u16 and u64 exist on the CPU. The block formats are GGML's (`Q4_0` to `IQ1_M`), and those that weights of other libraries are stored in here; tensors of them are weights: matmul, gather
/// and cast read them, nothing writes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(non_camel_case_types)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// 64-bit float, CPU only.
    F64,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed byte.
    I8,
    /// Unsigned byte.
    U8,
    /// Truth values, one byte each, 0 or 1.
    Bool,
    /// Signed 64-bit integer, CPU only.
    I64,
    /// Signed 16-bit integer, CPU only.
    I16,
    /// Unsigned 16-bit integer, CPU only.
    U16,
    /// Unsigned 64-bit integer, CPU only.
    U64,
    /// 32 values: f16 scale, 4-bit quants.
    Q4_0,
    /// 32 values: f16 scale and minimum, 4-bit quants.
    Q4_1,
    /// 32 values: f16 scale, 5-bit quants.
    Q5_0,
    /// 32 values: f16 scale and minimum, 5-bit quants.
    Q5_1,
    /// 32 values: f16 scale, 8-bit quants.
    Q8_0,
    /// 256 values, 2.6 bits each.
    Q2_K,
    /// 256 values, 3.4 bits each.
    Q3_K,
    /// 256 values, 4.5 bits each.
    Q4_K,
    /// 256 values, 5.5 bits each.
    Q5_K,
    /// 256 values, 6.6 bits each.
    Q6_K,
    /// 32 values: f16 scale, 4-bit indices of a table.
    IQ4_NL,
    /// 256 values: as IQ4_NL, a scale of six bits each 32.
    IQ4_XS,
    /// 32 values: floats of 4 bits, a power of two.
    MXFP4,
    /// 64 values: floats of 4 bits, a scale of 8 bits each 16.
    NVFP4,
    /// 128 values: an f16 scale and signs.
    Q1_0,
    /// 256 values −1, 0 and 1, 1.7 bits each.
    TQ1_0,
    /// 256 values −1, 0 and 1, 2.1 bits each.
    TQ2_0,
    /// 256 values by a codebook, 2.1 bits each.
    IQ2_XXS,
    /// 256 values by a codebook, 2.3 bits each.
    IQ2_XS,
    /// 256 values by a codebook, 2.6 bits each.
    IQ2_S,
    /// 256 values by a codebook, 3.1 bits each.
    IQ3_XXS,
    /// 256 values by a codebook, 3.4 bits each.
    IQ3_S,
    /// 256 values by a codebook, 1.6 bits each.
    IQ1_S,
    /// 256 values by a codebook, 1.8 bits each.
    IQ1_M,
    /// 32 values: an f32 factor, floats of 8 bits.
    F8_E4M3,
    /// 32 values: f16 scale and offset, 2-bit integers.
    A2,
    /// 32 values: f16 scale and offset, 3-bit integers.
    A3,
    /// 32 values: f16 scale and offset, 4-bit integers.
    A4,
    /// 32 values: f16 scale and offset, 5-bit integers.
    A5,
    /// 32 values: f16 scale and offset, 6-bit integers.
    A6,
    /// 32 values: f16 scale and offset, 8-bit integers.
    A8,
    /// 32 values: f16 scale, zero point, 4-bit integers.
    Z4,
    /// 32 values: f16 scale, zero point, 8-bit integers.
    Z8,
}
use DType::*;

impl DType {
    /// The plain dtypes.
    const PLAIN: [DType; 13] = [F32, F16, BF16, F64, I32, U32, I8, U8, Bool, I64, I16, U16, U64];
    /// The block formats, in the order of [`FORMATS`].
    pub const BLOCKS: [DType; FORMATS.len()] = [
        Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q1_0, TQ1_0, TQ2_0, IQ2_XXS, IQ2_XS,
        IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M, F8_E4M3, A2, A3, A4, A5, A6, A8, Z4, Z8,
    ];
    /// Every dtype, plain ones first.
    pub const ALL: [DType; Self::PLAIN.len() + FORMATS.len()] = joined(&Self::PLAIN, &Self::BLOCKS);
    /// The dtypes of weight matrices: three plain ones, and every block format.
    pub const WEIGHTS: [DType; 3 + FORMATS.len()] = joined(&[F32, F16, BF16], &Self::BLOCKS);

    /// The place of a block format in [`FORMATS`]; `None` for plain dtypes.
    pub(crate) const fn block_number(self) -> Option<usize> {
        (self as usize).checked_sub(Self::PLAIN.len())
    }

    /// The descriptor of a block format; `None` for plain dtypes.
    pub const fn format(self) -> Option<&'static BlockFormat> {
        match self.block_number() {
            Some(n) => Some(FORMATS[n]),
            None => None,
        }
    }

    /// How a block format is decoded that is not of integers under scales.
    pub(crate) const fn coded(self) -> Option<&'static Coded> {
        match self.format() {
            Some(format) => format.coded(),
            None => None,
        }
    }

    /// PyTorch's name for plain types, GGML's for its block formats.
    pub const fn name(self) -> &'static str {
        match self {
            F32 => "f32",
            F16 => "f16",
            BF16 => "bf16",
            F64 => "f64",
            I32 => "i32",
            U32 => "u32",
            I8 => "i8",
            U8 => "u8",
            Bool => "bool",
            I64 => "i64",
            I16 => "i16",
            U16 => "u16",
            U64 => "u64",
            _ => match self.format() {
                Some(format) => format.name,
                None => "",
            },
        }
    }

    /// Elements in one block; 1 for plain types.
    #[inline]
    pub const fn block(self) -> usize {
        match self.format() {
            Some(format) => format.block_len(),
            None => 1,
        }
    }

    /// Bytes of one block; of one element for plain types.
    #[inline]
    pub const fn block_bytes(self) -> usize {
        match self {
            F64 | I64 | U64 => 8,
            F32 | I32 | U32 => 4,
            F16 | BF16 | I16 | U16 => 2,
            I8 | U8 | Bool => 1,
            _ => match self.format() {
                Some(format) => format.bytes(),
                None => 0,
            },
        }
    }

    /// Whether this is a block format.
    pub const fn is_block(self) -> bool {
        self.block_number().is_some()
    }
    /// Whether values are floats (block formats decode to f32).
    pub const fn is_float(self) -> bool {
        matches!(self, F32 | F16 | BF16 | F64) || self.is_block()
    }
    /// Whether only the CPU computes with this dtype: GPUs have no f64, i64, u64, i16 and u16.
    pub const fn is_cpu_only(self) -> bool {
        matches!(self, F64 | I64 | U64 | I16 | U16)
    }
    /// Whether values are integers; bool is not.
    pub const fn is_int(self) -> bool {
        matches!(self, I32 | U32 | I8 | U8 | I64 | I16 | U16 | U64)
    }

    /// The type a program computes in for values of this dtype: f16, bf16 and blocks in f32, small integers in i32, bool in u32.
    pub const fn compute(self) -> DType {
        match self {
            F16 | BF16 => F32,
            I8 | U8 | I16 | U16 => I32,
            Bool => U32,
            d if d.is_block() => F32,
            d => d,
        }
    }

    /// Bytes that `count` elements take when stored contiguously; `None` on overflow or when blocks would be split.
    pub const fn bytes(self, count: usize) -> Option<usize> {
        if count % self.block() != 0 {
            return None;
        }
        (count / self.block()).checked_mul(self.block_bytes())
    }

    /// The dtype that a binary op on the two computes in, as PyTorch promotes: bool < u8, i8 < i16, u16 < i32, u32 < i64, u64 < f16, bf16 < f32 < f64;
    /// f16 with bf16 gives f32, u8 with i8 gives i32, i32 with u32 gives i64. A signed type with an unsigned one of its size or larger gives the next larger signed type.
    ///
    /// # Errors
    /// [`TensorError::Unsupported`] where the two differ and one is a block format, or where no integer type holds the values of both: u64 and a signed type.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// assert_eq!(DType::F16.promote(DType::BF16)?, DType::F32);
    /// assert_eq!(DType::I32.promote(DType::F16)?, DType::F16);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn promote(self, other: DType) -> TensorResult<DType> {
        fn rank(d: DType) -> u8 {
            match d {
                Bool => 0,
                U8 | I8 => 1,
                I16 | U16 => 2,
                I32 | U32 => 3,
                I64 | U64 => 4,
                F16 | BF16 => 5,
                F32 => 6,
                F64 => 7,
                _ => 8,
            }
        }
        if self == other {
            return Ok(self);
        }
        let (low, high) = if rank(self) <= rank(other) { (self, other) } else { (other, self) };
        if high.is_block() {
            return Err(TensorError::Unsupported(format!("arithmetic between {self} and {other}; cast the block format first")));
        }
        Ok(match (low, high) {
            (U8, I8) | (I8, U8) => I32,
            (F16, BF16) | (BF16, F16) => F32,
            (I32, U32) | (U32, I32) => I64,
            (I8 | I16, U32) => I64,
            (I8, U16) | (I16, U16) | (U16, I16) => I32,
            (I8 | I16 | I32 | I64, U64) | (U64, I64) => {
                return Err(TensorError::Unsupported(format!("arithmetic between {self} and {other}; cast one of them")));
            }
            _ => high,
        })
    }
}

// A block format's number counts from the last plain dtype.
const _: () = {
    let mut i = 0;
    while i < DType::ALL.len() {
        assert!(DType::ALL[i] as usize == i, "DType::ALL is in the order of the enum");
        i += 1;
    }
};

/// Both lists in one.
const fn joined<const N: usize>(first: &[DType], second: &[DType]) -> [DType; N] {
    let mut all = [F32; N];
    assert!(first.len() + second.len() == N);
    let mut i = 0;
    while i < N {
        all[i] = if i < first.len() { first[i] } else { second[i - first.len()] };
        i += 1;
    }
    all
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Rust types that are elements of a tensor.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The dtype of this type.
    const DTYPE: DType;
}
macro_rules! element {
    ($($t:ty = $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = $d; })* };
}
element!(
    f32 = F32,
    f64 = F64,
    half::f16 = F16,
    half::bf16 = BF16,
    i32 = I32,
    u32 = U32,
    i8 = I8,
    u8 = U8,
    i64 = I64,
    i16 = I16,
    u16 = U16,
    u64 = U64
);
