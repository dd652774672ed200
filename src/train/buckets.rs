//! Gradients' sums over ranks in buckets, each of which is exchanged while the next is computed.

use crate::distributed::sums::{BLOCK, add_parts, slices, windows, within};
use crate::distributed::{PendingExchange, Ranks};
use crate::error::TensorResult;
use std::ops::Range;

/// Values of a group that are exchanged together. It begins at a multiple of [`BLOCK`].
struct Bucket {
    group: usize,
    range: Range<usize>,
    /// Where each rank's part begins in it, and the end.
    bounds: Vec<usize>,
}

/// How a group's buffer is distributed over ranks.
pub(super) enum Owners {
    /// Each bucket evenly.
    Even,
    /// As these slices of the whole buffer, whose bounds are multiples of [`BLOCK`].
    Slices(Vec<usize>),
}

/// The sums of one step, under way.
pub(super) struct Buckets<'a> {
    ranks: &'a Ranks,
    /// For each piece of the gradient, where its part of each group begins.
    pieces: &'a [Vec<usize>],
    buckets: Vec<Bucket>,
    /// How many pieces' buckets come up to each piece's end.
    ends: Vec<usize>,
    started: Vec<Box<dyn PendingExchange>>,
    /// Memory for what arrives, used again.
    memory: Vec<Vec<f32>>,
}

impl<'a> Buckets<'a> {
    /// For groups of these lengths. Exchanges have at most `most` values.
    pub fn new(
        ranks: &'a Ranks,
        pieces: &'a [Vec<usize>],
        lengths: &[usize],
        owners: &[Owners],
        most: usize,
        memory: Vec<Vec<f32>>,
    ) -> Self {
        let mut buckets = Vec::new();
        let mut ends = Vec::new();
        let mut from: Vec<usize> = lengths.to_vec();
        for begins in pieces {
            for (group, (&begin, end)) in begins.iter().zip(&mut from).enumerate() {
                // A block goes with the piece that its beginning belongs to.
                let begin = begin.next_multiple_of(BLOCK).min(*end);
                // Where one rank owns a whole window, it gets that from every rank in one exchange.
                let most = match &owners[group] {
                    Owners::Even => most,
                    Owners::Slices(_) => (most / ranks.size()).max(BLOCK),
                };
                for range in windows(begin..*end, most) {
                    let bounds = match &owners[group] {
                        Owners::Even => slices(range.len(), ranks.size()),
                        Owners::Slices(bounds) => within(bounds, &range),
                    };
                    buckets.push(Bucket { group, range, bounds });
                }
                *end = begin;
            }
            ends.push(buckets.len());
        }
        Buckets { ranks, pieces, buckets, ends, started: Vec::new(), memory }
    }

    /// How many of `len` values at the beginning of a piece's part of a group belong to a block of the piece behind it.
    pub fn left(&self, piece: usize, group: usize, len: usize) -> usize {
        let begin = self.pieces[piece][group];
        (begin.next_multiple_of(BLOCK) - begin).min(len)
    }

    /// The exchanges of a piece begin with the sums of this rank's lanes, whole blocks of each group. Pieces come in order.
    pub fn start(&mut self, piece: usize, mut values: Vec<Vec<f32>>) -> TensorResult<()> {
        for at in self.started.len()..self.ends[piece] {
            let bucket = &self.buckets[at];
            let begin = self.pieces[piece][bucket.group].next_multiple_of(BLOCK);
            let own = &mut values[bucket.group];
            let range = bucket.range.start - begin..bucket.range.end - begin;
            let sent = if range == (0..own.len()) { std::mem::take(own) } else { own[range].to_vec() };
            self.begin(at, sent)?;
        }
        Ok(())
    }

    fn begin(&mut self, at: usize, values: Vec<f32>) -> TensorResult<()> {
        let memory = self.memory.pop().unwrap_or_default();
        self.started.push(self.ranks.transport().start_exchange(values, &self.buckets[at].bounds, memory)?);
        Ok(())
    }

    /// Takes part in the exchanges that were not begun, whatever this rank met: the others wait for it.
    pub fn complete(&mut self) -> TensorResult<()> {
        for at in self.started.len()..self.buckets.len() {
            self.begin(at, vec![0.0; self.buckets[at].range.len()])?;
        }
        Ok(())
    }

    /// Waits for all exchanges, and sums what arrived.
    pub fn wait(self) -> TensorResult<BucketSums> {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        let mut memory = self.memory;
        let mut sums = Vec::new();
        for (bucket, started) in self.buckets.into_iter().zip(self.started) {
            let mut all = started.wait()?;
            let own = bucket.bounds[rank]..bucket.bounds[rank + 1];
            add_parts(size, &mut all.received, &mut all.sent[own]);
            memory.push(all.received);
            sums.push((bucket, all.sent));
        }
        Ok(BucketSums { sums, memory })
    }
}

/// Buckets whose own parts are sums over all ranks.
pub(super) struct BucketSums {
    sums: Vec<(Bucket, Vec<f32>)>,
    pub memory: Vec<Vec<f32>>,
}

impl BucketSums {
    /// The parts of which this rank has the sums: group, where the part begins, values.
    pub fn own(&self, rank: usize) -> impl Iterator<Item = (usize, usize, &[f32])> {
        self.sums.iter().map(move |(b, values)| (b.group, b.range.start + b.bounds[rank], &values[b.bounds[rank]..b.bounds[rank + 1]]))
    }

    /// The `wanted` values of each group, one part after the other. Where `gathered` says so of a group, everybody's sums are in them, else this rank's own.
    pub fn parts(mut self, ranks: &Ranks, wanted: &[Range<usize>], gathered: &[bool]) -> TensorResult<Vec<Vec<Vec<f32>>>> {
        for (bucket, values) in self.sums.iter_mut().filter(|(b, _)| gathered[b.group]) {
            ranks.transport().gather(values, &bucket.bounds)?;
        }
        // They were exchanged from the last on.
        self.sums.sort_by_key(|(b, _)| b.range.start);
        let mut parts: Vec<Vec<Vec<f32>>> = wanted.iter().map(|_| Vec::new()).collect();
        for (Bucket { group, range, .. }, values) in self.sums {
            let wanted = range.start.max(wanted[group].start)..range.end.min(wanted[group].end);
            if wanted == range {
                parts[group].push(values);
            } else if !wanted.is_empty() {
                parts[group].push(values[wanted.start - range.start..wanted.end - range.start].to_vec());
            }
        }
        Ok(parts)
    }
}
