//! Copies of many bytes, also into memory that nobody has touched yet: the system gives its pages during the copy, which takes longer than the copy.

use super::{Bytes, FILLED_BLOCK, FillsValues};
use std::sync::LazyLock;

/// Bytes of a huge page on x86-64 and most Arm systems.
#[cfg(any(target_os = "linux", test))]
const HUGE_PAGE: usize = 2 << 20;
/// Bytes that each of several threads copies at least: starting one takes about as long as copying 1 MiB.
const THREAD_BYTES: usize = 2 << 20;
/// Threads that copy at most: memory is as fast as a few of them.
const MAX_THREADS: usize = 4;

/// Asks for huge pages behind `memory` where the system has them for the asking, since each page costs a visit to the system. A hint.
pub(crate) fn expect_many_bytes(memory: &mut [u8]) {
    #[cfg(target_os = "linux")]
    if memory.len() >= 2 * HUGE_PAGE {
        let from = memory.as_ptr().align_offset(HUGE_PAGE);
        let whole = memory.len().saturating_sub(from) / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: whole huge pages within the slice; the advice changes no contents, and its failure is harmless.
        unsafe { libc::madvise(memory.as_mut_ptr().wrapping_add(from).cast(), whole, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Copies `from` to `to`, which is as long: by several threads where that pays.
pub(crate) fn copy<T: Copy + Send + Sync>(from: &[T], to: &mut [T]) {
    let share = share(from.len(), size_of::<T>());
    on_threads(to.chunks_mut(share).zip(from.chunks(share)).collect(), |(to, from)| to.copy_from_slice(from));
}

/// Lets `fill` write all `values`: by several threads where that pays.
pub(crate) fn fill(values: &mut [f32], fill: FillsValues<'_>) {
    let share = share(values.len(), size_of::<f32>());
    on_threads(values.chunks_mut(share).enumerate().collect(), |(n, part)| {
        part.chunks_mut(FILLED_BLOCK).enumerate().for_each(|(block, values)| fill(n * share + block * FILLED_BLOCK, values));
    });
}

/// `len` values that `fill` writes, in memory of the host.
pub(super) fn filled(len: usize, fill_values: FillsValues<'_>) -> Bytes {
    let mut values = vec![0f32; len];
    fill(&mut values, fill_values);
    Bytes::of_vec(values)
}

/// How many of `len` values of so many `bytes` each of a few threads gets: whole blocks.
pub(super) fn share(len: usize, bytes: usize) -> usize {
    // Asked once: the answer takes longer than a small copy.
    static THREADS: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS));
    let threads = THREADS.min(len * bytes / THREAD_BYTES).max(1);
    len.div_ceil(threads).next_multiple_of(FILLED_BLOCK).max(FILLED_BLOCK)
}

/// Does each work on a thread of its own, the last on this one.
pub(super) fn on_threads<T: Send>(mut work: Vec<T>, f: impl Fn(T) + Sync) {
    let own = work.pop();
    std::thread::scope(|s| {
        let f = &f;
        work.into_iter().for_each(|work| {
            s.spawn(move || f(work));
        });
        own.into_iter().for_each(f);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whatever_the_length() {
        for len in [0, 1, HUGE_PAGE, 2 * THREAD_BYTES - 1, 2 * THREAD_BYTES, 4 * THREAD_BYTES + 4097, 12 * THREAD_BYTES + 1] {
            let from: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut to = vec![0; len];
            expect_many_bytes(&mut to);
            copy(&from, &mut to);
            assert!(from == to, "{len} bytes");
        }
    }

    #[test]
    fn every_value_is_written_at_its_place() {
        for len in [0, 1, FILLED_BLOCK + 1, THREAD_BYTES + 5] {
            let mut values = vec![f32::NAN; len];
            fill(&mut values, &|at, out| {
                assert!(at % FILLED_BLOCK == 0 && out.len() <= FILLED_BLOCK);
                out.iter_mut().enumerate().for_each(|(n, v)| *v = (at + n) as f32);
            });
            assert!(values.iter().enumerate().all(|(n, v)| *v == n as f32), "{len} values");
        }
    }
}
