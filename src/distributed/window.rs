//! Memory that ranks of one machine share. Each writes its values into its own part and reads the others' where they lie: only counters pass between ranks.
//! The memory has no name in any file system, so a job that is killed leaves nothing behind.

use super::Transport;
use super::sums::{BLOCK, add_up, is_at_once, on_threads, share, slices};
use crate::backends::{FILLED_BLOCK, large_copy};
use crate::error::TensorResult;
use memmap2::MmapRaw;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Values that a rank passes on at a time, at most. With a GPU's error records behind them they fit 16 MiB of staging memory.
pub const SLOT: usize = (4 << 20) - BLOCK;
/// Times that a rank may be ahead of the slowest one.
const SLOTS: u64 = 4;
const _: () = assert!(BLOCK == FILLED_BLOCK);
/// Bytes from one slot to the next.
const SLOT_BYTES: usize = 16 << 20;
/// Bytes of a rank's counters, which share no line of a cache with others.
const COUNTER_BYTES: usize = 128;
/// Bytes in front of the slots: whole huge pages.
const HEAD: usize = 2 << 20;
/// How long a rank asks without sleeping whether the others are there.
const SPIN: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(50);
/// Bytes of the text that says where the memory is.
const PLACE_BYTES: usize = 128;

/// What a rank has done: how often it wrote its values, summed its slice of what all wrote, and read what it wanted.
#[repr(C)]
struct Counters {
    written: AtomicU64,
    summed: AtomicU64,
    read: AtomicU64,
}

/// Told again and again for what and for how long a rank has waited; ends the job where that is too long.
type Waits = dyn Fn(&str, Duration) + Send + Sync;

/// Memory that all ranks have in common. Values are passed on in rounds: each rank writes some, and gets the sum of all.
///
/// ```
/// use tensorlogic::distributed::Ranks;
/// assert!(Ranks::alone().window()?.is_none()); // there is nobody to share memory with
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub struct Window {
    memory: MmapRaw,
    rank: usize,
    size: usize,
    waits: Box<Waits>,
    writing: Mutex<()>,
    reading: Mutex<()>,
}

impl Window {
    /// Memory for the ranks of this transport, if all of them want it and can have it: `None` where one does not reach it, as on another machine or in another
    /// container. All ranks call it together. `waits` is told again and again for how long this rank has waited for others, and for what; it ends the job
    /// where that is too long.
    ///
    /// # Errors
    /// Those of the transport.
    ///
    /// ```
    /// use tensorlogic::distributed::{Ranks, Window};
    /// let none = Window::open(Ranks::alone().transport(), false, |_, _| {})?; // not wanted
    /// assert!(none.is_none());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open(
        transport: &dyn Transport,
        wanted: bool,
        waits: impl Fn(&str, Duration) + Send + Sync + 'static,
    ) -> TensorResult<Option<Window>> {
        let (rank, size) = (transport.rank(), transport.size());
        let bytes = HEAD + size * SLOTS as usize * SLOT_BYTES;
        let own = if rank == 0 && wanted { memory::create(bytes) } else { None };
        let mut place = [0u8; PLACE_BYTES];
        if let Some((_, text)) = own.as_ref().filter(|(_, text)| text.len() <= PLACE_BYTES) {
            place[..text.len()].copy_from_slice(text.as_bytes());
        }
        transport.broadcast(&mut place)?;
        let text = std::str::from_utf8(&place).unwrap_or_default().trim_end_matches('\0');
        let file = own.map(|own| own.0).or_else(|| if wanted { memory::open(text, bytes) } else { None });
        let memory = file.as_ref().and_then(|file| MmapRaw::map_raw(file).ok()).filter(|_| size * COUNTER_BYTES <= HEAD);
        let mut missing = [u64::from(memory.is_none())];
        // Rank 0's file stays open until all have mapped it.
        transport.max_words(&mut missing)?;
        let window = |memory| Window { memory, rank, size, waits: Box::new(waits), writing: Mutex::default(), reading: Mutex::default() };
        Ok(memory.filter(|_| missing[0] == 0).map(window))
    }

    fn counters(&self, rank: usize) -> &Counters {
        // SAFETY: within the head, whose bytes were 0 at first; ranks change them by atomic operations alone.
        unsafe { &*self.memory.as_ptr().add(rank * COUNTER_BYTES).cast() }
    }

    /// Where a rank's values of a round are.
    fn slot(&self, rank: usize, round: u64) -> *mut f32 {
        let slot = rank * SLOTS as usize + (round % SLOTS) as usize;
        // SAFETY: within the mapping, which is as long as the slots of all ranks.
        unsafe { self.memory.as_mut_ptr().add(HEAD + slot * SLOT_BYTES).cast() }
    }

    /// A rank's values of a round.
    ///
    /// # Safety
    /// That rank has written the round, nobody writes these values meanwhile, and not all ranks have read it.
    unsafe fn values(&self, rank: usize, round: u64, range: Range<usize>) -> &[f32] {
        assert!(range.end <= SLOT);
        // SAFETY: within the slot; the caller's promise.
        unsafe { std::slice::from_raw_parts(self.slot(rank, round).add(range.start), range.len()) }
    }

    /// Waits until a counter of every rank says so.
    fn wait(&self, what: &str, is_so: impl Fn(&Counters) -> bool) {
        let began = Instant::now();
        for rank in 0..self.size {
            while !is_so(self.counters(rank)) {
                let waited = began.elapsed();
                if waited < SPIN {
                    std::thread::yield_now();
                } else {
                    (self.waits)(what, waited);
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Waits until this rank may write its next values.
    pub(crate) fn wait_for_room(&self) {
        let round = self.counters(self.rank).written.load(Ordering::Relaxed);
        self.wait("reading what was shared", |c| c.read.load(Ordering::Acquire) + SLOTS > round);
    }

    /// This rank's values of the next round: `fill` writes them into memory of [`SLOT`] values.
    pub(crate) fn write<R>(&self, fill: impl FnOnce(&mut [f32]) -> R) -> R {
        let _turn = lock(&self.writing);
        self.wait_for_room();
        let written = &self.counters(self.rank).written;
        let round = written.load(Ordering::Relaxed);
        // SAFETY: this rank's own slot, which all have read since it was written last, and nobody reads before the counter says so.
        let done = fill(unsafe { std::slice::from_raw_parts_mut(self.slot(self.rank, round), SLOT) });
        written.store(round + 1, Ordering::Release);
        done
    }

    /// Waits for the next round's values of all ranks, so many of each.
    pub(crate) fn read(&self, len: usize) -> Round<'_> {
        let turn = lock(&self.reading);
        let round = self.counters(self.rank).read.load(Ordering::Relaxed);
        self.wait("values in shared memory", |c| c.written.load(Ordering::Acquire) > round);
        Round { window: self, number: round, len, slices: None, _turn: turn }
    }

    /// Sums `data` over all ranks as [`super::sums::reduce_all`] does, with the same bits. All ranks call it together.
    ///
    /// ```
    /// use tensorlogic::distributed::{RANK_TIMEOUT, join};
    /// let ranks = join(RANK_TIMEOUT, |words| eprintln!("{words}"))?;
    /// let mut gradients = [1.0, 2.0, 3.0];
    /// if let Some(window) = ranks.window()? {
    ///     window.reduce_all(&mut gradients); // all ranks are on one machine
    /// }
    /// # assert_eq!(gradients, [1.0, 2.0, 3.0].map(|g| g * ranks.size() as f32));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn reduce_all(&self, data: &mut [f32]) {
        let write = |values: &[f32]| self.write(|slot| large_copy::copy(values, &mut slot[..values.len()]));
        let mut rest = data;
        rest.chunks(SLOT).take(1).for_each(write);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at_mut(rest.len().min(SLOT));
            // The next ones are on their way while the others are waited for.
            behind.chunks(SLOT).take(1).for_each(write);
            let mut round = self.read(chunk.len());
            if !is_at_once(self.size, chunk.len()) {
                round.sum_slice();
                round.wait_for_slices();
            }
            large_copy::fill(chunk, &|at, out| round.sum(at, out));
            rest = behind;
        }
    }
}

/// Values of all ranks, which wait for this one to have read them.
pub(crate) struct Round<'a> {
    window: &'a Window,
    number: u64,
    len: usize,
    /// Where each rank's slice begins, and the end; where ranks sum a slice each.
    slices: Option<Vec<usize>>,
    _turn: MutexGuard<'a, ()>,
}

impl Round<'_> {
    /// Sums this rank's slice, where ranks sum one each. All do so.
    pub fn sum_slice(&mut self) {
        let (window, bounds) = (self.window, slices(self.len, self.window.size));
        let own = bounds[window.rank]..bounds[window.rank + 1];
        let each = share(own.len());
        let shares = own.clone().step_by(each).map(|at| at..(at + each).min(own.end)).collect();
        on_threads(shares, |range: Range<usize>| {
            let mut sum = [0.0; BLOCK];
            for at in range.clone().step_by(BLOCK) {
                let sum = &mut sum[..BLOCK.min(range.end - at)];
                self.add(at, sum);
                // SAFETY: this rank's own slot; nobody else reads these values until the counter says that they are summed.
                unsafe { std::ptr::copy_nonoverlapping(sum.as_ptr(), window.slot(window.rank, self.number).add(at), sum.len()) };
            }
        });
        window.counters(window.rank).summed.store(self.number + 1, Ordering::Release);
        self.slices = Some(bounds);
    }

    /// Waits for the others' slices.
    pub fn wait_for_slices(&self) {
        self.window.wait("sums in shared memory", |c| c.summed.load(Ordering::Acquire) > self.number);
    }

    /// The sum over all ranks from this place on, at most a block that begins at a multiple of [`BLOCK`].
    pub fn sum(&self, at: usize, out: &mut [f32]) {
        let Some(bounds) = &self.slices else { return self.add(at, out) };
        let owner = bounds.partition_point(|b| *b <= at) - 1;
        // SAFETY: summed, and not changed before this round is read; slices are whole blocks.
        out.copy_from_slice(unsafe { self.window.values(owner, self.number, at..at + out.len()) });
    }

    fn add(&self, at: usize, out: &mut [f32]) {
        // SAFETY: written by all; only the rank that owns a slice changes it, after it has read it here.
        let part = |rank| unsafe { self.window.values(rank, self.number, at..at + out.len()) };
        let parts: Vec<&[f32]> = (0..self.window.size).map(part).collect();
        add_up(&parts, out);
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.window.counters(self.window.rank).read.store(self.number + 1, Ordering::Release);
    }
}

fn lock(turn: &Mutex<()>) -> MutexGuard<'_, ()> {
    turn.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory as a file that is in no folder. Other processes of the machine open it through `/proc`.
#[cfg(target_os = "linux")]
mod memory {
    use std::ffi::CString;
    use std::fs::{File, OpenOptions, read_link};
    use std::hash::{BuildHasher, RandomState};
    use std::os::fd::{AsRawFd, FromRawFd};

    /// Such memory, and where others find it.
    pub fn create(bytes: usize) -> Option<(File, String)> {
        let name = format!("tl-ranks-{:016x}", RandomState::new().hash_one(std::process::id()));
        let text = CString::new(name.as_str()).ok()?;
        // SAFETY: a text that ends; the descriptor is a new one, and nobody else's.
        let file = unsafe {
            let fd = libc::memfd_create(text.as_ptr(), libc::MFD_CLOEXEC);
            (fd >= 0).then(|| File::from_raw_fd(fd))?
        };
        file.set_len(bytes as u64).ok()?;
        let place = format!("/proc/{}/fd/{} {name}", std::process::id(), file.as_raw_fd());
        Some((file, place))
    }

    /// The memory at this place, if it is the one that is meant: on another machine the same numbers belong to something else.
    pub fn open(place: &str, bytes: usize) -> Option<File> {
        let (path, name) = place.split_once(' ')?;
        let target = read_link(path).ok()?;
        if !target.to_str()?.contains(&format!("memfd:{name}")) {
            return None;
        }
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        (file.metadata().ok()?.len() == bytes as u64).then_some(file)
    }
}

#[cfg(not(target_os = "linux"))]
mod memory {
    use std::fs::File;

    pub fn create(_bytes: usize) -> Option<(File, String)> {
        None
    }

    pub fn open(_place: &str, _bytes: usize) -> Option<File> {
        None
    }
}
