//! What an engine counts and times.

/// Classes of a distribution at most, without the last.
const MAX_BOUNDS: usize = 16;
/// Upper bounds of times in the queue, in seconds.
const WAITS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Those of steps.
const STEPS: &[f64] = &[0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0];
/// Those of requests in a step.
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// What an engine did and has to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineStats {
    /// Requests that are read or written.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Pages of 64 positions.
    pub pages: usize,
    /// Those that nobody needs, cached ones included.
    pub pages_available: usize,
    /// Those that hold beginnings of earlier prompts.
    pub pages_cached: usize,
    /// Steps that read prompts.
    pub read_steps: u64,
    /// Steps that wrote tokens.
    pub write_steps: u64,
    /// Tokens of prompts that were read.
    pub read_tokens: u64,
    /// Tokens of prompts that needed no reading.
    pub cached_tokens: u64,
    /// Tokens that were written.
    pub written_tokens: u64,
    /// Steps that checked drafts.
    pub check_steps: u64,
    /// Tokens of drafts that were checked.
    pub drafted_tokens: u64,
    /// Those that were right.
    pub accepted_tokens: u64,
    /// Times that a request's pages were taken away, and its text read again later.
    pub put_back: u64,
    /// Requests that ended because nobody listened any more.
    pub cancelled: u64,
    /// Seconds that requests waited before a step read their prompts.
    pub queue_time: Distribution,
    /// Seconds of steps that read prompts.
    pub read_time: Distribution,
    /// Seconds of steps that wrote tokens, from the end of the one before where that was under way.
    pub write_time: Distribution,
    /// Seconds of steps that checked drafts.
    pub check_time: Distribution,
    /// Requests for which a step wrote.
    pub batch_size: Distribution,
}

impl Default for EngineStats {
    fn default() -> EngineStats {
        EngineStats {
            running: 0,
            waiting: 0,
            pages: 0,
            pages_available: 0,
            pages_cached: 0,
            read_steps: 0,
            write_steps: 0,
            read_tokens: 0,
            cached_tokens: 0,
            written_tokens: 0,
            check_steps: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
            put_back: 0,
            cancelled: 0,
            queue_time: Distribution::new(WAITS),
            read_time: Distribution::new(STEPS),
            write_time: Distribution::new(STEPS),
            check_time: Distribution::new(STEPS),
            batch_size: Distribution::new(ROWS),
        }
    }
}

impl EngineStats {
    /// Adds what another engine did and has to do.
    pub fn add(&mut self, other: &EngineStats) {
        self.running += other.running;
        self.waiting += other.waiting;
        self.pages += other.pages;
        self.pages_available += other.pages_available;
        self.pages_cached += other.pages_cached;
        self.read_steps += other.read_steps;
        self.write_steps += other.write_steps;
        self.read_tokens += other.read_tokens;
        self.cached_tokens += other.cached_tokens;
        self.written_tokens += other.written_tokens;
        self.check_steps += other.check_steps;
        self.drafted_tokens += other.drafted_tokens;
        self.accepted_tokens += other.accepted_tokens;
        self.put_back += other.put_back;
        self.cancelled += other.cancelled;
        self.queue_time.add(&other.queue_time);
        self.read_time.add(&other.read_time);
        self.write_time.add(&other.write_time);
        self.check_time.add(&other.check_time);
        self.batch_size.add(&other.batch_size);
    }
}

/// How often a number was at most so large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distribution {
    bounds: &'static [f64],
    counts: [u64; MAX_BOUNDS + 1],
    sum: f64,
}

impl Distribution {
    fn new(bounds: &'static [f64]) -> Distribution {
        debug_assert!(bounds.len() <= MAX_BOUNDS);
        Distribution { bounds, counts: [0; MAX_BOUNDS + 1], sum: 0.0 }
    }

    pub(super) fn observe(&mut self, number: f64) {
        self.counts[self.bounds.partition_point(|&b| b < number)] += 1;
        self.sum += number;
    }

    fn add(&mut self, other: &Distribution) {
        self.counts.iter_mut().zip(other.counts).for_each(|(own, n)| *own += n);
        self.sum += other.sum;
    }

    /// The upper bounds of its classes, the smallest first; the last class has none.
    pub fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// How many numbers each class has.
    pub fn counts(&self) -> &[u64] {
        &self.counts[..=self.bounds.len()]
    }

    /// The sum of all numbers.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}
