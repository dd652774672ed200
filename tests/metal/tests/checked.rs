//! With `TL_GPU_CHECKED=1` a failed command buffer tells the one step that failed. Alone in its program: it sets a variable.

use fake_metal::metal::{COUNTS, FAULTS};
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::tuning::Tuning;
use tensorlogic::{Device, Tensor, TensorError, TensorResult};

#[test]
fn the_step_that_fails_is_told_alone() {
    // SAFETY: no other thread of this program reads the environment now.
    unsafe { std::env::set_var("TL_GPU_CHECKED", "1") };
    let open = || {
        let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
        device.set_adaptive(false);
        device
    };
    let chain = |d: &Device| -> TensorResult<Vec<f32>> {
        let x = Tensor::from_vec((0..24 * 24).map(|n| (n % 11) as f32 / 11.0).collect(), &[24, 24], d)?;
        x.matmul(&x)?.softmax(-1)?.cumsum(-1)?.to_vec()
    };
    let device = open();
    let before = [&COUNTS.encoders, &COUNTS.dispatches].map(|c| c.load(SeqCst));
    let right = chain(&device).unwrap();
    let after = [&COUNTS.encoders, &COUNTS.dispatches].map(|c| c.load(SeqCst));
    assert_eq!(after[0] - before[0], after[1] - before[1], "an encoder for each step");
    assert_eq!(right.len(), 24 * 24);
    for (n, step) in ["matmul", "softmax"].into_iter().enumerate() {
        let device = open();
        FAULTS.fail_encoder.store(n, SeqCst);
        FAULTS.fail_after.store(0, SeqCst);
        match chain(&device) {
            Err(TensorError::DeviceLost(why)) => assert!(why.contains(&format!("failed ({step}): as asked")), "encoder {n}: {why}"),
            other => panic!("{other:?}"),
        }
    }
}
