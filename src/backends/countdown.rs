//! Counts submits down to a loss of the device that a test asks for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Submits after which the device is to be lost; never for most.
pub(super) struct Countdown(AtomicU64);

impl Default for Countdown {
    fn default() -> Countdown {
        Countdown(AtomicU64::new(u64::MAX))
    }
}

impl Countdown {
    /// The device is to be lost at the `submits`-th submit from now on.
    pub fn start(&self, submits: u64) {
        self.0.store(submits, Relaxed);
    }

    /// Counts a submit; whether the device is to be lost with it.
    pub fn is_due(&self) -> bool {
        let left = self.0.load(Relaxed);
        if left < u64::MAX {
            self.0.store(left.saturating_sub(1), Relaxed);
        }
        left <= 1
    }
}
