//! The blocks of the benchmark log.

use super::*;
use tensorlogic::{DType, TensorResult};

/// What the two blocks of Rust share: the sum of each block of 256 elements, `[blocks]`.
fn stage1(x: &Tensor) -> TensorResult<Tensor> {
    let num_blocks = x.numel() / 256;
    x.reshape(&[num_blocks as isize, 256])?.sum(&[1], false)
}

/// Section 3, "実装": a reduction in two stages on the GPU. The log found it slower than its own; here `sum_all` needs one stage, and the two are
/// the same value.
#[test]
fn optimization_experiment() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let x = random(&[65_536], 0.3, &device).cast(DType::F32)?;
        x.eval()?;
        // Stage 1: GPU削減（ブロックごと）
        let stage1_buf = stage1(&x)?;
        // Stage 2: GPUで最終削減（元はCPU）
        let final_buf = stage1_buf.sum_all()?;

        let want: f64 = wide::<f32>(&x).iter().sum();
        check(&final_buf, &[want]);
        let one = x.sum_all()?;
        assert_eq!(dispatches(&one), 1, "{}", one.explain()?);
        check(&one, &[want]);
    }
    Ok(())
}

/// Section 4, "変更": the last stage on the CPU. Added up in f16 it loses what f32 keeps.
#[test]
fn optimization_revert() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let x = Tensor::full(0.51, &[65_536], DType::F16, &device)?;
        x.eval()?;
        let stage1_buf = stage1(&x)?;
        stage1_buf.eval()?;
        // Stage 2: Reduce blocks to final result (CPU for simplicity)
        let stage1_data = stage1_buf.to_vec_of::<f16>()?;
        let mut final_sum = f16::ZERO;
        for &val in &stage1_data {
            final_sum += val;
        }

        let want = f16::from_f64(0.51).to_f64() * 65_536.0;
        let lost = (final_sum.to_f64() - want).abs() / want;
        let kept = (x.sum_all()?.item()? - want).abs() / want;
        assert!(lost > 1e-3 && kept < 1e-6, "{lost:e} {kept:e} on {}", device.name());
    }
    Ok(())
}
