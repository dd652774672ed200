//! How many threads of the pool run the next plan: fewer while other programs keep some of them from their cores.
//!
//! Threads meet after every step, so all of them wait for one that is not running. What they lose is the time in which they did not run,
//! by the system's clocks; waiting for uneven shares of the work is not a part of it.

use std::time::{Duration, Instant};

/// The first and the longest time with fewer threads before more are tried again.
const MIN_PAUSE: Duration = Duration::from_millis(4);
const MAX_PAUSE: Duration = Duration::from_millis(1000);
/// Losses below this come from waking up.
const WAKE_UP_LOSS: Duration = Duration::from_micros(500);
/// The part of a core that a plan may lose before it is given to fewer threads.
const MAX_OVERHEAD: f64 = 0.4;

/// The number of threads, and when more of them are tried.
#[derive(Debug)]
pub(super) struct AdaptiveThreadCount {
    all: usize,
    now: usize,
    /// More threads are tried from then on.
    until: Option<Instant>,
    pause: Duration,
}

impl AdaptiveThreadCount {
    pub(super) fn of(all: usize) -> AdaptiveThreadCount {
        AdaptiveThreadCount { all, now: all, until: None, pause: MIN_PAUSE }
    }

    /// The threads of a plan that runs at `now`.
    pub(super) fn at(&self, now: Instant) -> usize {
        if self.now < self.all && self.until.is_none_or(|t| now >= t) { self.now + 1 } else { self.now }
    }

    /// A plan was run by `width` threads for this long, until `now`; together they lost `lost`.
    pub(super) fn ran(&mut self, width: usize, took: Duration, lost: Duration, now: Instant) {
        if width > 1 && lost > WAKE_UP_LOSS && lost.as_secs_f64() > MAX_OVERHEAD * took.as_secs_f64() {
            self.now = width - 1;
            self.until = Some(now + self.pause);
            self.pause = (4 * self.pause).min(MAX_PAUSE);
        } else if width >= self.now {
            self.now = width;
            // A good run shortens the next pause, but only by a little: other programs may be busy again soon.
            self.pause = self.pause.saturating_sub(took / 8).max(MIN_PAUSE);
        }
    }
}

/// The CPU time of the calling thread so far; `None` where the system does not report it.
pub(super) fn running_time() -> Option<Duration> {
    #[cfg(unix)]
    {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock writes one timespec.
        if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) } == 0 {
            return Some(Duration::new(t.tv_sec as u64, t.tv_nsec as u32));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of 10 ms, one behind the other: whether other programs are busy in each, and the threads that each gets.
    #[track_caller]
    fn check(all: usize, busy: &[bool], want: &[usize]) {
        let mut w = AdaptiveThreadCount::of(all);
        let mut now = Instant::now();
        let took = Duration::from_millis(10);
        let mut got = vec![];
        for &busy in busy {
            let width = w.at(now);
            got.push(width);
            now += took;
            // Busy: other programs use two of the cores.
            let lost = if busy && width + 2 > all { took } else { Duration::from_micros(50) };
            w.ran(width, took, lost, now);
        }
        assert_eq!(got, want);
    }

    #[test]
    fn a_busy_machine_gets_fewer_threads_and_a_quiet_one_all() {
        check(2, &[false; 5], &[2; 5]);
        check(1, &[true; 3], &[1; 3]);
        // After each failure the next trial comes later: 4, 16, 64 ms.
        check(2, &[true; 12], &[2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1]);
        check(8, &[true; 4], &[8, 7, 6, 6]);
        // One disturbance is forgotten soon.
        check(2, &[true, false, false, false], &[2, 1, 2, 2]);
    }

    #[test]
    fn waking_up_is_no_loss() {
        let mut w = AdaptiveThreadCount::of(4);
        let now = Instant::now();
        w.ran(4, Duration::from_micros(100), Duration::from_micros(300), now);
        assert_eq!(w.at(now), 4);
    }

    #[cfg(unix)]
    #[test]
    fn a_thread_that_sleeps_does_not_run() {
        let before = running_time().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(running_time().unwrap() - before < Duration::from_millis(15));
    }
}
