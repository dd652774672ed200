//! A compiled Metal kernel and how it runs: over buffers that end at a page which faults, and where its threads wait for each other, in
//! several orders of threads, whose results must be the same bits.

use super::source::Parameter;
use std::ffi::{CStr, c_char, c_void};

/// The kernel with its arguments: the thread, the table of buffers.
pub type Entry = unsafe extern "C" fn(*const c_void, *const *mut c_void);
/// `tl_run` of fibers.cpp.
pub type Run = unsafe extern "C" fn(*const Dispatch) -> *const c_char;
/// `tl_guarded` of fibers.cpp.
pub type Guarded = unsafe extern "C" fn(u32, usize) -> *mut u8;

/// `tl_dispatch` of fibers.cpp.
#[repr(C)]
pub struct Dispatch {
    entry: Entry,
    buffers: *const *mut c_void,
    seed: u64,
    groups: [u32; 3],
    size: [u32; 3],
    room: u32,
    fill: u32,
    /// Whether threads wait for each other.
    meets: u32,
}

/// The functions that run kernels.
#[derive(Clone, Copy)]
pub struct Runtime {
    pub run: Run,
    pub guarded: Guarded,
}

/// The memory of a binding.
#[derive(Clone, Copy)]
pub struct Memory {
    pub at: *mut u8,
    pub bytes: usize,
    pub written: bool,
    /// Whether its content must not depend on the order of threads.
    pub ordered: bool,
    /// Whether every order of threads begins with the same content: not for memory that dispatches share.
    pub restored: bool,
}

/// In which orders a dispatch runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Orders {
    /// As threads are numbered.
    One,
    /// In three orders; results that differ are an error.
    Three,
}

/// A seed of the order of threads, and what fills threadgroup memory before each group: as words, halves and floats no values that pass
/// unnoticed. Seed 0 is the order of numbers, 1 its reverse; others begin somewhere else in each group.
const ORDERS: [(u64, u8); 3] = [(0, 0xFF), (1, 0x7B), (0x9E37_79B9_7F4A_7C15, 0xA7)];
/// What stands behind a buffer's last byte in its last row of 16.
const PADDING: u8 = 0xFF;

/// A compiled kernel.
pub struct Kernel {
    pub(super) entry: Entry,
    /// Bytes of threadgroup memory.
    pub(super) room: u32,
    pub parameters: Vec<Parameter>,
    /// Whether its threads wait for each other.
    pub meets: bool,
}

/// A binding's memory during a dispatch.
struct Bound {
    memory: Memory,
    /// Where the kernel sees it: a copy that ends at a page which faults, or the memory itself where it is large.
    at: *mut u8,
    before: Vec<u8>,
    first: Vec<u8>,
}

impl Bound {
    /// Without a guard the kernel works on the memory itself.
    fn new(runtime: &Runtime, guard: Option<usize>, memory: Memory, orders: &[(u64, u8)]) -> Bound {
        // SAFETY: the function takes any number and size.
        let copy = guard.map_or(std::ptr::null_mut(), |slot| unsafe { (runtime.guarded)(slot as u32, memory.bytes) });
        let before = if memory.written && memory.restored && orders.len() > 1 { bytes(&memory).to_vec() } else { vec![] };
        Bound { memory, at: if copy.is_null() { memory.at } else { copy }, before, first: vec![] }
    }

    /// Puts the content from before the dispatch where the kernel sees it.
    fn begin(&self, first: bool) {
        let content = if first { bytes(&self.memory) } else { &self.before };
        if (first && self.at != self.memory.at) || !content.is_empty() && !first {
            // SAFETY: `at` has room for the memory's bytes, and where it is a copy, for whole rows of 16.
            unsafe {
                std::ptr::copy_nonoverlapping(content.as_ptr(), self.at, content.len());
                if self.at != self.memory.at {
                    self.at.add(content.len()).write_bytes(PADDING, content.len().next_multiple_of(16) - content.len());
                }
            }
        }
    }

    fn seen(&self) -> &[u8] {
        // SAFETY: `at` has room for the memory's bytes.
        unsafe { std::slice::from_raw_parts(self.at, self.memory.bytes) }
    }

    fn give_back(&self) {
        if self.memory.written && self.at != self.memory.at {
            // SAFETY: the memory is the caller's to write, and the copy lies elsewhere.
            unsafe { std::ptr::copy_nonoverlapping(self.at, self.memory.at, self.memory.bytes) };
        }
    }
}

fn bytes(memory: &Memory) -> &[u8] {
    // SAFETY: the memory is alive while its dispatch runs, see `Kernel::run`.
    unsafe { std::slice::from_raw_parts(memory.at, memory.bytes) }
}

impl Kernel {
    /// Runs a grid of threadgroups of so many threads over `memory`, of which binding `n` is number `n`; the same memory may be bound several times.
    ///
    /// # Safety
    /// The memory is alive, aligned to 16 bytes, and where it is marked as written, nobody else's.
    pub unsafe fn run(
        &self,
        runtime: &Runtime,
        grid: [u32; 3],
        threads: [u32; 3],
        memory: &[Memory],
        orders: Orders,
    ) -> Result<(), String> {
        let orders = if orders == Orders::Three && self.meets { &ORDERS[..] } else { &ORDERS[..1] };
        let mut bound: Vec<Bound> = vec![];
        let mut slots = vec![];
        // Parts of one buffer that overlap, one of them written, are not copied apart.
        let overlaps = |m: &Memory| {
            memory
                .iter()
                .any(|o| o.at != m.at && (o.written || m.written) && o.at < m.at.wrapping_add(m.bytes) && m.at < o.at.wrapping_add(o.bytes))
        };
        let guard = |m: &Memory, n: usize| (!overlaps(m)).then_some(n);
        for m in memory {
            let known = bound.iter().position(|b| b.memory.at == m.at && m.bytes > 0);
            slots.push(known.unwrap_or(bound.len()));
            match known {
                Some(n) if m.written && !bound[n].memory.written => bound[n] = Bound::new(runtime, guard(m, n), *m, orders),
                Some(_) => {}
                None => bound.push(Bound::new(runtime, guard(m, bound.len()), *m, orders)),
            }
        }
        for p in &self.parameters {
            if let Parameter::Buffer { index, name, .. } = p
                && *index >= memory.len()
            {
                return Err(format!("buffer {index} ({name}) is not bound; there are {}", memory.len()));
            }
        }
        let table: Vec<*mut c_void> = slots.iter().map(|&n| bound[n].at.cast()).collect();
        for (n, &(seed, fill)) in orders.iter().enumerate() {
            bound.iter().for_each(|b| b.begin(n == 0));
            let (entry, buffers) = (self.entry, table.as_ptr());
            let (room, fill, meets) = (self.room, fill.into(), self.meets.into());
            let dispatch = Dispatch { entry, buffers, seed, groups: grid, size: threads, room, fill, meets };
            // SAFETY: the caller's promise; the table has every index that the kernel's source names.
            let error = unsafe { (runtime.run)(&dispatch) };
            if !error.is_null() {
                // SAFETY: a string that lives until this thread's next run.
                let error = unsafe { CStr::from_ptr(error) }.to_string_lossy();
                return Err(format!("{error}, in order {n} of threads"));
            }
            for b in bound.iter_mut().filter(|b| orders.len() > 1 && b.memory.written && b.memory.ordered) {
                if n == 0 {
                    b.first = b.seen().to_vec();
                } else if let Some(at) = b.first.iter().zip(b.seen()).position(|(a, b)| a != b) {
                    return Err(format!(
                        "byte {at} of {} depends on the order of threads or on threadgroup memory that nobody wrote",
                        b.first.len()
                    ));
                }
            }
        }
        bound.iter().for_each(Bound::give_back);
        Ok(())
    }
}
