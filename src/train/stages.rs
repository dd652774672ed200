//! What the exchange of gradients between ranks takes time for.

use std::time::{Duration, Instant};

/// Where gradients are on their way from a device to the other ranks and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The device computes and copies.
    Wait,
    /// From memory that the device writes to memory of this process.
    Copy,
    /// Between ranks; with shared memory, waiting for the others.
    Exchange,
    /// Sums of what arrived; with shared memory, of this rank's slice alone.
    Sum,
    /// Sums of slices become everybody's.
    Gather,
    /// To the device; with shared memory the sums are computed on the way.
    Upload,
    /// From the last piece of the gradient, submitted, to the last sum: what no computing hides.
    Exposed,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Stage; 7] = [Stage::Wait, Stage::Copy, Stage::Exchange, Stage::Sum, Stage::Gather, Stage::Upload, Stage::Exposed];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Wait => "download wait",
            Stage::Copy => "host copy",
            Stage::Exchange => "exchange",
            Stage::Sum => "sum",
            Stage::Gather => "gather",
            Stage::Upload => "upload",
            Stage::Exposed => "not hidden",
        }
    }
}

/// The time of each stage, and the steps that it was measured in. Stages run beside each other, so their sum is more than a step takes.
///
/// ```
/// use tensorlogic::distributed::Ranks;
/// use tensorlogic::train::{LaneStep, Stage};
///
/// let lanes = LaneStep::new(&Ranks::alone(), 4)?;
/// assert_eq!((lanes.stages().steps(), lanes.stages().of(Stage::Exchange)), (0, std::time::Duration::ZERO)); // one rank exchanges nothing
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    times: [Duration; Stage::ALL.len()],
    steps: u64,
}

impl Stages {
    /// The time of a stage, in all steps.
    pub fn of(&self, stage: Stage) -> Duration {
        self.times[stage as usize]
    }

    /// The steps that were measured.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    pub(super) fn note(&mut self, stage: Stage, time: Duration) {
        self.times[stage as usize] += time;
        self.steps += u64::from(stage == Stage::Exposed);
    }

    pub(super) fn time<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.note(stage, began.elapsed());
        done
    }

    pub(super) fn add(&mut self, other: &Stages) {
        self.times.iter_mut().zip(other.times).for_each(|(a, b)| *a += b);
        self.steps += other.steps;
    }
}
