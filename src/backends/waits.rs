//! Counts how often and how long the host waits for a device.

use crate::events::{self, Span, SpanKind, span};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

thread_local! {
    /// Whether this thread waits for a device.
    static WAITING: Cell<bool> = const { Cell::new(false) };
}

/// Waits of the host, and their nanoseconds.
#[derive(Default)]
pub(super) struct Waits([AtomicU64; 2]);

/// A wait of the host, until it is dropped.
pub(super) struct WaitGuard<'w> {
    waits: &'w Waits,
    start: Option<Instant>,
    _span: Span,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let Some(start) = self.start else { return };
        WAITING.set(false);
        let took = start.elapsed();
        self.waits.0[0].fetch_add(1, Relaxed);
        self.waits.0[1].fetch_add(took.as_nanos() as u64, Relaxed);
        events::waited(took.as_secs_f64());
    }
}

impl Waits {
    /// Counts what follows as a wait, until the result is dropped. A wait inside of another counts with that one.
    pub fn begin(&self) -> WaitGuard<'_> {
        let outer = WAITING.replace(true);
        WaitGuard { waits: self, start: (!outer).then(Instant::now), _span: span(SpanKind::Wait) }
    }

    /// How often and how long the host waited.
    pub fn totals(&self) -> (u64, Duration) {
        (self.0[0].load(Relaxed), Duration::from_nanos(self.0[1].load(Relaxed)))
    }
}
