//! The way into the engine: what its thread is told, in the order of requests' numbers.

use super::queue::Waiting;
use super::request::Request;
use super::scheduler::RowId;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What the engine's thread is told.
pub(super) enum Message {
    Submit(RowId, Box<Request>, Waiting, Arc<AtomicUsize>, Instant),
    Cancel(RowId),
    Stop,
}

/// Who may submit, with the numbers that are given out.
pub(super) struct Door {
    pub next: RowId,
    pub sender: Sender<Message>,
}

pub(super) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
