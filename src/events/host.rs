//! What the host did and when, while a profile asks for it: the spans of the registry, with their threads.

use super::SpanKind;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Spans kept at most; later ones are dropped.
const MAX_SPANS: usize = 1 << 18;

/// A span of time that the host spent on something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostSpan {
    /// What it was: the name of a span of [`super::KINDS`].
    pub name: &'static str,
    /// The number of the thread, in the order in which threads were first seen.
    pub thread: u32,
    /// How many spans it lies in.
    pub depth: u32,
    /// Its start and end.
    pub time: [Instant; 2],
}

/// The spans of all recordings that go on.
struct Log {
    recordings: usize,
    spans: Vec<HostSpan>,
}

static RECORDING: AtomicBool = AtomicBool::new(false);
static LOG: Mutex<Log> = Mutex::new(Log { recordings: 0, spans: Vec::new() });

fn log() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a recording is on.
#[inline]
pub(super) fn recording() -> bool {
    RECORDING.load(Relaxed)
}

/// Adds a span that ends now.
pub(super) fn add(kind: SpanKind, depth: u32, start: Instant) {
    static THREADS: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static THREAD: u32 = THREADS.fetch_add(1, Relaxed);
    }
    let mut log = log();
    if log.recordings > 0 && log.spans.len() < MAX_SPANS {
        log.spans.push(HostSpan { name: kind.name(), thread: THREAD.with(|t| *t), depth, time: [start, Instant::now()] });
    }
}

/// A recording of what the host does, in all threads. Dropping it discards it.
pub(crate) struct HostSpans {
    first: usize,
}

/// Starts a recording.
pub(crate) fn record_host_spans() -> HostSpans {
    let mut log = log();
    log.recordings += 1;
    RECORDING.store(true, Relaxed);
    HostSpans { first: log.spans.len() }
}

impl HostSpans {
    /// The spans that ended since the start.
    pub fn spans(&self) -> Vec<HostSpan> {
        log().spans[self.first..].to_vec()
    }
}

impl Drop for HostSpans {
    fn drop(&mut self) {
        let mut log = log();
        log.recordings -= 1;
        if log.recordings == 0 {
            RECORDING.store(false, Relaxed);
            log.spans = Vec::new();
        }
    }
}
