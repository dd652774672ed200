//! Affine quantization against torchao's numbers, its bound of error, and products with what it gives, on the CPU and on a GPU.

use crate::common::devices;
use proptest::prelude::*;
use serde_json::Value;
use std::io::Read;
use tensorlogic::eval::plan_of;
use tensorlogic::ops::affine::{DynamicQuantizer, Quantized, block_wise_quantize};
use tensorlogic::quant::{Affine, Bits, Granularity, Mapping};
use tensorlogic::{DType, Device, Rng, Tensor};

fn list<T>(v: &Value, one: impl Fn(&Value) -> T) -> Vec<T> {
    v.as_array().unwrap().iter().map(one).collect()
}
fn integer(v: &Value) -> i32 {
    v.as_i64().unwrap() as i32
}
/// An f32 that is written as the integer of its bits.
fn float(v: &Value) -> f32 {
    f32::from_bits(integer(v) as u32)
}
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
fn flat<T: tensorlogic::Element>(t: &Tensor) -> Vec<T> {
    t.flatten(0, -1).unwrap().to_vec1::<T>().unwrap()
}

#[test]
fn integers_scales_and_zero_points_are_torchaos() {
    let path = concat!(env!("TENSORLOGIC_ROOT"), "/tests/vectors/affine/affine.json.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    let vectors: Value = serde_json::from_str(&text).unwrap();
    let cases = vectors["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 144);
    for device in devices() {
        for c in cases {
            let input = &vectors["inputs"][c["input"].as_str().unwrap()];
            let x = Tensor::from_vec(list(&input["bits"], float), &list(&input["shape"], |v| integer(v) as usize), &device).unwrap();
            let granularity = match c["granularity"].as_str().unwrap() {
                "tensor" => Granularity::PerTensor,
                "channel 0" => Granularity::PerChannel(0),
                "channel 1" => Granularity::PerChannel(-1),
                _ => Granularity::Block(8),
            };
            let mapping = if c["symmetric"] == true { Mapping::Symmetric } else { Mapping::Asymmetric };
            let affine = Affine { bits: Bits::try_from(integer(&c["bits"]) as u32).unwrap(), mapping, granularity };
            let q = x.quantize(&affine).unwrap();
            let what = format!("{}: {} {affine:?}", device.name(), c["input"]);
            assert_eq!(bits(&flat::<f32>(q.scale())), bits(&list(&c["scale"], float)), "{what}");
            assert_eq!(flat::<i32>(q.zero_point()), list(&c["zero_point"], integer), "{what}");
            assert_eq!(flat::<i8>(&q.values().unwrap()), list(&c["q"], |v| integer(v) as i8), "{what}");
            if !c["dequantized"].is_null() {
                assert_eq!(bits(&flat::<f32>(&q.dequantize().unwrap())), bits(&list(&c["dequantized"], float)), "{what}");
            }
        }
    }
}

/// Checks a tensor's quantization against the bound of its error, and gives the stored bytes.
#[track_caller]
fn bounded(x: &Tensor, affine: &Affine) -> (Vec<u8>, Vec<u32>, Vec<i32>) {
    let q = x.quantize(affine).unwrap();
    let (values, back) = (x.cast(DType::F32).unwrap().to_vec().unwrap(), q.dequantize().unwrap());
    assert_eq!((back.dims(), back.dtype(), q.shape()), (x.dims(), DType::F32, x.shape()));
    let scales = q.scale().to_vec().unwrap();
    let (back, cols) = (back.to_vec().unwrap(), x.dims().last().copied().unwrap_or(1));
    for (i, (&v, &b)) in values.iter().zip(&back).enumerate() {
        let group = match affine.granularity {
            Granularity::PerTensor => 0,
            Granularity::PerChannel(axis) => {
                let axis = if axis < 0 { axis + x.rank() as isize } else { axis } as usize;
                i / x.dims()[axis + 1..].iter().product::<usize>() % x.dims()[axis]
            }
            Granularity::Block(n) => i / cols * cols.div_ceil(n) + i % cols / n,
        };
        let (off, scale) = ((f64::from(v) - f64::from(b)).abs(), f64::from(scales[group]));
        assert!(off <= 0.5001 * scale, "{affine:?} of {}: element {i}, {v}, became {b}, with scale {scale}", x.shape());
    }
    (q.q().to_bytes().unwrap(), bits(&scales), flat::<i32>(q.zero_point()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn errors_are_at_most_half_a_scale_and_devices_agree_on_every_byte(
        shape in prop::collection::vec(1usize..40, 1..4),
        four in any::<bool>(),
        symmetric in any::<bool>(),
        kind in 0usize..3,
        which in any::<prop::sample::Index>(),
        (spread, shift, seed) in (-20i32..20, -3.0..3.0f64, any::<u64>()),
    ) {
        let affine = if four { Affine::int4() } else { Affine::int8() };
        let affine = if symmetric { affine.symmetric() } else { affine };
        let affine = match kind {
            0 => affine,
            1 => affine.per_channel(which.index(shape.len()) as isize),
            _ => affine.block(1 + which.index(50)),
        };
        let x = Rng::new(seed).normal(&shape, DType::F32, &Device::cpu()).unwrap().add(shift).unwrap().mul(2f64.powi(spread)).unwrap();
        let values = x.to_vec().unwrap();
        let all: Vec<_> = devices().iter().map(|d| bounded(&Tensor::from_vec(values.clone(), &shape, d).unwrap(), &affine)).collect();
        prop_assert!(all.iter().all(|one| *one == all[0]));
    }
}

#[test]
fn rows_of_any_length_and_tensors_of_any_kind() {
    for device in devices() {
        let rng = || Rng::new(4).normal(&[3, 50], DType::F32, &device).unwrap();
        // Blocks of 16 in rows of 50: four a row, the last filled up with the integer of 0.
        let q = rng().quantize(&Affine::int8().block(16)).unwrap();
        assert_eq!((q.q().dims(), q.scale().dims(), q.zero_point().dims()), (&[3, 64][..], &[3, 4][..], &[3, 4][..]));
        let (values, zeros) = (flat::<i8>(q.q()), flat::<i32>(q.zero_point()));
        for r in 0..3 {
            assert!(values[64 * r + 50..64 * (r + 1)].iter().all(|&v| i32::from(v) == zeros[4 * r + 3]));
        }
        let four = rng().quantize(&Affine::int4().block(5)).unwrap();
        assert_eq!((four.q().dims(), four.q().dtype(), four.values().unwrap().dims()), (&[3, 25][..], DType::U8, &[3, 50][..]));
        assert_eq!((four.bytes(), q.bytes()), (75 + 8 * 30, 192 + 8 * 12));
        for affine in [Affine::int8(), Affine::int4(), Affine::int8().symmetric(), Affine::int4().block(7), Affine::int8().per_channel(-1)]
        {
            for value in [0.0, 2.5, -7.0, 1e-12] {
                let x = Tensor::full(value, &[5, 9], DType::F32, &device).unwrap();
                bounded(&x, &affine);
            }
            for shape in [&[0, 5][..], &[3, 0], &[0]] {
                let q = Tensor::full(1.0, shape, DType::F32, &device).unwrap().quantize(&affine).unwrap();
                assert_eq!(
                    (q.dequantize().unwrap().dims(), q.scale().to_vec().unwrap().iter().all(|&s| s == f32::MIN_POSITIVE)),
                    (shape, true)
                );
            }
            for dtype in [DType::F16, DType::BF16] {
                bounded(&rng().cast(dtype).unwrap(), &affine);
            }
            // Views.
            bounded(&rng().t().unwrap(), &affine);
            bounded(&rng().narrow(1, 3, 20).unwrap(), &affine);
        }
        for affine in [Affine::int8(), Affine::int4()] {
            bounded(&Tensor::full(-3.25, &[], DType::F32, &device).unwrap(), &affine);
        }
    }
}

#[test]
fn what_cannot_be_quantized_is_an_error() {
    for device in devices() {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2], &device).unwrap();
        let check = |x: &Tensor, affine: Affine, want: &str| {
            let error = x.quantize(&affine).unwrap_err().to_string();
            assert!(error.contains(want) && error.contains("affine.rs"), "{}: {error}", device.name());
        };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let x = Tensor::from_vec(vec![1.0, 2.0, 3.0, bad, 5.0, 6.0], &[3, 2], &device).unwrap();
            check(&x, Affine::int8(), "group 0 of 1 holds NaN or an infinity");
            check(&x, Affine::int4().symmetric().per_channel(0), "group 1 of 3 holds NaN");
            check(&x, Affine::int8().block(2), "group 1 of 3");
        }
        check(&Tensor::from_vec(vec![3e38f32, -3e38], &[2], &device).unwrap(), Affine::int8(), "further apart than f32 can say");
        check(&x, Affine::int8().block(0), "blocks of 0 elements");
        check(&x, Affine::int8().per_channel(2), "quantize");
        check(&x.cast(DType::I32).unwrap(), Affine::int8(), "i32[3,2]: expected f32, f16 or bf16");
        check(&Tensor::full(1.0, &[], DType::F32, &device).unwrap(), Affine::int8().block(4), "a scalar has neither channels nor blocks");
        let q = x.quantize(&Affine::int8()).unwrap();
        let product = |x: &Tensor, q: &Quantized| x.matmul_quantized(q).unwrap_err().to_string();
        let error = product(&x.t().unwrap(), &q);
        assert!(error.contains("matmul_quantized: [2,3]·[3,2]ᵀ: inner sizes 3 and 2 differ"), "{error}");
        assert!(product(&x.cast(DType::I32).unwrap(), &q).contains("expected floats"));
        let across = block_wise_quantize(&x, 4).unwrap();
        assert!(product(&x, &across).contains("rows of 2 are not whole blocks of 4"));
        let line = x.flatten(0, -1).unwrap().quantize(&Affine::int8()).unwrap();
        assert!(product(&x, &line).contains("weights [6]: expected [outputs, inputs]"));
    }
    assert!(DynamicQuantizer::new(5).unwrap_err().to_string().contains("5 bits: expected 4 or 8"));
}

/// Every kind of groups for weights of `k` columns.
fn kinds(k: usize) -> Vec<Affine> {
    let mut all = Vec::new();
    for a in [Affine::int8(), Affine::int4(), Affine::int8().symmetric()] {
        all.extend([a, a.per_channel(0), a.per_channel(1), a.block(32), a.block(3), a.block(k + 1)]);
    }
    all
}

#[test]
fn products_are_those_with_the_decoded_weights() {
    for device in devices() {
        for (m, n, k) in [(1, 130, 128), (1, 5, 33), (3, 64, 200), (8, 7, 40), (9, 66, 72), (70, 65, 50), (65, 128, 64), (2, 1, 1)] {
            let mut rng = Rng::new((m * 1000 + n) as u64);
            let (x, w) = (rng.normal(&[m, k], DType::F32, &device).unwrap(), rng.normal(&[n, k], DType::F32, &device).unwrap());
            for (number, affine) in kinds(k).into_iter().enumerate() {
                let dtype = if number % 5 == 4 { DType::F16 } else { DType::F32 };
                let x = x.cast(dtype).unwrap();
                let q = w.quantize(&affine).unwrap();
                let y = x.matmul_quantized(&q).unwrap();
                assert_eq!((y.dims(), y.dtype()), (&[m, n][..], dtype));
                let (x, w, y) = (x.to_vec().unwrap(), q.dequantize().unwrap().to_vec().unwrap(), y.to_vec().unwrap());
                for (i, y) in y.into_iter().enumerate() {
                    let terms = || (0..k).map(|j| f64::from(x[i / n * k + j]) * f64::from(w[i % n * k + j]));
                    let (want, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                    let allowed = 1e-6 * size + if dtype == DType::F16 { 1e-3 * want.abs() + 1e-6 } else { 0.0 };
                    let off = (f64::from(y) - want).abs();
                    assert!(off <= allowed, "{}: {m}×{n}×{k} {affine:?}: element {i} is {y}, not {want}", device.name());
                }
            }
        }
    }
}

#[test]
fn no_decoded_copy_of_the_weights_is_stored() {
    for device in devices() {
        let mut rng = Rng::new(2);
        let (n, k) = (96, 256);
        let w = rng.normal(&[n, k], DType::F32, &device).unwrap();
        let bias = rng.normal(&[n], DType::F32, &device).unwrap();
        for m in [1, 40] {
            let x = rng.normal(&[m, k], DType::F32, &device).unwrap();
            tensorlogic::eval::eval_all(&[&x, &bias]).unwrap();
            for affine in kinds(k) {
                let q = w.quantize(&affine).unwrap();
                // The product, its bias and the function after it are one step without memory of its own besides the result.
                let y = x.matmul_quantized(&q).unwrap().add(&bias).unwrap().relu().unwrap();
                let plan = plan_of(&[&y]).unwrap().unwrap();
                let stored: Vec<usize> = plan.outputs.iter().map(|o| o.bytes).collect();
                assert_eq!((plan.steps.len(), &plan.slots[..], &stored[..]), (1, &[][..], &[4 * m * n][..]), "{affine:?}");
            }
        }
    }
}

#[test]
fn gradients_reach_the_left_side() {
    for device in devices() {
        let mut rng = Rng::new(3);
        let w = rng.normal(&[12, 40], DType::F32, &device).unwrap();
        for affine in kinds(40) {
            let q = w.quantize(&affine).unwrap();
            let x = rng.normal(&[2, 3, 40], DType::F32, &device).unwrap().requires_grad().unwrap();
            x.matmul_quantized(&q).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap();
            let own = x.grad().unwrap().to_vec().unwrap();
            let x = x.detach().requires_grad().unwrap();
            x.matmul(&q.dequantize().unwrap().t().unwrap()).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap();
            let want = x.grad().unwrap().to_vec().unwrap();
            let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert!(own.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-5 * size), "{}: {affine:?}", device.name());
        }
    }
}

#[test]
fn quantizers_by_the_documents_names() {
    for device in devices() {
        let w = Rng::new(6).normal(&[10, 100], DType::F32, &device).unwrap();
        for bits in [8, 4] {
            let quantizer = DynamicQuantizer::new(bits).unwrap().per_channel(0);
            let q = quantizer.quantize_weights(&w).unwrap();
            let back =
                quantizer.dequantize_weights(&q).unwrap().sub(&w).unwrap().abs().unwrap().max(&[1], false).unwrap().to_vec().unwrap();
            assert!(back.iter().zip(q.scale().to_vec().unwrap()).all(|(e, s)| *e <= 0.5001 * s));
        }
        // Blocks across the ends of rows: block 1 has elements 128..256.
        let q = block_wise_quantize(&w, 128).unwrap();
        assert_eq!((q.q().dims(), q.scale().dims(), q.q().dtype()), (&[8, 128][..], &[8][..], DType::I8));
        let values = w.to_vec().unwrap();
        for (block, scale) in values.chunks(128).zip(q.scale().to_vec().unwrap()) {
            let (low, high) = block.iter().fold((0f32, 0f32), |(l, h), &v| (l.min(v), h.max(v)));
            assert_eq!(scale, (high - low) / 255.0);
        }
        let off = q.dequantize().unwrap().sub(&w).unwrap().abs().unwrap().max_all().unwrap().item().unwrap();
        assert!(off <= 0.5001 * q.scale().max_all().unwrap().item().unwrap());
        // Rows that are whole blocks can be multiplied.
        let w = Rng::new(6).normal(&[6, 256], DType::F32, &device).unwrap();
        let (x, q) = (Rng::new(7).normal(&[2, 256], DType::F32, &device).unwrap(), block_wise_quantize(&w, 128).unwrap());
        let want = x.matmul(&q.dequantize().unwrap().t().unwrap()).unwrap();
        let off = x.matmul_quantized(&q).unwrap().sub(&want).unwrap().abs().unwrap().max_all().unwrap().item().unwrap();
        assert!(off < 1e-4, "{off}");
    }
}
