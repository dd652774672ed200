//! How fast raw copies through staging memory are: the limit that the benchmark shows next to transfers.

use super::core::Core;
use super::transfer::map;
use crate::backends::large_copy;
use crate::error::{TensorError, TensorResult};
use std::time::Instant;
use wgpu::{BufferUsages, MapMode};

/// Rounds, of which the best counts.
const ROUNDS: usize = 5;
/// Bytes of copies on the device between two waits, and how many copies at most.
const AHEAD_BYTES: usize = 32 << 20;
const MAX_COPIES_AHEAD: usize = 64;

impl Core {
    /// Seconds that the slower part of a copy of `bytes` through staging memory takes, the host's or the device's: copies in turn can hide
    /// one behind the other, but not both. Where the host sees the device's memory it is the host's part.
    pub fn staging_seconds(&self, bytes: usize, to_device: bool) -> TensorResult<f64> {
        let size = bytes.next_multiple_of(4).max(4);
        let (mode, own_mapping, usage) = match to_device {
            true => (MapMode::Write, BufferUsages::MAP_WRITE, BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC),
            false => (MapMode::Read, BufferUsages::MAP_READ, BufferUsages::MAP_READ | BufferUsages::COPY_DST),
        };
        let staging = self.driver.buffer("staging", size as u64, usage)?;
        let lease = self.lease(size, self.memory.default_kind(), 0)?;
        let own = lease.0.raw();
        let (from, to) = if to_device { (&staging, &own) } else { (&own, &staging) };
        let in_place = own.usage().contains(own_mapping);
        // Pages that the system has given.
        let mut host = vec![1u8; size];
        let ahead = (AHEAD_BYTES / size).clamp(1, MAX_COPIES_AHEAD);
        let (mut by_device, mut by_host) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            let submission = self.queue.send_with(|e| (0..ahead).for_each(|_| e.copy_buffer_to_buffer(from, 0, to, 0, size as u64)));
            self.queue.wait_for(Some(submission))?;
            by_device = by_device.min(begun.elapsed().as_secs_f64() / ahead as f64);
            let mapped = map(&staging, mode, size as u64);
            self.wait_mapped(&mapped, None)?;
            let seconds = if to_device {
                let mut view = staging.get_mapped_range_mut(0..size as u64).map_err(|e| self.not_mapped(e))?;
                let begun = Instant::now();
                view.slice(..).copy_from_slice(&host);
                begun.elapsed()
            } else {
                let view = staging.get_mapped_range(0..size as u64).map_err(|e| self.not_mapped(e))?;
                let begun = Instant::now();
                large_copy::copy(&view, &mut host);
                begun.elapsed()
            };
            staging.unmap();
            by_host = by_host.min(seconds.as_secs_f64());
        }
        Ok(if in_place { by_host } else { by_host.max(by_device) })
    }
    fn not_mapped(&self, e: impl std::fmt::Display) -> TensorError {
        TensorError::DeviceLost(format!("{}: {e}", self.name()))
    }
}
