//! Counts what was moved between host and device.

use crate::events;
use crate::plan::TransferStats;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What was moved since the device was opened.
#[derive(Default)]
pub(super) struct TransferCounts {
    pub uploads: AtomicU64,
    pub uploaded_bytes: AtomicU64,
    pub staging_writes: AtomicU64,
    pub in_place_writes: AtomicU64,
    pub downloads: AtomicU64,
    pub downloaded_bytes: AtomicU64,
    pub in_place_reads: AtomicU64,
}

impl TransferCounts {
    /// Counts bytes on their way to the device.
    pub fn uploaded(&self, bytes: usize) {
        events::uploaded(bytes);
        self.uploaded_bytes.fetch_add(bytes as u64, Relaxed);
    }
    /// Counts a write to memory that the host sees.
    pub fn written_in_place(&self, bytes: usize) {
        events::written_in_place(bytes);
        self.in_place_writes.fetch_add(1, Relaxed);
    }
    /// Counts reads, of `bytes` in all.
    pub fn downloaded(&self, reads: usize, bytes: usize) {
        events::downloaded(bytes);
        self.downloads.fetch_add(reads as u64, Relaxed);
        self.downloaded_bytes.fetch_add(bytes as u64, Relaxed);
    }
    pub fn stats(&self) -> TransferStats {
        let n = |a: &AtomicU64| a.load(Relaxed);
        TransferStats {
            uploads: n(&self.uploads),
            uploaded_bytes: n(&self.uploaded_bytes),
            staging_writes: n(&self.staging_writes),
            in_place_writes: n(&self.in_place_writes),
            downloads: n(&self.downloads),
            downloaded_bytes: n(&self.downloaded_bytes),
            in_place_reads: n(&self.in_place_reads),
        }
    }
}
