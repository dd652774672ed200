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
            if dtype.coded().is_some() {
                // Floats of eight bits that are NaN.
                block.iter_mut().filter(|b| dtype == DType::F8_E4M3 && **b & 0x7f == 0x7f).for_each(|b| *b = 0);
                dtype.format().unwrap().set_factor(block, 2.0 * random.float());
                if dtype.coded().is_some_and(|f| f.shifted) {
                    block[3] = 0; // a small offset, or a zero point below 256
                }
                continue;
            }
            let mut half = |at: usize| block[at..at + 2].copy_from_slice(&f16::from_f32(random.float()).to_le_bytes());
            match (dtype, dtype.format()) {
                (DType::F32, _) => block.copy_from_slice(&random.float().to_le_bytes()),
                (DType::BF16, _) => block.copy_from_slice(&bf16::from_f32(random.float()).to_le_bytes()),
                (_, Some(format)) => {
                    let fields = format.linear().unwrap();
                    [Some(fields.d), fields.dmin].into_iter().flatten().for_each(&mut half);
                }
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

/// All of `rows` rows of `k` elements.
fn elements(dtype: DType, w: &[u8], row_bytes: usize, rows: usize, k: usize) -> Vec<f64> {
    (0..rows).flat_map(|r| (0..k).map(move |i| element_of(dtype, w, row_bytes, r, i))).collect()
}

/// Compares `rows` rows of `k` weights with `m` rows of activations on one path: all three functions.
fn check(dtype: DType, rows: usize, k: usize, m: usize, path: Path) {
    let mut random = Random((rows * 31 + k * 7 + m) as u64 + dtype as u64 * 1000);
    let (w, row_bytes) = weights(dtype, rows, k, (rows + k) % 3 * 2, &mut random);
    let exact = elements(dtype, &w, row_bytes, rows, k);
    let x: Vec<f32> = (0..m * k).map(|_| random.float()).collect();
    let what = format!("{dtype} {rows}x{k} m={m} {}", path.name());
    let ldy = rows + 1;
    let mut together = vec![f32::NAN; (m - 1) * ldy + rows];
    gemv_multi(path, dtype, &w, row_bytes, &x, &mut together, [m, ldy]);
    for (i, x) in x.chunks_exact(k.max(1)).enumerate() {
        let mut alone = vec![f32::NAN; rows];
        gemv(path, dtype, &w, row_bytes, x, &mut alone);
        for r in 0..rows {
            let products = || x.iter().zip(&exact[r * k..]).map(|(&x, w)| w * x as f64);
            let (want, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
            for got in [alone[r], together[i * ldy + r]] {
                assert!((got as f64 - want).abs() <= 1e-6 * size + 1e-30, "{what}: row {r} of x {i}: {got} instead of {want}, size {size}");
            }
        }
    }
    for r in 0..rows {
        let mut decoded = vec![f32::NAN; k];
        dequantize(path, dtype, &w[r * row_bytes..][..row_bytes], &mut decoded);
        for (i, got) in decoded.into_iter().enumerate() {
            let want = exact[r * k + i];
            assert!((got as f64 - want).abs() <= 1.2e-7 * want.abs(), "{what}: weight {i} of row {r}: {got} instead of {want}");
        }
    }
}

#[test]
fn every_format_on_every_path() {
    for path in Path::available() {
        for dtype in DType::WEIGHTS {
            let ks: &[usize] = match dtype.block() {
                1 => &[1, 15, 16, 17, 33, 64, 1100, 1300],
                32 => &[32, 96, 128, 576, 1056, 1312],
                64 => &[64, 192, 1088],
                128 => &[128, 1152],
                _ => &[256, 1536],
            };
            for &k in ks {
                for (rows, m) in [(0, 1), (1, 1), (2, 3), (5, 4), (7, 8), (9, 5), (12, 2), (7, 6), (5, 7), (35, 13)] {
                    check(dtype, rows, k, m, path);
                }
            }
            let mut y = [1.0; 3];
            gemv(path, dtype, &[], 0, &[], &mut y);
            assert_eq!(y, [0.0; 3], "{dtype}: rows without elements");
        }
    }
}

/// Products with activations that f32 holds badly or not at all: on every path as the definition says.
#[test]
fn activations_far_apart_or_not_finite() {
    const ROWS: usize = 5;
    for path in Path::available() {
        for dtype in DType::WEIGHTS {
            let k = dtype.block().max(32) * 3;
            let mut random = Random(dtype as u64 + 77);
            let (w, row_bytes) = weights(dtype, ROWS, k, 0, &mut random);
            let exact = elements(dtype, &w, row_bytes, ROWS, k);
            let plain: Vec<f32> = (0..k).map(|_| random.float()).collect();
            let with = |at: usize, value: f32| {
                let mut x = plain.clone();
                x[at] = value;
                x
            };
            let scaled = |by: f32| plain.iter().map(|x| x * by).collect::<Vec<f32>>();
            // An outlier, a block of zeros, all but one almost zero, very small and very large ones.
            let cases = [
                with(7, 5e3),
                [vec![0.0; k / 3], plain[k / 3..].to_vec()].concat(),
                with(40, 0.0),
                scaled(1e-20),
                scaled(1e-32),
                scaled(1e20),
            ];
            for (case, x) in cases.iter().enumerate() {
                compare(path, dtype, (&w, row_bytes), &exact, &[&x[..], x].concat(), &format!("{dtype} {} case {case}", path.name()));
            }
            for (case, at, value) in [(0, 0, f32::NAN), (1, k - 1, f32::INFINITY), (2, k / 2, f32::NEG_INFINITY)] {
                let x = with(at, value);
                let mut y = [0.0; ROWS];
                gemv(path, dtype, &w, row_bytes, &x, &mut y);
                let mut two = [0.0; 2 * ROWS];
                gemv_multi(path, dtype, &w, row_bytes, &[&plain[..], &x].concat(), &mut two, [2, ROWS]);
                for (r, (y, two)) in y.into_iter().zip(&two[ROWS..]).enumerate() {
                    let weight = exact[r * k + at] as f32;
                    // The product with a weight that rounds to zero is NaN; formats compute the weight first or the sum of a group.
                    let finite = y.is_finite() || two.is_finite();
                    assert!(!finite, "{dtype} {} row {r} case {case}: {y} {two}, weight {weight}", path.name());
                }
                // The other row, which may be multiplied as floats now, stays what it is.
                for (r, got) in two[..ROWS].iter().enumerate() {
                    let products = || plain.iter().zip(&exact[r * k..]).map(|(&x, w)| w * x as f64);
                    let (want, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
                    assert!((*got as f64 - want).abs() <= 1e-6 * size, "{dtype} {} row {r}: {got} instead of {want}", path.name());
                }
            }
        }
    }
}

/// Activations rounded to int8, on every path and in every format of blocks: sums in f64 of the rounded numbers. Blocks of zeros, of numbers too small to
/// be rounded and rows that are not finite among them.
#[test]
fn activations_of_int8() {
    for path in Path::available() {
        for dtype in DType::WEIGHTS.into_iter().filter(|d| d.is_block()) {
            for (rows, m, groups) in [(0, 1, 8), (1, 1, 24), (5, 1, 40), (4, 1, 8), (3, 2, 8), (2, 3, 16), (5, 4, 8), (3, 5, 8), (4, 8, 16)]
            {
                let k = groups * 32;
                let mut random = Random((rows * 31 + m) as u64 + dtype as u64 * 1000);
                let (w, row_bytes) = weights(dtype, rows, k, rows % 3 * 2, &mut random);
                let exact = elements(dtype, &w, row_bytes, rows, k);
                let mut x: Vec<f32> = (0..m * k).map(|_| random.float()).collect();
                x[..32].fill(0.0);
                x[32..64].iter_mut().for_each(|x| *x *= 1e-35);
                let ldy = rows + 1;
                let mut y = vec![f32::NAN; (m - 1) * ldy + rows];
                gemv_int8(path, dtype, &w, row_bytes, &x, &mut y, [m, ldy]);
                let rounded = x.chunks_exact(32).flat_map(|group| {
                    let most = group.iter().fold(0f32, |m, x| m.max(x.abs()));
                    let (scale, inverse) = if most < INT8_SMALLEST { (0.0, 0.0) } else { (most / 127.0, 127.0 / most) };
                    group.iter().map(move |x| (x * inverse).round_ties_even() as f64 * scale as f64)
                });
                let rounded: Vec<f64> = rounded.collect();
                for (i, r) in (0..m).flat_map(|i| (0..rows).map(move |r| (i, r))) {
                    let products = || rounded[i * k..][..k].iter().zip(&exact[r * k..]).map(|(x, w)| x * w);
                    let (want, size, got) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>(), y[i * ldy + r] as f64);
                    let what = format!("{dtype} {rows}x{k} m={m} {}", path.name());
                    assert!((got - want).abs() <= 1e-6 * size, "{what}: row {r} of x {i}: {got} instead of {want}, size {size}");
                }
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    x[(m - 1) * k + 70] = bad;
                    gemv_int8(path, dtype, &w, row_bytes, &x, &mut y, [m, ldy]);
                    assert!(y[(m - 1) * ldy..].iter().all(|y| !y.is_finite()), "{dtype} {}: {bad} is lost", path.name());
                }
            }
        }
    }
}

/// Both operands bf16, in sizes with whole blocks of rows and numbers and without, on every path. `bfdot` keeps four sums of a row: each has
/// an addition of two products and one to the sum for eight numbers, which round to odd, with an error below 2^-23 of the result.
#[test]
fn rows_of_bf16_times_rows_of_bf16() {
    let mut random = Random(99);
    for (path, k) in Path::available().into_iter().flat_map(|p| [0, 1, 7, 8, 9, 33, 1100].map(|k| (p, k))) {
        for (rows, m) in [(0, 1), (1, 1), (7, 3), (8, 4), (9, 5), (19, 8)] {
            for whole in [false, true] {
                // Small integers, whose sums are exact on every path, or fractions.
                let mut number = || if whole { (16.0 * random.float()).trunc() } else { bf16::from_f32(random.float()).to_f32() };
                let row_bytes = 2 * k + 2 * (rows % 3);
                let w: Vec<f32> = (0..rows * row_bytes / 2).map(|_| number()).collect();
                let bytes: Vec<u8> = w.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
                let x: Vec<f32> = (0..m * k).map(|_| number()).collect();
                let ldy = rows + 2;
                let mut y = vec![f32::NAN; (m - 1) * ldy + rows];
                gemv_bf16(path, &bytes, row_bytes, &x, &mut y, [m, ldy]);
                for (i, r) in (0..m).flat_map(|i| (0..rows).map(move |r| (i, r))) {
                    let products = || (0..k).map(|j| w[r * row_bytes / 2 + j] as f64 * x[i * k + j] as f64);
                    let (want, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
                    let bound = match (whole, path) {
                        (true, _) => 0.0,
                        (_, Path::Bf16) => (k.div_ceil(8) + 3) as f64 * 2f64.powi(-23) * size,
                        _ => 1e-6 * size,
                    };
                    let got = y[i * ldy + r] as f64;
                    assert!((got - want).abs() <= bound, "{} {rows}x{k} m={m}: row {r} of x {i}: {got} instead of {want}", path.name());
                }
            }
        }
    }
}

/// Compares both products of two rows of activations with sums in f64 of the rows' exact elements. The error is that of f32 sums, or of
/// activations rounded to 24 bits of the largest in a block.
fn compare(path: Path, dtype: DType, (w, row_bytes): (&[u8], usize), exact: &[f64], x: &[f32], what: &str) {
    let (k, rows) = (x.len() / 2, w.len() / row_bytes);
    let mut together = vec![f32::NAN; 2 * rows];
    gemv_multi(path, dtype, w, row_bytes, x, &mut together, [2, rows]);
    for (i, x) in x.chunks_exact(k).enumerate() {
        let mut alone = vec![f32::NAN; rows];
        gemv(path, dtype, w, row_bytes, x, &mut alone);
        let largest: Vec<f64> = x.chunks(dtype.block()).map(|block| block.iter().fold(0f32, |m, x| m.max(x.abs())) as f64).collect();
        for r in 0..rows {
            let products = || x.iter().zip(&exact[r * k..]).map(|(&x, w)| w * x as f64);
            let (want, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
            let blocks = exact[r * k..][..k].chunks(dtype.block()).zip(&largest);
            let rounded: f64 = blocks.map(|(w, largest)| w.iter().map(|w| w.abs()).sum::<f64>() * largest * 2f64.powi(-23)).sum();
            for got in [alone[r], together[i * rows + r]] {
                let error = (got as f64 - want).abs();
                assert!(error <= 1e-6 * size + rounded + 1e-38, "{what}: row {r} of x {i}: {got} instead of {want}, {error:e}");
            }
        }
    }
}

/// The processors that `scripts/test-aarch64.sh` emulates tell by their names what they have.
#[test]
fn a_processor_has_the_paths_of_its_instructions() {
    let names: Vec<_> = Path::available().into_iter().map(Path::name).collect();
    let want: &[&str] = match std::env::var("TL_TEST_EMULATED").as_deref() {
        Ok("cortex-a72") => &["plain", "neon"],
        Ok("cortex-a76") => &["plain", "neon", "dotprod"],
        Ok("max") => &["plain", "neon", "dotprod", "i8mm", "bf16"],
        _ => &names,
    };
    assert_eq!(names, want);
    for path in Path::ALL {
        assert_eq!(path.is_available(), Path::parse(path.name()).is_ok(), "{}", path.name());
    }
    let arm = [Path::Neon, Path::Dotprod, Path::I8mm, Path::Bf16];
    assert_eq!(
        arm.contains(&Path::get().unwrap()),
        cfg!(target_arch = "aarch64") && std::env::var_os("TL_CPU").is_none_or(|v| v != "plain")
    );
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
