//! Gradients' sums over ranks in buckets, each of which goes to the host, to the other ranks and back while the next is computed: as messages, or through
//! memory that the ranks of one machine share.

use super::stages::{Stage, Stages};
use crate::device::Device;
use crate::distributed::sums::{BLOCK, add_others, add_parts, is_at_once, slices, windows, within};
use crate::distributed::{PendingExchange, Ranks, SLOT, Window};
use crate::error::{TensorError, TensorResult};
use crate::eval::Download;
use crate::tensor::Tensor;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Values of a group that are exchanged together. It begins at a multiple of [`BLOCK`].
struct Bucket {
    group: usize,
    range: Range<usize>,
    /// Where each rank's part begins in it, and the end.
    bounds: Vec<usize>,
    to: To,
}

/// How a bucket is summed.
#[derive(Clone, Copy, PartialEq)]
enum To {
    /// Every rank gets all values of all.
    All,
    /// Each rank sums its part, which is gathered.
    Gathered,
    /// Each rank sums its part and keeps it.
    Owner,
}

/// How a group's buffer is distributed over ranks.
pub(super) enum Owners {
    /// Each bucket evenly; all get the sum.
    Even,
    /// As these slices of the whole buffer, whose bounds are multiples of [`BLOCK`].
    Slices(Vec<usize>),
}

/// Values in a bucket at most: so few that one is on its way to the host while another is exchanged and a third goes back.
const BUCKET: usize = SLOT;
/// Exchanges that are under way at a time.
const MAX_EXCHANGES: usize = 2;
/// Buckets that wait for the next thread.
const QUEUED_BUCKETS: usize = 2;
/// How long a copy is asked for without the device being waited for.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// The buckets of a step.
pub(super) struct Buckets {
    ranks: Ranks,
    /// For each piece of the gradient, where its part of each group begins.
    pieces: Vec<Vec<usize>>,
    buckets: Vec<Bucket>,
    /// How many pieces' buckets come up to each piece's end.
    ends: Vec<usize>,
}

impl Buckets {
    /// For groups of these lengths. Exchanges have at most `most` values.
    pub fn new(ranks: &Ranks, pieces: &[Vec<usize>], lengths: &[usize], owners: &[Owners], most: usize) -> Self {
        let size = ranks.size();
        let mut buckets = Vec::new();
        let mut ends = Vec::new();
        let mut from: Vec<usize> = lengths.to_vec();
        for begins in pieces {
            for (group, (&begin, end)) in begins.iter().zip(&mut from).enumerate() {
                // A block goes with the piece that its beginning belongs to.
                let begin = begin.next_multiple_of(BLOCK).min(*end);
                // Where one rank owns a whole window, it gets that from every rank in one exchange.
                let most = match &owners[group] {
                    Owners::Even => most.min(BUCKET),
                    Owners::Slices(_) => (most / size).max(BLOCK),
                };
                for range in windows(begin..*end, most) {
                    let (bounds, to) = match &owners[group] {
                        Owners::Even => (slices(range.len(), size), if is_at_once(size, range.len()) { To::All } else { To::Gathered }),
                        Owners::Slices(bounds) => (within(bounds, &range), To::Owner),
                    };
                    buckets.push(Bucket { group, range, bounds, to });
                }
                *end = begin;
            }
            ends.push(buckets.len());
        }
        Buckets { ranks: ranks.clone(), pieces: pieces.to_vec(), buckets, ends }
    }

    /// How many of `len` values at the beginning of a piece's part of a group belong to a block of the piece behind it.
    pub fn left(&self, piece: usize, group: usize, len: usize) -> usize {
        let begin = self.pieces[piece][group];
        (begin.next_multiple_of(BLOCK) - begin).min(len)
    }

    /// The piece's buckets, with group and place in its whole blocks.
    fn of_piece(&self, piece: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
        let first = if piece == 0 { 0 } else { self.ends[piece - 1] };
        self.buckets[first..self.ends[piece]].iter().enumerate().map(move |(n, b)| {
            let begin = self.pieces[piece][b.group].next_multiple_of(BLOCK);
            (first + n, b.group, b.range.start - begin..b.range.end - begin)
        })
    }
}

/// The sums of one step, under way: a thread waits for values to arrive at the host, one exchanges and sums them, and one takes the sums back. In shared
/// memory nothing is exchanged, and sums are computed on their way back.
pub(super) struct UnderWay {
    buckets: Arc<Buckets>,
    arriving: Option<Sender<(usize, Download)>>,
    arrived: JoinHandle<(TensorResult<()>, Stages)>,
    exchanged: Option<JoinHandle<TensorResult<Exchanged>>>,
    back: JoinHandle<Returned>,
}

/// Memory for the next step's exchanges, and the time that this one's took.
type Exchanged = (Vec<Vec<f32>>, Stages);

/// The numbers of buckets with their sums, and the time that returning them took.
type Returned = (TensorResult<Vec<(usize, Sum)>>, Stages);

/// A bucket's sum.
enum Sum {
    Device(Tensor),
    Host(Vec<f32>),
}

/// All buckets of a step, summed over ranks.
pub(super) struct BucketSums {
    buckets: Arc<Buckets>,
    sums: Vec<(usize, Sum)>,
}

impl UnderWay {
    /// Where `returned` says so, sums go back to the device as they come; then all groups are distributed evenly. `memory` is for what arrives.
    pub fn begin(buckets: Buckets, device: Device, returned: bool, memory: Vec<Vec<f32>>) -> TensorResult<UnderWay> {
        let buckets = Arc::new(buckets);
        let (arriving, downloads) = channel();
        let (to_exchange, here) = sync_channel(QUEUED_BUCKETS);
        let (to_device, sums) = sync_channel(QUEUED_BUCKETS);
        let arrived = thread("tl-download", move || arrive(&downloads, &to_exchange))?;
        let plan = buckets.clone();
        let exchanged = thread("tl-sums", move || Exchanges::new(&plan, memory).run(&here, &to_device))?;
        let to = returned.then_some(device);
        let back = thread("tl-upload", move || take_back(&sums, to.as_ref()))?;
        Ok(UnderWay { buckets, arriving: Some(arriving), arrived, exchanged: Some(exchanged), back })
    }

    /// The same in shared memory, for groups that are distributed evenly; sums go back to the device.
    pub fn begin_in(window: Arc<Window>, buckets: Buckets, device: Device) -> TensorResult<UnderWay> {
        let buckets = Arc::new(buckets);
        let (arriving, downloads) = channel();
        let (plan, to) = (buckets.clone(), window.clone());
        let arrived = thread("tl-download", move || write_arriving(&to, &plan, &downloads))?;
        let plan = buckets.clone();
        let back = thread("tl-upload", move || take_sums(&window, &plan, &device))?;
        Ok(UnderWay { buckets, arriving: Some(arriving), arrived, exchanged: None, back })
    }

    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Passes on a piece: of each group the whole blocks, summed over this rank's lanes and computed. Pieces come in order.
    pub fn push(&mut self, piece: usize, values: &[Option<Tensor>]) -> TensorResult<()> {
        for (at, group, range) in self.buckets.clone().of_piece(piece) {
            let Some(values) = &values[group] else {
                return Err(TensorError::Internal(format!("piece {piece} has no gradient of group {group}")));
            };
            let download = values.narrow(0, range.start, range.len())?.download()?;
            if let Some(arriving) = &self.arriving {
                // Whether a thread has failed is seen at the end.
                let _ = arriving.send((at, download));
            }
        }
        Ok(())
    }

    /// Waits for all sums; gives the memory back. Takes part in exchanges of what was not passed on, whatever this rank met: the others wait for it.
    ///
    /// The outer error is the transport's, the inner one this rank's own.
    pub fn finish(mut self, stages: &mut Stages) -> TensorResult<(TensorResult<BucketSums>, Vec<Vec<f32>>)> {
        let began = Instant::now();
        self.arriving = None;
        let (arrived, times) = joined(self.arrived)?;
        stages.add(&times);
        let exchanged = self.exchanged.map(joined).transpose()?;
        let (back, times) = joined(self.back)?;
        stages.add(&times);
        let (memory, times) = exchanged.transpose()?.unwrap_or_default();
        stages.add(&times);
        stages.note(Stage::Exposed, began.elapsed());
        let sums = arrived.and(back).map(|sums| BucketSums { buckets: self.buckets, sums });
        Ok((sums, memory))
    }
}

fn thread<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> TensorResult<JoinHandle<T>> {
    std::thread::Builder::new().name(name.into()).spawn(work).map_err(|e| TensorError::Internal(format!("no thread for {name}: {e}")))
}

fn joined<T>(thread: JoinHandle<T>) -> TensorResult<T> {
    thread.join().map_err(|_| TensorError::Internal("a thread of the gradients' exchange panicked".into()))
}

/// Waits for values on their way to the host. Of what does not arrive, nothing is passed on.
fn arrive(downloads: &Receiver<(usize, Download)>, here: &SyncSender<(usize, Vec<f32>)>) -> (TensorResult<()>, Stages) {
    let (mut stages, mut result) = (Stages::default(), Ok(()));
    for (at, download) in downloads {
        stages.time(Stage::Wait, || wait_for(&download));
        match stages.time(Stage::Copy, || download.wait::<f32>()) {
            Ok(values) if result.is_ok() => {
                if here.send((at, values)).is_err() {
                    break;
                }
            }
            Ok(_) => {}
            Err(e) => result = result.and(Err(e)),
        }
    }
    (result, stages)
}

fn wait_for(download: &Download) {
    let asked = Instant::now();
    while !download.is_ready() && asked.elapsed() < POLL_TIMEOUT {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Waits for values on their way to the host, and writes them where all ranks read them. The others wait for every bucket, so those that do not arrive are
/// passed on too, with any values; then no sum is used.
fn write_arriving(window: &Window, plan: &Buckets, downloads: &Receiver<(usize, Download)>) -> (TensorResult<()>, Stages) {
    let (mut stages, mut result) = (Stages::default(), Ok(()));
    for _ in &plan.buckets {
        let download = downloads.recv().ok();
        download.iter().for_each(|(_, download)| stages.time(Stage::Wait, || wait_for(download)));
        stages.time(Stage::Exchange, || window.wait_for_room());
        let written = stages.time(Stage::Copy, || window.write(|to| download.map_or(Ok(()), |(_, download)| download.wait_into(to))));
        result = result.and(written);
    }
    (result, stages)
}

/// Sums what all ranks wrote, on its way to the device.
fn take_sums(window: &Window, plan: &Buckets, device: &Device) -> Returned {
    let (mut stages, mut result) = (Stages::default(), Ok(Vec::new()));
    for (at, bucket) in plan.buckets.iter().enumerate() {
        let len = bucket.range.len();
        let mut round = stages.time(Stage::Exchange, || window.read(len));
        if bucket.to == To::Gathered {
            stages.time(Stage::Sum, || round.sum_slice());
            stages.time(Stage::Gather, || round.wait_for_slices());
        }
        // After an error the others still wait for this rank to have read.
        let Ok(taken) = &mut result else { continue };
        match stages.time(Stage::Upload, || Tensor::filled(len, device, &|at, out| round.sum(at, out))) {
            Ok(sum) => taken.push((at, Sum::Device(sum))),
            Err(e) => result = Err(e),
        }
    }
    (result, stages)
}

/// What exchanges the buckets, in order.
struct Exchanges<'a> {
    plan: &'a Buckets,
    /// What was begun, in order.
    under_way: VecDeque<(usize, Box<dyn PendingExchange>)>,
    /// Memory for what arrives, used again.
    memory: Vec<Vec<f32>>,
    stages: Stages,
    /// Whether an exchange may be ended at any time: where ranks gather slices in between, all do it in the same order.
    free: bool,
}

impl<'a> Exchanges<'a> {
    fn new(plan: &'a Buckets, memory: Vec<Vec<f32>>) -> Self {
        let free = plan.buckets.iter().all(|b| b.to != To::Gathered);
        Exchanges { plan, under_way: VecDeque::new(), memory, stages: Stages::default(), free }
    }

    fn run(mut self, here: &Receiver<(usize, Vec<f32>)>, sums: &SyncSender<(usize, Vec<f32>)>) -> TensorResult<Exchanged> {
        let mut next = None;
        for at in 0..self.plan.buckets.len() {
            while next.is_none() {
                next = match here.try_recv() {
                    Ok(values) => Some(values),
                    Err(TryRecvError::Empty) if self.free && !self.under_way.is_empty() => {
                        self.end(sums)?;
                        continue;
                    }
                    Err(_) => here.recv().ok(),
                };
                if next.is_none() {
                    break;
                }
            }
            // What this rank does not have after an error; then no sum is used.
            let values = next.take_if(|n| n.0 == at).map_or_else(|| vec![0.0; self.plan.buckets[at].range.len()], |n| n.1);
            self.begin(at, values)?;
            while self.under_way.len() > MAX_EXCHANGES {
                self.end(sums)?;
            }
        }
        while !self.under_way.is_empty() {
            self.end(sums)?;
        }
        Ok((self.memory, self.stages))
    }

    fn begin(&mut self, at: usize, values: Vec<f32>) -> TensorResult<()> {
        let bucket = &self.plan.buckets[at];
        let (ranks, memory) = (self.plan.ranks.transport(), self.memory.pop().unwrap_or_default());
        let pending = self.stages.time(Stage::Exchange, || match bucket.to {
            To::All => ranks.start_gather_others(values, memory),
            _ => ranks.start_exchange(values, &bucket.bounds, memory),
        })?;
        self.under_way.push_back((at, pending));
        Ok(())
    }

    /// Waits for the exchange that was begun first, sums what arrived, and passes it on.
    fn end(&mut self, sums: &SyncSender<(usize, Vec<f32>)>) -> TensorResult<()> {
        let Some((at, pending)) = self.under_way.pop_front() else { return Ok(()) };
        let (bucket, ranks) = (&self.plan.buckets[at], &self.plan.ranks);
        let mut all = self.stages.time(Stage::Exchange, || pending.wait())?;
        self.stages.time(Stage::Sum, || match bucket.to {
            To::All => add_others(ranks.rank(), &mut all.sent, &mut all.received),
            _ => {
                let own = bucket.bounds[ranks.rank()]..bucket.bounds[ranks.rank() + 1];
                add_parts(ranks.size(), &mut all.received, &mut all.sent[own]);
            }
        });
        if bucket.to == To::Gathered {
            self.stages.time(Stage::Gather, || ranks.transport().gather(&mut all.sent, &bucket.bounds))?;
        }
        self.memory.push(all.received);
        // Whether the last thread has failed is seen at the end.
        let _ = sums.send((at, all.sent));
        Ok(())
    }
}

/// Takes sums to the device, or keeps them.
fn take_back(sums: &Receiver<(usize, Vec<f32>)>, device: Option<&Device>) -> Returned {
    let (mut stages, mut result) = (Stages::default(), Ok(Vec::new()));
    for (at, values) in sums {
        let Ok(taken) = &mut result else { continue };
        match device {
            None => taken.push((at, Sum::Host(values))),
            Some(device) => {
                let len = values.len();
                match stages.time(Stage::Upload, || Tensor::from_vec(values, &[len], device)) {
                    Ok(sum) => taken.push((at, Sum::Device(sum))),
                    Err(e) => result = Err(e),
                }
            }
        }
    }
    (result, stages)
}

impl BucketSums {
    /// The parts of which this rank has the sums, where they are the host's: group, where the part begins, values.
    pub fn own(&self, rank: usize) -> impl Iterator<Item = (usize, usize, &[f32])> {
        self.sums.iter().filter_map(move |(at, sum)| {
            let b = &self.buckets.buckets[*at];
            let Sum::Host(values) = sum else { return None };
            Some((b.group, b.range.start + b.bounds[rank], &values[b.bounds[rank]..b.bounds[rank + 1]]))
        })
    }

    /// The `wanted` values of each group on the device, one part after the other.
    pub fn parts(mut self, wanted: &[Range<usize>], device: &Device) -> TensorResult<Vec<Vec<Tensor>>> {
        // They were exchanged from the last piece on.
        let plan = self.buckets;
        self.sums.sort_by_key(|(at, _)| plan.buckets[*at].range.start);
        let mut parts: Vec<Vec<Tensor>> = wanted.iter().map(|_| Vec::new()).collect();
        for (at, sum) in self.sums {
            let Bucket { group, range, .. } = &plan.buckets[at];
            let wanted = range.start.max(wanted[*group].start)..range.end.min(wanted[*group].end);
            if wanted.is_empty() {
                continue;
            }
            let within = wanted.start - range.start..wanted.end - range.start;
            parts[*group].push(match sum {
                Sum::Device(sum) if wanted == *range => sum,
                Sum::Device(sum) => sum.narrow(0, within.start, within.len())?,
                Sum::Host(values) => {
                    Tensor::from_vec(if wanted == *range { values } else { values[within].to_vec() }, &[wanted.len()], device)?
                }
            });
        }
        Ok(parts)
    }
}
