//! Steps made of lanes: gradients of numbered streams of batches, summed in an order that their numbers alone decide, on one rank or on several.

use super::adaptive::{AdaptiveBatch, rows_of};
use crate::device::Device;
use crate::distributed::sums::{BLOCK, Tree, reduce, slices, squares};
use crate::distributed::{Ranks, Vote};
use crate::error::{TensorError, TensorResult};
use crate::nn::Module;
use crate::optim::{Optimizer, Summed};
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::ops::Range;

/// Steps of a run that is defined by `lanes`. A lane is one stream of batches, as a run on one device is: its own examples, its own draws of dropout,
/// its own gradient. A step's gradient is the mean over lanes, whose sum follows a fixed tree over their numbers. So 1, 2 and 4 [`Ranks`] make
/// the same bits of 4 lanes, and a run goes on with another number of ranks. Each rank has equally many lanes, one after the other.
///
/// ```
/// # use tensorlogic::distributed::Ranks;
/// # use tensorlogic::nn::{Linear, Module, ModuleExt};
/// # use tensorlogic::optim::{AdamW, Optimizer};
/// # use tensorlogic::ops::loss::Reduction;
/// # use tensorlogic::train::{AdaptiveBatch, LaneStep};
/// # use tensorlogic::{DType, Device, Rng, TensorResult};
/// # fn main() -> TensorResult<()> {
/// # let (device, mut rng) = (Device::cpu(), Rng::new(1));
/// # let model = Linear::new(4, 2, true, &mut rng, &device)?;
/// # let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
/// # let mut batch = || Ok::<_, tensorlogic::TensorError>(vec![rng.normal(&[8, 4], DType::F32, &device)?, rng.normal(&[8, 2], DType::F32, &device)?]);
/// let mut lanes = LaneStep::new(&Ranks::alone(), 2)?;
/// let mut adaptive = AdaptiveBatch::new();
/// for step in 0..3 {
///     // One batch for each lane of this rank.
///     let batches = lanes.own().map(|_| Ok(vec![batch()?])).collect::<TensorResult<Vec<_>>>()?;
///     lanes.step(&mut adaptive, &model, &mut optimizer, &batches, 2 * step, |b| model.forward(&b[0])?.mse_loss(&b[1], Reduction::Mean))?;
/// }
/// # assert_eq!(optimizer.steps(), 3);
/// # Ok(())
/// # }
/// ```
pub struct LaneStep {
    ranks: Ranks,
    lanes: usize,
    /// Whether each rank keeps the states of its slice alone.
    sharded: bool,
    /// The parts of all ranks, in memory that is used again.
    received: Vec<f32>,
}

impl LaneStep {
    /// Steps of so many lanes, shared by these ranks.
    ///
    /// # Errors
    /// [`TensorError::Config`] where `lanes` or the number of ranks is no power of two, or there are more ranks than lanes.
    ///
    /// ```
    /// use tensorlogic::distributed::Ranks;
    /// use tensorlogic::train::LaneStep;
    ///
    /// assert_eq!(LaneStep::new(&Ranks::alone(), 4)?.own(), 0..4); // one rank has all lanes
    /// assert!(LaneStep::new(&Ranks::alone(), 3).is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn new(ranks: &Ranks, lanes: usize) -> TensorResult<LaneStep> {
        let size = ranks.size();
        if !lanes.is_power_of_two() || !size.is_power_of_two() || size > lanes {
            let m = format!("{lanes} lanes on {size} rank(s): both must be powers of two, with at least one lane for each rank");
            return Err(TensorError::Config(m));
        }
        Ok(LaneStep { ranks: ranks.clone(), lanes, sharded: false, received: Vec::new() })
    }

    /// Each rank keeps the optimizer's states of its own slice of the parameters alone (Rajbhandari et al., 2020: ZeRO, stage 1), updates that slice, and
    /// gets the others' new values. On the CPU the bits are those of whole states; a GPU's driver may round a slice's update differently. One rank keeps all of them.
    ///
    /// # Errors
    /// The device's.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::distributed::Ranks;
    /// use tensorlogic::nn::{Linear, ModuleExt};
    /// use tensorlogic::optim::{AdamW, Optimizer};
    /// use tensorlogic::train::LaneStep;
    ///
    /// let model = Linear::new(8, 16, false, &mut Rng::new(1), &Device::cpu())?;
    /// let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
    /// let lanes = LaneStep::new(&Ranks::alone(), 2)?.shard_states(&mut optimizer)?;
    /// assert_eq!(optimizer.state_bytes(), 2 * 8 * 16 * 4); // one rank keeps all; of several, each keeps its share
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn shard_states(mut self, optimizer: &mut Optimizer) -> TensorResult<LaneStep> {
        self.sharded = self.ranks.size() > 1;
        if self.sharded {
            let own = self.bounds(optimizer).iter().map(|b| self.part(b)).collect();
            optimizer.keep_slices(own)?;
        }
        Ok(self)
    }

    /// The lanes of this rank.
    pub fn own(&self) -> Range<usize> {
        let each = self.lanes / self.ranks.size();
        self.ranks.rank() * each..(self.ranks.rank() + 1) * each
    }

    /// Where the slices of each group begin, and the end.
    fn bounds(&self, optimizer: &Optimizer) -> Vec<Vec<usize>> {
        (0..optimizer.lengths().len()).map(|group| optimizer.slices(group, self.ranks.size(), slices)).collect()
    }

    /// This rank's slice.
    fn part(&self, bounds: &[usize]) -> Range<usize> {
        bounds[self.ranks.rank()]..bounds[self.ranks.rank() + 1]
    }

    /// One update from the batches of this rank's lanes, `batches[lane][n]`, equally many for each. `position` is the number of batches that all lanes
    /// had before: dropout draws by it, whoever computes a lane. `loss` gives the mean loss of a batch, or of a part of its rows. The result, on the
    /// CPU device, is the mean over all lanes.
    ///
    /// Where a rank has no memory, all make the step again in smaller parts, as [`AdaptiveBatch`] does.
    ///
    /// # Errors
    /// [`TensorError::Rank`] where another rank failed; else as [`AdaptiveBatch::step`]. All ranks end with an error then, and none waits for another.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::distributed::Ranks;
    /// use tensorlogic::nn::{Linear, ModuleExt};
    /// use tensorlogic::optim::{Optimizer, Sgd};
    /// use tensorlogic::train::{AdaptiveBatch, LaneStep};
    ///
    /// let model = Linear::normal(1, 1, false, 0.0, &mut Rng::new(1), &Device::cpu())?; // its weight is 0
    /// let mut optimizer = Optimizer::new(Sgd::default(), model.named_parameters(), 0.05)?;
    /// let lane = |x: Tensor| Ok::<_, TensorError>(vec![vec![x.clone(), x.mul(2.0)?]]); // one batch, for which 2 is the right weight
    /// let batches = [lane(Tensor::new(&[[1.0], [2.0]], &Device::cpu())?)?, lane(Tensor::new(&[[3.0], [4.0]], &Device::cpu())?)?];
    /// let loss_of = |b: &[Tensor]| model.forward(&b[0])?.mse_loss(&b[1], Reduction::Mean);
    /// let loss = LaneStep::new(&Ranks::alone(), 2)?.step(&mut AdaptiveBatch::new(), &model, &mut optimizer, &batches, 0, loss_of)?;
    /// assert!((loss.item()? - 30.0).abs() < 1e-4 && (model.weight.get().item()? - 1.5).abs() < 1e-5);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn step(
        &mut self,
        adaptive: &mut AdaptiveBatch,
        model: &dyn Module,
        optimizer: &mut Optimizer,
        batches: &[Vec<Vec<Tensor>>],
        position: u64,
        loss: impl Fn(&[Tensor]) -> TensorResult<Tensor>,
    ) -> TensorResult<Tensor> {
        let rows = batches.iter().map(|b| rows_of(b)).collect::<TensorResult<Vec<_>>>();
        let most = self.ranks.all_ok(rows)?.into_iter().max().unwrap_or(0);
        let mut attempt = adaptive.begin(most);
        let (sums, losses) = loop {
            let own = self.gradients(adaptive, model, optimizer, batches, position, &loss);
            let vote = match &own {
                Ok(_) => Vote::GoOn,
                Err(TensorError::OutOfMemory { .. }) if adaptive.can_shrink(most, &attempt) => Vote::Again,
                Err(_) => Vote::Fail,
            };
            if self.ranks.agree(vote)? != Vote::Again {
                break own?;
            }
            adaptive.shrink(most, &mut attempt);
            optimizer.zero_grad()?;
        };
        adaptive.succeeded(&attempt);
        let (summed, loss) = self.sum(optimizer, sums, losses)?;
        let updated = optimizer.step_from(summed);
        self.ranks.all_ok(updated)?;
        if self.sharded {
            self.gather_values(optimizer)?;
        }
        Tensor::from_vec(vec![loss], &[], &Device::cpu())
    }

    /// The sum of this rank's lanes for each group, and the loss of each lane.
    fn gradients(
        &self,
        adaptive: &AdaptiveBatch,
        model: &dyn Module,
        optimizer: &mut Optimizer,
        batches: &[Vec<Vec<Tensor>>],
        position: u64,
        loss: &impl Fn(&[Tensor]) -> TensorResult<Tensor>,
    ) -> TensorResult<(Vec<Vec<f32>>, Vec<f32>)> {
        let streams = model.random_state();
        let mut trees: Vec<Tree> = optimizer.lengths().iter().map(|_| Tree::default()).collect();
        let mut losses = Vec::new();
        for (lane, own) in self.own().zip(batches) {
            // Each part of a batch draws once from each stream.
            let draws = (position + (lane * own.len()) as u64).wrapping_mul(adaptive.parts() as u64) as u32;
            model.load_random_state(&streams.iter().map(|(name, s)| (name.clone(), (s.0, draws))).collect())?;
            let total = adaptive.accumulate(optimizer, own, 1.0 / self.lanes as f64, loss)?;
            let grads = optimizer.take_gradients(&[&total])?;
            let downloads = grads.iter().map(Tensor::download).collect::<TensorResult<Vec<_>>>()?;
            for (tree, values) in trees.iter_mut().zip(downloads) {
                tree.push(values.wait()?);
            }
            losses.push(total.item()? as f32);
        }
        let next = (position + (self.lanes * batches[0].len()) as u64).wrapping_mul(adaptive.parts() as u64) as u32;
        model.load_random_state(&streams.iter().map(|(name, s)| (name.clone(), (s.0, next))).collect())?;
        Ok((trees.into_iter().map(|t| t.finish().unwrap_or_default()).collect(), losses))
    }

    /// Sums over the ranks: what this rank's update needs of the gradient, and the mean loss.
    fn sum(&mut self, optimizer: &Optimizer, mut sums: Vec<Vec<f32>>, losses: Vec<f32>) -> TensorResult<(Summed, f32)> {
        let size = self.ranks.size();
        let even: Vec<Vec<usize>> = sums.iter().map(|s| slices(s.len(), size)).collect();
        // The losses, and the squares of each block by the rank that has its sum; the others' words are 0.
        let mut words = vec![0u64; self.lanes];
        words[self.own()].iter_mut().zip(&losses).for_each(|(w, l)| *w = u64::from(l.to_bits()));
        for (sum, even) in sums.iter_mut().zip(&even) {
            reduce(self.ranks.transport(), sum, even, &mut self.received)?;
            let own = self.part(even);
            let (first, all) = (words.len() + own.start / BLOCK, sum.len().div_ceil(BLOCK));
            words.resize(words.len() + all, 0);
            squares(&sum[own]).zip(&mut words[first..]).for_each(|(s, w)| *w = s.to_bits());
        }
        self.ranks.transport().max_words(&mut words)?;
        let (losses, blocks) = words.split_at(self.lanes);
        let squares = blocks.iter().map(|w| f64::from_bits(*w)).sum();
        let mut tree = Tree::default();
        losses.iter().for_each(|w| tree.push(vec![f32::from_bits(*w as u32)]));
        let bounds = self.bounds(optimizer);
        let mut grads = Vec::new();
        for ((mut sum, even), own) in sums.into_iter().zip(even).zip(bounds) {
            // Every rank decides alike: also one whose own part is there already.
            if size > 1 && !(self.sharded && own == even) {
                self.ranks.transport().gather(&mut sum, &even)?;
            }
            let own = if self.sharded { self.part(&own) } else { 0..sum.len() };
            grads.push(if own.len() == sum.len() { sum } else { sum[own].to_vec() });
        }
        Ok((Summed { grads, squares }, tree.finish().and_then(|l| l.first().copied()).unwrap_or(f32::NAN)))
    }

    /// Every rank's slice of the values becomes everybody's.
    fn gather_values(&self, optimizer: &mut Optimizer) -> TensorResult<()> {
        let own = optimizer.own_values().and_then(|all| all.into_iter().map(|d| d.wait::<f32>()).collect::<TensorResult<Vec<_>>>());
        let own = self.ranks.all_ok(own)?;
        let values = self.gather(optimizer, own)?;
        let set = optimizer.set_values(values);
        self.ranks.all_ok(set)
    }

    /// Whole buffers of the groups from each rank's slices.
    fn gather(&self, optimizer: &Optimizer, own: Vec<Vec<f32>>) -> TensorResult<Vec<Vec<f32>>> {
        let mut out = Vec::new();
        for ((own, bounds), len) in own.into_iter().zip(self.bounds(optimizer)).zip(optimizer.lengths()) {
            let mut whole = vec![0.0; len];
            whole[self.part(&bounds)].copy_from_slice(&own);
            self.ranks.transport().gather(&mut whole, &bounds)?;
            out.push(whole);
        }
        Ok(out)
    }

    /// What [`Optimizer::state`] gives, with the states of all ranks. All ranks call it together; the result is the same on each.
    ///
    /// # Errors
    /// Those of [`Optimizer::state`], and [`TensorError::Rank`] where another rank failed.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::distributed::Ranks;
    /// use tensorlogic::nn::{Linear, ModuleExt};
    /// use tensorlogic::optim::{AdamW, Optimizer};
    /// use tensorlogic::train::LaneStep;
    ///
    /// let model = Linear::new(4, 2, false, &mut Rng::new(1), &Device::cpu())?;
    /// let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
    /// let lanes = LaneStep::new(&Ranks::alone(), 2)?.shard_states(&mut optimizer)?;
    /// let (state, updates) = lanes.state(&optimizer)?;
    /// assert_eq!((state["state0.weight"].dims(), updates), (&[2, 4][..], 0)); // whole, however many ranks share it
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn state(&self, optimizer: &Optimizer) -> TensorResult<(BTreeMap<String, Tensor>, u64)> {
        if !self.sharded {
            return optimizer.state();
        }
        let counts = optimizer.state_counts();
        let mut states: Vec<Vec<Vec<f32>>> = counts.iter().map(|_| Vec::new()).collect();
        for k in 0..counts.iter().copied().max().unwrap_or(0) {
            // A group without this state takes part with zeros.
            let own = counts.iter().zip(self.bounds(optimizer)).enumerate();
            let own = own.map(|(g, (n, b))| if k < *n { optimizer.own_state(g, k) } else { Ok(vec![0.0; self.part(&b).len()]) });
            let own = self.ranks.all_ok(own.collect::<TensorResult<Vec<_>>>())?;
            for (g, whole) in self.gather(optimizer, own)?.into_iter().enumerate().filter(|(g, _)| k < counts[*g]) {
                states[g].push(whole);
            }
        }
        optimizer.state_with(states)
    }

    /// Compares the parameters of all ranks, in full precision, and names the first that differs from rank 0's with its rank. All ranks call it together.
    ///
    /// # Errors
    /// [`TensorError::Rank`] where a rank's parameters differ, on every rank; those of the device and of the transport.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::distributed::Ranks;
    /// use tensorlogic::nn::{Linear, ModuleExt};
    /// use tensorlogic::optim::{AdamW, Optimizer};
    /// use tensorlogic::train::LaneStep;
    ///
    /// let model = Linear::new(4, 2, false, &mut Rng::new(1), &Device::cpu())?;
    /// let optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
    /// let lanes = LaneStep::new(&Ranks::alone(), 2)?;
    /// assert!(lanes.check_parameters(&optimizer).is_ok()); // one rank agrees with itself; of several, all call it together
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn check_parameters(&self, optimizer: &Optimizer) -> TensorResult<()> {
        if self.ranks.size() == 1 {
            return Ok(());
        }
        let hashes = optimizer.values().and_then(|all| all.into_iter().map(|(name, t)| Ok((name, hash(&t.to_vec()?)))).collect());
        let (names, hashes): (Vec<String>, Vec<u64>) = self.ranks.all_ok::<Vec<_>>(hashes)?.into_iter().unzip();
        match self.ranks.differences(&hashes)?.first() {
            None => Ok(()),
            Some(&(rank, at)) => {
                let m =
                    format!("the parameter {} of rank {rank} differs from rank 0's: one of them computed or stored it wrongly", names[at]);
                Err(self.ranks.all_failed(m))
            }
        }
    }
}

/// A checksum of bits (Fowler, Noll and Vo: FNV-1a, by words).
fn hash(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |h, v| (h ^ u64::from(v.to_bits())).wrapping_mul(0x100_0000_01b3))
}
