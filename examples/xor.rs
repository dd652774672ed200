//! XOR, the smallest problem that needs a hidden layer: the training loop in one page.
//!
//! `cargo run --release --example xor`; `TL_DEVICE=cpu` (or `gpu`, `vulkan`, `metal`) chooses the device.

use tensorlogic::nn::{Act, Linear, Module, ModuleExt, Sequential};
use tensorlogic::optim::{AdamW, Optimizer};
use tensorlogic::{Device, Rng, Tensor, TensorResult, ops::Reduction};

/// Trains for `steps` steps; gives the last loss and the network's answers for 00, 01, 10 and 11.
pub fn run(device: &Device, steps: usize, mut log: impl FnMut(usize, f64)) -> TensorResult<(f64, Vec<f32>)> {
    let mut rng = Rng::new(1);
    let model = Sequential::new()
        .push(Linear::new(2, 8, true, &mut rng, device)?)
        .push(Act(Tensor::tanh))
        .push(Linear::new(8, 1, true, &mut rng, device)?)
        .push(Act(Tensor::sigmoid));
    let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 0.05)?;

    let x = Tensor::from_vec(vec![0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], &[4, 2], device)?;
    let y = Tensor::from_vec(vec![0f32, 1.0, 1.0, 0.0], &[4, 1], device)?;
    let mut last = 0.0;
    for step in 1..=steps {
        optimizer.zero_grad()?;
        let loss = model.forward(&x)?.binary_cross_entropy(&y, None, Reduction::Mean)?;
        loss.backward()?;
        optimizer.step()?; // forward, backward and update run here, as one plan
        if step % 50 == 0 || step == steps {
            last = loss.item()?;
            log(step, last);
        }
    }
    Ok((last, model.forward(&x)?.to_vec()?))
}

fn main() -> TensorResult<()> {
    let device = Device::auto()?;
    let (_, answers) = run(&device, 300, |step, loss| println!("step {step:>4}  loss {loss:.4}"))?;
    for (input, answer) in ["0 0", "0 1", "1 0", "1 1"].iter().zip(answers) {
        println!("{input} → {answer:.3}");
    }
    Ok(())
}
