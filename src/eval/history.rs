//! What an evaluator counts: totals, and samples of them over the last evaluations, for what wants rates.

use crate::device::Device;
use crate::error::At;
use crate::plan::{MemoryStats, Plan, QueueStats, TransferStats, WorkCost};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Evaluations between two samples.
const INTERVAL: u64 = 32;
/// Samples kept; the oldest goes first.
const MAX_SAMPLES: usize = 16;

/// Statistics of a device's evaluator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvalStats {
    /// Evaluations that ran a plan.
    pub evaluations: u64,
    /// Evaluations whose plan was in the cache.
    pub hits: u64,
    /// Evaluations that had to compile.
    pub misses: u64,
    /// Evaluations that replayed the previous plan without a graph: decode steps of a generation.
    pub repeats: u64,
    /// Evaluations of a GPU's tensors that ran on the CPU: see [`Device::set_adaptive`].
    pub on_host: u64,
    /// Plans that were dropped from the cache.
    pub evicted: u64,
    /// Dispatches of all evaluations.
    pub steps: u64,
    /// Elements that all evaluations read, wrote or computed, once for each scalar instruction.
    pub elements: u64,
    /// Floating-point operations of all kernels.
    pub operations: u64,
    /// Evaluations that went on from a value which the host had read: the read cut a chain of operations in two.
    pub cut: u64,
    /// Evaluations whose result the host waited for.
    pub reads: u64,
    /// Plans in the cache.
    pub plans: usize,
    /// Dispatches of the last plan.
    pub dispatches: usize,
    /// Nodes visited by the last evaluation.
    pub nodes: usize,
    /// Time that the last evaluation spent on the graph: collecting, matching, binding, storing and dropping, without compiling or running.
    /// Sampled: of consecutive small graphs, 1 in 64 is timed; for a large graph after them, everything except collecting.
    pub overhead: Duration,
}

impl EvalStats {
    /// Counts runs of a plan.
    pub(super) fn count_work(&mut self, work: &WorkCost, runs: u64) {
        self.steps += work.steps as u64 * runs;
        self.elements += work.elements * runs;
        self.operations = self.operations.saturating_add(work.ops.saturating_mul(runs));
    }
}

/// A device's counters at one time.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub stats: EvalStats,
    pub memory: MemoryStats,
    pub transfers: TransferStats,
    pub queue: QueueStats,
}

impl Sample {
    /// The counters now.
    pub fn now(stats: EvalStats, device: &Device) -> Sample {
        Sample { stats, memory: device.memory(), transfers: device.transfers(), queue: device.queue_stats() }
    }
}

/// The last samples.
#[derive(Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    next: u64,
}

/// What an evaluator did and does.
pub(crate) struct Activity {
    pub stats: EvalStats,
    /// One every 32 evaluations, the oldest first.
    pub samples: Vec<Sample>,
    /// Plans in the cache.
    pub plans: Vec<Arc<Plan>>,
    /// The line of the last value whose read cut a chain.
    pub cut_at: Option<At>,
    /// The line of the last value for which a plan was compiled.
    pub missed_at: Option<At>,
}

impl History {
    /// Takes a sample if it is time for one.
    #[inline]
    pub fn look(&mut self, stats: &EvalStats, device: &Device) {
        if stats.evaluations >= self.next {
            self.take(stats, device);
        }
    }

    #[cold]
    fn take(&mut self, stats: &EvalStats, device: &Device) {
        self.next = stats.evaluations + INTERVAL;
        if self.samples.len() == MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample::now(*stats, device));
    }

    /// The samples, the oldest first.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.iter().copied().collect()
    }
}
