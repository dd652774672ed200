//! The buffer pool of every backend: freed memory kept for reuse by size class, with limits in bytes and statistics.

use super::fragmentation::Fragmentation;
use super::limits::{Limits, MemoryInfo, MemoryQuery};
use super::lock::lock;
pub(crate) use super::report::AllocId;
use super::report::{MemoryReport, Recorder};
use crate::error::{At, TensorError, TensorResult};
use crate::events;
use crate::plan::MemoryStats;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Unused memory is returned to the system after this time.
const STALE_AFTER: Duration = Duration::from_secs(120);
/// Time between two turns whose time is kept.
const MARK_INTERVAL: Duration = Duration::from_secs(1);
/// Lists of classes up to which empty ones stay.
const MAX_EMPTY_LISTS: usize = 256;
/// Growth of the cache after which free memory is queried again.
const REFRESH_BYTES: usize = 64 << 20;
/// Requests without one of a size class after which its free buffers count as stranded.
const RECENT_REQUESTS: u64 = 256;
/// Limit of the cache if the system does not report free memory.
const CACHE_IF_UNKNOWN: usize = 1 << 30;

/// Statistics of a device's buffers: free ones, those in use, and the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferPoolStats {
    /// Free buffers in the pool.
    pub total_pooled: usize,
    /// Number of their size classes.
    pub size_classes: usize,
    /// Their total size in bytes.
    pub total_memory: usize,
    /// Requests since the device was opened, including the slots of running plans.
    pub allocation_count: u64,
    /// Requests served from the pool.
    pub reuse_count: u64,
    /// Bytes used by tensors and running plans, including `mapped`.
    pub in_use: usize,
    /// Peak of `in_use`: peak memory, including mapped files.
    pub peak: usize,
    /// Peak of `in_use` without `mapped`: the memory to which the limit applies.
    pub peak_allocated: usize,
    /// Limit of allocated bytes, without `mapped` (`TL_MEM_LIMIT`); `None` if no limit is set and the device does not report its memory.
    pub limit: Option<usize>,
    /// Limit of bytes kept for reuse.
    pub cache_limit: usize,
    /// The part of `in_use` that is read in place from files or from the caller's memory. No limit applies to it.
    pub mapped: usize,
}

impl BufferPoolStats {
    /// Requests that needed new memory from the system.
    pub fn driver_allocations(&self) -> u64 {
        self.allocation_count - self.reuse_count
    }
    /// The fraction of requests served from the pool, 0 to 1.
    pub fn reuse_rate(&self) -> f64 {
        if self.allocation_count == 0 { 0.0 } else { self.reuse_count as f64 / self.allocation_count as f64 }
    }
}

/// Buffers that may stand for each other: physical bytes, and the kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SizeClass {
    pub bytes: usize,
    pub kind: u8,
}

/// The physical size of a GPU's buffer for a request: a few classes per power of two, so that sizes meet again; always a multiple of 256.
#[cfg(feature = "shaders")]
pub(super) fn size_class(bytes: usize, most: u64) -> u64 {
    let bytes = (bytes as u64).max(256);
    let step = if bytes >= 16 << 20 { 2 << 20 } else { (bytes.next_power_of_two() / 16).max(256) };
    bytes.next_multiple_of(step).min(most.max(bytes.next_multiple_of(16)))
}

/// Memory that can be kept.
pub(crate) trait Allocation: Send {
    /// Distinguishes pieces, so that one can be asked for again.
    fn id(&self) -> u64;
    /// Gives it to the system.
    fn free(self);
}

/// Operations on any backend's pool.
pub trait PoolControl: Send + Sync {
    /// Counts and bounds.
    fn stats(&self) -> BufferPoolStats;
    /// The bytes that a request of `bytes` takes.
    fn leased(&self, bytes: usize) -> usize;
    /// What was asked for, given and kept; the driver's part is the backend's.
    fn fragmentation(&self) -> Fragmentation;
    /// Releases free buffers, longest unused first, until at most `bytes` are left. Returns the bytes released.
    fn shrink(&self, bytes: usize) -> usize;
    /// Releases the free buffers for requests of `bytes`. Returns the bytes released.
    fn clear_size(&self, bytes: usize) -> usize;
    /// Changes the limits and releases what exceeds them.
    fn change(&self, f: &mut dyn FnMut(&mut Limits));
    /// The device's memory as reported by the system.
    fn memory_info(&self) -> Option<MemoryInfo>;
    /// Resets the peak.
    fn reset_peak(&self);
    /// Starts or ends a recording of allocations. Recordings nest.
    fn record(&self, on: bool);
    /// Whether a recording is active.
    fn recording(&self) -> bool;
    /// The recorded report.
    fn report(&self) -> MemoryReport;
}

struct FreeBlock<T> {
    /// Order of return.
    turn: u64,
    /// The last request that it served.
    request: AllocId,
    piece: T,
}

struct FreeList<T> {
    /// The last id that was given out.
    last_id: AllocId,
    /// The longest unused of each class first.
    free: BTreeMap<SizeClass, Vec<FreeBlock<T>>>,
    turn: u64,
    /// When which turn was, about once a second.
    marks: VecDeque<(u64, Instant)>,
    pooled: usize,
    in_use: usize,
    mapped: usize,
    /// What the holders of `in_use` without `mapped` asked for.
    asked: usize,
    peak: usize,
    peak_owned: usize,
    requests: u64,
    reused: u64,
    limits: Limits,
    /// A setting of the environment that could not be read: every request says so.
    wrong: Option<TensorError>,
    /// The bounds in force where `limits` leaves them open.
    auto_in_use: Option<usize>,
    auto_cache: usize,
    /// Bytes pooled at which the system is asked again.
    next_refresh: usize,
    recorder: Option<Box<Recorder>>,
}

/// The pool of one backend.
pub(crate) struct Pool<T> {
    name: String,
    free_list: Mutex<FreeList<T>>,
    memory: MemoryQuery,
    /// The physical size for a request; `None` where no memory could hold it.
    class: Box<dyn Fn(usize) -> Option<usize> + Send + Sync>,
    recordings: AtomicU64,
    recording: AtomicBool,
}

impl<T> FreeList<T> {
    fn limit(&self) -> Option<usize> {
        self.limits.in_use.or(self.auto_in_use)
    }
    fn cache(&self) -> usize {
        let cache = if self.limits.enabled { self.limits.cache.unwrap_or(self.auto_cache) } else { 0 };
        cache.min(self.limit().unwrap_or(usize::MAX))
    }
    fn owned(&self) -> usize {
        self.in_use - self.mapped
    }
    fn refresh_budget(&mut self, memory: Option<MemoryInfo>) {
        match memory {
            Some(MemoryInfo { free: Some(free), .. }) => {
                self.auto_in_use = Some(free.saturating_add(self.owned()).saturating_add(self.pooled));
                self.auto_cache = free.saturating_add(self.pooled) / 4;
            }
            // Three quarters are what Metal recommends as a working set.
            Some(MemoryInfo { total, free: None }) => (self.auto_in_use, self.auto_cache) = (Some(total / 4 * 3), total / 8),
            None => (self.auto_in_use, self.auto_cache) = (None, CACHE_IF_UNKNOWN),
        }
        self.next_refresh = self.pooled + REFRESH_BYTES;
    }
    /// Takes out the piece that has waited longest.
    fn evict(&mut self, out: &mut Vec<T>) -> bool {
        let oldest = self.free.iter().filter_map(|(&c, l)| l.first().map(|k| (k.turn, c))).min();
        let Some((_, class)) = oldest else { return false };
        self.remove(class, 0, out);
        true
    }
    fn remove(&mut self, class: SizeClass, at: usize, out: &mut Vec<T>) {
        if let Some(list) = self.free.get_mut(&class) {
            out.push(list.remove(at).piece);
            self.pooled -= class.bytes;
            // One that is empty stays while they are few: it will be needed again.
            if list.is_empty() && self.free.len() > MAX_EMPTY_LISTS {
                self.free.remove(&class);
            }
        }
    }
    /// Takes out the longest unused piece of each class that has one which is stale.
    fn age(&mut self, now: Instant, out: &mut Vec<T>) {
        let old = |m: Option<&(u64, Instant)>| m.filter(|(_, then)| now.saturating_duration_since(*then) > STALE_AFTER).map(|m| m.0);
        while old(self.marks.get(1)).is_some() {
            self.marks.pop_front();
        }
        let stale = old(self.marks.front()).unwrap_or(0);
        if self.marks.back().is_none_or(|(_, then)| now.saturating_duration_since(*then) > MARK_INTERVAL) {
            self.marks.push_back((self.turn, now));
        }
        let old: Vec<SizeClass> = self.free.iter().filter(|(_, l)| l.first().is_some_and(|k| k.turn <= stale)).map(|(&c, _)| c).collect();
        old.into_iter().for_each(|c| self.remove(c, 0, out));
    }
    fn next_id(&mut self) -> AllocId {
        self.last_id += 1;
        self.last_id
    }
    fn use_bytes(&mut self, bytes: usize) {
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
        self.peak_owned = self.peak_owned.max(self.owned());
    }
    fn enforce(&mut self, out: &mut Vec<T>) {
        while self.pooled > self.cache() || self.limit().is_some_and(|l| self.owned() + self.pooled > l) {
            if !self.evict(out) {
                break;
            }
        }
        let full: Vec<(SizeClass, usize)> =
            self.free.iter().map(|(&c, l)| (c, l.len().saturating_sub(self.limits.per_class))).filter(|f| f.1 > 0).collect();
        for (class, surplus) in full {
            (0..surplus).for_each(|_| self.remove(class, 0, out));
        }
    }
}

fn free_all<T: Allocation>(pieces: Vec<T>) {
    if !pieces.is_empty() {
        events::buffers_evicted(pieces.len());
    }
    pieces.into_iter().for_each(Allocation::free);
}

impl<T: Allocation> Pool<T> {
    /// An empty pool for the device `name`, bounded by the environment's settings and by what `memory` says.
    pub fn new(
        name: String,
        memory: impl Fn() -> Option<MemoryInfo> + Send + Sync + 'static,
        class: impl Fn(usize) -> Option<usize> + Send + Sync + 'static,
    ) -> Pool<T> {
        let now = memory();
        let (limits, wrong) = match Limits::from_environment(now) {
            Ok(l) => (l, None),
            Err(e) => (Limits::default(), Some(e)),
        };
        let mut free_list = FreeList {
            last_id: 0,
            free: BTreeMap::new(),
            turn: 0,
            marks: VecDeque::new(),
            pooled: 0,
            in_use: 0,
            mapped: 0,
            asked: 0,
            peak: 0,
            peak_owned: 0,
            requests: 0,
            reused: 0,
            limits,
            wrong,
            auto_in_use: None,
            auto_cache: 0,
            next_refresh: 0,
            recorder: None,
        };
        free_list.refresh_budget(now);
        Pool {
            name,
            free_list: Mutex::new(free_list),
            memory: Box::new(memory),
            class: Box::new(class),
            recordings: AtomicU64::new(0),
            recording: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FreeList<T>> {
        lock(&self.free_list)
    }

    fn full(&self, asked: usize, free_list: &FreeList<T>, help: &'static str) -> TensorError {
        events::out_of_memory(&self.name, asked, free_list.owned());
        TensorError::OutOfMemory { device: self.name.clone(), asked, in_use: free_list.owned(), limit: free_list.limit(), help }
    }

    /// Memory of at least `asked` bytes with arbitrary content, by preference the piece `prefer`. `create` gets the class and the number of
    /// the attempt, and gives `None` where the system has no room; before the second attempt the cache was given back.
    pub fn lease(
        &self,
        asked: usize,
        kind: u8,
        prefer: u64,
        mut create: impl FnMut(SizeClass, u32) -> TensorResult<Option<T>>,
    ) -> TensorResult<(T, SizeClass, AllocId)> {
        let mut evicted = Vec::new();
        let mut free_list = self.lock();
        if let Some(e) = &free_list.wrong {
            return Err(e.clone());
        }
        free_list.requests += 1;
        let class = match (self.class)(asked) {
            Some(bytes) => SizeClass { bytes, kind },
            None => return Err(self.full(asked, &free_list, "no tensor can be that large: split it")),
        };
        let id = free_list.next_id();
        let found = free_list.free.get(&class).and_then(|l| l.iter().rposition(|k| k.piece.id() == prefer).or(l.len().checked_sub(1)));
        let found = found.and_then(|at| Some(free_list.free.get_mut(&class)?.remove(at).piece));
        if let Some(piece) = found {
            free_list.pooled -= class.bytes;
            free_list.reused += 1;
            free_list.asked += asked;
            free_list.use_bytes(class.bytes);
            self.note(&mut free_list, id, class.bytes);
            drop(free_list);
            events::buffer_reused(class.bytes, asked);
            return Ok((piece, class, id));
        }
        let over = |s: &FreeList<T>, pooled| s.limit().is_some_and(|l| s.owned().saturating_add(pooled).saturating_add(class.bytes) > l);
        if free_list.limits.in_use.is_none() && over(&free_list, free_list.pooled) {
            free_list.refresh_budget((self.memory)());
        }
        if over(&free_list, 0) {
            evicted.extend(std::mem::take(&mut free_list.free).into_values().flatten().map(|k| k.piece));
            free_list.pooled = 0;
            let help = match free_list.limits.in_use {
                Some(_) => "drop tensors, use a smaller batch, or raise the limit (TL_MEM_LIMIT, set_memory_limit)",
                None => "drop tensors, or use a smaller batch, a shorter context or a smaller dtype",
            };
            let error = self.full(asked, &free_list, help);
            drop(free_list);
            free_all(evicted);
            return Err(error);
        }
        while over(&free_list, free_list.pooled) && free_list.evict(&mut evicted) {}
        free_list.asked += asked;
        free_list.use_bytes(class.bytes);
        drop(free_list);
        free_all(evicted);
        let made = match create(class, 0) {
            Ok(None) => {
                events::allocation_retried(class.bytes);
                self.shrink(0);
                create(class, 1)
            }
            made => made,
        };
        let mut free_list = self.lock();
        match made {
            Ok(Some(piece)) => {
                self.note(&mut free_list, id, class.bytes);
                events::buffer_made(class.bytes, asked);
                Ok((piece, class, id))
            }
            failed => {
                free_list.in_use -= class.bytes;
                free_list.asked -= asked;
                let help = "the system has no room: use a smaller batch or context, or a smaller or quantized model";
                Err(failed.err().unwrap_or_else(|| self.full(asked, &free_list, help)))
            }
        }
    }

    /// Takes back memory that was leased for `asked` bytes.
    pub fn put(&self, piece: T, class: SizeClass, asked: usize, id: AllocId) {
        let mut out = Vec::new();
        let mut free_list = self.lock();
        self.forget(&mut free_list, id, class.bytes);
        free_list.in_use -= class.bytes;
        free_list.asked -= asked;
        if free_list.limits.cache.is_none() && free_list.pooled + class.bytes > free_list.next_refresh {
            free_list.refresh_budget((self.memory)());
        }
        let cache = free_list.cache();
        if class.bytes > cache || free_list.limits.per_class == 0 {
            drop(free_list);
            events::buffer_freed(class.bytes);
            return piece.free();
        }
        while free_list.pooled + class.bytes > cache && free_list.evict(&mut out) {}
        let per_class = free_list.limits.per_class;
        if free_list.free.get(&class).is_some_and(|l| l.len() >= per_class) {
            free_list.remove(class, 0, &mut out);
        }
        free_list.turn += 1;
        let turn = free_list.turn;
        free_list.pooled += class.bytes;
        free_list.free.entry(class).or_default().push(FreeBlock { turn, request: id, piece });
        if turn % 256 == 0 {
            free_list.age(Instant::now(), &mut out);
        }
        drop(free_list);
        events::buffer_returned(class.bytes);
        free_all(out);
    }

    /// Counts memory that is read in place.
    pub fn map(&self, bytes: usize) -> AllocId {
        let mut free_list = self.lock();
        let id = free_list.next_id();
        free_list.mapped += bytes;
        free_list.use_bytes(bytes);
        self.note(&mut free_list, id, bytes);
        events::memory_mapped(bytes);
        id
    }

    /// Ends the counting of memory that was read in place.
    pub fn unmap(&self, bytes: usize, id: AllocId) {
        let mut free_list = self.lock();
        self.forget(&mut free_list, id, bytes);
        free_list.mapped -= bytes;
        free_list.in_use -= bytes;
        events::memory_unmapped(bytes);
    }

    fn note(&self, free_list: &mut FreeList<T>, id: AllocId, bytes: usize) {
        let (in_use, owned) = (free_list.in_use, free_list.owned());
        if let Some(r) = &mut free_list.recorder {
            r.take(id, bytes, in_use, owned);
        }
    }
    fn forget(&self, free_list: &mut FreeList<T>, id: AllocId, bytes: usize) {
        let in_use = free_list.in_use;
        if let Some(r) = &mut free_list.recorder {
            r.give(id, bytes, in_use);
        }
    }

    /// Tells a recording what a buffer is for.
    pub fn label(&self, id: AllocId, op: &'static str, at: At) {
        if let Some(r) = &mut self.lock().recorder {
            r.label(id, op, at);
        }
    }

    /// The short form of the statistics.
    pub fn memory(&self) -> MemoryStats {
        let s = self.lock();
        MemoryStats {
            in_use: s.in_use,
            peak: s.peak,
            peak_allocated: s.peak_owned,
            pooled: s.pooled,
            requests: s.requests,
            reused: s.reused,
        }
    }
}

impl<T: Allocation> PoolControl for Pool<T> {
    fn stats(&self) -> BufferPoolStats {
        let s = self.lock();
        BufferPoolStats {
            total_pooled: s.free.values().map(Vec::len).sum(),
            size_classes: s.free.values().filter(|l| !l.is_empty()).count(),
            total_memory: s.pooled,
            allocation_count: s.requests,
            reuse_count: s.reused,
            in_use: s.in_use,
            peak: s.peak,
            peak_allocated: s.peak_owned,
            limit: s.limit(),
            cache_limit: s.cache(),
            mapped: s.mapped,
        }
    }
    fn leased(&self, bytes: usize) -> usize {
        (self.class)(bytes).unwrap_or(bytes)
    }
    fn fragmentation(&self) -> Fragmentation {
        let s = self.lock();
        let idle = |l: &Vec<FreeBlock<T>>| l.iter().all(|b| b.request + RECENT_REQUESTS < s.last_id);
        let stranded = s.free.iter().filter(|(_, l)| idle(l)).map(|(c, l)| c.bytes * l.len()).sum();
        Fragmentation { asked: s.asked, given: s.owned(), waiting: s.pooled, stranded, driver: None }
    }
    fn shrink(&self, bytes: usize) -> usize {
        let mut out = Vec::new();
        let mut free_list = self.lock();
        let before = free_list.pooled;
        while free_list.pooled > bytes && free_list.evict(&mut out) {}
        let freed = before - free_list.pooled;
        drop(free_list);
        events::pool_shrunk(freed);
        free_all(out);
        freed
    }
    fn clear_size(&self, bytes: usize) -> usize {
        let Some(bytes) = (self.class)(bytes) else { return 0 };
        let mut out = Vec::new();
        let mut free_list = self.lock();
        let before = free_list.pooled;
        let classes: Vec<SizeClass> = free_list.free.keys().copied().filter(|c| c.bytes == bytes).collect();
        for class in classes {
            while free_list.free.get(&class).is_some_and(|l| !l.is_empty()) {
                free_list.remove(class, 0, &mut out);
            }
        }
        let freed = before - free_list.pooled;
        drop(free_list);
        free_all(out);
        freed
    }
    fn change(&self, f: &mut dyn FnMut(&mut Limits)) {
        let mut out = Vec::new();
        let mut free_list = self.lock();
        f(&mut free_list.limits);
        free_list.refresh_budget((self.memory)());
        free_list.enforce(&mut out);
        events::limits_changed(free_list.limit().unwrap_or(usize::MAX), free_list.cache());
        drop(free_list);
        free_all(out);
    }
    fn memory_info(&self) -> Option<MemoryInfo> {
        (self.memory)()
    }
    fn reset_peak(&self) {
        let mut s = self.lock();
        (s.peak, s.peak_owned) = (s.in_use, s.owned());
    }
    fn record(&self, on: bool) {
        events::memory_recording(on);
        let mut free_list = self.lock();
        if on {
            let (in_use, owned) = (free_list.in_use, free_list.owned());
            free_list.recorder.get_or_insert_with(|| Box::new(Recorder::new(in_use, owned)));
            self.recordings.fetch_add(1, Relaxed);
        } else if self.recordings.fetch_sub(1, Relaxed) == 1 {
            free_list.recorder = None;
        }
        self.recording.store(free_list.recorder.is_some(), Relaxed);
    }
    fn recording(&self) -> bool {
        self.recording.load(Relaxed)
    }
    fn report(&self) -> MemoryReport {
        let free_list = self.lock();
        let mut report = free_list.recorder.as_ref().map(|r| r.report()).unwrap_or_default();
        report.device = self.name.clone();
        report.in_use = free_list.in_use;
        report.mapped = free_list.mapped;
        report.pooled = free_list.pooled;
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(u64);
    impl Allocation for Number {
        fn id(&self) -> u64 {
            self.0
        }
        fn free(self) {}
    }

    #[test]
    fn only_what_nobody_wanted_for_long_is_stale() {
        let pool = Pool::<Number>::new("test".into(), || None, Some);
        let put = |n| {
            let (piece, class, id) = pool.lease(n as usize, 0, 0, |_, _| Ok(Some(Number(n)))).unwrap();
            pool.put(piece, class, n as usize, id);
        };
        let begun = Instant::now();
        let aged = |after: Duration| {
            let mut out = Vec::new();
            pool.lock().age(begun + after, &mut out);
            out.into_iter().map(|n| n.0).collect::<Vec<_>>()
        };
        (1..=2).for_each(put);
        assert!(aged(Duration::ZERO).is_empty(), "nothing is old yet");
        (3..=4).for_each(put);
        // 1 was used again after the first look.
        put(1);
        assert!(aged(STALE_AFTER / 2).is_empty());
        assert_eq!(aged(STALE_AFTER + MARK_INTERVAL), [2], "older than the first look");
        assert_eq!(aged(STALE_AFTER * 2), [1, 3, 4], "older than the second");
    }
}
