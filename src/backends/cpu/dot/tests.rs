//! Every path and format against sums in f64 of weights read one element at a time.

use super::*;
use half::{bf16, f16};

/// Element `i` of a block, by the format's definition.
fn element(dtype: DType, b: &[u8], i: usize) -> f64 {
    match (dtype, dtype.format()) {
        (_, Some(format)) => format.exact(b, i),
        (DType::F32, _) => f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64,
        (DType::F16, _) => f16::from_le_bytes([b[0], b[1]]).to_f64(),
        (DType::BF16, _) => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        _ => f64::NAN,
    }
}

/// Pseudo-random 64-bit values.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33 ^ self.0
    }
    /// In -1 .. 1, zero now and then.
    fn float(&mut self) -> f32 {
        let v = (self.next() >> 20 & 0xffff) as f32 / 32768.0 - 1.0;
        if self.next() >> 20 & 31 == 0 { 0.0 } else { v }
    }
}

/// `rows` rows of `k` random weights with `gap` bytes between the rows; scales are finite and of either sign.
fn weights(dtype: DType, rows: usize, k: usize, gap: usize, random: &mut Random) -> (Vec<u8>, usize) {
    let row_bytes = dtype.bytes(k).unwrap() + gap;
    let mut w: Vec<u8> = (0..rows * row_bytes).map(|_| (random.next() >> 24) as u8).collect();
    for row in w.chunks_exact_mut(row_bytes.max(1)) {
        for block in row[..row_bytes - gap].chunks_exact_mut(dtype.block_bytes()) {
            let mut half = |at: usize| block[at..at + 2].copy_from_slice(&f16::from_f32(random.float()).to_le_bytes());
            match (dtype, dtype.format()) {
                (DType::F32, _) => block.copy_from_slice(&random.float().to_le_bytes()),
                (DType::BF16, _) => block.copy_from_slice(&bf16::from_f32(random.float()).to_le_bytes()),
                (_, Some(format)) => [Some(format.d), format.dmin].into_iter().flatten().for_each(&mut half),
                _ => half(0),
            }
        }
    }
    (w, row_bytes)
}

/// Element `i` of row `r`.
fn element_of(dtype: DType, w: &[u8], row_bytes: usize, r: usize, i: usize) -> f64 {
    element(dtype, &w[r * row_bytes + i / dtype.block() * dtype.block_bytes()..], i % dtype.block())
}

/// Compares `rows` rows of `k` weights with `m` rows of activations on one path: all three functions.
fn check(dtype: DType, rows: usize, k: usize, m: usize, path: Path) {
    let mut random = Random((rows * 31 + k * 7 + m) as u64 + dtype as u64 * 1000);
    let (w, row_bytes) = weights(dtype, rows, k, (rows + k) % 3 * 2, &mut random);
    let x: Vec<f32> = (0..m * k).map(|_| random.float()).collect();
    let what = format!("{dtype} {rows}x{k} m={m} {}", path.name());
    let ldy = rows + 1;
    let mut together = vec![f32::NAN; (m - 1) * ldy + rows];
    matvec_multi(path, dtype, &w, row_bytes, &x, &mut together, [m, ldy]);
    for (i, x) in x.chunks_exact(k.max(1)).enumerate() {
        let mut alone = vec![f32::NAN; rows];
        matvec(path, dtype, &w, row_bytes, x, &mut alone);
        for r in 0..rows {
            let products: Vec<f64> = x.iter().enumerate().map(|(j, &x)| element_of(dtype, &w, row_bytes, r, j) * x as f64).collect();
            let (want, size) = (products.iter().sum::<f64>(), products.iter().map(|p| p.abs()).sum::<f64>());
            for got in [alone[r], together[i * ldy + r]] {
                assert!((got as f64 - want).abs() <= 1e-6 * size + 1e-30, "{what}: row {r} of x {i}: {got} instead of {want}, size {size}");
            }
        }
    }
    for r in 0..rows {
        let mut decoded = vec![f32::NAN; k];
        dequantize(path, dtype, &w[r * row_bytes..][..row_bytes], &mut decoded);
        for (i, got) in decoded.into_iter().enumerate() {
            let want = element_of(dtype, &w, row_bytes, r, i);
            assert!((got as f64 - want).abs() <= 1.2e-7 * want.abs(), "{what}: weight {i} of row {r}: {got} instead of {want}");
        }
    }
}

#[test]
fn every_format_on_every_path() {
    for path in Path::available() {
        for dtype in DType::WEIGHTS {
            let ks: &[usize] = match dtype.block() {
                1 => &[1, 15, 16, 17, 33, 64, 1100],
                32 => &[32, 96, 128, 576, 1056],
                _ => &[256, 1280],
            };
            for &k in ks {
                for (rows, m) in [(0, 1), (1, 1), (2, 3), (5, 4), (7, 8), (9, 5)] {
                    check(dtype, rows, k, m, path);
                }
            }
            let mut y = [1.0; 3];
            matvec(path, dtype, &[], 0, &[], &mut y);
            assert_eq!(y, [0.0; 3], "{dtype}: rows without elements");
        }
    }
}

#[test]
fn halves_convert_exactly() {
    for bits in 0..=u16::MAX {
        let (got, want) = (crate::quant::f16_to_f32(bits), f16::from_bits(bits).to_f32());
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#x}: {got} instead of {want}");
    }
}

#[test]
fn paths_have_names() {
    for path in Path::available() {
        assert_eq!(Path::parse(path.name()).unwrap(), path);
    }
    assert!(Path::parse("sse9").unwrap_err().to_string().contains("plain"));
}
