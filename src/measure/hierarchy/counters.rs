//! How many references to its last cache a processor counted, and how many of them missed: perf events on Linux, absent elsewhere.

/// Counts the references and misses of the thread that opened it.
pub struct CacheCounters {
    #[cfg(target_os = "linux")]
    references: std::os::fd::OwnedFd,
    #[cfg(target_os = "linux")]
    misses: std::os::fd::OwnedFd,
}

#[cfg(not(target_os = "linux"))]
impl CacheCounters {
    /// No other system has an interface for it.
    pub fn open() -> Option<CacheCounters> {
        None
    }
    /// Runs `work`; nothing is counted.
    pub fn hit_rate(&self, work: impl FnOnce()) -> Option<f64> {
        work();
        None
    }
}

/// The first version of `struct perf_event_attr`, which every kernel takes.
#[cfg(target_os = "linux")]
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

#[cfg(target_os = "linux")]
impl CacheCounters {
    /// `PERF_COUNT_HW_CACHE_REFERENCES` and `PERF_COUNT_HW_CACHE_MISSES`.
    const EVENTS: [u64; 2] = [2, 3];
    /// `exclude_kernel` and `exclude_hv`: what an ordinary user may count.
    const USER_ONLY: u64 = 1 << 5 | 1 << 6;
    /// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `PERF_FORMAT_TOTAL_TIME_RUNNING`.
    const TIMES: u64 = 1 | 2;

    /// The counters of this thread; `None` where the processor has none, the hypervisor hides them, or this user may not count.
    ///
    /// ```
    /// use tensorlogic::measure::CacheCounters;
    /// if let Some(counters) = CacheCounters::open() {
    ///     let rate = counters.hit_rate(|| drop(vec![1u8; 1 << 20]));
    ///     assert!(rate.is_none_or(|r| (0.0..=1.0).contains(&r)));
    /// }
    /// ```
    pub fn open() -> Option<CacheCounters> {
        use std::os::fd::{FromRawFd, OwnedFd};
        let open = |config: u64| {
            let size = size_of::<Attributes>() as u32;
            // Kind 0 is a hardware event.
            let attributes = Attributes { size, config, read_format: Self::TIMES, flags: Self::USER_ONLY, ..Attributes::default() };
            // SAFETY: the structure is as long as it says and lives through the call: this thread, any processor, no group.
            let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attributes, 0, -1, -1, 8u64) };
            // SAFETY: a descriptor that nobody else has.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
        };
        Some(CacheCounters { references: open(Self::EVENTS[0])?, misses: open(Self::EVENTS[1])? })
    }

    /// The part of the last cache's references during `work` that did not miss; `None` where nothing was counted, or not all the time.
    pub fn hit_rate(&self, work: impl FnOnce()) -> Option<f64> {
        let before = [count(&self.references), count(&self.misses)];
        work();
        let [references, misses] = [(before[0]?, count(&self.references)?), (before[1]?, count(&self.misses)?)].map(|(a, b)| {
            // Shared with other events, a counter runs a part of the time: that would have to be scaled, which is an estimate.
            (b[1] - a[1] == b[2] - a[2] && b[2] > a[2]).then(|| b[0] - a[0])
        });
        rate(references?, misses?)
    }
}

/// The events, the time that they were to be counted and the time that they were, in nanoseconds.
#[cfg(target_os = "linux")]
fn count(counter: &std::os::fd::OwnedFd) -> Option<[u64; 3]> {
    use std::os::fd::AsRawFd;
    let mut value = [0u64; 3];
    // SAFETY: the read is of as many bytes as there is room for.
    let got = unsafe { libc::read(counter.as_raw_fd(), value.as_mut_ptr().cast(), size_of_val(&value)) };
    (got == size_of_val(&value) as isize).then_some(value)
}

/// The part of some references that did not miss.
#[cfg(target_os = "linux")]
fn rate(references: u64, misses: u64) -> Option<f64> {
    (references > 0 && misses <= references).then(|| 1.0 - misses as f64 / references as f64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_counted_has_no_rate() {
        assert_eq!(rate(0, 0), None);
        assert_eq!(rate(4, 5), None);
        assert_eq!(rate(8, 2), Some(0.75));
    }

    #[test]
    fn a_counter_of_a_file_that_counts_nothing_is_absent() {
        let nothing = || std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let counters = CacheCounters { references: nothing(), misses: nothing() };
        let mut ran = false;
        assert_eq!(counters.hit_rate(|| ran = true), None);
        assert!(ran);
    }
}
