//! Matrices in f32 and bf16 of models whose activations are f16: what they become on each device, and that the model computes the same.

use crate::common::{devices, tiny_llama_file};
use tensorlogic::models::{self, KvCache, Model, Weights};
use tensorlogic::{DType, Device, Tensor};

/// Tokens that are read.
const TOKENS: [i32; 12] = [3, 95, 17, 0, 42, 8, 61, 77, 20, 5, 33, 90];
/// The largest number in f16.
const LARGEST: f32 = 65504.0;

fn load(dtype: DType, activations: DType, change: impl Fn(&str, &mut [f32]), device: &Device) -> Box<dyn Model> {
    models::load(&Weights::from_gguf(tiny_llama_file(dtype, change), device), Some(activations)).unwrap()
}

fn logits(model: &dyn Model, device: &Device) -> Vec<f32> {
    let tokens = Tensor::from_vec(TOKENS.to_vec(), &[1, TOKENS.len()], device).unwrap();
    let mut cache = KvCache::new(&model.shape(), 16, device).unwrap();
    model.logits(&model.hidden(&tokens, &mut cache).unwrap()).unwrap().to_vec().unwrap()
}

/// The dtypes of the model's matrices, without repetitions.
fn matrices(model: &dyn Model) -> Vec<DType> {
    let mut all: Vec<DType> = model.weights().iter().filter(|w| w.rank() > 1).map(|w| w.dtype()).collect();
    all.sort_by_key(|d| d.name());
    all.dedup();
    all
}

/// Whether weights of `dtype` under these activations become `expected` on GPUs and stay as they are on the CPU, and logits are those of the same
/// file in f32 on the CPU but for rounding.
fn check(dtype: DType, activations: DType, change: impl Fn(&str, &mut [f32]) + Copy, expected: &[DType]) {
    let cpu = Device::cpu();
    let exact = logits(&*load(dtype, DType::F32, change, &cpu), &cpu);
    let scale = exact.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    for device in devices() {
        let model = load(dtype, activations, change, &device);
        let what = format!("{dtype} with activations in {activations} on {}", device.name());
        assert_eq!(matrices(&*model), if device.is_cpu() { vec![dtype] } else { expected.to_vec() }, "{what}");
        for (i, (got, want)) in logits(&*model, &device).iter().zip(&exact).enumerate() {
            assert!((got - want).abs() < 0.01 * scale, "{what}: logit {i} is {got}, not {want}");
        }
    }
}

#[test]
fn matrices_become_f16_where_activations_are() {
    let same = |_: &str, _: &mut [f32]| ();
    check(DType::F32, DType::F16, same, &[DType::F16]);
    check(DType::BF16, DType::F16, same, &[DType::F16]);
    check(DType::F32, DType::F32, same, &[DType::F32]);
    check(DType::BF16, DType::F32, same, &[DType::BF16]);
    check(DType::Q8_0, DType::F16, same, &[DType::Q8_0]);
}

/// The first element of an up projection is large, and what it multiplies small.
#[test]
fn a_matrix_with_elements_beyond_f16_stays_as_it_is() {
    let large = |element: f32| {
        move |name: &str, values: &mut [f32]| match name {
            "blk.1.ffn_norm.weight" => values[0] = 1e-4,
            "blk.1.ffn_up.weight" => values[0] = element,
            _ => (),
        }
    };
    check(DType::F32, DType::F16, large(LARGEST), &[DType::F16]);
    check(DType::F32, DType::F16, large(-f32::from_bits(LARGEST.to_bits() + 1)), &[DType::F16, DType::F32]);
}

#[test]
fn a_matrix_with_a_nan_stays_as_it_is() {
    let nan = |name: &str, values: &mut [f32]| {
        if name == "blk.0.attn_q.weight" {
            values[5] = f32::NAN;
        }
    };
    for device in devices() {
        let model = load(DType::F32, DType::F16, nan, &device);
        let expected = if device.is_cpu() { vec![DType::F32] } else { vec![DType::F16, DType::F32] };
        assert_eq!(matrices(&*model), expected, "on {}", device.name());
    }
}
