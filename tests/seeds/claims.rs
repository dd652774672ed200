//! What docs/seed-coverage.md and the guide claim beside the blocks: bytes that fusion and halves save, what the engine does not use.

use super::*;
use tensorlogic::eval::without_fusion;
use tensorlogic::{DType, TensorResult};

/// The bytes that the steps of a computation move at least.
fn bytes_moved(device: &Device, work: impl FnOnce() -> TensorResult<()>) -> TensorResult<u64> {
    let (_, profile) = device.profile(work)?;
    Ok(profile.rows().iter().map(|r| r.bytes).sum())
}

/// Eight operations, one after the other.
fn chain(x: &Tensor) -> TensorResult<Tensor> {
    x.mul(0.5)?.add(0.25)?.relu()?.square()?.neg()?.exp()?.sqrt()?.tanh()
}

#[test]
fn a_fused_chain_moves_its_ends_and_halves_move_half() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        for (dtype, element) in [(DType::F32, 4), (DType::F16, 2), (DType::BF16, 2)] {
            let count = 64 * 1024;
            let x = random(&[count], 0.4, &device).cast(dtype)?;
            x.eval()?;
            let one = (count * element) as u64;
            let case = format!("{dtype} on {}", device.name());
            // It reads x and writes the result.
            assert_eq!(bytes_moved(&device, || chain(&x)?.eval().map(|_| ()))?, 2 * one, "fused, {case}");
            // Each of the eight does.
            let apart = bytes_moved(&device, || without_fusion(|| chain(&x)?.eval().map(|_| ())))?;
            assert_eq!(apart, 16 * one, "unfused, {case}");
        }
    }
    Ok(())
}

#[test]
fn the_metal_crate_is_not_used() {
    let lock = include_str!("../../Cargo.lock");
    assert!(lock.contains("\nname = \"objc2-metal\"\n"), "wgpu's way to Metal");
    assert!(!lock.contains("\nname = \"metal\"\n"));
}
