//! Experts: what a step reads of their weights, that their choice stays on the device, and what a router chooses.

use crate::common::{devices, gpu};
use std::path::Path;
use tensorlogic::backends::Bytes;
use tensorlogic::models::{self, Sampler, Session, Weights};
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// A folder of `tests/vectors/models2`: 4 experts of which a token takes 2.
fn weights(folder: &str, device: &Device) -> Weights {
    Weights::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/models2").join(folder), device).unwrap()
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
            let (_, profile) = device.profile(|| x.expert_matmul(&w, &ids)?.eval()).unwrap();
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
        assert!(e.contains("want experts [T,k]"), "{e}");
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
