//! Asks a running program what is wrong with it: two loops with one problem each, and the same work without.
//!
//! `cargo run --example diagnose`; the same of any program: `tl doctor --while COMMAND`.

use tensorlogic::leaks::LeakDetector;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// Steps of each loop: rates are known after 96.
const STEPS: usize = 200;

/// Reads a value in the middle of each step: what comes behind the read is an evaluation of its own, and waits for it.
pub fn reads_in_the_middle(device: &Device) -> TensorResult<f32> {
    let mut x = Tensor::ones(&[256], DType::F32, device)?;
    for step in 0..STEPS {
        x = x.mul(0.5)?.add(step as f64)?;
        let largest = x.to_vec()?.into_iter().fold(f32::MIN, f32::max);
        if largest.is_nan() {
            break;
        }
        x = x.tanh()?;
    }
    x.sum_all()?.item().map(|v| v as f32)
}

/// Keeps every step's loss as a tensor.
pub fn keeps_tensors(device: &Device) -> TensorResult<f32> {
    let x = Rng::new(1).normal(&[128, 128], DType::F32, device)?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let loss = x.mul(step as f64)?.square()?;
        loss.eval()?;
        losses.push(loss);
    }
    losses[STEPS - 1].sum_all()?.item().map(|v| v as f32)
}

/// A step's result stays on the device until the last one is read; weights and inputs are of the device's own float type.
pub fn as_it_should_be(device: &Device) -> TensorResult<f32> {
    let mut rng = Rng::new(1);
    let float = device.default_float();
    let (x, w) = (rng.normal(&[64, 512], float, device)?, rng.normal(&[512, 512], float, device)?);
    tensorlogic::eval::eval_all(&[&x, &w])?;
    let mut y = x.clone();
    for step in 0..STEPS {
        y = x.matmul(&w)?.mul(1e-3)?.add(&y)?.add(step as f64 * 1e-6)?.tanh()?;
        y.eval()?;
    }
    y.cast(DType::F32)?.sum_all()?.item().map(|v| v as f32)
}

#[allow(dead_code)] // The tests run the loops by themselves.
fn main() -> TensorResult<()> {
    let device = Device::auto()?;
    // Rates are over the last evaluations: each loop is asked before the next one runs.
    for (name, run) in [("reads in the middle", reads_in_the_middle as fn(&Device) -> _), ("keeps tensors", keeps_tensors)] {
        run(&device)?;
        println!("{name}:");
        for finding in device.diagnose()? {
            println!("  {finding}");
        }
    }

    let mut detector = LeakDetector::new(&device).tolerance(64 << 10);
    detector.baseline();
    let mut kept = Vec::new();
    for _ in 0..3 {
        let x = Tensor::ones(&[128, 128], DType::F32, &device)?.exp()?;
        x.eval()?;
        kept.push(x);
    }
    if let Some(leak) = detector.check() {
        println!("{leak}");
    }
    drop((detector, kept));

    let (sum, outlived) = device.scope(|_| as_it_should_be(&device))?;
    println!("as it should be: sum {sum:.1}, {} lines hold memory behind it", outlived.len());
    println!("{}", device.metrics().to_prometheus().lines().filter(|l| l.contains("evaluations_total{")).collect::<String>());
    Ok(())
}
