//! A step on one thread: what kernels see of the backend, and how maps are run.

use super::map::{Compiled, Operands, Output};
use super::memory::HostBlock;
use super::prepared::PreparedStep;
use super::span::{StridedView, finish_streaming};
use super::thread_pool::Barrier;
use crate::backends::lock::lock;
use crate::error::{At, TensorError};
use crate::plan::{Raw, SliceMut, Step, Task, Work};
use std::cell::UnsafeCell;
use std::sync::Mutex;

/// Elements of a map that always stay on one thread.
const ELEMENTS_PER_SHARE: usize = 4096;
/// Elements from which on a map fetches what it will read.
const PREFETCH_MIN_ELEMENTS: usize = 16 << 10;
/// Bytes of results from which on a map writes past the caches.
const STREAM_MIN_BYTES: usize = 24 << 20;

/// Scratch that all threads of a step share.
#[derive(Default)]
pub(crate) struct Common {
    pub barrier: Barrier,
    pub pieces: Mutex<Vec<HostBlock>>,
    /// The first bad index since the last read.
    pub failure: Mutex<Option<TensorError>>,
}

/// A thread's own scratch, kept from run to run.
#[derive(Default)]
pub(crate) struct Local {
    registers: Option<HostBlock>,
    pieces: Vec<HostBlock>,
}

/// Gives a block of at least `bytes`, keeping the old one where it is large enough.
fn grown(block: &mut Option<HostBlock>, bytes: usize) -> *mut u8 {
    if block.as_ref().is_none_or(|b| b.len() < bytes) {
        *block = None;
        *block = Some(scratch_block(bytes));
    }
    block.as_ref().map_or(std::ptr::NonNull::<u64>::dangling().as_ptr().cast(), HostBlock::ptr)
}

/// Kernels cannot go on without scratch: unwinding ends the run, whose caller gets an error.
fn scratch_block(bytes: usize) -> HostBlock {
    HostBlock::new(bytes.next_power_of_two().max(4096)).unwrap_or_else(|| std::panic::resume_unwind(Box::new(NoScratch(bytes))))
}

/// What a run panics with when there is no memory for scratch.
pub(crate) struct NoScratch(pub usize);

/// The share of work item range `0..count` of thread `thread` of `threads`: whole chunks, the same chunks for any number of threads.
pub fn share(count: usize, chunk: usize, thread: usize, threads: usize) -> std::ops::Range<usize> {
    let chunks = count.div_ceil(chunk);
    let at = |t: usize| (chunks * t / threads * chunk).min(count);
    at(thread)..at(thread + 1)
}

/// A step with what a run gives it.
#[derive(Clone, Copy)]
pub(crate) struct BoundStep<'a> {
    pub step: &'a Step,
    pub prepared: &'a PreparedStep,
    /// The step's operands, bound to memory.
    pub views: &'a [StridedView<'a>],
    pub params: &'a [f64],
}

/// A step on one thread.
pub(crate) struct CpuTask<'a> {
    step: &'a Step,
    prepared: &'a PreparedStep,
    views: &'a [StridedView<'a>],
    params: &'a [f64],
    thread: usize,
    threads: usize,
    common: &'a Common,
    local: UnsafeCell<&'a mut Local>,
    /// Pieces of own and of shared scratch that the kernel has taken.
    taken: UnsafeCell<(usize, usize)>,
}

impl<'a> CpuTask<'a> {
    /// The share of a step of thread `thread` of `threads`.
    pub(crate) fn new(bound: BoundStep<'a>, [thread, threads]: [usize; 2], common: &'a Common, local: &'a mut Local) -> CpuTask<'a> {
        let BoundStep { step, prepared, views, params } = bound;
        grown(&mut local.registers, prepared.registers.max(64));
        CpuTask { step, prepared, views, params, thread, threads, common, local: UnsafeCell::new(local), taken: UnsafeCell::new((0, 0)) }
    }

    /// Group `g` of the operands.
    fn group(&self, g: usize) -> &'a [StridedView<'a>] {
        let start = if g == 0 { 0 } else { self.prepared.ends[g - 1] };
        &self.views[start..self.prepared.ends[g]]
    }
    fn targets(&self) -> &'a [StridedView<'a>] {
        self.group(self.prepared.ends.len() - 1)
    }

    fn registers(&self) -> *mut u8 {
        // SAFETY: a task belongs to one thread, and no reference into `local` outlives a statement here.
        let local = unsafe { &*self.local.get() };
        local.registers.as_ref().map_or(std::ptr::null_mut(), HostBlock::ptr)
    }

    /// What a program of this step is run on.
    fn operands(&self, sources: &'a [StridedView<'a>], sink: Output<'a>) -> Operands<'a> {
        Operands { sources, params: self.params, value: std::ptr::null(), registers: self.registers(), large: false, sink }
    }

    /// Runs this thread's share.
    pub(crate) fn run(&self) {
        match (&self.step.work, &self.prepared.map) {
            (Work::Kernel(kernel), _) => kernel.cpu(self),
            (Work::Map, Some(code)) => self.map(code),
            (Work::Map, None) => {}
        }
    }

    fn map(&self, code: &Compiled) {
        let Some(first) = self.step.stores.first() else { return };
        let range = share(first.shape.count(), ELEMENTS_PER_SHARE, self.thread, self.threads);
        let (sources, targets) = (self.group(0), self.targets());
        if let (true, [target], [source]) = (code.identity, targets, sources)
            && target.apart
        {
            // SAFETY: the views were checked against their buffers; threads write disjoint elements.
            let copied =
                unsafe { source.copy_to(target, range.start, range.len()) || source.transpose_to(target, self.thread, self.threads) };
            if copied {
                return;
            }
        }
        // SAFETY: as above; the registers are this thread's and large enough for every program of the step.
        unsafe {
            let bytes: usize = targets.iter().map(|t| first.shape.count() * t.dtype.block_bytes()).sum();
            let stream = bytes >= STREAM_MIN_BYTES && targets.iter().all(|t| t.apart);
            let sink = if stream { Output::Streams(targets) } else { Output::Targets(targets) };
            // The same for any number of threads, as it chooses between loops.
            let large = first.shape.count() >= PREFETCH_MIN_ELEMENTS;
            code.run(&Operands { large, ..self.operands(sources, sink) }, range.start, range.len());
            if stream {
                finish_streaming();
            }
        }
    }
}

/// The address and the number of values of a lane.
fn parts(lane: SliceMut<'_>) -> (*mut u8, usize) {
    match lane {
        SliceMut::F32(v) => (v.as_mut_ptr().cast(), v.len()),
        SliceMut::F64(v) => (v.as_mut_ptr().cast(), v.len()),
        SliceMut::I32(v) => (v.as_mut_ptr().cast(), v.len()),
        SliceMut::U32(v) => (v.as_mut_ptr().cast(), v.len()),
        SliceMut::I64(v) => (v.as_mut_ptr().cast(), v.len()),
        SliceMut::U64(v) => (v.as_mut_ptr().cast(), v.len()),
    }
}

/// Whether a lane's values are what a program of this dtype computes with.
fn fits(lane: &SliceMut<'_>, dtype: crate::dtype::DType) -> bool {
    use crate::dtype::DType::*;
    matches!(
        (lane, dtype.compute()),
        (SliceMut::F32(_), F32)
            | (SliceMut::F64(_), F64)
            | (SliceMut::I32(_), I32)
            | (SliceMut::U32(_), U32)
            | (SliceMut::I64(_), I64)
            | (SliceMut::U64(_), U64)
    )
}

impl Task for CpuTask<'_> {
    fn step(&self) -> &Step {
        self.step
    }
    fn thread(&self) -> usize {
        self.thread
    }
    fn threads(&self) -> usize {
        self.threads
    }
    fn barrier(&self) {
        self.common.barrier.wait(self.threads);
    }

    fn load(&self, k: usize, start: usize, out: SliceMut<'_>) {
        let (code, sources) = (&self.prepared.loads[k], self.group(k));
        let load = &self.step.loads[k];
        assert!(fits(&out, load.dtype()), "load {k} of {} computes in {}", self.step.name, load.dtype().compute());
        let (ptr, n) = parts(out);
        assert!(start + n <= load.shape.count(), "load {k} of {} has {} elements", self.step.name, load.shape.count());
        // SAFETY: the range was checked against the shape, the views against their buffers when the step was bound, the lane's type
        // above; the registers are this thread's.
        unsafe {
            if code.identity {
                sources[0].fetch(start, n, ptr);
            } else {
                code.run(&self.operands(sources, Output::Memory(ptr)), start, n);
            }
        }
    }

    fn store(&self, k: usize, start: usize, values: SliceMut<'_>) {
        let (code, target) = (&self.prepared.stores[k], &self.targets()[k]);
        let store = &self.step.stores[k];
        let value = store.program.insts.iter().find(|i| i.op == crate::scalar::Prim::Value).map_or(store.program.dtype(), |i| i.dtype);
        assert!(fits(&values, value), "store {k} of {} takes {}", self.step.name, value.compute());
        let (ptr, n) = parts(values);
        assert!(start + n <= store.shape.count(), "store {k} of {} has {} elements", self.step.name, store.shape.count());
        // SAFETY: as in `load`; kernels write each element once, from one thread.
        unsafe {
            if code.identity {
                target.put(start, n, ptr);
            } else {
                let sink = Output::Targets(std::slice::from_ref(target));
                let sources = self.group(self.step.loads.len() + k);
                code.run(&Operands { value: ptr, ..self.operands(sources, sink) }, start, n);
            }
        }
    }

    fn raw_load(&self, k: usize) -> Raw {
        let s = &self.group(k)[0];
        Raw { ptr: s.base, len: s.bytes, offset: s.first }
    }
    fn raw_store(&self, k: usize) -> Raw {
        let s = &self.targets()[k];
        Raw { ptr: s.base, len: s.bytes, offset: s.first }
    }

    fn param(&self, n: usize) -> f64 {
        self.params[self.step.params[n] as usize]
    }

    fn scratch(&self, bytes: usize) -> &mut [u8] {
        // SAFETY: a task belongs to one thread; each piece is given out once, and a block's address does not change when others are added.
        unsafe {
            let (local, taken) = (&mut *self.local.get(), &mut *self.taken.get());
            if taken.0 == local.pieces.len() {
                local.pieces.push(scratch_block(bytes));
            } else if local.pieces[taken.0].len() < bytes {
                local.pieces[taken.0] = scratch_block(bytes);
            }
            let piece = local.pieces[taken.0].ptr();
            taken.0 += 1;
            std::slice::from_raw_parts_mut(piece, bytes)
        }
    }

    fn shared(&self, bytes: usize) -> *mut u8 {
        // SAFETY: a task belongs to one thread.
        let taken = unsafe { &mut *self.taken.get() };
        let mut pieces = lock(&self.common.pieces);
        if taken.1 == pieces.len() {
            pieces.push(scratch_block(bytes));
        } else if pieces[taken.1].len() < bytes {
            // Only the first thread here comes this way: the others ask for the same size.
            pieces[taken.1] = scratch_block(bytes);
        }
        taken.1 += 1;
        pieces[taken.1 - 1].ptr()
    }

    fn fail(&self, index: i64, size: usize) {
        let at: At = self.step.at;
        let message = match size {
            0 => format!("index {index} into an empty dimension"),
            _ => format!("index {index} is out of range for a dimension of size {size}; allowed are 0 to {}", size - 1),
        };
        let mut failure = lock(&self.common.failure);
        failure.get_or_insert(TensorError::Index { op: self.step.name, message, at });
    }
}
