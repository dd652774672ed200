//! The processor time that this process has taken.

use std::time::Duration;

/// Processor time of all threads of this process since it began, in user mode and in the system; `None` where the system does not tell. On a
/// software adapter it includes the driver's own threads.
///
/// ```
/// if let Some(before) = tensorlogic::measure::cpu_time() {
///     let sum: u64 = (0..1_000_000u64).map(std::hint::black_box).sum();
///     assert!(sum > 0 && tensorlogic::measure::cpu_time() >= Some(before));
/// }
/// ```
#[cfg(unix)]
pub fn cpu_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the structure that it is given, and nowhere else.
    let known = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) } == 0;
    known.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// `None`: this system is not asked.
#[cfg(not(unix))]
pub fn cpu_time() -> Option<Duration> {
    None
}
