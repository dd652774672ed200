//! Experts: what a step reads of their weights, that their choice stays on the device, and what a router chooses.

use crate::common::{devices, gpu};
use std::path::Path;
use tensorlogic::backends::Bytes;
use tensorlogic::models::{self, Adapters, Sampler, Session, Weights};
use tensorlogic::nn::LoraConfig;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// A folder of `tests/vectors/models2`: 4 experts of which a token takes 2.
fn weights(folder: &str, device: &Device) -> Weights {
    Weights::open(Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/models2").join(folder), device).unwrap()
}

#[test]
fn only_the_chosen_experts_are_read() {
    for device in devices() {
        for dtype in [DType::F32, DType::Q8_0] {
            let (experts, n, k) = (8, 64, 256);
            let values = Rng::new(1).uniform(&[experts, n, k], DType::F32, &Device::cpu()).unwrap().to_vec().unwrap();
            let bytes: Vec<u8> = match dtype {
                DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                _ => tensorlogic::quant::quantize(dtype, &values).unwrap(),
            };
            let all = bytes.len() as u64;
            let w = Tensor::from_bytes(Bytes::Owned(bytes.into()), dtype, &[experts, n, k], &device).unwrap();
            let x = Rng::new(2).uniform(&[1, k], DType::F32, &device).unwrap();
            let ids = Tensor::from_vec(vec![5, 2], &[1, 2], &device).unwrap();
            for t in [&w, &x, &ids] {
                t.eval().unwrap();
            }
            let (_, profile) = device.profile(|| x.expert_matmul(&w, &ids)?.to_vec()).unwrap();
            let rows = profile.rows();
            let row = rows.iter().find(|r| r.op.starts_with("expert_matmul")).unwrap();
            assert_eq!(row.bytes, all * 2 / 8 + 4 * (k + 2 + 2 * n) as u64, "{dtype} on {}", device.name());
        }
    }
}

#[test]
fn a_bad_expert_is_an_error_of_the_evaluation() {
    for device in devices() {
        let x = Tensor::ones(&[2, 4], DType::F32, &device).unwrap();
        let w = Tensor::ones(&[3, 5, 4], DType::F32, &device).unwrap();
        for bad in [3, -1] {
            let ids = Tensor::from_vec(vec![0, bad], &[2, 1], &device).unwrap();
            let e = x.expert_matmul(&w, &ids).unwrap().to_vec().unwrap_err().to_string();
            assert!(e.contains("expert_matmul"), "{e}");
        }
        let e = x.expert_matmul(&w, &Tensor::from_vec(vec![0, 1], &[2], &device).unwrap()).unwrap_err().to_string();
        assert!(e.contains("expected experts [T,k]"), "{e}");
    }
}

#[test]
fn a_model_says_what_a_token_does_not_read() -> TensorResult<()> {
    let model = models::load(&weights("gpt_oss-base", &Device::cpu()), Some(DType::F32))?;
    // Three layers of 4 experts with matrices [64,48] and [48,32] and biases, half of which are read.
    assert_eq!(model.unread_bytes(), 3 * 2 * 4 * (64 * 48 + 64 + 48 * 32 + 48));
    Ok(())
}

#[test]
fn steps_with_experts_are_replayed() -> TensorResult<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let model = models::load(&weights("gpt_oss-base", &gpu), Some(DType::F32))?;
    let mut session = Session::new(&*model, 64, &gpu)?;
    let logits = session.prompt(&[7, 3, 9], || false)?.expect("not stopped");
    let before = gpu.metrics().plans.repeats;
    let mut sampler = Sampler::default();
    let tokens = session.generate(logits, &mut sampler)?.take(24).collect::<TensorResult<Vec<u32>>>()?;
    assert_eq!(tokens.len(), 24);
    assert!(gpu.metrics().plans.repeats >= before + 16, "{before} to {}", gpu.metrics().plans.repeats);
    Ok(())
}

#[test]
fn adapters_learn_through_experts() -> TensorResult<()> {
    let cpu = Device::cpu();
    let mut model = models::load(&weights("qwen2_moe-mixed", &cpu), Some(DType::F32))?;
    let config = LoraConfig { targets: vec!["all".into()], ..LoraConfig::default() };
    let adapters = Adapters::attach(&mut *model, &config, &mut Rng::new(3))?;
    assert!(adapters.named_parameters().iter().any(|(n, _)| n.contains("mlp.shared_expert.up_proj")));
    let mut rng = Rng::new(4);
    for (_, p) in adapters.named_parameters() {
        p.set(&rng.normal(p.get().dims(), DType::F32, &cpu)?.mul(0.05)?)?;
    }
    let tokens = Tensor::from_vec((0..32).map(|i| i * i % 61).collect::<Vec<i32>>(), &[2, 16], &cpu)?;
    models::loss(&*model, &tokens, &tokens)?.backward()?;
    // Along the gradient g, the loss changes by h·|g|².
    let gradients = adapters.named_parameters().iter().map(|(_, p)| p.grad().expect("collected")).collect::<Vec<_>>();
    let norm: f64 = gradients.iter().map(|g| g.square()?.sum_all()?.item()).sum::<TensorResult<f64>>()?;
    let step = 1e-3 / norm.sqrt();
    let mut losses = Vec::new();
    for by in [step, -2.0 * step] {
        for ((_, p), g) in adapters.named_parameters().iter().zip(&gradients) {
            p.set(&p.get().detach().add(&g.mul(by as f32)?)?)?;
        }
        losses.push(models::loss(&*model, &tokens, &tokens)?.item()?);
    }
    let slope = (losses[0] - losses[1]) / (2.0 * step);
    assert!((slope / norm - 1.0).abs() < 0.02, "{slope} along a gradient of {norm}");
    Ok(())
}
