//! Steps that fit the memory: a batch that is too large is computed in parts, whose gradients add up to the same.

use crate::error::{TensorError, TensorResult};
use crate::nn::Module;
use crate::optim::Optimizer;
use crate::tensor::Tensor;

/// In how many parts a batch is computed. When a step finds no memory, the number doubles and the step is made again from the same
/// examples: the same update, but for rounding and for dropout, which is drawn for each part.
///
/// ```
/// # use tensorlogic::nn::{Linear, Module, ModuleExt};
/// # use tensorlogic::optim::{AdamW, Optimizer};
/// # use tensorlogic::ops::loss::Reduction;
/// # use tensorlogic::train::AdaptiveBatch;
/// # use tensorlogic::{DType, Device, Rng, TensorResult};
/// # fn main() -> TensorResult<()> {
/// # let (device, mut rng) = (Device::cpu(), Rng::new(1));
/// # let model = Linear::new(4, 2, true, &mut rng, &device)?;
/// # let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
/// # let (x, y) = (rng.normal(&[8, 4], DType::F32, &device)?, rng.normal(&[8, 2], DType::F32, &device)?);
/// let mut adaptive = AdaptiveBatch::new();
/// let parts = adaptive.parts();
/// let loss = adaptive.step(&model, &mut optimizer, &[vec![x, y]], |b| model.forward(&b[0])?.mse_loss(&b[1], Reduction::Mean))?;
/// if adaptive.parts() > parts {
///     println!("out of memory: batches are now computed in {} parts", adaptive.parts());
/// }
/// # assert!(loss.item()? > 0.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveBatch {
    parts: usize,
}

impl Default for AdaptiveBatch {
    fn default() -> Self {
        AdaptiveBatch { parts: 1 }
    }
}

impl AdaptiveBatch {
    /// Whole batches, as long as there is memory.
    pub fn new() -> AdaptiveBatch {
        AdaptiveBatch::default()
    }

    /// So many parts to begin with.
    pub fn with_parts(parts: usize) -> AdaptiveBatch {
        AdaptiveBatch { parts: parts.max(1) }
    }

    /// How many parts a batch is computed in now.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// One update from the gradients of all `batches` together. `loss` gives the mean loss of the examples in the tensors it is given: those of a batch,
    /// or a part of their rows. The result is the mean over all batches, computed with the last part's plan.
    ///
    /// One batch in one part is one plan and one submit; otherwise each part is one, so that only one part's memory is needed at a time.
    ///
    /// # Errors
    /// If a single example does not fit the memory; what `loss` gives; the device's. Gradients that were there before count, and are gone after.
    pub fn step(
        &mut self,
        model: &dyn Module,
        optimizer: &mut Optimizer,
        batches: &[Vec<Tensor>],
        loss: impl Fn(&[Tensor]) -> TensorResult<Tensor>,
    ) -> TensorResult<Tensor> {
        let rows = |batch: &Vec<Tensor>| batch.first().filter(|t| t.rank() > 0).map_or(0, |t| t.shape()[0]);
        let most = batches.iter().map(rows).max().unwrap_or(0);
        if batches.is_empty() || batches.iter().any(|b| rows(b) == 0) {
            return Err(TensorError::Value("a step needs batches of at least one row".into()));
        }
        let all: usize = batches.iter().map(rows).sum();
        let random = model.random_state();
        loop {
            match self.attempt(optimizer, batches, all, &loss) {
                Err(TensorError::OutOfMemory { .. }) if self.parts < most => {
                    self.parts = (self.parts * 2).min(most);
                    optimizer.zero_grad()?;
                    model.load_random_state(&random)?;
                }
                other => return other,
            }
        }
    }

    fn attempt(
        &self,
        optimizer: &mut Optimizer,
        batches: &[Vec<Tensor>],
        all: usize,
        loss: &impl Fn(&[Tensor]) -> TensorResult<Tensor>,
    ) -> TensorResult<Tensor> {
        let mut total: Option<Tensor> = None;
        for batch in batches {
            let rows = batch[0].shape()[0];
            let size = rows.div_ceil(self.parts);
            let mut at = 0;
            while at < rows {
                if let Some(t) = &total {
                    // What came before is computed now, so that its memory is free for this part.
                    optimizer.eval_gradients(&[t])?;
                }
                let n = size.min(rows - at);
                let own;
                let part = if n < rows {
                    own = batch.iter().map(|t| t.narrow(0, at, n)).collect::<TensorResult<Vec<_>>>()?;
                    &own[..]
                } else {
                    &batch[..]
                };
                let mut l = loss(part)?;
                if n < all {
                    l = l.mul(n as f64 / all as f64)?;
                }
                optimizer.scale_loss(&l)?.backward()?;
                let l = l.detach();
                total = Some(match total {
                    Some(t) => t.add(&l)?,
                    None => l,
                });
                at += n;
            }
        }
        let total = total.ok_or_else(|| TensorError::Value("a step without a batch".into()))?;
        optimizer.step_with(&[&total])?;
        optimizer.zero_grad()?;
        Ok(total)
    }
}
