//! The engine's rounds as others see them: how long one has taken, and whether there will be more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Since when the engine has been in its round: milliseconds behind the start, plus one; 0 while it has nothing to do.
pub(super) struct Round {
    start: Instant,
    since: AtomicU64,
    /// Milliseconds of the longest one so far.
    pub longest: AtomicU64,
    /// Whether it was the last one: set before any request hears of it.
    pub last: AtomicBool,
    /// Whether nobody waits for its end any more.
    pub given_up: AtomicBool,
}

impl Round {
    pub fn new() -> Round {
        let zero = || AtomicU64::new(0);
        let no = || AtomicBool::new(false);
        Round { start: Instant::now(), since: zero(), longest: zero(), last: no(), given_up: no() }
    }

    pub fn begin(&self) {
        self.since.store(self.start.elapsed().as_millis() as u64 + 1, Relaxed);
    }

    pub fn end(&self) {
        self.longest.fetch_max(self.time().as_millis() as u64, Relaxed);
        self.since.store(0, Relaxed);
    }

    pub fn time(&self) -> Duration {
        match self.since.load(Relaxed) {
            0 => Duration::ZERO,
            since => self.start.elapsed().saturating_sub(Duration::from_millis(since - 1)),
        }
    }
}
