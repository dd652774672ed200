//! Requests that wait for their prompts to be read: how many there are, how many tokens they have, and how long another one would wait.

use super::Request;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// Beginnings of requests from which the time between two of them is known, and of how many it is the mean.
const FEWEST_STARTS: usize = 8;
const MAX_STARTS: usize = 32;

/// The prompt that a request waits with. Equal ones, such as those of a request for several answers, are read once and count once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    tokens: usize,
    prompt: u64,
}

impl Waiting {
    pub fn of(request: &Request) -> Waiting {
        let mut hasher = DefaultHasher::new();
        (&request.prompt, &request.cache_name).hash(&mut hasher);
        Waiting { tokens: request.prompt.len(), prompt: hasher.finish() }
    }
}

/// The requests that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    requests: usize,
    /// Those with each prompt.
    prompts: HashMap<u64, usize>,
    /// Of all different prompts.
    tokens: usize,
    /// When the last requests began while others waited behind them.
    starts: VecDeque<Instant>,
}

impl Queue {
    /// A request waits with this prompt.
    pub fn enter(&mut self, w: Waiting) {
        self.requests += 1;
        let equal = self.prompts.entry(w.prompt).or_default();
        if *equal == 0 {
            self.tokens += w.tokens;
        }
        *equal += 1;
    }

    /// It waits no more.
    pub fn leave(&mut self, w: Waiting) {
        self.requests = self.requests.saturating_sub(1);
        if let Some(equal) = self.prompts.get_mut(&w.prompt) {
            *equal -= 1;
            if *equal == 0 {
                self.prompts.remove(&w.prompt);
                self.tokens = self.tokens.saturating_sub(w.tokens);
            }
        }
        if self.requests == 0 {
            self.starts.clear();
        }
    }

    /// It waits no more, since its prompt begins to be read.
    pub fn begin(&mut self, w: Waiting, now: Instant) {
        self.starts.push_back(now);
        if self.starts.len() > MAX_STARTS {
            self.starts.pop_front();
        }
        self.leave(w);
    }

    /// Whether with this prompt more than `most` tokens would wait. One prompt may always wait.
    pub fn is_full(&self, w: Waiting, most: usize) -> bool {
        self.requests > 0 && !self.prompts.contains_key(&w.prompt) && self.tokens.saturating_add(w.tokens) > most
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

    /// A prompt of so many tokens, of kind `n`.
    fn waits(tokens: usize, n: u64) -> Waiting {
        Waiting { tokens, prompt: n }
    }

    #[test]
    fn the_expected_wait_follows_the_rate_of_beginnings() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        (0..50).for_each(|_| queue.enter(waits(10, 0)));
        assert_eq!(queue.expected_wait(at(100)), Duration::ZERO);
        (0..40).for_each(|n| queue.begin(waits(10, 0), at(n)));
        // The last 32 began from second 8 on, so one a second; ten wait.
        assert_eq!(queue.expected_wait(at(40)), Duration::from_secs(10));
        // Nothing has begun for as long again.
        assert_eq!(queue.expected_wait(at(72)), Duration::from_secs(20));
        // Without a queue there is nothing to wait for, and nothing is known of the next one.
        (0..10).for_each(|_| queue.leave(waits(10, 0)));
        queue.enter(waits(10, 0));
        assert_eq!(queue.expected_wait(at(73)), Duration::ZERO);
    }

    #[test]
    fn one_prompt_may_always_wait() {
        let mut queue = Queue::default();
        assert!(!queue.is_full(waits(1000, 0), 100));
        queue.enter(waits(1000, 0));
        assert!(queue.is_full(waits(1, 1), 100));
        queue.leave(waits(1000, 0));
        queue.enter(waits(60, 2));
        assert!(!queue.is_full(waits(40, 3), 100));
        assert!(queue.is_full(waits(41, 3), 100));
    }

    #[test]
    fn equal_prompts_count_once() {
        let request = |prompt: &[u32], seed: u64| Request {
            sampling: crate::serving::Sampling { seed, ..Default::default() },
            ..Request::new(prompt, 5)
        };
        let [first, copy, other] = [(&[1, 2, 3][..], 1), (&[1, 2, 3], 2), (&[1, 2, 4], 1)].map(|(p, seed)| Waiting::of(&request(p, seed)));
        let mut queue = Queue::default();
        for _ in 0..16 {
            assert!(!queue.is_full(copy, 3));
            queue.enter(copy);
        }
        assert!(queue.is_full(other, 5) && !queue.is_full(other, 6));
        // As long as one of them waits, its tokens do.
        (0..15).for_each(|_| queue.leave(first));
        assert!(queue.is_full(other, 5));
        queue.leave(first);
        queue.enter(other);
        assert!(queue.is_full(first, 5) && !queue.is_full(first, 6));
        // Clients with caches of their own share nothing.
        let own = Waiting::of(&Request { cache_name: "a".into(), ..request(&[1, 2, 4], 1) });
        assert!(queue.is_full(own, 5) && !queue.is_full(other, 0));
    }
}
