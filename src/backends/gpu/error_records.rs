//! Memory in which kernels report a bad index.

use crate::backends::bad_indices::{BadIndices, RECORD_BYTES};
pub(super) use crate::backends::bad_indices::{ERROR_RECORDS, Reported};
use crate::error::TensorResult;
use std::ops::Deref;

/// The records of a device.
pub(super) struct ErrorRecords {
    buffers: [wgpu::Buffer; ERROR_RECORDS],
    steps: BadIndices,
}

impl Deref for ErrorRecords {
    type Target = BadIndices;
    fn deref(&self) -> &BadIndices {
        &self.steps
    }
}

impl ErrorRecords {
    /// All records, by bit.
    pub const ALL: u32 = (1 << ERROR_RECORDS) - 1;

    /// Records that are not set.
    pub fn new(device: &wgpu::Device) -> ErrorRecords {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: Some("errors"), size: RECORD_BYTES, usage, mapped_at_creation: false };
        ErrorRecords { buffers: std::array::from_fn(|_| device.create_buffer(&descriptor)), steps: BadIndices::default() }
    }

    /// Record `n`.
    pub fn buffer(&self, n: usize) -> &wgpu::Buffer {
        &self.buffers[n]
    }

    /// Bytes of these records.
    pub fn bytes(records: u32) -> u64 {
        BadIndices::bytes(records)
    }

    /// Copies these records one behind the other to `at`.
    pub fn copy(&self, encoder: &mut wgpu::CommandEncoder, records: u32, target: &wgpu::Buffer, at: u64) {
        let wanted = self.buffers.iter().enumerate().filter(|(n, _)| records >> n & 1 == 1);
        wanted.zip(0..).for_each(|((_, r), n)| encoder.copy_buffer_to_buffer(r, 0, target, at + RECORD_BYTES * n, RECORD_BYTES));
    }

    /// The first of these records that is set.
    pub fn first_set(records: &[u8]) -> Option<Reported> {
        BadIndices::first_set(records)
    }

    /// The error of a record that is set; clears all records.
    pub fn report(&self, queue: &wgpu::Queue, set: Option<Reported>) -> TensorResult<()> {
        let Some(set) = set else { return Ok(()) };
        self.buffers.iter().for_each(|r| queue.write_buffer(r, 0, &[0; RECORD_BYTES as usize]));
        Err(self.steps.error(set))
    }
}
