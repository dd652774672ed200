//! Steps made of lanes: gradients of numbered streams of batches, summed in an order that their numbers alone decide, on one rank or on several.

use super::adaptive::{AdaptiveBatch, rows_of};
use super::buckets::{BucketSums, Buckets, Owners, UnderWay};
use super::lane_sums::{Destination, LaneSums, joined};
use super::stages::Stages;
use crate::device::Device;
use crate::distributed::sums::{BLOCK, Tree, slices, square_tensors, squares, windows, within};
use crate::distributed::{Ranks, Vote};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::{eval_all, frontier};
use crate::nn::Module;
use crate::optim::{Optimizer, Summed};
use crate::tensor::Tensor;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Steps of a run that is defined by `lanes`. A lane is one stream of batches, as a run on one device is: its own examples, its own draws of dropout,
/// its own gradient. A step's gradient is the mean over lanes, whose sum follows a fixed tree over their numbers. So 1, 2 and 4 [`Ranks`] make
/// the same bits of 4 lanes, and a run goes on with another number of ranks. Each rank has equally many lanes, one after the other.
///
/// Gradients are computed in up to seven pieces, the last layers' first, the same for any number of ranks. A rank sums its lanes on its device, where the
/// sums of one rank stay. Those of several go to the host with the last lane; a piece's way to the host, to the other ranks and back is hidden behind the
/// computing of the pieces after it ([`LaneStep::stages`] has its times).
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
    /// Values in an exchange at most.
    most: usize,
    /// Memory for what arrives, used again.
    memory: Vec<Vec<f32>>,
    stages: Stages,
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
        Ok(LaneStep { ranks: ranks.clone(), lanes, sharded: false, most: MAX_EXCHANGED, memory: Vec::new(), stages: Stages::default() })
    }

    /// Ranks exchange at most so many values at once, rounded down to 4,096, but at least as many; without this, 2²⁸. It changes no bit.
    pub fn exchange_at_most(mut self, values: usize) -> LaneStep {
        self.most = values;
        self
    }

    /// Each rank keeps the optimizer's states of its own slice of the parameters alone (Rajbhandari et al., 2020: ZeRO, stage 1), updates that slice, and
    /// gets the others' new values. The bits are those of whole states. One rank keeps all of them.
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

    /// What the steps so far took time for between ranks.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// How gradients pass from rank to rank: by shared memory, or by messages.
    ///
    /// ```
    /// use tensorlogic::distributed::Ranks;
    /// use tensorlogic::train::LaneStep;
    ///
    /// assert_eq!(LaneStep::new(&Ranks::alone(), 2)?.by(), "messages"); // of which one rank sends none
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn by(&self) -> &'static str {
        if !self.sharded && self.ranks.share_memory() { "shared memory" } else { "messages" }
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
        let most = self.ranks.all_ok(self.rows(batches))?;
        let mut attempt = adaptive.begin(most);
        let (pieces, lengths) = (optimizer.pieces(), optimizer.lengths());
        let owners = self.owners(optimizer);
        let ranks = self.ranks.clone();
        let (sums, losses) = loop {
            let mut to = match ranks.size() {
                1 => Destination::device(),
                _ => {
                    let buckets = Buckets::new(&ranks, &pieces, &lengths, &owners, self.most);
                    let window = if self.sharded { None } else { ranks.window()? };
                    Destination::ranks(match window {
                        Some(window) => UnderWay::begin_in(window, buckets, optimizer.device())?,
                        None => UnderWay::begin(buckets, optimizer.device(), !self.sharded, std::mem::take(&mut self.memory))?,
                    })
                }
            };
            let losses = self.gradients(adaptive, (model, optimizer), batches, position, &loss, (&pieces, &mut to));
            let own = match to {
                Destination::Device(sums) => losses.and_then(|losses| Ok((Sums::Device(in_groups(sums, optimizer)?), losses))),
                Destination::Ranks { under_way, .. } => {
                    let (sums, memory) = under_way.finish(&mut self.stages)?;
                    self.memory = memory;
                    losses.and_then(|losses| Ok((self.joined_sums(optimizer, sums?)?, losses)))
                }
            };
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

    /// The rows of the largest batch of this rank's lanes.
    fn rows(&self, batches: &[Vec<Vec<Tensor>>]) -> TensorResult<usize> {
        let (lanes, each) = (self.own().len(), batches.first().map_or(0, Vec::len));
        if batches.len() != lanes || batches.iter().any(|b| b.len() != each) {
            let lens = batches.iter().map(|b| b.len().to_string()).collect::<Vec<_>>().join(", ");
            let m = format!("a step needs equally many batches for each of this rank's {lanes} lanes, not [{lens}]");
            return Err(TensorError::Value(m));
        }
        batches.iter().try_fold(0, |most, b| Ok(rows_of(b)?.max(most)))
    }

    /// Who sums what of each group.
    fn owners(&self, optimizer: &Optimizer) -> Vec<Owners> {
        let of = |(bounds, len): (Vec<usize>, usize)| match self.sharded && bounds == slices(len, self.ranks.size()) {
            true => Owners::Slices(bounds),
            false => Owners::Even,
        };
        self.bounds(optimizer).into_iter().zip(optimizer.lengths()).map(of).collect()
    }

    /// Sums the gradients of this rank's lanes; exchanges begin with the last lane. Gives the loss of each lane.
    fn gradients(
        &self,
        adaptive: &AdaptiveBatch,
        (model, optimizer): (&dyn Module, &mut Optimizer),
        batches: &[Vec<Vec<Tensor>>],
        position: u64,
        loss: &impl Fn(&[Tensor]) -> TensorResult<Tensor>,
        (pieces, to): (&[Vec<usize>], &mut Destination),
    ) -> TensorResult<Vec<f32>> {
        let streams = model.random_state();
        let next = position.saturating_add((self.lanes * batches[0].len()) as u64);
        if !streams.is_empty() {
            draws_before(next, adaptive.parts())?;
        }
        let mut losses = Vec::new();
        let mut sums: Vec<LaneSums> = pieces.iter().map(|_| LaneSums::default()).collect();
        for (lane, own) in self.own().zip(batches) {
            let first = position + (lane * own.len()) as u64;
            draw_from(model, &streams, first, adaptive.parts())?;
            let total = adaptive.accumulate(optimizer, own, 1.0 / self.lanes as f64, loss)?;
            check_draws(model, first + own.len() as u64, adaptive.parts())?;
            let mut rest: VecDeque<_> = optimizer.take_gradients(pieces)?.into();
            let last = lane + 1 == self.own().end;
            for (piece, sums) in sums.iter_mut().enumerate() {
                let grads = rest.pop_front().unwrap_or_default();
                compute(&grads, &rest, (piece == 0).then_some(&total))?;
                sums.push(grads)?;
                if last {
                    to.push(piece, sums.take())?;
                }
            }
            losses.push(total);
        }
        draw_from(model, &streams, next, adaptive.parts())?;
        losses.iter().map(|total| Ok(total.item()? as f32)).collect()
    }

    /// The sums of all ranks, as an update takes them.
    fn joined_sums(&self, optimizer: &Optimizer, sums: BucketSums) -> TensorResult<Sums> {
        if self.sharded {
            return Ok(Sums::Host(sums));
        }
        let wanted: Vec<_> = optimizer.lengths().iter().map(|len| 0..*len).collect();
        let device = optimizer.device();
        join_groups(sums.parts(&wanted, &device)?, &device).map(Sums::Device)
    }

    /// What this rank's update needs of the gradient's sums, and the mean loss.
    fn sum(&mut self, optimizer: &Optimizer, sums: Sums, losses: Vec<f32>) -> TensorResult<(Summed, f32)> {
        match sums {
            Sums::Device(grads) => {
                // Every rank has all of the gradient: the sum of squares is the same on each.
                let of = |group: &Tensor| Ok(square_tensors(group)?.to_vec()?.into_iter().map(f64::from).sum::<f64>());
                let squares = if optimizer.needs_norm() { grads.iter().map(of).sum() } else { Ok(0.0) };
                let squares = self.ranks.all_ok(squares)?;
                let mut words = self.loss_words(&losses);
                self.ranks.transport().max_words(&mut words)?;
                Ok((Summed { grads, squares }, mean_loss(words.iter().map(|w| f32::from_bits(*w as u32)))))
            }
            Sums::Host(sums) => self.sum_of_ranks(optimizer, sums, losses),
        }
    }

    /// The losses of this rank's lanes; the others' words are 0.
    fn loss_words(&self, losses: &[f32]) -> Vec<u64> {
        let mut words = vec![0u64; self.lanes];
        words[self.own()].iter_mut().zip(losses).for_each(|(w, l)| *w = u64::from(l.to_bits()));
        words
    }

    /// The same from the sums that ranks have of parts of it.
    fn sum_of_ranks(&mut self, optimizer: &Optimizer, sums: BucketSums, losses: Vec<f32>) -> TensorResult<(Summed, f32)> {
        let lengths = optimizer.lengths();
        // The losses, and the squares of each block by the rank that has its sum; the others' words are 0.
        let mut words = self.loss_words(&losses);
        let mut firsts = Vec::new();
        for len in &lengths {
            firsts.push(words.len());
            words.resize(words.len() + len.div_ceil(BLOCK), 0);
        }
        let own = sums.own(self.ranks.rank()).filter(|_| optimizer.needs_norm());
        for (group, begin, own) in own {
            squares(own, &mut words[firsts[group] + begin / BLOCK..][..own.len().div_ceil(BLOCK)]);
        }
        self.ranks.transport().max_words(&mut words)?;
        let losses = &words[..self.lanes];
        // Group by group, as one rank does.
        let ends = firsts.iter().copied().skip(1).chain([words.len()]);
        let squares = firsts.iter().zip(ends).map(|(a, b)| words[*a..b].iter().map(|w| f64::from_bits(*w)).sum::<f64>()).sum();
        let loss = mean_loss(losses.iter().map(|w| f32::from_bits(*w as u32)));
        let wanted: Vec<Range<usize>> = self.bounds(optimizer).iter().map(|b| self.part(b)).collect();
        let device = optimizer.device();
        let grads = sums.parts(&wanted, &device).and_then(|parts| parts.iter().map(|parts| whole(parts, &device)).collect());
        let grads = self.ranks.all_ok(grads)?;
        Ok((Summed { grads, squares }, loss))
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
            for range in windows(0..len, self.most) {
                self.ranks.transport().gather(&mut whole[range.clone()], &within(&bounds, &range))?;
            }
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

/// Values in an exchange at most: MPI counts up to 2³¹ − 1, and what arrives takes as much memory again.
const MAX_EXCHANGED: usize = 1 << 28;

/// The gradient, summed over the lanes of all ranks.
enum Sums {
    /// Of each group, where one rank has all lanes.
    Device(Vec<Tensor>),
    /// Parts of it, by the ranks that summed them.
    Host(BucketSums),
}

/// A group's gradient from its parts, of which an empty one has none.
fn whole(parts: &[Tensor], device: &Device) -> TensorResult<Tensor> {
    joined(parts)?.map_or_else(|| Tensor::zeros(&[0], DType::F32, device), Ok)
}

/// The gradient of each group, computed, from pieces whose first has the end of each.
fn in_groups(pieces: Vec<Vec<Option<Tensor>>>, optimizer: &Optimizer) -> TensorResult<Vec<Tensor>> {
    let mut groups: Vec<Vec<Tensor>> = optimizer.lengths().iter().map(|_| Vec::new()).collect();
    for piece in pieces.into_iter().rev() {
        groups.iter_mut().zip(piece).for_each(|(group, part)| group.extend(part));
    }
    join_groups(groups, &optimizer.device())
}

/// The same from the parts of each group, in order.
fn join_groups(groups: Vec<Vec<Tensor>>, device: &Device) -> TensorResult<Vec<Tensor>> {
    // One group after the other, so that the pieces of each are free before the next is joined.
    let join = |parts: Vec<Tensor>| {
        let group = whole(&parts, device)?;
        group.eval()?;
        Ok(group)
    };
    groups.into_iter().map(join).collect()
}

/// The sum of all lanes' losses, each of which is divided by their number.
fn mean_loss(losses: impl IntoIterator<Item = f32>) -> f32 {
    let mut tree = Tree::default();
    losses.into_iter().for_each(|loss| tree.push(vec![loss]));
    tree.finish().and_then(|l| l.first().copied()).unwrap_or(f32::NAN)
}

/// Computes a piece of the gradient, with what the rest of it needs of the same work.
fn compute(grads: &[Option<Tensor>], rest: &VecDeque<Vec<Option<Tensor>>>, also: Option<&Tensor>) -> TensorResult<()> {
    let roots: Vec<&Tensor> = grads.iter().flatten().chain(also).collect();
    let later: Vec<&Tensor> = rest.iter().flatten().flatten().collect();
    let common = frontier(&roots, &later);
    eval_all(&roots.into_iter().chain(&common).collect::<Vec<_>>())
}

/// The streams of a model's dropout: seed and draws by name.
type Streams = BTreeMap<String, (u64, u32)>;

/// The draws that come before a batch of this number: each part of a batch draws once from each stream.
fn draws_before(batch: u64, parts: usize) -> TensorResult<u32> {
    batch.checked_mul(parts as u64).and_then(|n| u32::try_from(n).ok()).ok_or_else(|| {
        TensorError::Unsupported(format!(
            "dropout of batch {batch} in {parts} parts: a stream's 2³² draws are used up; begin a new run with another seed"
        ))
    })
}

/// The model's dropout draws from here on as a batch of this number does.
fn draw_from(model: &dyn Module, streams: &Streams, batch: u64, parts: usize) -> TensorResult<()> {
    if streams.is_empty() {
        return Ok(());
    }
    let draws = draws_before(batch, parts)?;
    model.load_random_state(&streams.iter().map(|(name, s)| (name.clone(), (s.0, draws))).collect())
}

/// A lane must not draw what the next one draws, whose first batch has this number.
fn check_draws(model: &dyn Module, next: u64, parts: usize) -> TensorResult<()> {
    let streams = model.random_state();
    if streams.is_empty() {
        return Ok(());
    }
    let end = draws_before(next, parts)?;
    match streams.iter().find(|(_, s)| s.1 > end) {
        None => Ok(()),
        Some((name, _)) => {
            Err(TensorError::Unsupported(format!("{name} draws more than once in a forward pass: lanes would draw the same numbers")))
        }
    }
}

/// A checksum of bits (Fowler, Noll and Vo: FNV-1a, by words).
fn hash(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |h, v| (h ^ u64::from(v.to_bits())).wrapping_mul(0x100_0000_01b3))
}
