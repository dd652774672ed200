//! Layers that other libraries quantized: what is read equals what they decode, on every device, and products are those with it.

use crate::common::devices;
use safetensors::tensor::{Dtype, TensorView, serialize};
use safetensors::{SafeTensors, serialize_to_file};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tensorlogic::autograd::no_grad;
use tensorlogic::models::{self, KvCache, Weights};
use tensorlogic::{DType, Device, Tensor, quant};

/// Made by `tests/reference/make_quantized.py`: `CASE/TENSOR`, `CASE/expected`, and in the metadata each case's `config.json`.
static VECTORS: &[u8] = include_bytes!("../../vectors/quantized.safetensors");

/// A folder with a model, which goes when the test does.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, config: &Json, tensors: &[u8]) -> Folder {
        let folder = Folder(std::env::temp_dir().join(format!("tl-stored-{}-{name}", std::process::id())));
        std::fs::create_dir_all(&folder.0).unwrap();
        std::fs::write(folder.0.join("config.json"), config.to_string()).unwrap();
        std::fs::write(folder.0.join("model.safetensors"), tensors).unwrap();
        folder
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The cases: name, `config.json`, tensors by their names.
fn cases() -> Vec<(String, Json, Vec<u8>, Vec<f32>)> {
    let file = SafeTensors::deserialize(VECTORS).unwrap();
    let (_, header) = SafeTensors::read_metadata(VECTORS).unwrap();
    let mut all: Vec<_> = header.metadata().as_ref().unwrap().iter().collect();
    all.sort();
    all.into_iter()
        .map(|(name, config)| {
            let own = format!("{name}/");
            let parts = file.tensors().into_iter().filter_map(|(n, t)| Some((n.strip_prefix(&own)?.to_string(), t)));
            let (expected, parts): (Vec<_>, Vec<_>) = parts.partition(|(n, _)| n == "expected");
            let expected = expected[0].1.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            (name.clone(), serde_json::from_str(config).unwrap(), serialize(parts, None).unwrap(), expected)
        })
        .collect()
}

#[test]
fn layers_are_read_as_their_libraries_decode_them() {
    let mut kinds = BTreeMap::new();
    for (name, config, tensors, want) in cases() {
        let folder = Folder::new(&name, &config, &tensors);
        for device in devices() {
            let weights = Weights::open(&folder.0, &device).unwrap();
            let names = weights.stored_names();
            assert_eq!(names.len(), 1, "{name}: {names:?}");
            assert!(weights.has(&names[0]) && !weights.has("layer.scales") && !weights.has("layer.weight_scale"), "{name}");
            let t = weights.any(&names[0]).unwrap();
            assert!(t.dtype().is_block(), "{name}");
            *kinds.entry(t.dtype().name()).or_insert(0) += 1;
            let got = t.cast(DType::F32).unwrap().to_vec().unwrap();
            assert_eq!(got.len(), want.len(), "{name}");
            for (i, (a, b)) in got.iter().zip(&want).enumerate() {
                // What two roundings of f32 may differ by, where a scale and an offset meet.
                assert!((a - b).abs() <= 2e-7 * b.abs().max(0.1), "{name} on {}: value {i} is {a}, not {b}", device.name());
            }
            product(&name, &t, &want, &device);
        }
    }
    println!("{kinds:?}");
    assert!(kinds.len() >= 11, "{kinds:?}");
}

/// Products of one row and of many with a layer, against f64.
fn product(name: &str, t: &Tensor, want: &[f32], device: &Device) {
    let k = *t.dims().last().unwrap();
    let t = if t.rank() == 3 { t.flatten(0, 1).unwrap() } else { t.clone() };
    let n = t.dims()[0];
    for m in [1, 40] {
        let x: Vec<f32> = (0..m * k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        let a = Tensor::from_vec(x.clone(), &[m, k], device).unwrap();
        let got = a.matmul(&t.t().unwrap()).unwrap().to_vec().unwrap();
        for (i, x) in x.chunks_exact(k).enumerate() {
            for (j, w) in want.chunks_exact(k).enumerate() {
                let terms = x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b));
                let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t| (s + t, z + t.abs()));
                let g = f64::from(got[i * n + j]);
                assert!((g - sum).abs() <= 2e-3 * size + 1e-6, "{name} on {}, {m} rows: {g}, not {sum} ± {size}", device.name());
            }
        }
    }
}

/// A folder's matrices as MLX stores them with groups of 32 and 4 bits, and its embedding with 8.
fn as_mlx(tensors: &[u8], mut config: Json) -> (Json, Vec<u8>) {
    let file = SafeTensors::deserialize(tensors).unwrap();
    let mut parts: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, t) in file.tensors() {
        let mut values = vec![0.0; t.shape().iter().product()];
        quant::dequantize(if t.dtype() == Dtype::BF16 { DType::BF16 } else { DType::F32 }, t.data(), &mut values).unwrap();
        let ([rows, columns], Some(layer)) = (t.shape(), name.strip_suffix(".weight")) else {
            parts.push((name, t.dtype(), t.shape().to_vec(), t.data().to_vec()));
            continue;
        };
        let (dtype, bits) = if name.contains("embed_tokens") { (DType::A8, 8) } else { (DType::A4, 4) };
        let blocks = quant::quantize(dtype, &values).unwrap();
        let part =
            |from: usize, to: usize| blocks.chunks_exact(dtype.block_bytes()).flat_map(|b| b[from..to].to_vec()).collect::<Vec<u8>>();
        parts.push((name.clone(), Dtype::U32, vec![*rows, columns * bits / 32], part(4, dtype.block_bytes())));
        parts.push((format!("{layer}.scales"), Dtype::F16, vec![*rows, columns / 32], part(0, 2)));
        parts.push((format!("{layer}.biases"), Dtype::F16, vec![*rows, columns / 32], part(2, 4)));
    }
    config["quantization"] = json!({ "group_size": 32, "bits": 4, "model.embed_tokens": { "group_size": 32, "bits": 8 } });
    let views = parts.iter().map(|(name, dtype, shape, data)| (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    (config, serialize(views, None).unwrap())
}

#[test]
fn a_quantized_folder_computes_as_its_decoded_weights() {
    let source = PathBuf::from(env!("TENSORLOGIC_ROOT")).join("tests/vectors/models/llama-gqa-bf16");
    let config: Json = serde_json::from_slice(&std::fs::read(source.join("config.json")).unwrap()).unwrap();
    let (quantized, tensors) = as_mlx(&std::fs::read(source.join("model.safetensors")).unwrap(), config.clone());
    let folder = Folder::new("mlx", &quantized, &tensors);
    for device in devices() {
        let weights = Weights::open(&folder.0, &device).unwrap();
        // The same values as a plain folder.
        let plain: Vec<(String, Vec<usize>, Vec<u8>)> = weights
            .stored_names()
            .into_iter()
            .map(|name| {
                let t = weights.any(&name).unwrap();
                let values = t.cast(DType::F32).unwrap().to_vec().unwrap();
                (name, t.dims().to_vec(), values.into_iter().flat_map(f32::to_le_bytes).collect())
            })
            .collect();
        let views = plain.iter().map(|(name, shape, data)| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
        let decoded = Folder::new("decoded", &config, &[]);
        serialize_to_file(views, None, &decoded.0.join("model.safetensors")).unwrap();
        let logits = |folder: &Folder| {
            let model = models::load(&Weights::open(&folder.0, &device).unwrap(), Some(DType::F32)).unwrap();
            let ids = Tensor::from_vec((0..20i32).map(|i| i * 7 % 60).collect::<Vec<_>>(), &[1, 20], &device).unwrap();
            no_grad(|| model.logits(&model.hidden(&ids, &mut KvCache::none())?)?.to_vec()).unwrap()
        };
        let (got, want) = (logits(&folder), logits(&decoded));
        let most = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (a, b) in got.iter().zip(&want) {
            assert!((a - b).abs() <= 2e-3 * most, "{a}, not {b}, on {}", device.name());
        }
    }
}

/// The one weight of a folder of these tensors, and its name.
fn only_weight(name: &str, config: &Json, tensors: &[u8], device: &Device) -> Tensor {
    let folder = Folder::new(name, config, tensors);
    let weights = Weights::open(&folder.0, device).unwrap();
    assert_eq!(weights.stored_names(), ["layer.weight"], "{name}");
    weights.any("layer.weight").unwrap()
}

/// GPTQ with `desc_act`: column i belongs to group `g_idx[i]`, as AutoGPTQ decodes it, `scales[g_idx] * (weight - zeros[g_idx])`, in f16.
#[test]
fn columns_of_gptq_in_groups_out_of_order() {
    for (name, above) in [("gptq_4_gptq", 1), ("gptq_8_gptq", 1), ("gptq_4_gptq_v2", 0), ("gptq_2_gptq", 1)] {
        let (_, mut config, tensors, _) = cases().into_iter().find(|c| c.0 == name).unwrap();
        let file = SafeTensors::deserialize(&tensors).unwrap();
        let bits = config["quantization_config"]["bits"].as_u64().unwrap() as usize;
        config["quantization_config"]["desc_act"] = json!(true);
        let words = |part: &str| -> Vec<u32> {
            let t = file.tensor(&format!("layer.{part}")).unwrap();
            t.data().chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let scales = file.tensor("layer.scales").unwrap();
        let (groups, outputs) = (scales.shape()[0], scales.shape()[1]);
        let mut s = vec![0.0; groups * outputs];
        quant::dequantize(DType::F16, scales.data(), &mut s).unwrap();
        let inputs = words("g_idx").len();
        // A stride that meets every column, so that each group has as many columns as before, none of them neighbours.
        let order: Vec<u32> = (0..inputs).map(|i| (i * 37 % inputs / (inputs / groups)) as u32).collect();
        let (numbers, zeros, per) = (words("qweight"), words("qzeros"), 32 / bits);
        let number = |word: u32, i: usize| f64::from(word >> (bits * (i % per)) & ((1 << bits) - 1));
        let mut want = Vec::new();
        for o in 0..outputs {
            for (i, &g) in order.iter().enumerate() {
                let (g, q) = (g as usize, number(numbers[i / per * outputs + o], i));
                let value = f64::from(s[g * outputs + o]) * (q - number(zeros[g * (outputs / per) + o / per], o) - f64::from(above));
                want.push(half::f16::from_f64(value).to_f32());
            }
        }
        let bytes: Vec<u8> = order.iter().flat_map(|g| g.to_le_bytes()).collect();
        let views = file.tensors().into_iter().map(|(n, t)| {
            let data = if n == "layer.g_idx" { &bytes[..] } else { t.data() };
            (n, TensorView::new(t.dtype(), t.shape().to_vec(), data).unwrap())
        });
        let tensors = serialize(views, None).unwrap();
        for device in devices() {
            let t = only_weight(&format!("order-{name}"), &config, &tensors, &device);
            assert_eq!((t.dtype(), t.dims()), (DType::F16, &[outputs, inputs][..]), "{name}");
            assert_eq!(t.cast(DType::F32).unwrap().to_vec().unwrap(), want, "{name} on {}", device.name());
            product(name, &t, &want, &device);
        }
    }
}

/// bitsandbytes' nf4 with factors as floats and quantized in turn: `quant_map[q] · absmax` of 64 successive values, the first of two in the high half
/// of a byte, `absmax = nested_quant_map[byte] · nested_absmax + nested_offset` of 256 successive ones.
#[test]
fn layers_of_four_bits_of_bitsandbytes() {
    // The 16 numbers of nf4, `get_4bit_type` of bitsandbytes/functional.py.
    let table: [f32; 16] = [
        -1.0,
        -0.696_192_8,
        -0.525_073_05,
        -0.394_917_5,
        -0.284_441_38,
        -0.184_773_43,
        -0.091_050_036,
        0.0,
        0.079_580_3,
        0.160_930_2,
        0.246_112_3,
        0.337_915_24,
        0.440_709_83,
        0.562_617,
        0.722_956_84,
        1.0,
    ];
    let (rows, columns) = (24, 96);
    let mut state = 7u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let numbers: Vec<u8> = (0..rows * columns / 2).map(|_| next()).collect();
    let groups = rows * columns / 64;
    let floats = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let codes: Vec<f32> = (0..256).map(|i| (i as f32 - 127.0) / 128.0).collect();
    let (above, offset) = ([0.031f32], 0.047f32);
    let absmax: Vec<u8> = (0..groups).map(|_| next()).collect();
    for (nested, dtype, round) in [
        (false, "float16", (|x: f32| half::f16::from_f32(x).to_f32()) as fn(f32) -> f32),
        (true, "bfloat16", |x| half::bf16::from_f32(x).to_f32()),
        (true, "float32", |x| x),
    ] {
        let factor = |g: usize| match nested {
            true => codes[absmax[g] as usize] * above[0] + offset,
            false => f32::from(absmax[g]) / 512.0,
        };
        let want: Vec<f32> = (0..rows * columns)
            .map(|i| {
                let byte = numbers[i / 2];
                round(table[usize::from(if i % 2 == 0 { byte >> 4 } else { byte & 15 })] * factor(i / 64))
            })
            .collect();
        let mut say = json!({ "quant_type": "nf4", "blocksize": 64, "dtype": dtype, "shape": [rows, columns] });
        let mut parts = vec![
            ("weight", Dtype::U8, vec![rows * columns / 2, 1], numbers.clone()),
            ("weight.quant_map", Dtype::F32, vec![16], floats(&table)),
        ];
        if nested {
            for (key, value) in [("nested_blocksize", json!(256)), ("nested_dtype", json!("float32")), ("nested_offset", json!(offset))] {
                say[key] = value;
            }
            parts.push(("weight.absmax", Dtype::U8, vec![groups], absmax.clone()));
            parts.push(("weight.nested_absmax", Dtype::F32, vec![1], floats(&above)));
            parts.push(("weight.nested_quant_map", Dtype::F32, vec![256], floats(&codes)));
        } else {
            parts.push(("weight.absmax", Dtype::F32, vec![groups], floats(&(0..groups).map(factor).collect::<Vec<_>>())));
        }
        let say = say.to_string().into_bytes();
        parts.push(("weight.quant_state.bitsandbytes__nf4", Dtype::U8, vec![say.len()], say));
        let views = parts.iter().map(|(n, d, shape, data)| (format!("layer.{n}"), TensorView::new(*d, shape.clone(), data).unwrap()));
        let tensors = serialize(views, None).unwrap();
        let config =
            json!({ "quantization_config": { "quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4" } });
        for device in devices() {
            let t = only_weight("four-bit", &config, &tensors, &device);
            assert_eq!(
                (t.dtype().name(), t.dims()),
                (
                    if dtype == "float16" {
                        "f16"
                    } else if dtype == "bfloat16" {
                        "bf16"
                    } else {
                        "f32"
                    },
                    &[rows, columns][..]
                )
            );
            assert_eq!(t.cast(DType::F32).unwrap().to_vec().unwrap(), want, "{dtype} on {}", device.name());
            product("nf4", &t, &want, &device);
        }
    }
}

/// Every kind that is not read is refused by its name and value.
#[test]
fn other_kinds_are_refused_by_name() {
    let (_, _, tensors, _) = cases().into_iter().find(|c| c.0 == "awq").unwrap();
    for (key, value, says) in [
        ("quantization_config", json!({ "quant_method": "exl2", "bits": 4 }), "exl2"),
        ("quantization_config", json!({ "quant_method": "bitsandbytes", "load_in_8bit": true }), "load_in_8bit"),
        ("quantization_config", json!({ "quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv" }), "version` is \"gemv\""),
        ("quantization_config", json!({ "quant_method": "awq", "bits": 3, "group_size": 128 }), "bits` is 3"),
        ("quantization_config", json!({ "quant_method": "gptq", "bits": 4, "group_size": 128, "of_tomorrow": 1 }), "of_tomorrow` is 1"),
        ("quantization_config", json!({ "quant_method": "fp8", "fmt": "e5m2" }), "fmt` is \"e5m2\""),
        ("quantization_config", json!({ "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized" }), "nvfp4-pack-quantized"),
        ("quantization", json!({ "group_size": 64, "bits": 7 }), "7"),
        ("quantization", json!({ "group_size": 64, "bits": 4, "mode": "nvfp8" }), "nvfp8"),
        ("quantization", json!(4), "4"),
        ("quantization_config", json!({ "quant_method": "mxfp4" }), "no tensor is stored so"),
    ] {
        let folder = Folder::new("refused", &json!({ "model_type": "llama", key: value }), &tensors);
        let e = models::load(&Weights::open(&folder.0, &Device::cpu()).unwrap(), None)
            .err()
            .unwrap_or_else(|| panic!("{value} loads"))
            .to_string();
        assert!(e.contains(key) && e.contains(says) && e.contains("config.json"), "{value}: {e}");
    }
}

/// Parts that do not fit together.
#[test]
fn parts_that_do_not_fit_are_refused() {
    let (_, config, tensors, _) = cases().into_iter().find(|c| c.0 == "gptq_4_gptq").unwrap();
    let file = SafeTensors::deserialize(&tensors).unwrap();
    let changed = |name: &str, change: &dyn Fn(&mut Vec<u8>, &mut Vec<usize>)| {
        let mut parts: Vec<_> = file.tensors().into_iter().map(|(n, t)| (n, t.dtype(), t.shape().to_vec(), t.data().to_vec())).collect();
        let part = parts.iter_mut().find(|p| p.0 == name).unwrap();
        change(&mut part.3, &mut part.2);
        let views = parts.iter().map(|(n, d, shape, data)| (n.clone(), TensorView::new(*d, shape.clone(), data).unwrap()));
        let folder = Folder::new("changed", &config, &serialize(views, None).unwrap());
        Weights::open(&folder.0, &Device::cpu()).unwrap().any("layer.weight").unwrap_err().to_string()
    };
    let e = changed("layer.g_idx", &|bytes, _| bytes[0] = 200);
    assert!(e.contains("layer.g_idx") && e.contains("group 200 of 4"), "{e}");
    let e = changed("layer.scales", &|_, shape| *shape = vec![2, 32]);
    assert!(e.contains("layer.scales") && e.contains("[4, 16]"), "{e}");
    let e = changed("layer.scales", &|bytes, _| bytes[..2].copy_from_slice(&0x7c00u16.to_le_bytes()));
    assert!(e.contains("layer.scales"), "{e}");
}
