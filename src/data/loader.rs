//! Batches of a dataset in a seeded order, read ahead by a thread, put into device memory that is used again.

use super::host::{HostBatch, Ring, Worker, check};
use super::{Dataset, Field};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The order of examples. It depends only on seed and position, so that a run can be resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// In the order of the dataset.
    Sequential,
    /// Every example once an epoch, in another order each time.
    Shuffled,
    /// Any example at any time, as nanoGPT draws its windows.
    Random,
}

/// Settings of a [`DataLoader`].
#[derive(Clone, Copy, Debug)]
pub struct LoaderOptions {
    /// Examples of a batch.
    pub batch: usize,
    /// Their order.
    pub order: Order,
    /// The seed of the order.
    pub seed: u64,
    /// Whether examples at an epoch's end that fill no batch are left out; else the last batch is smaller.
    pub drop_last: bool,
    /// Batches that a thread reads ahead; 0 reads when asked.
    pub prefetch: usize,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        LoaderOptions { batch: 1, order: Order::Shuffled, seed: 0, drop_last: true, prefetch: 2 }
    }
}

/// A loader's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct LoaderState {
    /// The seed of the order.
    pub seed: u64,
    /// Batches given so far; those of all readers where they are shared.
    pub position: u64,
}

/// Which batches of all this loader gives: of each `stride`, the `run` that begin at `first`.
#[derive(Clone, Copy)]
struct Share {
    first: u64,
    run: u64,
    stride: u64,
}

impl Share {
    const WHOLE: Share = Share { first: 0, run: 1, stride: 1 };

    /// The place among all batches of this loader's batch number `n`.
    fn place(&self, n: u64) -> u64 {
        n / self.run * self.stride + self.first + n % self.run
    }
    /// Batches of all before this loader's batch number `n`: whole strides, where `n` is at the beginning of one.
    fn before(&self, n: u64) -> u64 {
        if n % self.run == 0 { n / self.run * self.stride } else { self.place(n) }
    }
    /// How many batches this loader gave when all of them were `position`.
    fn given(&self, position: u64) -> u64 {
        position / self.stride * self.run + (position % self.stride).saturating_sub(self.first).min(self.run)
    }
}

/// State of the reading thread.
#[derive(Clone)]
struct Plan {
    dataset: Arc<dyn Dataset>,
    fields: Arc<Vec<Field>>,
    options: LoaderOptions,
    len: usize,
    share: Share,
}

/// Batches of a dataset, without end: one tensor `[batch, …]` for each field.
///
/// Their memory is used again for the batch after the next one, unless somebody still holds a tensor of it.
///
/// ```
/// # use tensorlogic::{Device, TensorResult};
/// # use tensorlogic::data::{DataLoader, Images, LoaderOptions};
/// # fn main() -> TensorResult<()> {
/// let images = Images::new((0..40).map(|v| v as f32).collect(), [1, 2, 2], (0..10).collect())?;
/// let options = LoaderOptions { batch: 4, seed: 7, ..LoaderOptions::default() };
/// let mut loader = DataLoader::new(images, options, &Device::cpu())?;
/// for batch in loader.epoch_batches() {
///     let batch = batch?;
///     assert_eq!((batch[0].dims(), batch[1].dims()), (&[4, 1, 2, 2][..], &[4][..]));
/// }
/// let place = loader.state(); // for a checkpoint
/// let next = loader.next_batch()?[1].to_vec()?;
/// loader.load_state(place)?;
/// assert_eq!(loader.next_batch()?[1].to_vec()?, next);
/// # Ok(())
/// # }
/// ```
pub struct DataLoader {
    plan: Plan,
    device: Device,
    /// Batches that this loader gave.
    position: u64,
    worker: Option<Worker>,
    ring: Ring,
    stalled: Duration,
}

impl DataLoader {
    /// A loader at the start of the data.
    ///
    /// # Errors
    /// If the dataset has too few examples for a batch, or a field has a dtype that is none of f32, f16, i32, i64 and u8. Values of an
    /// i64 field that are no i32 are an error of the batch on GPUs, which have no i64.
    ///
    /// ```
    /// use tensorlogic::data::{DataLoader, Images, LoaderOptions};
    /// use tensorlogic::prelude::*;
    /// let images = || Images::new(vec![0.0; 10], [1, 1, 1], vec![0; 10]);
    /// let options = |batch| LoaderOptions { batch, ..LoaderOptions::default() };
    /// let loader = DataLoader::new(images()?, options(4), &Device::cpu())?;
    /// assert_eq!(loader.batches_per_epoch(), 2); // and two images are left out
    /// assert!(DataLoader::new(images()?, options(11), &Device::cpu()).is_err());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(dataset: impl Dataset + 'static, options: LoaderOptions, device: &Device) -> TensorResult<DataLoader> {
        let (len, fields) = (dataset.len(), dataset.fields());
        check(&fields, device)?;
        if options.batch == 0 || len == 0 || (options.drop_last && options.order != Order::Random && len < options.batch) {
            return Err(TensorError::Config(format!("{len} examples are fewer than a batch of {}", options.batch)));
        }
        let plan = Plan { dataset: Arc::new(dataset), fields: Arc::new(fields), options, len, share: Share::WHOLE };
        Ok(DataLoader { plan, device: device.clone(), position: 0, worker: None, ring: Ring::default(), stalled: Duration::ZERO })
    }

    /// Only some of all batches, for one of several readers that share them: of each `stride`, the `run` that begin at `first`. The loader's state is
    /// the place among all of them, so that it fits any share, and passes are counted over all of them.
    ///
    /// # Errors
    /// [`TensorError::Config`] where the run is empty or ends behind the stride.
    ///
    /// ```
    /// # use tensorlogic::{Device, TensorResult};
    /// # use tensorlogic::data::{DataLoader, Images, LoaderOptions, Order};
    /// # fn main() -> TensorResult<()> {
    /// let images = || Images::new((0..8).map(|v| v as f32).collect(), [1, 1, 1], (0..8).collect());
    /// let options = LoaderOptions { order: Order::Sequential, ..LoaderOptions::default() };
    /// let mut second = DataLoader::new(images()?, options, &Device::cpu())?.with_share(2, 2, 4)?;
    /// let labels = (0..4).map(|_| second.next_batch()?[1].item()).collect::<TensorResult<Vec<_>>>()?;
    /// assert_eq!(labels, [2.0, 3.0, 6.0, 7.0]);
    /// assert_eq!(second.state().position, 8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_share(mut self, first: u64, run: u64, stride: u64) -> TensorResult<DataLoader> {
        if run == 0 || first.checked_add(run).is_none_or(|end| end > stride) {
            return Err(TensorError::Config(format!("a share of {run} batches from {first} on does not fit a stride of {stride}")));
        }
        (self.worker, self.plan.share) = (None, Share { first, run, stride });
        Ok(self)
    }

    /// Batches of one pass over the dataset.
    pub fn batches_per_epoch(&self) -> u64 {
        self.plan.per_epoch()
    }

    /// Passes over the dataset that are over.
    pub fn epoch(&self) -> u64 {
        self.plan.share.before(self.position) / self.plan.per_epoch()
    }

    /// The loader's state, which determines all following batches.
    pub fn state(&self) -> LoaderState {
        LoaderState { seed: self.plan.options.seed, position: self.plan.share.before(self.position) }
    }

    /// Restores the state of another loader with the same dataset and options.
    ///
    /// # Errors
    /// None so far.
    ///
    /// ```
    /// use tensorlogic::data::{DataLoader, Images, LoaderOptions, LoaderState, Order};
    /// use tensorlogic::prelude::*;
    /// let images = Images::new(vec![0.0; 4], [1, 1, 1], (0..4).collect())?;
    /// let options = LoaderOptions { order: Order::Sequential, ..LoaderOptions::default() };
    /// let mut loader = DataLoader::new(images, options, &Device::cpu())?;
    /// loader.load_state(LoaderState { seed: 0, position: 2 })?; // two batches were given before
    /// assert_eq!(loader.next_batch()?[1].to_vec()?, [2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn load_state(&mut self, state: LoaderState) -> TensorResult<()> {
        self.worker = None;
        self.plan.options.seed = state.seed;
        self.position = self.plan.share.given(state.position);
        Ok(())
    }

    /// The next batch.
    ///
    /// # Errors
    /// Those of the dataset and of the device.
    ///
    /// ```
    /// use tensorlogic::data::{DataLoader, Images, LoaderOptions, Order};
    /// use tensorlogic::prelude::*;
    /// let images = Images::new(vec![0.5; 4], [1, 1, 1], (0..4).collect())?;
    /// let options = LoaderOptions { batch: 2, order: Order::Sequential, ..LoaderOptions::default() };
    /// let mut loader = DataLoader::new(images, options, &Device::cpu())?;
    /// let batch = loader.next_batch()?;
    /// assert_eq!(batch[0].dims(), [2, 1, 1, 1]); // pixels
    /// assert_eq!(batch[1].to_vec1::<i32>()?, [0, 1]); // classes
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn next_batch(&mut self) -> TensorResult<Vec<Tensor>> {
        let began = Instant::now();
        let host = self.next_on_host();
        self.stalled += began.elapsed();
        let host = host?;
        let (tensors, free) = self.ring.tensors(host, &self.plan.fields, self.plan.options.batch, &self.device)?;
        if let (Some(w), Some(free)) = (&self.worker, free) {
            w.give_back(free);
        }
        self.position += 1;
        crate::events::batch_loaded(tensors.len());
        Ok(tensors)
    }

    /// How long calls of [`DataLoader::next_batch`] waited for examples to be read, in all; the way to the device does not count.
    pub fn stalled(&self) -> Duration {
        self.stalled
    }

    /// The batches that are left of this pass over the dataset, or all of the next pass when this one is over.
    ///
    /// # Errors
    /// Each batch can be an error, one of [`DataLoader::next_batch`].
    ///
    /// ```
    /// use tensorlogic::data::{DataLoader, Images, LoaderOptions, Order};
    /// use tensorlogic::prelude::*;
    /// let images = Images::new(vec![0.0; 6], [1, 1, 1], (0..6).collect())?;
    /// let options = LoaderOptions { batch: 2, order: Order::Sequential, ..LoaderOptions::default() };
    /// let mut loader = DataLoader::new(images, options, &Device::cpu())?;
    /// loader.next_batch()?; // the first of three
    /// let left = loader.epoch_batches().map(|batch| batch?[1].to_vec()).collect::<TensorResult<Vec<_>>>()?;
    /// assert_eq!(left, [[2.0, 3.0], [4.0, 5.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn epoch_batches(&mut self) -> impl Iterator<Item = TensorResult<Vec<Tensor>>> + '_ {
        let n = self.plan.per_epoch() - self.plan.share.before(self.position) % self.plan.per_epoch();
        (0..n).map(|_| self.next_batch())
    }

    fn next_on_host(&mut self) -> TensorResult<HostBatch> {
        if self.worker.is_none() && self.plan.options.prefetch > 0 {
            // Where there are no threads, batches are read when asked for.
            let (plan, mut position) = (self.plan.clone(), self.position);
            self.worker = Worker::start(plan.options.prefetch, move |used| {
                position += 1;
                plan.read(plan.share.place(position - 1), used)
            });
        }
        let Some(w) = &self.worker else { return self.plan.read(self.plan.share.place(self.position), None) };
        let batch = w.next();
        if batch.is_err() {
            self.worker = None;
        }
        batch
    }
}

impl Plan {
    fn per_epoch(&self) -> u64 {
        let (len, batch) = (self.len as u64, self.options.batch as u64);
        if self.options.drop_last { (len / batch).max(1) } else { len.div_ceil(batch) }
    }

    /// The examples of batch number `position`, counted from the beginning.
    fn index(&self, position: u64, row: usize) -> usize {
        let (seed, len, batch) = (self.options.seed, self.len as u64, self.options.batch as u64);
        let (epoch, within) = (position / self.per_epoch(), position % self.per_epoch() * batch + row as u64);
        let i = match self.options.order {
            Order::Sequential => within,
            Order::Shuffled => shuffled(within, len, hash(seed, epoch)),
            Order::Random => ((hash(seed, position * batch + row as u64) as u128 * len as u128) >> 64) as u64,
        };
        i as usize
    }

    /// Reads a batch, into the memory of a used one where there is one.
    fn read(&self, position: u64, used: Option<HostBatch>) -> TensorResult<HostBatch> {
        let batch = self.options.batch;
        let mut out = used.unwrap_or_else(|| HostBatch::new(&self.fields, batch));
        out.rows = match self.options.order {
            Order::Random => batch,
            _ => batch.min(self.len - (position % self.per_epoch()) as usize * batch),
        };
        for row in 0..out.rows {
            self.dataset.read(self.index(position, row), &mut out.row(&self.fields, row))?;
        }
        Ok(out)
    }
}

/// Two numbers mixed into one (Steele et al., 2014, as SplitMix64).
pub(super) fn hash(seed: u64, n: u64) -> u64 {
    let step = |mut z: u64| {
        z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    step(step(seed) ^ n)
}

/// Where place `i` of a shuffled `0..len` comes from: a permutation by a Feistel network on the next even power of two, walked until it is inside
/// (Black and Rogaway, 2002). It needs no memory, and any place can be asked for.
fn shuffled(mut i: u64, len: u64, key: u64) -> u64 {
    let half = (64 - len.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1u64 << half) - 1;
    loop {
        let (mut left, mut right) = (i >> half, i & mask);
        for round in 0..6 {
            (left, right) = (right, left ^ (hash(key.wrapping_add(round), right) & mask));
        }
        i = left << half | right;
        if i < len {
            return i;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_permutation_and_no_two_are_alike() {
        for len in [1u64, 2, 3, 4, 5, 16, 17, 1000, 65537] {
            let order = |key| (0..len).map(|i| shuffled(i, len, key)).collect::<Vec<_>>();
            let mut sorted = order(3);
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq(0..len), "{len}");
            if len > 15 {
                assert_ne!(order(3), order(4));
                // Few stay where they were, and neighbours part.
                let fixed = order(5).iter().zip(0..).filter(|(a, b)| **a == *b).count();
                assert!(fixed < 10, "{fixed} of {len} stay");
                let pairs = order(5).windows(2).filter(|w| w[0] + 1 == w[1]).count();
                assert!(pairs < 10, "{pairs} of {len} stay together");
            }
        }
    }

    #[test]
    fn random_draws_are_even() {
        let plan = |len: usize| Plan {
            dataset: Arc::new(super::super::Images::new(vec![0.0; len], [1, 1, 1], vec![0; len]).unwrap()),
            fields: Arc::new(Vec::new()),
            options: LoaderOptions { batch: 10, order: Order::Random, seed: 5, ..LoaderOptions::default() },
            len,
            share: Share::WHOLE,
        };
        let p = plan(7);
        let mut counts = [0; 7];
        (0..700).for_each(|position| (0..10).for_each(|row| counts[p.index(position, row)] += 1));
        // 1,000 each on average, with a deviation of 29.
        assert!(counts.iter().all(|c| (880..1120).contains(c)), "{counts:?}");
    }
}
