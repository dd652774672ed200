//! Copies of many bytes into memory that nobody has touched yet: the system gives its pages during the copy, which takes longer than the copy.

/// Bytes of a huge page on x86-64 and most Arm systems.
#[cfg(any(target_os = "linux", test))]
const HUGE_PAGE: usize = 2 << 20;
/// Bytes from which a copy is shared among threads: starting them takes about as long as copying 1 MiB.
const SHARED_FROM: usize = 8 << 20;
/// Threads that copy at most: memory is as fast as a few of them.
const MAX_THREADS: usize = 4;

/// Asks for huge pages behind `memory` where the system has them for the asking, since each page costs a visit to the system. A hint.
pub(super) fn expect_many_bytes(memory: &mut [u8]) {
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
pub(super) fn copy(from: &[u8], to: &mut [u8]) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS);
    if from.len() < SHARED_FROM || threads < 2 {
        return to.copy_from_slice(from);
    }
    let share = from.len().div_ceil(threads).next_multiple_of(4096);
    let mut parts: Vec<_> = to.chunks_mut(share).zip(from.chunks(share)).collect();
    let own = parts.pop();
    std::thread::scope(|s| {
        for (to, from) in parts {
            s.spawn(move || to.copy_from_slice(from));
        }
        own.into_iter().for_each(|(to, from)| to.copy_from_slice(from));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whatever_the_length() {
        for len in [0, 1, HUGE_PAGE, SHARED_FROM - 1, SHARED_FROM, SHARED_FROM + 4097, 3 * SHARED_FROM + 1] {
            let from: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut to = vec![0; len];
            expect_many_bytes(&mut to);
            copy(&from, &mut to);
            assert!(from == to, "{len} bytes");
        }
    }
}
