//! The counters of a device over its last evaluations, for what wants rates rather than totals.

use super::evaluator::EvalStats;
use crate::device::Device;
use crate::error::At;
use crate::plan::{MemoryStats, Plan, QueueStats, TransferStats};
use std::collections::VecDeque;
use std::sync::Arc;

/// Evaluations between two samples.
const INTERVAL: u64 = 32;
/// Samples kept; the oldest goes first.
const KEPT: usize = 16;

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
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample::now(*stats, device));
    }

    /// The samples, the oldest first.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.iter().copied().collect()
    }
}
