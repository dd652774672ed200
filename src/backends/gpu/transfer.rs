//! Bytes to and from the GPU: in place where its memory is the host's, through staging memory elsewhere.

use super::core::Core;
use super::driver::Showing;
use super::error_records::{ERROR_RECORDS, ErrorRecords, Reported};
use super::memory::GpuBuffer;
use crate::backends::PendingRead;
use crate::backends::large_copy;
use crate::backends::lock::lock;
use crate::backends::{FILLED_BLOCK, FillsValues};
use crate::error::{TensorError, TensorResult};
use crate::events;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Bytes written at a time, so that the driver's staging memory stays small.
const UPLOAD_CHUNK: usize = 16 << 20;
/// Chunks between waits.
const UPLOAD_AHEAD: usize = 4;
/// Bytes read at a time. With the error records behind them they fit into staging memory of 32 MiB, of which there are two.
pub(super) const READ_CHUNK: usize = (32 << 20) - 4096;
/// Bytes that are submitted as soon as they are written: the copy runs while the host goes on.
const SUBMITTED_UPLOAD: usize = UPLOAD_CHUNK / 2;
/// Staging memory of downloads kept for the next ones: so many buffers, and more as long as they have no more bytes than this.
const MAX_SPARE_STAGING: usize = 4;
const SPARE_STAGING_BYTES: u64 = 256 << 20;
/// Bytes of a block that is filled.
const FILLED_BYTES: usize = FILLED_BLOCK * size_of::<f32>();

/// Staging memory of downloads: two buffers that take turns, so that the copy of one chunk runs while the host reads the one before.
pub(super) type Staging = [Option<wgpu::Buffer>; 2];

/// A copy into staging memory that was submitted: bytes, and error records behind them.
struct Asked {
    mapped: Arc<Mapped>,
    submission: wgpu::SubmissionIndex,
    len: u64,
    records: u32,
}

/// Bytes to be read.
pub(super) struct Part<'a> {
    pub buffer: &'a GpuBuffer,
    pub start: usize,
    pub len: usize,
}

/// Asks for a buffer to be mapped.
pub(super) fn map(buffer: &wgpu::Buffer, mode: wgpu::MapMode, len: u64) -> Arc<Mapped> {
    let mapped = Arc::new(Mapped::default());
    let slot = mapped.clone();
    buffer.map_async(mode, 0..len, move |r| slot.set(r));
    mapped
}

/// The answer to a request to map a buffer. It comes on whichever thread polls the device, so it may come a little after the work is done.
#[derive(Default)]
pub(super) struct Mapped(Mutex<Option<Result<(), wgpu::BufferAsyncError>>>, Condvar);

impl Mapped {
    fn set(&self, r: Result<(), wgpu::BufferAsyncError>) {
        *lock(&self.0) = Some(r);
        self.1.notify_all();
    }
}

impl Core {
    /// Waits for the answer to a request to map, first by spinning for a moment, as `Queue::wait_awake` does; then for the submission (or for all)
    /// that it depends on.
    pub(super) fn wait_mapped(&self, mapped: &Mapped, submission: Option<wgpu::SubmissionIndex>) -> TensorResult<()> {
        let _waiting = self.queue.waiting();
        let start = Instant::now();
        let awake = self.adapter.pacing(|p| p.awake);
        while start.elapsed() < awake {
            let _ = self.driver.device.poll(wgpu::PollType::Poll);
            if matches!(*lock(&mapped.0), Some(Ok(()))) {
                return self.queue.check();
            }
            std::hint::spin_loop();
        }
        self.queue.wait_for(submission)?;
        let start = Instant::now();
        let mut answer = lock(&mapped.0);
        while answer.is_none() && start.elapsed() < Duration::from_secs(10) {
            answer = mapped.1.wait_timeout(answer, Duration::from_millis(1)).unwrap_or_else(|e| e.into_inner()).0;
            if answer.is_none() {
                drop(answer);
                let _ = self.driver.device.poll(wgpu::PollType::Poll);
                answer = lock(&mapped.0);
            }
        }
        if matches!(*answer, Some(Ok(()))) {
            return Ok(());
        }
        self.check()?;
        Err(TensorError::DeviceLost(format!("{}: reading back failed ({:?})", self.name(), *answer)))
    }

    /// A buffer with this content.
    pub fn upload(self: &Arc<Core>, bytes: &[u8], kind: u8) -> TensorResult<GpuBuffer> {
        let buffer = self.lease(bytes.len(), kind, 0)?;
        self.write(&buffer, 0, bytes)?;
        self.transfers.uploads.fetch_add(1, Relaxed);
        Ok(buffer)
    }

    /// Overwrites bytes from `start` on, a multiple of 4, after what was submitted before. The last word is written whole.
    pub fn write(&self, buffer: &GpuBuffer, start: usize, bytes: &[u8]) -> TensorResult<()> {
        let end = start.checked_add(bytes.len()).filter(|end| *end <= buffer.0.size as usize && start % 4 == 0);
        if end.is_none() {
            return Err(TensorError::Internal(format!("a write of {} bytes at {start} into a buffer of {}", bytes.len(), buffer.0.size)));
        }
        self.transfers.uploaded(bytes.len());
        if self.write_in_place(buffer, start, bytes)? {
            return self.check();
        }
        let mut marks = std::collections::VecDeque::new();
        for (n, chunk) in bytes.chunks(UPLOAD_CHUNK).enumerate() {
            let at = (start + n * UPLOAD_CHUNK) as u64;
            let whole = chunk.len() & !3;
            if whole > 0 {
                self.stage(&buffer.0.raw(), at, &chunk[..whole]);
            }
            if whole < chunk.len() {
                let mut last = [0u8; 4];
                last[..chunk.len() - whole].copy_from_slice(&chunk[whole..]);
                self.stage(&buffer.0.raw(), at + whole as u64, &last);
            }
            if bytes.len() >= SUBMITTED_UPLOAD {
                marks.push_back(self.queue.send(None));
                if marks.len() > UPLOAD_AHEAD {
                    self.queue.wait_for(marks.pop_front())?;
                }
            }
        }
        self.check()
    }

    /// A buffer of values that `fill` writes into memory which the device copies from.
    pub fn upload_filled(self: &Arc<Core>, len: usize, kind: u8, fill: FillsValues<'_>) -> TensorResult<GpuBuffer> {
        let buffer = self.lease(len * size_of::<f32>(), kind, 0)?;
        let mut marks = std::collections::VecDeque::new();
        for at in (0..len).step_by(UPLOAD_CHUNK / size_of::<f32>()) {
            self.stage_filled(&buffer.0.raw(), at..len.min(at + UPLOAD_CHUNK / size_of::<f32>()), fill)?;
            marks.push_back(self.queue.send(None));
            if marks.len() > UPLOAD_AHEAD {
                self.queue.wait_for(marks.pop_front())?;
            }
        }
        self.transfers.uploads.fetch_add(1, Relaxed);
        self.transfers.uploaded(len * size_of::<f32>());
        self.check()?;
        Ok(buffer)
    }

    fn stage_filled(&self, raw: &wgpu::Buffer, values: Range<usize>, fill: FillsValues<'_>) -> TensorResult<()> {
        let at = values.start * size_of::<f32>();
        let size = wgpu::BufferSize::new((values.len() * size_of::<f32>()) as u64);
        let view = size.and_then(|size| self.driver.queue.write_buffer_with(raw, at as u64, size));
        let Some(mut view) = view else {
            self.check()?;
            return Err(TensorError::Internal(format!("no staging memory for {} values", values.len())));
        };
        // Block by block in the cache: the memory may be slow to read, and is written once.
        let write = |at: usize, mut to: wgpu::WriteOnly<'_, [u8]>| {
            let mut block = [0f32; FILLED_BLOCK];
            let block = &mut block[..to.len() / size_of::<f32>()];
            fill(at, block);
            to.copy_from_slice(bytemuck::cast_slice(block));
        };
        let (blocks, rest) = view.slice(..).into_chunks::<FILLED_BYTES>();
        let mut places = (values.start..values.end).step_by(FILLED_BLOCK);
        let mut blocks: Vec<_> = blocks.into_iter().map(|block| places.next().map(|at| (at, block))).collect();
        places.next().into_iter().zip([rest]).for_each(|(at, rest)| write(at, rest));
        let each = large_copy::share(values.len(), size_of::<f32>()) / FILLED_BLOCK;
        large_copy::on_threads(blocks.chunks_mut(each).collect(), |blocks| {
            blocks.iter_mut().filter_map(Option::take).for_each(|(at, block)| write(at, block.into()));
        });
        drop(view);
        self.transfers.staging_writes.fetch_add(1, Relaxed);
        self.queue.pending.add_write();
        Ok(())
    }

    fn stage(&self, raw: &wgpu::Buffer, at: u64, bytes: &[u8]) {
        self.transfers.staging_writes.fetch_add(1, Relaxed);
        self.driver.queue.write_buffer(raw, at, bytes);
        self.queue.pending.add_write();
    }

    /// Writes where the host sees the buffer's memory and nothing that was submitted uses it any more; else gives false.
    fn write_in_place(&self, buffer: &GpuBuffer, start: usize, bytes: &[u8]) -> TensorResult<bool> {
        let raw = &buffer.0.raw();
        if bytes.len() < super::host::DEFERRED_UPLOAD_MAX_BYTES || !raw.usage().contains(wgpu::BufferUsages::MAP_WRITE) {
            return Ok(false);
        }
        self.queue.flush();
        // No submit may come between mapping and unmapping.
        let _submit_lock = self.queue.submit_lock();
        let mapped = map(raw, wgpu::MapMode::Write, raw.size());
        let _ = self.driver.device.poll(wgpu::PollType::Poll);
        let ready = matches!(*lock(&mapped.0), Some(Ok(())));
        let written = match ready.then(|| raw.get_mapped_range_mut(0..raw.size())) {
            Some(Ok(mut view)) => {
                view.slice(start..start + bytes.len()).copy_from_slice(bytes);
                true
            }
            _ => false,
        };
        raw.unmap();
        if written {
            self.transfers.written_in_place(bytes.len());
        }
        Ok(written)
    }

    /// Fills buffers from many small pieces: one write of staging memory, and copies from there, which the next submit takes along.
    pub fn upload_many(self: &Arc<Core>, pieces: &[(&GpuBuffer, &[u8])]) -> TensorResult<()> {
        self.transfers.uploads.fetch_add(pieces.len() as u64, Relaxed);
        if let [(buffer, bytes)] = pieces {
            return self.write(buffer, 0, bytes);
        }
        let mut all = Vec::with_capacity(pieces.iter().map(|p| p.1.len().next_multiple_of(4)).sum());
        for (_, bytes) in pieces {
            all.extend_from_slice(bytes);
            all.resize(all.len().next_multiple_of(4), 0);
        }
        if all.is_empty() {
            return Ok(());
        }
        events::uploads_joined(pieces.len(), all.len());
        let staging = self.lease(all.len(), 0, 0)?;
        self.transfers.uploaded_bytes.fetch_add(all.len() as u64, Relaxed);
        self.stage(&staging.0.raw(), 0, &all);
        let mut e = self.driver.encoder();
        let mut at = 0;
        for (buffer, bytes) in pieces {
            let len = bytes.len().next_multiple_of(4) as u64;
            if len > 0 {
                e.copy_buffer_to_buffer(&staging.0.raw(), at, &buffer.0.raw(), 0, len);
            }
            at += len;
        }
        self.queue.pending.add_copy(e.finish(), staging);
        Ok(())
    }

    /// Waits for what was submitted and shows bytes `start..start + len`, in parts, from the buffer itself or from staging memory.
    pub fn view(
        &self,
        staging: &Mutex<Staging>,
        buffer: &GpuBuffer,
        start: usize,
        len: usize,
        part: usize,
        show: &mut dyn FnMut(&[u8]),
    ) -> TensorResult<()> {
        if start.checked_add(len).is_none_or(|end| end > buffer.0.size as usize) {
            return Err(TensorError::Internal(format!("a read of {len} bytes from {start} of a buffer of {}", buffer.0.size)));
        }
        let mut staging = lock(staging);
        if len == 0 {
            self.queue.wait()?;
            return self.read_record(&mut staging[0]);
        }
        self.transfers.downloaded(1, len);
        if !self.records.may_be_set() && self.show_in_place(buffer, start, len, show)? {
            return self.check();
        }
        // An error or a panic leaves no memory here that is mapped or may still become so.
        let mut both = std::mem::take(&mut *staging);
        let shown = self.show_staged(&mut both, &buffer.0.raw(), start..start + len, part, show);
        match shown {
            Ok(()) => *staging = both,
            // Records may have been taken and not been read.
            Err(_) => self.records.expect(ErrorRecords::ALL),
        }
        shown
    }

    /// Shows these bytes, `part` of them at a time; each part is asked for before the one in front of it is shown.
    fn show_staged(
        &self,
        staging: &mut Staging,
        raw: &wgpu::Buffer,
        bytes: Range<usize>,
        part: usize,
        show: &mut dyn FnMut(&[u8]),
    ) -> TensorResult<()> {
        let parts = bytes.clone().step_by(part).map(|from| from..bytes.end.min(from.saturating_add(part)));
        let words = |p: &Range<usize>| p.start & !3..p.end.next_multiple_of(4);
        let mut earlier: Option<(Range<usize>, Asked)> = None;
        for next in parts.map(Some).chain([None]) {
            let [one, other] = &mut *staging;
            let mut asked = None;
            if let Some(part) = next {
                let words = words(&part);
                let range = Some((raw, words.start as u64, words.len() as u64));
                asked = Some((part, self.ask(one, range, self.records.take())?));
            }
            if let Some((part, asked)) = std::mem::replace(&mut earlier, asked) {
                let from = part.start - words(&part).start;
                let error = self.receive(other, asked, |copied| {
                    let _showing = Showing::on(&self.driver);
                    show(&copied[from..from + part.len()]);
                })?;
                self.records.report(&self.driver.queue, error)?;
            }
            staging.swap(0, 1);
        }
        Ok(())
    }

    /// Waits for what was submitted and copies bytes `start..start + out.len()`.
    pub fn read(&self, staging: &Mutex<Staging>, buffer: &GpuBuffer, start: usize, out: &mut [u8]) -> TensorResult<()> {
        large_copy::expect_many_bytes(out);
        let mut at = 0;
        self.view(staging, buffer, start, out.len(), READ_CHUNK, &mut |bytes| {
            large_copy::copy(bytes, &mut out[at..at + bytes.len()]);
            at += bytes.len();
        })
    }

    /// Submits the copies of these bytes and gives the call that waits for them.
    pub fn start_read(self: &Arc<Core>, spare: &Arc<Mutex<Vec<wgpu::Buffer>>>, parts: &[Part<'_>]) -> TensorResult<PendingRead> {
        for Part { buffer, start, len } in parts {
            if start.checked_add(*len).is_none_or(|end| end > buffer.0.size as usize) {
                return Err(TensorError::Internal(format!("a read of {len} bytes from {start} of a buffer of {}", buffer.0.size)));
            }
        }
        self.check()?;
        self.transfers.downloaded(parts.len(), parts.iter().map(|p| p.len).sum());
        if let [Part { buffer, start, len }] = *parts {
            if len >= super::host::DEFERRED_UPLOAD_MAX_BYTES
                && !self.records.may_be_set()
                && buffer.0.raw().usage().contains(wgpu::BufferUsages::MAP_READ)
            {
                return Ok(self.read_later(buffer, start, len));
            }
        }
        // Whole words of each part, one part behind the other.
        let words: Vec<_> = parts.iter().map(|p| p.start & !3..(p.start + p.len).next_multiple_of(4)).collect();
        let copied = words.iter().map(|w| w.len() as u64).sum::<u64>();
        let size = (copied + 16 * ERROR_RECORDS as u64).next_power_of_two().max(4096);
        let taken = {
            let mut spare = lock(spare);
            spare.iter().position(|b| b.size() == size).map(|at| spare.swap_remove(at))
        };
        let target = match taken {
            Some(t) => t,
            None => self.driver.buffer("staging", size, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)?,
        };
        let records = self.records.take();
        let whole = copied + ErrorRecords::bytes(records);
        let index = self.queue.send_with(|e| {
            let mut at = 0;
            for (part, words) in parts.iter().zip(&words) {
                e.copy_buffer_to_buffer(&part.buffer.0.raw(), words.start as u64, &target, at, words.len() as u64);
                at += words.len() as u64;
            }
            self.records.copy(e, records, &target, copied);
        });
        let mapped = map(&target, wgpu::MapMode::Read, whole);
        let (asked, asking) = (mapped.clone(), self.clone());
        let ready = Box::new(move || {
            let _ = asking.driver.device.poll(wgpu::PollType::Poll);
            lock(&asked.0).is_some()
        });
        let (core, spare) = (self.clone(), spare.clone());
        let mut at = 0;
        let mut place = |(p, words): (&Part<'_>, &std::ops::Range<usize>)| {
            let from = at + p.start - words.start;
            at += words.len();
            from..from + p.len
        };
        let places: Vec<_> = parts.iter().zip(&words).map(&mut place).collect();
        let len = places.iter().map(|p| p.len()).sum();
        let wait = Box::new(move |out: &mut [u8]| {
            core.wait_mapped(&mapped, Some(index))?;
            let bytes = target.get_mapped_range(0..whole).map_err(|e| TensorError::DeviceLost(format!("{}: {e}", core.name())))?;
            large_copy::expect_many_bytes(out);
            let mut rest = out;
            for place in places {
                let (part, behind) = rest.split_at_mut(place.len());
                large_copy::copy(&bytes[place], part);
                rest = behind;
            }
            let error = ErrorRecords::first_set(&bytes[copied as usize..]);
            drop(bytes);
            target.unmap();
            let mut spare = lock(&spare);
            spare.push(target);
            if spare.len() > MAX_SPARE_STAGING && spare.iter().map(wgpu::Buffer::size).sum::<u64>() > SPARE_STAGING_BYTES {
                spare.remove(0);
            }
            drop(spare);
            core.records.report(&core.driver.queue, error)
        });
        Ok(PendingRead { len, ready, wait })
    }

    /// Like `start_read` without a copy on the device: the buffer itself is read once what was submitted is done. (Work that is submitted in
    /// between and reads the buffer is waited for too, which is why small reads are copied.)
    fn read_later(self: &Arc<Core>, buffer: &GpuBuffer, start: usize, len: usize) -> PendingRead {
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        self.queue.flush();
        self.driver.queue.on_submitted_work_done(move || flag.store(true, Relaxed));
        let asking = self.clone();
        let ready = Box::new(move || {
            let _ = asking.driver.device.poll(wgpu::PollType::Poll);
            done.load(Relaxed)
        });
        // The handle keeps others from writing in place.
        let (core, buffer) = (self.clone(), buffer.clone());
        let wait = Box::new(move |out: &mut [u8]| {
            core.queue.wait()?;
            large_copy::expect_many_bytes(out);
            match core.show_in_place(&buffer, start, len, &mut |bytes| large_copy::copy(bytes, out))? {
                true => Ok(()),
                false => core.read(&Mutex::default(), &buffer, start, out),
            }
        });
        PendingRead { len, ready, wait }
    }

    /// Shows bytes of a buffer that the host sees; false where it does not, or the mapping fails.
    fn show_in_place(&self, buffer: &GpuBuffer, start: usize, len: usize, show: &mut dyn FnMut(&[u8])) -> TensorResult<bool> {
        let raw = &buffer.0.raw();
        if !raw.usage().contains(wgpu::BufferUsages::MAP_READ) {
            return Ok(false);
        }
        let run = self.queue.flush();
        self.queue.wait_awake(run, self.adapter.pacing(|p| p.awake))?;
        // No submit may come between mapping and unmapping; one that came before the lock may still use the buffer.
        let _submit_lock = self.queue.submit_lock();
        let mapped = map(raw, wgpu::MapMode::Read, raw.size());
        if let Err(e) = self.wait_mapped(&mapped, None) {
            raw.unmap();
            return Err(e);
        }
        let shown = match raw.get_mapped_range(0..raw.size()) {
            Ok(bytes) => {
                let _showing = Showing::on(&self.driver);
                show(&bytes[start..start + len]);
                true
            }
            _ => false,
        };
        raw.unmap();
        events::read_in_place(len);
        self.transfers.in_place_reads.fetch_add(shown as u64, Relaxed);
        Ok(shown)
    }

    fn read_record(&self, staging: &mut Option<wgpu::Buffer>) -> TensorResult<()> {
        let records = self.records.take();
        if records != 0 {
            let error = self.fetch(staging, None, records, |_| {})?;
            self.records.report(&self.driver.queue, error)?;
        }
        Ok(())
    }

    /// Copies a range and error records through staging memory; gives the first record that is set.
    pub fn fetch(
        &self,
        staging: &mut Option<wgpu::Buffer>,
        range: Option<(&wgpu::Buffer, u64, u64)>,
        records: u32,
        take: impl FnOnce(&[u8]),
    ) -> TensorResult<Option<Reported>> {
        let asked = self.ask(staging, range, records)?;
        self.receive(staging, asked, take)
    }

    /// Submits the copy of a range and of error records into staging memory, which grows where it is too small.
    fn ask(&self, staging: &mut Option<wgpu::Buffer>, range: Option<(&wgpu::Buffer, u64, u64)>, records: u32) -> TensorResult<Asked> {
        self.check()?;
        let len = range.map_or(0, |r| r.2);
        let need = len + ErrorRecords::bytes(records);
        let target = match staging.take().filter(|s| s.size() >= need) {
            Some(target) => staging.insert(target),
            None => {
                let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
                staging.insert(self.driver.buffer("staging", need.next_power_of_two().max(4096), usage)?)
            }
        };
        let submission = self.queue.send_with(|e| {
            if let Some((source, start, len)) = range {
                e.copy_buffer_to_buffer(source, start, target, 0, len);
            }
            self.records.copy(e, records, target, len);
        });
        Ok(Asked { mapped: map(target, wgpu::MapMode::Read, need), submission, len, records })
    }

    /// Waits for a copy that was asked for into this memory and shows its bytes; gives the first error record that is set.
    fn receive(&self, staging: &mut Option<wgpu::Buffer>, asked: Asked, take: impl FnOnce(&[u8])) -> TensorResult<Option<Reported>> {
        if let Err(e) = self.wait_mapped(&asked.mapped, Some(asked.submission)) {
            // A buffer that may still become mapped must not be used again.
            *staging = None;
            return Err(e);
        }
        let Some(target) = staging.as_ref() else { return Ok(None) };
        let (len, need) = (asked.len as usize, asked.len + ErrorRecords::bytes(asked.records));
        let bytes = target.get_mapped_range(0..need).map_err(|e| TensorError::DeviceLost(format!("{}: {e}", self.name())))?;
        take(&bytes[..len]);
        let error = ErrorRecords::first_set(&bytes[len..]);
        drop(bytes);
        target.unmap();
        Ok(error)
    }
}
