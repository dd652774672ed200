//! Bytes to and from the GPU: in place where the host sees the memory and nothing uses it, else by copies in the order of submits.

use super::device::Gpu;
use super::memory::{Block, Copy, MetalBuffer, UNTIL_SUBMITTED};
use crate::backends::PendingRead;
use crate::backends::lock::lock;
use crate::error::{TensorError, TensorResult};
use crate::events;
use objc2::rc::autoreleasepool;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandEncoder};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of staging memory that large writes and reads are taken through at a time.
const CHUNK_BYTES: usize = 16 << 20;

/// Bytes to be read or written.
pub(super) struct Part<'a> {
    pub buffer: &'a MetalBuffer,
    pub start: usize,
    pub len: usize,
}

impl Part<'_> {
    fn check(&self, what: &str) -> TensorResult<()> {
        let Part { buffer, start, len } = self;
        match start.checked_add(*len).is_some_and(|end| end <= buffer.0.size) {
            true => Ok(()),
            false => Err(TensorError::Internal(format!("a {what} of {len} bytes at {start} of a buffer of {}", buffer.0.size))),
        }
    }
}

impl Gpu {
    /// Encodes the copies that wait, at the beginning of a command buffer. The caller holds the submit lock.
    pub fn encode_copies(&self, commands: &ProtocolObject<dyn MTLCommandBuffer>) -> TensorResult<()> {
        let copies = std::mem::take(&mut *lock(&self.copies));
        if copies.is_empty() {
            return Ok(());
        }
        let none = || TensorError::DeviceLost(format!("{} gives no encoder", self.watch.device));
        let (encoder, number) = (commands.blitCommandEncoder().ok_or_else(none)?, self.watch.next());
        encoder.waitForFence(&self.fence);
        for Copy { from, to, len } in copies {
            let (source, target) = (&from.0, &to.0);
            source.use_in(number);
            target.use_in(number);
            // SAFETY: both ranges were checked against their buffers, which are kept alive until the command buffer is done.
            unsafe {
                encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(&source.raw, from.1, &target.raw, to.1, len);
            }
            self.memory.retired.add(from.0);
            self.memory.retired.add(to.0);
        }
        encoder.updateFence(&self.fence);
        encoder.endEncoding();
        Ok(())
    }

    /// Submits the copies that wait.
    pub fn flush(&self) -> TensorResult<()> {
        let _submit_lock = lock(&self.submit_lock);
        if lock(&self.copies).is_empty() {
            return Ok(());
        }
        autoreleasepool(|_| {
            let commands = self.commands()?;
            self.encode_copies(&commands)?;
            self.commit(&commands, vec![], None);
            Ok(())
        })
    }

    /// Has the next submit begin with a copy. Whoever gets the memory next uses it behind that.
    fn copy(&self, from: (Arc<Block>, usize), to: (Arc<Block>, usize), len: usize) {
        from.0.use_in(UNTIL_SUBMITTED);
        to.0.use_in(UNTIL_SUBMITTED);
        lock(&self.copies).push(Copy { from, to, len });
    }

    /// A buffer of at least `bytes`.
    pub fn lease(&self, bytes: usize, kind: u8) -> TensorResult<MetalBuffer> {
        self.memory.lease(bytes, kind, 0, || self.wait())
    }

    /// A buffer with this content.
    pub fn upload(&self, bytes: &[u8], kind: u8) -> TensorResult<MetalBuffer> {
        let buffer = self.lease(bytes.len(), kind)?;
        self.write(&buffer, 0, bytes)?;
        self.transfers.uploads.fetch_add(1, Relaxed);
        Ok(buffer)
    }

    /// Overwrites bytes from `start` on, after what was submitted before.
    pub fn write(&self, buffer: &MetalBuffer, start: usize, bytes: &[u8]) -> TensorResult<()> {
        Part { buffer, start, len: bytes.len() }.check("write")?;
        self.transfers.uploaded(bytes.len());
        let (block, offset) = (&buffer.0.block, buffer.0.offset);
        if buffer.is_shared() && !block.is_used(&self.watch) {
            // SAFETY: nothing that was submitted uses it, and the caller may write it.
            unsafe { block.write(offset + start, bytes) };
            self.transfers.written_in_place(bytes.len());
            return self.watch.check();
        }
        for (n, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            let staging = self.memory.staging(chunk.len())?;
            // SAFETY: staging memory that nothing uses.
            unsafe { staging.write(0, chunk) };
            self.transfers.staging_writes.fetch_add(1, Relaxed);
            self.copy((staging, 0), (block.clone(), offset + start + n * CHUNK_BYTES), chunk.len());
            if bytes.len() > CHUNK_BYTES {
                self.flush()?;
            }
        }
        self.watch.check()
    }

    /// The error of a bad index that was reported; what could report one is done.
    fn report(&self) -> TensorResult<()> {
        if self.bad_indices.take() == 0 {
            return Ok(());
        }
        // SAFETY: kernels write records by whole words; those of work that still runs are seen by the next read.
        let set = unsafe { self.records.bytes(0, self.records.size) }.and_then(crate::backends::bad_indices::BadIndices::first_set);
        let Some(set) = set else { return Ok(()) };
        // SAFETY: as above.
        unsafe { self.records.write(0, &vec![0; self.records.size]) };
        Err(self.bad_indices.error(set))
    }

    /// Waits for what was submitted, and shows bytes, in parts of at most `part` bytes where they are copied.
    pub fn show(&self, read: Part<'_>, part: usize, show: &mut dyn FnMut(&[u8])) -> TensorResult<()> {
        read.check("read")?;
        self.flush()?;
        self.wait()?;
        self.report()?;
        let Part { buffer, start, len } = read;
        let (block, offset) = (&buffer.0.block, buffer.0.offset);
        self.transfers.downloaded((len > 0) as usize, len);
        // SAFETY: a value that is read is written by nothing that is submitted meanwhile: it has this handle besides the writer's.
        if let Some(bytes) = unsafe { block.bytes(offset + start, len) } {
            events::read_in_place(len);
            self.transfers.in_place_reads.fetch_add((len > 0) as u64, Relaxed);
            show(bytes);
            return Ok(());
        }
        for at in (0..len).step_by(part.max(1)) {
            let now = part.min(len - at);
            let staging = self.memory.staging(now)?;
            self.copy((block.clone(), offset + start + at), (staging.clone(), 0), now);
            self.flush()?;
            self.wait()?;
            // SAFETY: the copy is done, and nothing else uses the staging memory while it is held here.
            show(unsafe { staging.bytes(0, now) }.unwrap_or_default());
        }
        Ok(())
    }

    /// Waits for what was submitted and copies bytes from `start` on.
    pub fn read(&self, buffer: &MetalBuffer, start: usize, out: &mut [u8]) -> TensorResult<()> {
        let mut at = 0;
        self.show(Part { buffer, start, len: out.len() }, CHUNK_BYTES, &mut |bytes| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        })
    }

    /// Gives the call that waits for what was submitted so far and gives these bytes.
    pub fn start_read(self: &Arc<Gpu>, parts: &[Part<'_>]) -> TensorResult<PendingRead> {
        parts.iter().try_for_each(|p| p.check("read"))?;
        self.watch.check()?;
        let bytes: usize = parts.iter().map(|p| p.len).sum();
        self.transfers.downloaded(parts.len(), bytes);
        let mut held = Vec::with_capacity(parts.len());
        for Part { buffer, start, len } in parts {
            let from = buffer.0.offset + start;
            held.push(match buffer.is_shared() {
                // The handle keeps others from writing in place.
                true => (buffer.0.block.clone(), from, *len, Some((*buffer).clone())),
                false => {
                    let staging = self.memory.staging(*len)?;
                    self.copy((buffer.0.block.clone(), from), (staging.clone(), 0), *len);
                    (staging, 0, *len, None)
                }
            });
        }
        self.flush()?;
        let number = self.watch.submitted();
        let (asking, waiting) = (self.clone(), self.clone());
        let ready = Box::new(move || asking.watch.done() >= number || asking.watch.is_lost());
        let wait = Box::new(move |out: &mut [u8]| {
            waiting.wait_for(number, waiting.adapter.pacing(|p| p.awake))?;
            waiting.report()?;
            let mut rest = out;
            for (block, start, len, _) in &held {
                let (part, behind) = rest.split_at_mut(*len);
                // SAFETY: what wrote them is done, and nothing writes them for as long as they are held here.
                let bytes = unsafe { block.bytes(*start, *len) };
                part.copy_from_slice(bytes.ok_or_else(|| TensorError::Internal("a read of a buffer that the host does not see".into()))?);
                rest = behind;
            }
            Ok(())
        });
        Ok(PendingRead { len: bytes, ready, wait })
    }
}
