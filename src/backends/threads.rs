//! Work that is shared among threads while kernels are written and compiled.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Stack of a thread that compiles: as much as a main thread has, since drivers' compilers recurse.
const STACK: usize = 8 << 20;

/// The results of `work` for each of these, computed on as many threads as the processor has, from `least` pieces of work on.
pub(super) fn on_all_threads<T: Sync, R: Send + Sync>(list: &[T], least: usize, work: impl Fn(&T) -> R + Sync) -> Vec<Option<R>> {
    let next = AtomicUsize::new(0);
    let done: Vec<OnceLock<R>> = list.iter().map(|_| OnceLock::new()).collect();
    let run = || {
        while let Some((slot, item)) = Some(next.fetch_add(1, Relaxed)).and_then(|n| Some((done.get(n)?, list.get(n)?))) {
            let _ = slot.set(work(item));
        }
    };
    let threads = if list.len() < least { 1 } else { std::thread::available_parallelism().map_or(1, |n| n.get()).min(list.len()) };
    std::thread::scope(|s| {
        for _ in 1..threads {
            // Where threads cannot be started, this one does all the work.
            let _ = std::thread::Builder::new().stack_size(STACK).spawn_scoped(s, run);
        }
        run();
    });
    done.into_iter().map(OnceLock::into_inner).collect()
}
