//! Times of runs and of their steps, while they are asked for.

use crate::backends::lock::lock;
use crate::error::{TensorError, TensorResult};
use crate::plan::{Plan, RunTimes, Timing};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Runs that were timed.
struct Times {
    since: Instant,
    detail: Timing,
    runs: Vec<RunTimes>,
}

/// Collects the times of runs.
#[derive(Default)]
pub(super) struct RunTimer {
    /// Whether `times` are asked for.
    on: AtomicBool,
    times: Mutex<Option<Times>>,
}

/// The begin of a run that is timed.
#[derive(Clone, Copy)]
pub(super) struct RunStart {
    detail: Timing,
    at: Instant,
}

impl RunTimer {
    /// Times runs from now on.
    pub(super) fn start(&self, detail: Timing) -> TensorResult<()> {
        let mut times = lock(&self.times);
        if times.is_some() {
            return Err(TensorError::State("the cpu is being timed already".into()));
        }
        *times = Some(Times { since: Instant::now(), detail, runs: vec![] });
        self.on.store(true, Relaxed);
        Ok(())
    }

    /// Ends it, and gives the runs.
    pub(super) fn finish(&self) -> Vec<RunTimes> {
        self.on.store(false, Relaxed);
        lock(&self.times).take().map_or(vec![], |t| t.runs)
    }

    /// Begins a run, where runs are timed.
    pub(super) fn begin_run(&self) -> Option<RunStart> {
        match self.on.load(Relaxed) {
            true => lock(&self.times).as_ref().map(|t| RunStart { detail: t.detail, at: Instant::now() }),
            false => None,
        }
    }

    /// Ends a run whose steps began at `marks`.
    pub(super) fn end_run(&self, start: RunStart, plan: &Arc<Plan>, marks: &[Instant]) {
        let mut times = lock(&self.times);
        let Some(times) = times.as_mut() else { return };
        let end = Instant::now();
        let at = |t: Instant| t.saturating_duration_since(times.since).as_secs_f64();
        let ends = marks.iter().skip(1).chain([&end]);
        let steps = marks.iter().zip(ends).map(|(&a, &b)| (start.detail == Timing::Steps).then(|| [at(a), at(b)])).collect();
        let run = [at(marks.first().copied().unwrap_or(end)), at(end)];
        times.runs.push(RunTimes { plan: plan.clone(), host: [start.at, end], run: Some(run), steps });
    }
}
