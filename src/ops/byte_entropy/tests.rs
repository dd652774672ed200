//! The entropy of bytes against its definition in f64, on the CPU and on a GPU.

use super::MAX_WINDOW;
use crate::device::{Device, under_test::devices};
use crate::dtype::DType;
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use proptest::prelude::*;

/// The definition, each window counted anew.
fn defined(row: &[u8], window: usize) -> Vec<f64> {
    let one = |i: usize| {
        let bytes = &row[i.saturating_sub(window / 2)..(i + window.div_ceil(2)).min(row.len())];
        let mut counts = [0usize; 256];
        bytes.iter().for_each(|&b| counts[b as usize] += 1);
        let shares = counts.iter().filter(|c| **c > 0).map(|&c| c as f64 / bytes.len() as f64);
        shares.map(|p| -p * p.log2()).sum::<f64>() / 8.0
    };
    (0..row.len()).map(one).collect()
}

/// Rows of `bytes` on a device against their definition.
#[track_caller]
fn check(device: &Device, bytes: &[u8], rows: usize, window: usize) {
    let cols = bytes.len() / rows;
    let shape: &[usize] = if rows == 1 { &[cols] } else { &[rows, cols] };
    let got = Tensor::from_vec(bytes.to_vec(), shape, device).unwrap().byte_entropy(window).unwrap();
    assert_eq!((got.dims(), got.dtype()), (shape, DType::F32));
    let got = got.to_vec().unwrap();
    for (r, row) in bytes.chunks_exact(cols.max(1)).enumerate() {
        for (i, want) in defined(row, window).into_iter().enumerate() {
            let is = f64::from(got[r * cols + i]);
            assert!((is - want).abs() <= 1e-6, "{}: {rows} rows of {cols}, window {window}: {r}, {i} is {is}, not {want}", device.name());
        }
    }
}

/// Bytes of several kinds one after the other: random, equal, counted up, text.
fn mixed(count: usize, seed: u64) -> Vec<u8> {
    let noise = Rng::new(seed).bits(&[count.max(1)], &Device::cpu()).unwrap().to_vec1::<u32>().unwrap();
    let byte = |i: usize| match i / 700 % 4 {
        0 => noise[i] as u8,
        1 => 171,
        2 => i as u8,
        _ => b"the quick brown fox"[noise[i] as usize % 19],
    };
    (0..count).map(byte).collect()
}

#[test]
fn entropies_are_those_of_the_definition() {
    for device in devices() {
        for count in [0, 1, 2, 3, 5, 127, 128, 129, 255, 256, 257, 4096, 5003] {
            check(&device, &mixed(count, count as u64), 1, 256);
        }
        for window in [1, 2, 3, 8, 100, 255, 257, 300, 1024, 1025] {
            check(&device, &mixed(3001, 5), 1, window);
        }
        for (rows, cols) in [(3, 700), (7, 129), (64, 3), (2, 2100)] {
            check(&device, &mixed(rows * cols, 9), rows, 256);
        }
        // A window that is larger than what there is, and the largest.
        check(&device, &mixed(900, 1), 3, MAX_WINDOW);
        let got = Tensor::from_vec(Vec::<u8>::new(), &[0, 5], &device).unwrap().byte_entropy(256).unwrap();
        assert_eq!((got.dims(), got.to_vec().unwrap().len()), (&[0, 5][..], 0));
    }
}

#[test]
fn a_million_bytes() {
    let count = 1_000_003;
    let bytes = mixed(count, 3);
    for device in devices() {
        for window in [256, 4096] {
            let got = Tensor::from_vec(bytes.clone(), &[count], &device).unwrap().byte_entropy(window).unwrap().to_vec().unwrap();
            // Places all over, and the ends.
            for i in (0..count).step_by(997).chain(0..300).chain(count - 300..count) {
                let (from, to) = (i.saturating_sub(window / 2), (i + window / 2).min(count));
                let part = &bytes[from..to];
                let mut counts = [0u32; 256];
                part.iter().for_each(|&b| counts[b as usize] += 1);
                let shares = counts.iter().filter(|c| **c > 0).map(|&c| f64::from(c) / part.len() as f64);
                let want = shares.map(|p| -p * p.log2()).sum::<f64>() / 8.0;
                assert!((f64::from(got[i]) - want).abs() <= 1e-6, "{}, window {window}: {i} is {}, not {want}", device.name(), got[i]);
            }
        }
    }
}

#[test]
fn equal_bytes_give_0_and_all_values_once_give_1() {
    for device in devices() {
        for value in [0, 255] {
            let zeros = Tensor::from_vec(vec![value as u8; 3000], &[3000], &device).unwrap();
            for window in [1, 256, 300] {
                assert!(zeros.byte_entropy(window).unwrap().to_vec().unwrap().iter().all(|&h| h == 0.0), "{}", device.name());
            }
        }
        let all = Tensor::from_vec((0..1024).map(|i| i as u8).collect(), &[1024], &device).unwrap().byte_entropy(256).unwrap();
        let whole = &all.to_vec().unwrap()[128..=896];
        assert!(whole.iter().all(|&h| (f64::from(h) - 1.0).abs() < 1e-6), "{}: {whole:?}", device.name());
    }
}

#[test]
fn views_and_fused_neighbours() {
    for device in devices() {
        let bytes = mixed(2400, 8);
        let t = Tensor::from_vec(bytes.clone(), &[600, 4], &device).unwrap();
        // Columns of a table are rows of its transpose; arithmetic before and after goes into the same kernel.
        let columns = t.t().unwrap().byte_entropy(64).unwrap();
        let more = t.t().unwrap().bitwise_xor(&Tensor::full(255.0, &[1], DType::U8, &device).unwrap()).unwrap();
        let bits = more.byte_entropy(64).unwrap().mul(8.0).unwrap();
        let (columns, bits) = (columns.to_vec().unwrap(), bits.to_vec().unwrap());
        for c in 0..4 {
            let row: Vec<u8> = (0..600).map(|r| bytes[4 * r + c]).collect();
            for (i, want) in defined(&row, 64).into_iter().enumerate() {
                let at = c * 600 + i;
                let both = [f64::from(columns[at]) - want, f64::from(bits[at]) / 8.0 - want];
                assert!(both.iter().all(|d| d.abs() <= 1e-6), "{}: {c}, {i}: {both:?}", device.name());
            }
        }
    }
}

#[test]
fn wrong_arguments_are_refused_with_the_callers_line() {
    let cpu = Device::cpu();
    let bytes = Tensor::from_vec(vec![1u8, 2, 3], &[3], &cpu).unwrap();
    let check = |t: &Tensor, window: usize, want: &str| {
        let error = t.byte_entropy(window).unwrap_err().to_string();
        assert!(error.contains(want) && error.contains("byte_entropy/tests.rs"), "{error}");
    };
    check(&bytes, 0, "a window of 0 bytes: expected 1 to 65536");
    check(&bytes, MAX_WINDOW + 1, "a window of 65537 bytes");
    check(&bytes.cast(DType::F32).unwrap(), 256, "f32[3]: expected bytes (u8)");
    check(&bytes.cast(DType::I8).unwrap(), 256, "i8[3]: expected bytes (u8)");
    check(&bytes.narrow(0, 0, 1).unwrap().squeeze(0).unwrap(), 256, "a scalar has no row");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_bytes_in_random_windows(
        rows in 1usize..4,
        cols in 1usize..900,
        window in prop_oneof![1usize..40, 200usize..300, 300usize..3000],
        values in 1u32..=256,
        seed in any::<u64>(),
    ) {
        let noise = Rng::new(seed).bits(&[rows * cols], &Device::cpu()).unwrap().to_vec1::<u32>().unwrap();
        let bytes: Vec<u8> = noise.into_iter().map(|n| (n % values) as u8).collect();
        for device in devices() {
            check(&device, &bytes, rows, window);
        }
    }
}
