//! Inference in batches: the same inputs through the same network one at a time, as one evaluation, and as one batch.
//!
//! `cargo run --release --example batch_inference`; `TL_DEVICE=cpu` (or `gpu`, `vulkan`, `metal`) chooses the device.

use std::time::Instant;
use tensorlogic::eval::eval_all;
use tensorlogic::ops::Activation;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// Inputs of one batch.
const BATCH: usize = 64;
/// Sizes of the layers.
const SIZES: [usize; 4] = [784, 512, 256, 10];

/// A network of three layers with random weights.
struct Model {
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
}

impl Model {
    fn new(rng: &mut Rng, device: &Device) -> TensorResult<Model> {
        let mut weight = |from: usize, to: usize| {
            let w = rng.normal(&[from, to], DType::F32, device)?.mul(1.0 / (from as f64).sqrt())?.cast(device.default_float())?;
            w.eval()?;
            Ok(w)
        };
        Ok(Model { w1: weight(SIZES[0], SIZES[1])?, w2: weight(SIZES[1], SIZES[2])?, w3: weight(SIZES[2], SIZES[3])? })
    }

    /// `x` `[N, 784]` to `[N, 10]` in three dispatches, whatever N is.
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let h1 = x.matmul_with_activation(&self.w1, Activation::ReLU)?;
        let h2 = h1.matmul_with_activation(&self.w2, Activation::GeluTanh)?;
        h2.matmul_with_activation(&self.w3, Activation::None)
    }
}

/// What one way of running costs, and what it gives.
pub struct Way {
    /// What it does.
    pub name: &'static str,
    /// Median seconds for all inputs, answers on the host.
    pub seconds: f64,
    /// The answers, one row of 10 per input.
    pub answers: Vec<f32>,
}

/// Runs every way `rounds` times after a warm-up.
pub fn run(device: &Device, rounds: usize) -> TensorResult<Vec<Way>> {
    let mut rng = Rng::new(1);
    let model = Model::new(&mut rng, device)?;
    let inputs: Vec<Tensor> =
        (0..BATCH).map(|_| rng.normal(&[1, SIZES[0]], device.default_float(), device)).collect::<TensorResult<_>>()?;
    eval_all(&inputs.iter().collect::<Vec<_>>())?;

    let one_at_a_time = || {
        let mut answers = Vec::new();
        for input in &inputs {
            answers.extend(model.forward(input)?.to_vec()?);
        }
        Ok(answers)
    };
    let one_evaluation = || {
        let outputs = inputs.iter().map(|input| model.forward(input)).collect::<TensorResult<Vec<_>>>()?;
        eval_all(&outputs.iter().collect::<Vec<_>>())?;
        let mut answers = Vec::new();
        for output in &outputs {
            answers.extend(output.to_vec()?);
        }
        Ok(answers)
    };
    let one_batch = || {
        let batch = Tensor::cat(&inputs, 0)?;
        let mut answers = Vec::new();
        let batch_output = model.forward(&batch)?;
        batch_output.eval()?;
        for output in batch_output.split(0)? {
            answers.extend(output.to_vec()?);
        }
        Ok(answers)
    };
    let one_read = || model.forward(&Tensor::cat(&inputs, 0)?)?.to_vec();
    type Run<'a> = &'a dyn Fn() -> TensorResult<Vec<f32>>;
    let ways: [(&'static str, Run); 4] = [
        ("one at a time", &one_at_a_time),
        ("one evaluation of all", &one_evaluation),
        ("one batch, read one by one", &one_batch),
        ("one batch, one read", &one_read),
    ];
    let mut times = vec![Vec::new(); ways.len()];
    let mut answers = vec![Vec::new(); ways.len()];
    // In turn, so that a change of the machine's clock meets all of them.
    for round in 0..rounds + 2 {
        for (w, (_, way)) in ways.iter().enumerate() {
            let start = Instant::now();
            answers[w] = way()?;
            if round >= 2 {
                times[w].push(start.elapsed().as_secs_f64());
            }
        }
    }
    let median = |t: &mut Vec<f64>| {
        t.sort_by(f64::total_cmp);
        t[t.len() / 2]
    };
    Ok(ways.iter().zip(times).zip(answers).map(|(((name, _), mut t), answers)| Way { name, seconds: median(&mut t), answers }).collect())
}

fn main() -> TensorResult<()> {
    let device = Device::auto()?;
    let rounds = 30;
    println!("{BATCH} inputs through {SIZES:?} in {} on {}, median of {rounds} rounds", device.default_float(), device.name());
    let ways = run(&device, rounds)?;
    for way in &ways {
        let difference = way.answers.iter().zip(&ways[0].answers).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        println!(
            "{:<28} {:>9.3} ms  {:>9.0} inputs/s  {:>6.2}×  largest difference {difference:.1e}",
            way.name,
            way.seconds * 1e3,
            BATCH as f64 / way.seconds,
            ways[0].seconds / way.seconds
        );
    }
    Ok(())
}
