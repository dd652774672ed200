//! The kernels for any processor: whatever vector instructions the compilation target guarantees.

use super::{CHUNK, blocks};
use crate::dtype::DType;

/// Decodes whole blocks: `bytes` holds exactly the blocks of `out`'s elements.
pub(super) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    blocks::decode(dtype, bytes, out);
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
