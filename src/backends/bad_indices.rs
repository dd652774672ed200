//! How kernels report a bad index: records that they write, the steps that may write them, and the error that one becomes.

use super::lock::lock;
use crate::error::{At, TensorError};
use crate::events;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Error records. Steps of a plan take turns, so that none waits for another because of them.
pub(super) const ERROR_RECORDS: usize = 8;
/// Bytes of one: four words, which are a flag, the step's tag, the index, and nothing.
pub(super) const RECORD_BYTES: u64 = 16;

/// Which records may be set, and by which steps.
#[derive(Default)]
pub(super) struct BadIndices {
    /// The records, by bit, that a step could report an index to since they were last read.
    may_be_set: AtomicU32,
    /// The steps that can report an index, by tag.
    tags: Mutex<Vec<(&'static str, At)>>,
}

/// The content of a record that is set.
pub(super) struct Reported([u32; 4]);

impl BadIndices {
    /// The tag by which an error finds its step.
    pub fn tag(&self, op: &'static str, at: At) -> u32 {
        let mut tags = lock(&self.tags);
        tags.push((op, at));
        tags.len() as u32 - 1
    }

    /// Notes that steps were submitted that may set these records.
    pub fn expect(&self, records: u32) {
        if records != 0 {
            self.may_be_set.fetch_or(records, Relaxed);
        }
    }

    /// Whether a record may be set.
    #[cfg(feature = "gpu")]
    pub fn may_be_set(&self) -> bool {
        self.may_be_set.load(Relaxed) != 0
    }

    /// The records that may be set, for whoever reads them now.
    pub fn take(&self) -> u32 {
        self.may_be_set.swap(0, Relaxed)
    }

    /// Bytes of these records.
    #[cfg(feature = "gpu")]
    pub fn bytes(records: u32) -> u64 {
        RECORD_BYTES * records.count_ones() as u64
    }

    /// The first of these records that is set.
    pub fn first_set(records: &[u8]) -> Option<Reported> {
        let words = |r: &[u8]| [0, 4, 8, 12].map(|n| u32::from_le_bytes([r[n], r[n + 1], r[n + 2], r[n + 3]]));
        records.chunks_exact(RECORD_BYTES as usize).map(words).find(|r| r[0] != 0).map(Reported)
    }

    /// The error of a record that is set.
    pub fn error(&self, set: Reported) -> TensorError {
        let Reported([_, tag, index, _]) = set;
        let (op, at) = lock(&self.tags).get(tag as usize).copied().unwrap_or(("gpu", std::panic::Location::caller()));
        events::bad_index(op, (index as i32).into());
        TensorError::Index { op, message: format!("index {} lies outside its dimension", index as i32), at }
    }
}
