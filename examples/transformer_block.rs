//! The transformer block of a guide for Apple's GPUs: a width that is a multiple of 64, attention with dropout 0.1, a feed-forward part with GELU, in
//! f16 where the device computes in it. It learns to copy the vector of each sequence's first position to all of them.
//!
//! `cargo run --release --example transformer_block`.

use tensorlogic::nn::{EncoderBlock, EncoderConfig, Module, ModuleExt, align};
use tensorlogic::ops::{Activation, Reduction};
use tensorlogic::optim::{AdamW, Optimizer};
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// The guide's `AppleSiliconOptimizedTransformer`.
struct OptimizedTransformer {
    hidden_size: usize,
    block: EncoderBlock,
}

impl OptimizedTransformer {
    fn new(hidden_size: usize, num_heads: usize, rng: &mut Rng, device: &Device) -> TensorResult<OptimizedTransformer> {
        let hidden_size = align(hidden_size, 64);
        let config = EncoderConfig {
            activation: Activation::Gelu,
            dropout: 0.1,
            norm_first: true,
            ..EncoderConfig::new(hidden_size, num_heads, 4 * hidden_size)
        };
        Ok(OptimizedTransformer { hidden_size, block: EncoderBlock::new(config, rng, device)? })
    }
}

impl Module for OptimizedTransformer {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        self.block.forward(x)
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        vec![("block".into(), &self.block)]
    }
}

/// Trains for so many steps; the loss without dropout before and after.
fn train(model: &OptimizedTransformer, steps: usize, rng: &mut Rng, device: &Device) -> TensorResult<[f64; 2]> {
    let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 2e-3)?;
    if device.default_float() == DType::F16 {
        optimizer = optimizer.mixed_precision(DType::F16)?;
    }
    let mut batch = || rng.normal(&[8, 16, model.hidden_size], DType::F32, device);
    let loss = |x: &Tensor| {
        let y = model.forward(&x.cast(device.default_float())?)?.cast(DType::F32)?;
        y.mse_loss(&x.narrow(1, 0, 1)?.broadcast_to(x.dims())?, Reduction::Mean)
    };
    let test = batch()?;
    let evaluate = || {
        model.eval();
        let value = tensorlogic::autograd::no_grad(|| loss(&test))?.item();
        model.train();
        value
    };
    let before = evaluate()?;
    for _ in 0..steps {
        optimizer.scale_loss(&loss(&batch()?)?)?.backward()?;
        optimizer.step()?;
        optimizer.zero_grad()?;
    }
    Ok([before, evaluate()?])
}

fn main() -> TensorResult<()> {
    let device = Device::auto()?;
    let mut rng = Rng::new(7);
    let model = OptimizedTransformer::new(100, 4, &mut rng, &device)?;
    println!("{}: width 100 becomes {}, {} parameters", device.name(), model.hidden_size, model.parameter_count());
    let [before, after] = train(&model, 100, &mut rng, &device)?;
    println!("loss {before:.3} before and {after:.3} after 100 steps");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_learns() {
        let (device, mut rng) = (Device::cpu(), Rng::new(7));
        let model = OptimizedTransformer::new(20, 4, &mut rng, &device).unwrap();
        assert_eq!(model.hidden_size, 64);
        let [before, after] = train(&model, 60, &mut rng, &device).unwrap();
        assert!(after < 0.8 * before, "{before} {after}");
    }
}
