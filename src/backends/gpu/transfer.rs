//! Bytes to and from the GPU.

use super::core::{Core, lock};
use super::pool::GpuBuffer;
use crate::backends::PendingRead;
use crate::error::{TensorError, TensorResult};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Bytes written at a time, so that the driver's staging memory stays small.
const UPLOAD_CHUNK: usize = 16 << 20;
/// Chunks between waits.
const UPLOAD_AHEAD: usize = 4;
/// Bytes that a read without waiting may have.
pub const SMALL_READ: usize = 4096;
/// Bytes read at a time.
const READ_CHUNK: usize = 64 << 20;

/// The answer to a request to map a buffer. It comes on whichever thread polls the device, so it may come a little after the work is done.
#[derive(Default)]
struct Mapped(Mutex<Option<Result<(), wgpu::BufferAsyncError>>>, Condvar);

impl Mapped {
    fn set(&self, r: Result<(), wgpu::BufferAsyncError>) {
        *lock(&self.0) = Some(r);
        self.1.notify_all();
    }
}

impl Core {
    /// Waits for the answer to a request to map, whose work is done.
    fn wait_mapped(&self, mapped: &Mapped) -> TensorResult<()> {
        let start = Instant::now();
        let mut answer = lock(&mapped.0);
        while answer.is_none() && start.elapsed() < Duration::from_secs(10) {
            answer = mapped.1.wait_timeout(answer, Duration::from_millis(1)).unwrap_or_else(|e| e.into_inner()).0;
            if answer.is_none() {
                drop(answer);
                let _ = self.device.poll(wgpu::PollType::Poll);
                answer = lock(&mapped.0);
            }
        }
        if matches!(*answer, Some(Ok(()))) {
            return Ok(());
        }
        self.check()?;
        Err(TensorError::DeviceLost(format!("{}: reading back failed ({:?})", self.name, *answer)))
    }

    /// A buffer with this content.
    pub fn upload(self: &Arc<Core>, bytes: &[u8]) -> TensorResult<GpuBuffer> {
        let buffer = self.lease(bytes.len(), 0)?;
        self.write(&buffer, 0, bytes)?;
        Ok(buffer)
    }

    /// Overwrites bytes from `start` on, a multiple of 4. The last word is written whole.
    pub fn write(&self, buffer: &GpuBuffer, start: usize, bytes: &[u8]) -> TensorResult<()> {
        let end = start.checked_add(bytes.len()).filter(|end| *end <= buffer.0.size as usize && start % 4 == 0);
        if end.is_none() {
            return Err(TensorError::Invalid(format!("a write of {} bytes at {start} into a buffer of {}", bytes.len(), buffer.0.size)));
        }
        let mut marks = std::collections::VecDeque::new();
        for (n, chunk) in bytes.chunks(UPLOAD_CHUNK).enumerate() {
            let at = (start + n * UPLOAD_CHUNK) as u64;
            let whole = chunk.len() & !3;
            if whole > 0 {
                self.queue.write_buffer(&buffer.0.raw, at, &chunk[..whole]);
            }
            if whole < chunk.len() {
                let mut last = [0u8; 4];
                last[..chunk.len() - whole].copy_from_slice(&chunk[whole..]);
                self.queue.write_buffer(&buffer.0.raw, at + whole as u64, &last);
            }
            if bytes.len() > UPLOAD_CHUNK {
                marks.push_back(self.queue.submit([]));
                if marks.len() > UPLOAD_AHEAD {
                    self.wait_for(marks.pop_front())?;
                }
            }
        }
        self.check()
    }

    /// Waits for what was submitted and copies bytes `start..start + out.len()`.
    pub fn read(&self, staging: &Mutex<Option<wgpu::Buffer>>, buffer: &GpuBuffer, start: usize, out: &mut [u8]) -> TensorResult<()> {
        if start + out.len() > buffer.0.size as usize {
            return Err(TensorError::Invalid(format!("a read of bytes {start}..{} from a buffer of {}", start + out.len(), buffer.0.size)));
        }
        let mut staging = lock(staging);
        if out.is_empty() {
            self.wait()?;
            return self.read_record(&mut staging);
        }
        for (n, part) in out.chunks_mut(READ_CHUNK).enumerate() {
            let from = start + n * READ_CHUNK;
            let (low, high) = (from & !3, (from + part.len()).next_multiple_of(4));
            let record = self.may_fail.swap(false, Ordering::Relaxed);
            let bytes = self.fetch(&mut staging, Some((&buffer.0.raw, low as u64, (high - low) as u64)), record, |bytes| {
                part.copy_from_slice(&bytes[from - low..from - low + part.len()]);
            })?;
            self.report(bytes)?;
        }
        Ok(())
    }

    /// Submits the copy of bytes `start..start + len` (at most `SMALL_READ`) and gives the call that waits for it.
    pub fn start_read(
        self: &Arc<Core>,
        spare: &Arc<Mutex<Vec<wgpu::Buffer>>>,
        buffer: &GpuBuffer,
        start: usize,
        len: usize,
    ) -> TensorResult<PendingRead> {
        if start + len > buffer.0.size as usize {
            return Err(TensorError::Invalid(format!("a read of bytes {start}..{} from a buffer of {}", start + len, buffer.0.size)));
        }
        self.check()?;
        let taken = lock(spare).pop();
        let target = match taken {
            Some(t) => t,
            None => {
                let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
                let descriptor =
                    wgpu::BufferDescriptor { label: Some("staging"), size: SMALL_READ as u64 + 32, usage, mapped_at_creation: false };
                self.guarded(|| self.device.create_buffer(&descriptor)).map_err(|e| self.refused(e))?
            }
        };
        let (low, high) = (start & !3, (start + len).next_multiple_of(4));
        let copied = (high - low) as u64;
        let record = self.may_fail.swap(false, Ordering::Relaxed);
        let mut e = self.device.create_command_encoder(&Default::default());
        e.copy_buffer_to_buffer(&buffer.0.raw, low as u64, &target, 0, copied);
        if record {
            e.copy_buffer_to_buffer(&self.error_record, 0, &target, copied, 16);
        }
        let index = self.queue.submit([e.finish()]);
        let mapped = Arc::new(Mapped::default());
        let slot = mapped.clone();
        target.map_async(wgpu::MapMode::Read, 0..copied + 16, move |r| slot.set(r));
        let (core, spare) = (self.clone(), spare.clone());
        Ok(Box::new(move || {
            core.wait_for(Some(index))?;
            core.wait_mapped(&mapped)?;
            let bytes = target.get_mapped_range(0..copied + 16).map_err(|e| TensorError::DeviceLost(format!("{}: {e}", core.name)))?;
            let out = bytes[start - low..start - low + len].to_vec();
            let mut r = [0u32; 4];
            bytemuck::cast_slice_mut::<u32, u8>(&mut r).copy_from_slice(&bytes[copied as usize..copied as usize + 16]);
            drop(bytes);
            target.unmap();
            lock(&spare).push(target);
            core.report(record.then_some(r))?;
            Ok(out)
        }))
    }

    fn read_record(&self, staging: &mut Option<wgpu::Buffer>) -> TensorResult<()> {
        if self.may_fail.swap(false, Ordering::Relaxed) {
            let record = self.fetch(staging, None, true, |_| {})?;
            self.report(record)?;
        }
        Ok(())
    }

    /// Gives the error of a set record, and clears it.
    fn report(&self, record: Option<[u32; 4]>) -> TensorResult<()> {
        match record {
            Some(r) if r[0] != 0 => {
                self.queue.write_buffer(&self.error_record, 0, &[0; 16]);
                Err(self.index_error(r))
            }
            _ => Ok(()),
        }
    }

    /// Copies a range, and the error record if asked for, through staging memory.
    pub fn fetch(
        &self,
        staging: &mut Option<wgpu::Buffer>,
        range: Option<(&wgpu::Buffer, u64, u64)>,
        record: bool,
        take: impl FnOnce(&[u8]),
    ) -> TensorResult<Option<[u32; 4]>> {
        self.check()?;
        let len = range.map_or(0, |r| r.2);
        let need = len + 16;
        if staging.as_ref().is_none_or(|s| s.size() < need) {
            let descriptor = wgpu::BufferDescriptor {
                label: Some("staging"),
                size: need.next_power_of_two().max(4096),
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            };
            *staging = Some(self.guarded(|| self.device.create_buffer(&descriptor)).map_err(|e| self.refused(e))?);
        }
        let Some(target) = staging.as_ref() else { return Ok(None) };
        let mut e = self.device.create_command_encoder(&Default::default());
        if let Some((source, start, len)) = range {
            e.copy_buffer_to_buffer(source, start, target, 0, len);
        }
        if record {
            e.copy_buffer_to_buffer(&self.error_record, 0, target, len, 16);
        }
        let index = self.queue.submit([e.finish()]);
        let mapped = Arc::new(Mapped::default());
        let slot = mapped.clone();
        target.map_async(wgpu::MapMode::Read, 0..need, move |r| slot.set(r));
        if let Err(e) = self.wait_for(Some(index)).and_then(|()| self.wait_mapped(&mapped)) {
            // A buffer that may still become mapped must not be used again.
            *staging = None;
            return Err(e);
        }
        let bytes = target.get_mapped_range(0..need).map_err(|e| TensorError::DeviceLost(format!("{}: {e}", self.name)))?;
        take(&bytes[..len as usize]);
        let mut r = [0u32; 4];
        bytemuck::cast_slice_mut::<u32, u8>(&mut r).copy_from_slice(&bytes[len as usize..need as usize]);
        drop(bytes);
        target.unmap();
        Ok(record.then_some(r))
    }
}
