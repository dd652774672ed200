//! A clock of the stages that work on this thread goes through: each moment counts for the innermost stage that was entered.

use crate::events::{Span, SpanKind, span};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// What a moment was spent on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Checking and uploading inputs, building the graph, matching it with a plan.
    Prepare,
    /// Making a plan, and kernels for it.
    Compile,
    /// Binding memory and recording commands.
    Encode,
    /// Handing commands to the driver.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    Submit,
    /// Running steps on the CPU, or waiting for the device to be done.
    Execute,
    /// Copying results to the host.
    Read,
}

/// Number of stages.
const STAGES: usize = Stage::Read as usize + 1;

/// The running clock: the current stage, since when, and what was counted before.
#[derive(Clone, Copy)]
struct Laps {
    stage: Stage,
    since: Instant,
    spent: [Duration; STAGES],
}

thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    static LAPS: Cell<Option<Laps>> = const { Cell::new(None) };
}

/// Counts what passed for the current stage and goes on in another; gives the former.
fn switch(to: Stage) -> Option<Stage> {
    let mut laps = LAPS.get()?;
    let now = Instant::now();
    let before = laps.stage;
    laps.spent[before as usize] += now - laps.since;
    (laps.stage, laps.since) = (to, now);
    LAPS.set(Some(laps));
    Some(before)
}

/// Leaves its stage when dropped.
#[must_use]
pub(crate) struct Entered(Option<Stage>, #[allow(dead_code)] Span);

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            switch(before);
        }
    }
}

/// Counts what follows for `stage`, and is in its span, until the result is dropped. Does nothing where no clock runs and nobody looks.
#[inline]
pub(crate) fn enter(stage: Stage) -> Entered {
    let kind = match stage {
        Stage::Prepare => SpanKind::Prepare,
        Stage::Compile => SpanKind::Compile,
        Stage::Encode => SpanKind::Encode,
        Stage::Submit => SpanKind::Submit,
        Stage::Execute => SpanKind::Execute,
        Stage::Read => SpanKind::Read,
    };
    Entered(if RUNNING.get() { switch(stage) } else { None }, span(kind))
}

/// A running clock of this thread. Dropping it stops it.
pub(crate) struct StageClock {
    outer: Option<Laps>,
}

impl StageClock {
    /// Starts in `stage`. A clock that runs already counts the whole time for the stage that it is in.
    pub fn start(stage: Stage) -> StageClock {
        RUNNING.set(true);
        StageClock { outer: LAPS.replace(Some(Laps { stage, since: Instant::now(), spent: [Duration::ZERO; STAGES] })) }
    }

    /// The time of each stage so far, in their order.
    pub fn times(&self) -> [Duration; STAGES] {
        let Some(now) = LAPS.get() else { return [Duration::ZERO; STAGES] };
        switch(now.stage);
        LAPS.get().map_or(now.spent, |l| l.spent)
    }
}

impl Drop for StageClock {
    fn drop(&mut self) {
        RUNNING.set(self.outer.is_some());
        LAPS.set(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    const PAUSE: Duration = Duration::from_millis(4);

    #[test]
    fn each_moment_counts_for_the_innermost_stage() {
        let wall = Instant::now();
        let clock = StageClock::start(Stage::Prepare);
        {
            let _encode = enter(Stage::Encode);
            sleep(PAUSE);
            {
                let _compile = enter(Stage::Compile);
                sleep(2 * PAUSE);
            }
            sleep(PAUSE);
        }
        sleep(3 * PAUSE);
        let [prepare, compile, encode, submit, execute, read] = clock.times();
        let wall = wall.elapsed();
        assert!(prepare >= 3 * PAUSE && compile >= 2 * PAUSE && encode >= 2 * PAUSE, "{prepare:?} {compile:?} {encode:?}");
        assert_eq!([submit, execute, read], [Duration::ZERO; 3]);
        let sum = prepare + compile + encode;
        assert!(sum <= wall && sum >= wall.mul_f64(0.9), "{sum:?} of {wall:?}");
    }

    #[test]
    fn without_a_clock_nothing_is_counted() {
        drop(enter(Stage::Read));
        let clock = StageClock::start(Stage::Prepare);
        {
            let inner = StageClock::start(Stage::Execute);
            let _read = enter(Stage::Read);
            sleep(PAUSE);
            assert!(inner.times()[Stage::Read as usize] >= PAUSE);
        }
        assert_eq!(clock.times()[Stage::Read as usize], Duration::ZERO);
    }
}
