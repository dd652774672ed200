//! Block formats against blocks and values made by gguf-py: decoding bit for bit, simple encoding byte for byte.

use half::{bf16, f16};
use safetensors::SafeTensors;
use tensorlogic::DType;
use tensorlogic::quant::{dequantize, quantize};

/// `dequant/TYPE/CASE/{blocks,values}` and `quant/TYPE/CASE/{blocks,values}`.
static VECTORS: &[u8] = include_bytes!("../../vectors/quant.safetensors");

/// Calls `check` with the dtype, blocks and values of every case of this kind; gives the number of cases.
fn cases(kind: &str, mut check: impl FnMut(&str, DType, &[u8], &[f32])) -> usize {
    let file = SafeTensors::deserialize(VECTORS).unwrap();
    let mut names: Vec<&str> = file.names().into_iter().filter(|n| n.starts_with(kind) && n.ends_with("/blocks")).collect();
    names.sort_unstable();
    for name in &names {
        let case = name.trim_end_matches("/blocks");
        let dtype = DType::ALL.into_iter().find(|d| d.name().eq_ignore_ascii_case(case.split('/').nth(1).unwrap())).unwrap();
        let values = file.tensor(&format!("{case}/values")).unwrap();
        let values: Vec<f32> = values.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        check(case, dtype, file.tensor(name).unwrap().data(), &values);
    }
    names.len()
}

#[test]
fn decoding_is_exact() {
    let count = cases("dequant", |case, dtype, blocks, values| {
        let mut got = vec![0.0; values.len()];
        dequantize(dtype, blocks, &mut got).unwrap();
        for (i, (a, b)) in got.iter().zip(values).enumerate() {
            assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{case} at {i}: {a} instead of {b}");
        }
    });
    assert!(count > 20, "{count} cases");
}

#[test]
fn encoding_gives_the_same_bytes() {
    let count = cases("quant", |case, dtype, blocks, values| {
        let got = quantize(dtype, values).unwrap();
        let differs = got.iter().zip(blocks).position(|(a, b)| a != b);
        assert!(got.len() == blocks.len() && differs.is_none(), "{case}: byte {differs:?}");
    });
    assert!(count > 10, "{count} cases");
}

/// Numbers near a normal distribution, the same on every run.
fn normal(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

fn round_trip(dtype: DType, values: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; values.len()];
    dequantize(dtype, &quantize(dtype, values).unwrap(), &mut out).unwrap();
    out
}

/// The error's energy over the values' after encoding and decoding, where bytes may differ from ggml's: at most 1.05 × what its own quantizers
/// reach on these values.
#[test]
fn round_trip_error_is_small() {
    let values = normal(256 * 64);
    // Of these no figure of ggml's was at hand: tables must be better than Q4_0's 7.07e-3; MXFP4 by its rule in NumPy, and NVFP4 no worse.
    let finer = [(DType::IQ4_NL, 5.8e-3), (DType::IQ4_XS, 5.8e-3), (DType::NVFP4, 1.32e-2), (DType::MXFP4, 1.32e-2)];
    for (dtype, ggml) in
        [(DType::Q2_K, 8.383e-2), (DType::Q3_K, 2.184e-2), (DType::Q4_K, 4.849e-3), (DType::Q5_K, 1.260e-3), (DType::Q6_K, 3.023e-4)]
            .into_iter()
            .chain(finer)
    {
        let got = round_trip(dtype, &values);
        let energy = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let nmse = energy(&mut got.iter().zip(&values).map(|(a, b)| a - b)) / energy(&mut values.iter().copied());
        println!("{dtype} {nmse:.3e}");
        assert!(nmse <= 1.05 * ggml, "{dtype}: {nmse:.3e}");
    }
}

/// What a block format cannot hold well must still come back finite or as zeros, and nothing may panic.
#[test]
fn odd_values_do_no_harm() {
    let cases: [(&str, Vec<f32>, f32); 6] = [
        ("zeros", vec![0.0; 256], 0.0),
        ("constant", vec![2.5; 256], 0.05),
        ("negative constant", vec![-2.5; 256], 0.05),
        ("one value", (0..256).map(|i| if i == 77 { -3.0 } else { 0.0 }).collect(), 0.05),
        ("tiny", vec![1e-12; 256], 1e-6),
        ("ramp", (0..256).map(|i| i as f32).collect(), 32.0),
    ];
    // Formats of a few levels that are far apart hold constants and ramps badly.
    let coarse = [DType::MXFP4, DType::NVFP4, DType::Q1_0, DType::TQ1_0, DType::TQ2_0];
    for dtype in DType::BLOCKS.into_iter().filter(|d| d.format().unwrap().is_encoded()) {
        for (name, values, tolerance) in &cases {
            let got = round_trip(dtype, values);
            for (a, b) in got.iter().zip(values) {
                assert!(coarse.contains(&dtype) && a.is_finite() || (a - b).abs() <= *tolerance, "{dtype} {name}: {a} for {b}");
            }
        }
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE / 8.0] {
            let mut values = normal(256);
            values[9] = strange;
            assert_eq!(round_trip(dtype, &values).len(), 256);
        }
    }
}

#[test]
fn plain_floats_and_wrong_lengths() {
    let values = [1.5f32, -0.25, 1e-3];
    assert_eq!(round_trip(DType::F32, &values), values);
    assert_eq!(round_trip(DType::F16, &values), values.map(|x| f16::from_f32(x).to_f32()));
    assert_eq!(round_trip(DType::BF16, &values), values.map(|x| bf16::from_f32(x).to_f32()));
    assert!(quantize(DType::Q4_0, &values).is_err());
    assert!(quantize(DType::I32, &values).is_err());
    assert!(dequantize(DType::Q4_0, &[0; 18], &mut [0.0; 33]).is_err());
    assert!(dequantize(DType::Q4_0, &[0; 17], &mut [0.0; 32]).is_err());
}

/// Q1_0, of which no reference decoder was at hand: blocks written by the rule, value `i` by bit `i % 8` of byte `2 + i / 8`.
#[test]
fn signs_by_the_rule() {
    let mut block = vec![0u8; 18];
    block[..2].copy_from_slice(&f16::from_f32(-0.75).to_le_bytes());
    let bit = |i: usize| (i * i / 7 + i) % 3 == 0;
    (0..128).filter(|&i| bit(i)).for_each(|i| block[2 + i / 8] |= 1 << (i % 8));
    let mut got = [0.0; 128];
    dequantize(DType::Q1_0, &block, &mut got).unwrap();
    assert!(got.iter().enumerate().all(|(i, &x)| x == if bit(i) { -0.75 } else { 0.75 }));
    // The mean magnitude and the signs come back.
    let values: Vec<f32> = (0..128).map(|i| if bit(i) { 1.0 } else { -0.5 }).collect();
    let mean = f16::from_f32(values.iter().map(|x| x.abs()).sum::<f32>() / 128.0).to_f32();
    assert!(round_trip(DType::Q1_0, &values).iter().zip(&values).all(|(a, b)| *a == mean.copysign(*b)));
}
