//! Memory in which kernels report a bad index, and the error that it becomes.

use crate::backends::lock::lock;
use crate::error::{At, TensorError, TensorResult};
use crate::events;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Error records.
pub(super) const ERROR_RECORDS: usize = 8;
/// Bytes of one: four words, which are a flag, the step's tag, the index, and nothing.
const RECORD_BYTES: u64 = 16;

/// The records of a device. Steps of a plan take turns, so that none waits for another because of them.
pub(super) struct ErrorRecords {
    buffers: [wgpu::Buffer; ERROR_RECORDS],
    /// The records, by bit, that a step could report an index to since they were last read.
    may_be_set: AtomicU32,
    /// The steps that can report an index, by tag.
    tags: Mutex<Vec<(&'static str, At)>>,
}

/// The content of a record that is set.
pub(super) struct Reported([u32; 4]);

impl ErrorRecords {
    /// All records, by bit.
    pub const ALL: u32 = (1 << ERROR_RECORDS) - 1;

    /// Records that are not set.
    pub fn new(device: &wgpu::Device) -> ErrorRecords {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: Some("errors"), size: RECORD_BYTES, usage, mapped_at_creation: false };
        let buffers = std::array::from_fn(|_| device.create_buffer(&descriptor));
        ErrorRecords { buffers, may_be_set: AtomicU32::new(0), tags: Mutex::default() }
    }

    /// Record `n`.
    pub fn buffer(&self, n: usize) -> &wgpu::Buffer {
        &self.buffers[n]
    }

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
    pub fn may_be_set(&self) -> bool {
        self.may_be_set.load(Relaxed) != 0
    }

    /// The records that may be set, for whoever reads them now.
    pub fn take(&self) -> u32 {
        self.may_be_set.swap(0, Relaxed)
    }

    /// Bytes of these records.
    pub fn bytes(records: u32) -> u64 {
        RECORD_BYTES * records.count_ones() as u64
    }

    /// Copies these records one behind the other to `at`.
    pub fn copy(&self, encoder: &mut wgpu::CommandEncoder, records: u32, target: &wgpu::Buffer, at: u64) {
        let wanted = self.buffers.iter().enumerate().filter(|(n, _)| records >> n & 1 == 1);
        wanted.zip(0..).for_each(|((_, r), n)| encoder.copy_buffer_to_buffer(r, 0, target, at + RECORD_BYTES * n, RECORD_BYTES));
    }

    /// The first of these records that is set.
    pub fn first_set(records: &[u8]) -> Option<Reported> {
        let words = |r: &[u8]| [0, 4, 8, 12].map(|n| u32::from_le_bytes([r[n], r[n + 1], r[n + 2], r[n + 3]]));
        records.chunks_exact(RECORD_BYTES as usize).map(words).find(|r| r[0] != 0).map(Reported)
    }

    /// The error of a record that is set; clears all records.
    pub fn report(&self, queue: &wgpu::Queue, set: Option<Reported>) -> TensorResult<()> {
        let Some(Reported([_, tag, index, _])) = set else { return Ok(()) };
        self.buffers.iter().for_each(|r| queue.write_buffer(r, 0, &[0; RECORD_BYTES as usize]));
        let (op, at) = lock(&self.tags).get(tag as usize).copied().unwrap_or(("gpu", std::panic::Location::caller()));
        events::bad_index(op, (index as i32).into());
        Err(TensorError::Index { op, message: format!("index {} lies outside its dimension", index as i32), at })
    }
}
