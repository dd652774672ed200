//! Steps that fit the memory: a batch that is too large is computed in parts, whose gradients add up to the same.

use crate::autograd::no_grad;
use crate::error::{TensorError, TensorResult};
use crate::nn::Module;
use crate::optim::Optimizer;
use crate::tensor::Tensor;

/// When to try larger parts again: after a number of good steps, which doubles whenever memory is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Growth {
    /// Good steps before the first trial; 0 for no trial.
    after: u32,
    /// Good steps before the next one.
    wait: u32,
    /// Good steps since the last change or trial.
    good: u32,
    /// How often memory was missing.
    failures: u64,
}

impl Growth {
    /// How many times as long as at first the longest wait is.
    const MAX_GROWTH: u32 = 8;

    const fn new(after: u32) -> Growth {
        Growth { after, wait: after, good: 0, failures: 0 }
    }
    fn is_due(&self) -> bool {
        self.after > 0 && self.good >= self.wait
    }
    fn succeeded(&mut self, trial: bool) {
        if trial {
            (self.good, self.wait) = (0, (self.wait / 2).max(self.after));
        } else {
            self.good = self.good.saturating_add(1);
        }
    }
    fn failed(&mut self) {
        self.failures += 1;
        (self.good, self.wait) = (0, self.wait.saturating_mul(2).min(self.after.saturating_mul(Growth::MAX_GROWTH)));
    }
}

/// In how many parts a batch is computed. When a step finds no memory, the number doubles and the step is made again from the same
/// examples: the same update, but for rounding and for dropout, which is drawn for each part. After a number of steps without that, half as many
/// parts are tried. Where they find no memory either, the step is made as before, and the wait until the next trial doubles, up to eight times
/// the first: memory that is free again is used, and the number does not swing.
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
    /// Rows of a part, at least and at most.
    rows: [usize; 2],
    growth: Growth,
}

impl Default for AdaptiveBatch {
    fn default() -> Self {
        AdaptiveBatch { parts: 1, rows: [1, usize::MAX], growth: Growth::new(AdaptiveBatch::GROW_AFTER) }
    }
}

impl AdaptiveBatch {
    /// Good steps before larger parts are tried for the first time.
    pub const GROW_AFTER: u32 = 16;

    /// Whole batches, as long as there is memory.
    pub fn new() -> AdaptiveBatch {
        AdaptiveBatch::default()
    }

    /// So many parts to begin with.
    pub fn with_parts(parts: usize) -> AdaptiveBatch {
        AdaptiveBatch { parts: parts.max(1), ..AdaptiveBatch::default() }
    }

    /// Bounds of a part's rows: never more than `most`, and an error where `least` rows find no memory. Both are at least 1.
    pub fn with_rows(mut self, least: usize, most: usize) -> AdaptiveBatch {
        self.rows = [least.max(1), most.max(least).max(1)];
        self
    }

    /// Tries larger parts after so many good steps; 0 never does.
    pub fn grow_after(mut self, steps: u32) -> AdaptiveBatch {
        self.growth = Growth { failures: self.growth.failures, ..Growth::new(steps) };
        self
    }

    /// How many parts a batch is computed in now, unless the bound of a part's rows asks for more.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// How often a step, or a trial of larger parts, found no memory.
    pub fn failures(&self) -> u64 {
        self.growth.failures
    }

    /// Rows of a part of a batch of `rows`.
    fn size(&self, rows: usize) -> usize {
        rows.div_ceil(self.parts).min(self.rows[1])
    }

    /// One update from the gradients of all `batches` together. `loss` gives the mean loss of the examples in the tensors it is given: those of a batch,
    /// or a part of their rows. The result is the mean over all batches, computed with the last part's plan.
    ///
    /// One batch in one part is one plan and one submit; otherwise each part is one, so that only one part's memory is needed at a time.
    ///
    /// # Errors
    /// If a part of the fewest rows does not fit the memory; what `loss` gives; the device's. Gradients that were there before count, and are gone after.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{Linear, ModuleExt};
    /// use tensorlogic::optim::{Optimizer, Sgd};
    /// use tensorlogic::train::AdaptiveBatch;
    ///
    /// let model = Linear::normal(1, 1, false, 0.0, &mut Rng::new(1), &Device::cpu())?; // its weight is 0
    /// let mut optimizer = Optimizer::new(Sgd::default(), model.named_parameters(), 0.05)?;
    /// let x = Tensor::new(&[[1.0], [2.0], [3.0], [4.0]], &Device::cpu())?;
    /// let batch = vec![x.clone(), x.mul(2.0)?];
    /// let loss_of = |b: &[Tensor]| model.forward(&b[0])?.mse_loss(&b[1], Reduction::Mean);
    /// // In two parts of two rows: the update is that of the whole batch.
    /// let loss = AdaptiveBatch::with_parts(2).step(&model, &mut optimizer, &[batch], loss_of)?;
    /// assert!((loss.item()? - 30.0).abs() < 1e-4 && (model.weight.get().item()? - 1.5).abs() < 1e-5);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn step(
        &mut self,
        model: &dyn Module,
        optimizer: &mut Optimizer,
        batches: &[Vec<Tensor>],
        loss: impl Fn(&[Tensor]) -> TensorResult<Tensor>,
    ) -> TensorResult<Tensor> {
        let most = rows_of(batches)?;
        let random = model.random_state();
        let mut attempt = self.begin(most);
        loop {
            match self.attempt(optimizer, batches, &loss) {
                Err(TensorError::OutOfMemory { .. }) if self.can_shrink(most, &attempt) => {
                    self.shrink(most, &mut attempt);
                    optimizer.zero_grad()?;
                    model.load_random_state(&random)?;
                }
                Ok(loss) => {
                    self.succeeded(&attempt);
                    return Ok(loss);
                }
                other => return other,
            }
        }
    }

    /// A step begins whose largest batch has `most` rows: larger parts are tried where that is due.
    pub(super) fn begin(&mut self, most: usize) -> Attempt {
        let before = *self;
        let larger = AdaptiveBatch { parts: self.parts.div_ceil(2), ..*self };
        let trial = self.growth.is_due() && larger.size(most) > self.size(most);
        if trial {
            *self = larger;
        }
        Attempt { before, trial }
    }

    /// Whether a step without enough memory can be made in smaller parts.
    pub(super) fn can_shrink(&self, most: usize, attempt: &Attempt) -> bool {
        attempt.trial || self.size(most) > self.rows[0]
    }

    /// There was no memory: the step is made again in smaller parts.
    pub(super) fn shrink(&mut self, most: usize, attempt: &mut Attempt) {
        self.growth.failed();
        self.parts = if attempt.trial { attempt.before.parts } else { most.div_ceil(self.size(most)).saturating_mul(2).min(most) };
        attempt.trial = false;
        crate::events::batch_split(self.parts);
    }

    /// The step is done.
    pub(super) fn succeeded(&mut self, attempt: &Attempt) {
        self.growth.succeeded(attempt.trial);
    }

    fn attempt(
        &self,
        optimizer: &mut Optimizer,
        batches: &[Vec<Tensor>],
        loss: &impl Fn(&[Tensor]) -> TensorResult<Tensor>,
    ) -> TensorResult<Tensor> {
        let total = self.accumulate(optimizer, batches, 1.0, loss)?;
        optimizer.step_with(&[&total])?;
        optimizer.zero_grad()?;
        Ok(total)
    }

    /// Collects the gradients of all batches, times `share`, part by part. The last part's are not computed yet. The result is the mean loss, times `share`.
    pub(super) fn accumulate(
        &self,
        optimizer: &mut Optimizer,
        batches: &[Vec<Tensor>],
        share: f64,
        loss: &impl Fn(&[Tensor]) -> TensorResult<Tensor>,
    ) -> TensorResult<Tensor> {
        let all: usize = batches.iter().map(|b| b[0].shape()[0]).sum();
        let mut total: Option<Tensor> = None;
        for batch in batches {
            let rows = batch[0].shape()[0];
            let size = self.size(rows);
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
                let weight = n as f64 / all as f64 * share;
                if weight < 1.0 {
                    l = l.mul(weight)?;
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
        total.ok_or_else(|| TensorError::Value("a step without a batch".into()))
    }
}

/// A step under way: what was before it, and whether larger parts are on trial.
pub(super) struct Attempt {
    before: AdaptiveBatch,
    trial: bool,
}

/// The rows of the largest batch.
pub(super) fn rows_of(batches: &[Vec<Tensor>]) -> TensorResult<usize> {
    let rows = |batch: &Vec<Tensor>| batch.first().filter(|t| t.rank() > 0).map_or(0, |t| t.shape()[0]);
    if batches.is_empty() || batches.iter().any(|b| rows(b) == 0) {
        return Err(TensorError::Value("a step needs batches of at least one row".into()));
    }
    Ok(batches.iter().map(rows).max().unwrap_or(0))
}

/// How many rows of an input are computed at a time without gradients, for inference over more examples than fit the memory. Rows halve where
/// memory is missing, and the same rows are computed again; after some good parts they double, with the waits of [`AdaptiveBatch`].
///
/// ```
/// # use tensorlogic::train::AdaptiveRows;
/// # use tensorlogic::{DType, Device, Rng, TensorResult};
/// # fn main() -> TensorResult<()> {
/// # let (device, mut rng) = (Device::cpu(), Rng::new(1));
/// let (x, w) = (rng.normal(&[300, 16], DType::F32, &device)?, rng.normal(&[16, 4], DType::F32, &device)?);
/// let mut rows = AdaptiveRows::new(32, 1, 128)?;
/// let y = rows.run(&[x], |part| part[0].matmul(&w)?.relu())?;
/// assert_eq!(y.dims(), [300, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveRows {
    rows: usize,
    bounds: [usize; 2],
    growth: Growth,
}

impl AdaptiveRows {
    /// Good parts before more rows are tried for the first time.
    pub const GROW_AFTER: u32 = 4;

    /// `rows` at a time to begin with, never fewer than `least` nor more than `most`.
    ///
    /// # Errors
    /// When not 1 ≤ `least` ≤ `rows` ≤ `most`.
    ///
    /// ```
    /// use tensorlogic::train::AdaptiveRows;
    ///
    /// assert_eq!(AdaptiveRows::new(32, 1, 128)?.rows(), 32);
    /// assert!(AdaptiveRows::new(32, 64, 128).is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn new(rows: usize, least: usize, most: usize) -> TensorResult<AdaptiveRows> {
        if least == 0 || least > rows || rows > most {
            return Err(TensorError::Config(format!("{rows} rows at a time must lie between 1 ≤ {least} and {most}")));
        }
        Ok(AdaptiveRows { rows, bounds: [least, most], growth: Growth::new(AdaptiveRows::GROW_AFTER) })
    }

    /// Tries twice as many rows after so many good parts; 0 never does.
    pub fn grow_after(mut self, parts: u32) -> AdaptiveRows {
        self.growth = Growth { failures: self.growth.failures, ..Growth::new(parts) };
        self
    }

    /// Rows that are computed at a time now.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How often a part found no memory.
    pub fn failures(&self) -> u64 {
        self.growth.failures
    }

    /// `f` of all rows of `inputs`, which have the same number of them, in parts; the results are joined along the first dimension. Each part is evaluated
    /// before the next begins, and no gradients are recorded.
    ///
    /// # Errors
    /// When the inputs have no or different numbers of rows, or the fewest rows do not fit the memory; what `f` gives; the device's.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::train::AdaptiveRows;
    ///
    /// let x = Tensor::arange(0.0, 5.0, 1.0, DType::F32, &Device::cpu())?;
    /// let sizes = std::cell::RefCell::new(Vec::new());
    /// let y = AdaptiveRows::new(2, 1, 2)?.run(&[x], |part| {
    ///     sizes.borrow_mut().push(part[0].numel());
    ///     part[0].square()
    /// })?;
    /// assert_eq!(y.to_vec()?, [0.0, 1.0, 4.0, 9.0, 16.0]);
    /// assert_eq!(sizes.into_inner(), [2, 2, 1]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn run(&mut self, inputs: &[Tensor], f: impl Fn(&[Tensor]) -> TensorResult<Tensor>) -> TensorResult<Tensor> {
        let all = inputs.first().filter(|t| t.rank() > 0).map_or(0, |t| t.shape()[0]);
        if all == 0 || inputs.iter().any(|t| t.rank() == 0 || t.shape()[0] != all) {
            let shapes = inputs.iter().map(|t| t.shape().to_string()).collect::<Vec<_>>().join(", ");
            return Err(TensorError::Value(format!("inputs need one number of rows, at least 1; theirs are {shapes}")));
        }
        let (mut results, mut at) = (Vec::new(), 0);
        while at < all {
            let before = self.rows;
            if self.growth.is_due() && before < self.bounds[1] {
                self.rows = before.saturating_mul(2).min(self.bounds[1]);
            }
            let n = self.rows.min(all - at);
            // A trial is one where more rows are there than were computed before.
            let trial = n > before;
            let result = no_grad(|| {
                let part = inputs.iter().map(|t| t.narrow(0, at, n)).collect::<TensorResult<Vec<_>>>()?;
                let y = f(&part)?;
                y.eval()?;
                Ok(y)
            });
            match result {
                Ok(y) => {
                    if !trial {
                        self.rows = before;
                    }
                    self.growth.succeeded(trial);
                    results.push(y);
                    at += n;
                }
                Err(TensorError::OutOfMemory { .. }) if trial || n > self.bounds[0] => {
                    self.growth.failed();
                    self.rows = if trial { before } else { n.div_ceil(2).max(self.bounds[0]) };
                }
                Err(e) => return Err(e),
            }
        }
        if results.len() == 1 { Ok(results.swap_remove(0)) } else { Tensor::cat(&results, 0) }
    }
}
