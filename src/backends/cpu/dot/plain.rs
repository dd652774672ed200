//! The kernels for any processor: whatever vector instructions the compilation target guarantees.

use super::CHUNK;
use crate::dtype::DType;
use crate::quant::{LINEAR, f16_to_f32, with_format};

/// Decodes whole blocks: `bytes` holds exactly the blocks of `out`'s elements.
pub(super) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    with_format!(dtype, N => {
        // A function for each format, as fewer loops of one for all become vectors.
        #[inline(never)]
        fn of_format(bytes: &[u8], out: &mut [f32]) {
            LINEAR[N].decode::<{ LINEAR[N].bytes() }, { LINEAR[N].len }>(bytes, out);
        }
        of_format(bytes, out);
    }, _ => floats(dtype, bytes, out));
}

/// Decodes f32, f16, bf16 and the coded formats; leaves `out` alone for other dtypes, which the callers in this module never pass.
#[inline(always)]
pub(super) fn floats(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    #[inline(always)]
    fn each<const B: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; B]) -> f32) {
        for (b, y) in bytes.as_chunks().0.iter().zip(out) {
            *y = value(*b);
        }
    }
    match dtype {
        DType::F32 => each(bytes, out, f32::from_le_bytes),
        DType::F16 => each(bytes, out, |b| f16_to_f32(u16::from_le_bytes(b))),
        DType::BF16 => each(bytes, out, |b| f32::from_bits((u16::from_le_bytes(b) as u32) << 16)),
        _ => {
            if let Some(coded) = dtype.coded() {
                coded.decode(bytes, out);
            }
        }
    }
}

/// Adds to `out[r][i]` the dot product of decoded row `r` with activation row `i < m <= 4`; `x` holds the rows `ldx` apart.
pub(super) fn tile(w: &[[f32; CHUNK]; 2], len: usize, x: &[f32], ldx: usize, m: usize, out: &mut [[f32; 4]; 2]) {
    for (w, out) in w.iter().zip(out) {
        for (i, out) in out[..m].iter_mut().enumerate() {
            *out += dot(&w[..len], &x[i * ldx..][..len]);
        }
    }
}

/// Sixteen partial sums, so that the compiler may use vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a16, a_rest) = a.as_chunks::<16>();
    let (b16, b_rest) = b.as_chunks::<16>();
    let mut sums = [0f32; 16];
    for (a, b) in a16.iter().zip(b16) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}
