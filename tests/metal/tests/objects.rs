//! Every object of Metal that a device makes is released with it. Alone in its program: objects are counted for the process.

use std::time::{Duration, Instant};
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

fn work() -> TensorResult<()> {
    let device = Device::open_with_tuning("metal", Tuning::apple())?;
    device.set_adaptive(false);
    let large = Rng::new(1).normal(&[300, 200], DType::F32, &Device::cpu())?.to_vec()?;
    let a = Tensor::from_vec(large, &[300, 200], &device)?;
    let b = Tensor::from_vec(vec![0.5f32; 200 * 10], &[200, 10], &device)?;
    for _ in 0..3 {
        a.matmul(&b)?.softmax(-1)?.sum(&[0], false)?.to_vec()?;
    }
    a.relu()?.eval()?;
    Ok(())
}

#[test]
fn nothing_is_left() {
    let before = fake_metal::live();
    work().unwrap();
    // The thread of a queue lets go of a command buffer after its handlers.
    let start = Instant::now();
    while fake_metal::live() > before && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(fake_metal::live(), before, "objects that nobody released");
}
