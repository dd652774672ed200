//! Matrix-vector products with int8 activations: faster than f32 ones and slightly inexact, for callers that ask for it.

use super::{Path, check_rows};
use crate::dtype::DType;

/// A row of activations as signed bytes: each 32 share a scale, the largest of them becomes ±127.
#[derive(Default, Clone, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct Row {
    /// The bytes.
    pub(super) quants: Vec<i8>,
    /// Sums of four consecutive bytes.
    pub(super) fours: Vec<i32>,
    /// The scale of each 32.
    pub(super) scales: Vec<f32>,
    /// The same for each 16, that is every scale twice.
    pub(super) scales16: Vec<f32>,
    /// Scale, and scale times sum, of each 32.
    pub(super) pairs: Vec<[f32; 2]>,
    /// Scale times sum of each 32.
    pub(super) sums: Vec<f32>,
    /// Scale times sum of each 16.
    pub(super) sums16: Vec<f32>,
}

/// What [`Row::quantize`] finds for 32 activations.
pub(super) struct Q8Block {
    pub scale: f32,
    pub inverse: f32,
}

impl Q8Block {
    /// The scales of a block whose largest magnitude has these bits. Something not finite makes the scale NaN, so that it shows
    /// in every product; a magnitude too small for f32's reciprocals counts as zero.
    pub(super) fn of(largest: u32) -> Q8Block {
        let largest = f32::from_bits(largest);
        if !largest.is_finite() {
            return Q8Block { scale: f32::NAN, inverse: 0.0 };
        }
        let inverse = 127.0 / largest;
        if inverse.is_finite() { Q8Block { scale: largest / 127.0, inverse } } else { Q8Block { scale: 0.0, inverse: 0.0 } }
    }
}

impl Row {
    /// A row of these activations.
    ///
    /// # Panics
    /// If their number is no multiple of 32: no row of a block format has such a length.
    pub fn new(path: Path, x: &[f32]) -> Row {
        let mut row = Row::default();
        row.quantize(path, x);
        row
    }

    /// Replaces the row; keeps its memory. Every path gives the same bits.
    ///
    /// # Panics
    /// See [`Row::new`].
    pub fn quantize(&mut self, path: Path, x: &[f32]) {
        assert!(x.len().is_multiple_of(32), "a row of {} activations is not a whole number of blocks", x.len());
        assert!(path.is_available(), "the {} path needs a processor that has it", path.name());
        let n = x.len() / 32;
        self.quants.resize(n * 32, 0);
        self.fours.resize(n * 8, 0);
        self.scales.resize(n, 0.0);
        self.scales16.resize(n * 2, 0.0);
        self.pairs.resize(n, [0.0; 2]);
        self.sums.resize(n, 0.0);
        self.sums16.resize(n * 2, 0.0);
        for (b, x) in x.as_chunks::<32>().0.iter().enumerate() {
            let (quants, fours) = (&mut self.quants.as_chunks_mut().0[b], &mut self.fours.as_chunks_mut().0[b]);
            let scale = match path {
                // SAFETY: the processor's features were checked.
                #[cfg(target_arch = "x86_64")]
                Path::Avx2 | Path::Avx512 => unsafe { super::q8_x86::quantize(x, quants, fours) },
                _ => quantize(x, quants, fours),
            };
            let ends = [fours[..4].iter().sum::<i32>(), fours[4..].iter().sum::<i32>()];
            self.scales[b] = scale;
            self.scales16[2 * b..][..2].fill(scale);
            self.sums[b] = scale * (ends[0] + ends[1]) as f32;
            self.pairs[b] = [scale, self.sums[b]];
            self.sums16[2 * b..][..2].copy_from_slice(&ends.map(|s| scale * s as f32));
        }
    }

    /// The activations that the bytes stand for.
    pub fn values(&self) -> Vec<f32> {
        self.quants.chunks_exact(32).zip(&self.scales).flat_map(|(q, &scale)| q.iter().map(move |&q| scale * q as f32)).collect()
    }

    /// How many activations there are.
    pub fn len(&self) -> usize {
        self.quants.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.quants.is_empty()
    }
}

/// One block: its bytes, sums of four, and the scale.
fn quantize(x: &[f32; 32], quants: &mut [i8; 32], fours: &mut [i32; 8]) -> f32 {
    let largest = x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
    let Q8Block { scale, inverse } = Q8Block::of(largest);
    for (q, x) in quants.iter_mut().zip(x) {
        *q = if inverse == 0.0 { 0 } else { (x * inverse).round_ties_even() as i8 };
    }
    for (sum, q) in fours.iter_mut().zip(quants.as_chunks::<4>().0) {
        *sum = q.iter().map(|&q| q as i32).sum();
    }
    scale
}

/// `y[r] = sum_k w[r][k] * x[k]` for `y.len()` rows of a block format, stored `row_bytes` apart: sums of integers within a block,
/// f32 between blocks. The plain path multiplies in f32 instead, with the same values up to rounding.
///
/// # Panics
/// If the slices do not hold what the lengths say, or `dtype` is no block format: a caller's bug, never a user's input.
pub fn matvec(path: Path, dtype: DType, w: &[u8], row_bytes: usize, x: &Row, y: &mut [f32]) {
    check_rows(path, dtype, w, row_bytes, y.len(), x.len());
    assert!(dtype.is_block(), "{dtype} is not a block format");
    match path {
        // SAFETY: the lengths and the processor's features were checked just above; every path's Avx512 has AVX2's.
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 if is_x86_feature_detected!("avx512vnni") => unsafe { super::q8_x86::vnni::matvec(dtype, w, row_bytes, x, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 | Path::Avx512 => unsafe { super::q8_x86::avx2::matvec(dtype, w, row_bytes, x, y) },
        _ => super::matvec(path, dtype, w, row_bytes, &x.values(), y),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Random, element_of, weights};
    use super::*;

    /// Blocks whose activations differ by many orders of magnitude, one of them zero, with `rows` rows of weights: the products are
    /// those of the bytes, and the bytes are within half a step of the activations.
    fn check(dtype: DType, rows: usize, k: usize, path: Path) {
        let mut random = Random((rows + k) as u64 + dtype as u64);
        let (w, row_bytes) = weights(dtype, rows, k, rows % 2, &mut random);
        let x: Vec<f32> = (0..k).map(|i| random.float() * if i / 32 == 1 { 0.0 } else { 10f32.powi((i / 32 % 5) as i32 - 2) }).collect();
        let row = Row::new(path, &x);
        assert_eq!(format!("{row:?}"), format!("{:?}", Row::new(Path::Plain, &x)), "{} quantizes as plain", path.name());
        for (i, (x, value)) in x.iter().zip(row.values()).enumerate() {
            assert!((x - value).abs() <= row.scales[i / 32] * 0.5001, "activation {i}: {value} instead of {x}");
        }
        let mut y = vec![f32::NAN; rows];
        matvec(path, dtype, &w, row_bytes, &row, &mut y);
        for (r, got) in y.into_iter().enumerate() {
            let products: Vec<f64> =
                (0..k).map(|i| element_of(dtype, &w, row_bytes, r, i) * row.quants[i] as f64 * row.scales[i / 32] as f64).collect();
            let (want, size) = (products.iter().sum::<f64>(), products.iter().map(|p| p.abs()).sum::<f64>());
            let what = format!("{dtype} {rows}x{k} {}", path.name());
            assert!((got as f64 - want).abs() <= 1e-6 * size, "{what}: row {r}: {got} instead of {want}, size {size}");
        }
    }

    #[test]
    fn every_block_format_on_every_path() {
        for path in Path::available() {
            for dtype in DType::ALL.into_iter().filter(|d| d.is_block()) {
                let ks: &[usize] = if dtype.block() == 32 { &[0, 32, 96, 128, 576] } else { &[0, 256, 1280] };
                for &k in ks {
                    for rows in [0, 1, 4, 7] {
                        check(dtype, rows, k, path);
                    }
                }
            }
        }
    }

    #[test]
    fn extreme_bytes_do_not_saturate() {
        for path in Path::available() {
            // Quants of -128, which no quantizer writes but a file may hold, against activations of ±127.
            let block: Vec<u8> = [0x00, 0x3c].into_iter().chain([0x80; 32]).collect();
            for sign in [1.0, -1.0] {
                let mut y = [0.0];
                matvec(path, DType::Q8_0, &block, 34, &Row::new(path, &[sign; 32]), &mut y);
                assert!((y[0] + sign * 32.0 * 128.0).abs() < 0.01, "{}: {}", path.name(), y[0]);
            }
        }
    }

    #[test]
    fn what_is_not_finite_shows() {
        for path in Path::available() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = [1.0; 64];
                x[40] = bad;
                let (w, row_bytes) = weights(DType::Q4_0, 1, 64, 0, &mut Random(1));
                let mut y = [0.0];
                matvec(path, DType::Q4_0, &w, row_bytes, &Row::new(path, &x), &mut y);
                assert!(y[0].is_nan(), "{}: {bad} gave {}", path.name(), y[0]);
            }
            assert_eq!(Row::new(path, &[1e-38; 32]).values(), [0.0; 32], "{}: tiny", path.name());
        }
    }
}
