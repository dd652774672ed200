//! Requests that wait for their prompts to be read: how many there are, how many tokens they have, and how long another one would wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Beginnings of requests from which the time between two of them is known, and of how many it is the mean.
const FEWEST_STARTS: usize = 8;
const MOST_STARTS: usize = 32;

/// The requests that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    requests: usize,
    tokens: usize,
    /// When the last requests began while others waited behind them.
    starts: VecDeque<Instant>,
}

impl Queue {
    /// A request with a prompt of so many tokens waits.
    pub fn enter(&mut self, tokens: usize) {
        self.requests += 1;
        self.tokens += tokens;
    }

    /// It waits no more.
    pub fn leave(&mut self, tokens: usize) {
        self.requests = self.requests.saturating_sub(1);
        self.tokens = self.tokens.saturating_sub(tokens);
        if self.requests == 0 {
            self.starts.clear();
        }
    }

    /// It waits no more, since its prompt begins to be read.
    pub fn begin(&mut self, tokens: usize, now: Instant) {
        self.starts.push_back(now);
        if self.starts.len() > MOST_STARTS {
            self.starts.pop_front();
        }
        self.leave(tokens);
    }

    /// Whether a prompt of so many tokens would make more than `most` of them wait. One request may always wait.
    pub fn is_full(&self, tokens: usize, most: usize) -> bool {
        self.requests > 0 && self.tokens.saturating_add(tokens) > most
    }

    /// How long another request would wait, at the rate at which those before it began; zero where that is not known.
    pub fn expected_wait(&self, now: Instant) -> Duration {
        match self.starts.front() {
            Some(&first) if self.starts.len() >= FEWEST_STARTS => {
                let each = now.saturating_duration_since(first).as_secs_f64() / self.starts.len() as f64;
                Duration::try_from_secs_f64(each * self.requests as f64).unwrap_or(Duration::MAX)
            }
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_wait_follows_the_rate_of_beginnings() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        (0..50).for_each(|_| queue.enter(10));
        assert_eq!(queue.expected_wait(at(100)), Duration::ZERO);
        (0..40).for_each(|n| queue.begin(10, at(n)));
        // The last 32 began from second 8 on, so one a second; ten wait.
        assert_eq!(queue.expected_wait(at(40)), Duration::from_secs(10));
        // Nothing has begun for as long again.
        assert_eq!(queue.expected_wait(at(72)), Duration::from_secs(20));
        // Without a queue there is nothing to wait for, and nothing is known of the next one.
        (0..10).for_each(|_| queue.leave(10));
        queue.enter(10);
        assert_eq!(queue.expected_wait(at(73)), Duration::ZERO);
    }

    #[test]
    fn one_prompt_may_always_wait() {
        let mut queue = Queue::default();
        assert!(!queue.is_full(1000, 100));
        queue.enter(1000);
        assert!(queue.is_full(1, 100));
        queue.leave(1000);
        queue.enter(60);
        assert!(!queue.is_full(40, 100));
        assert!(queue.is_full(41, 100));
    }
}
