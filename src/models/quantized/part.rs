//! The tensors that a quantized weight consists of, and rows of blocks made of them.

use super::{Blocks, bad};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::io::{SafeTensors, TensorInfo};
use crate::quant::power_of_two;
use half::{bf16, f16};

/// The tensors of a folder.
pub(super) struct Parts<'a>(pub &'a SafeTensors);

/// One of them.
pub(super) struct TensorPart<'a> {
    info: &'a TensorInfo,
    pub bytes: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The tensor of this name, of any type.
    pub fn get(&self, name: &str) -> Option<TensorPart<'a>> {
        let info = self.0.find(name)?;
        Some(TensorPart { info, bytes: self.0.bytes_of(info) })
    }

    /// The part of a layer whose name ends so.
    pub fn of(&self, layer: &str, end: &str) -> TensorResult<TensorPart<'a>> {
        self.get(&format!("{layer}{end}")).ok_or_else(|| bad(layer, format!("there is no tensor `{layer}{end}`")))
    }

    /// The first part of a layer whose name ends with one of these.
    pub fn any(&self, layer: &str, ends: &[&str]) -> TensorResult<TensorPart<'a>> {
        ends.iter()
            .find_map(|end| self.get(&format!("{layer}{end}")))
            .ok_or_else(|| bad(layer, format!("there is no tensor `{layer}{}`", ends[0])))
    }
}

impl TensorPart<'_> {
    pub fn shape(&self) -> &[usize] {
        &self.info.shape
    }
    pub fn kind(&self) -> &'static str {
        self.info.type_name()
    }
    /// The sizes before the last two, the two, where the type is one of these.
    pub fn matrix(&self, kinds: &[&str]) -> TensorResult<(&[usize], usize, usize)> {
        match self.shape() {
            [lead @ .., rows, columns] if kinds.contains(&self.kind()) => Ok((lead, *rows, *columns)),
            _ => Err(bad(&self.info.name, format!("{} {:?}; expected a matrix of {}", self.kind(), self.shape(), kinds.join(" or ")))),
        }
    }
    /// Checks the sizes.
    pub fn expect(&self, shape: &[usize]) -> TensorResult<&Self> {
        if self.shape() == shape {
            return Ok(self);
        }
        Err(bad(&self.info.name, format!("shape {:?}; expected {shape:?}", self.shape())))
    }

    /// Words of 32 bits.
    pub fn words(&self) -> TensorResult<Vec<u32>> {
        match self.kind() {
            "I32" | "U32" => Ok(self.bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()),
            kind => Err(bad(&self.info.name, format!("{kind}; expected I32 or U32"))),
        }
    }
    /// Floats; a byte of E8M0 is a power of two.
    pub fn floats(&self) -> TensorResult<Vec<f32>> {
        let halves = |value: fn(u16) -> f32| self.bytes.as_chunks::<2>().0.iter().map(|b| value(u16::from_le_bytes(*b))).collect();
        Ok(match self.kind() {
            "F32" => self.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            "F16" => halves(|b| f16::from_bits(b).to_f32()),
            "BF16" => halves(|b| bf16::from_bits(b).to_f32()),
            "F8_E8M0" | "U8" => self.bytes.iter().map(|&e| 2.0 * power_of_two(e)).collect(),
            kind => return Err(bad(&self.info.name, format!("{kind}; expected floats"))),
        })
    }
    /// Floats as f16.
    pub fn halves(&self) -> TensorResult<Vec<u16>> {
        let all: Vec<u16> = self.floats()?.into_iter().map(|x| f16::from_f32(x).to_bits()).collect();
        match all.iter().any(|&h| !f16::from_bits(h).is_finite()) {
            true => Err(bad(&self.info.name, "a scale that f16 cannot hold")),
            false => Ok(all),
        }
    }
}

/// A weight of `rows` rows, each block of which `fill(row, block, bytes)` stores in bytes that are zero; by all threads.
pub(super) fn blocks(dtype: DType, shape: Vec<usize>, layer: &str, fill: impl Fn(usize, usize, &mut [u8]) + Sync) -> TensorResult<Blocks> {
    let columns = shape.last().copied().unwrap_or(0);
    if columns == 0 || columns % dtype.block() != 0 {
        return Err(bad(layer, format!("rows of {columns} values; {dtype} has blocks of {}", dtype.block())));
    }
    let size = dtype.block_bytes();
    let row_bytes = columns / dtype.block() * size;
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let mut bytes = vec![0; rows * row_bytes];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = rows.div_ceil(threads).max(1);
    std::thread::scope(|s| {
        for (t, bytes) in bytes.chunks_mut(share * row_bytes).enumerate() {
            let fill = &fill;
            s.spawn(move || {
                for (r, row) in bytes.chunks_exact_mut(row_bytes).enumerate() {
                    row.chunks_exact_mut(size).enumerate().for_each(|(b, block)| fill(t * share + r, b, block));
                }
            });
        }
    });
    Ok(Blocks { dtype, shape, bytes })
}

/// Number `i` of `bits` bits of a row of bytes, the lowest bits first.
pub(super) fn number(bytes: &[u8], bits: usize, i: usize) -> u8 {
    bytes[i * bits / 8] >> (i * bits % 8) & (0xff >> (8 - bits)) as u8
}
