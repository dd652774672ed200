//! Working sets in the host's memory, by one thread: a chase along a cycle of lines, sums, copies.

use super::HierarchyOptions;
use super::counters::CacheCounters;
use super::knees::WorkingSet;
use crate::backends::cpu::probe;
use crate::error::{TensorError, TensorResult};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Bytes of a stop of the chase. Processors with lines of 128 bytes find two stops in some of them.
const LINE: usize = 64;
/// u32 in a line.
const WORDS: usize = LINE / 4;
/// Steps of a sample at least and at most.
const CHASE_STEPS: [usize; 2] = [1 << 15, 1 << 17];
/// Bytes that a sample of a bandwidth moves at least.
const SAMPLE_BYTES: usize = 1 << 20;
/// How often the working sets are walked through, apart in time.
const SWEEPS: usize = 2;
/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Zeros in huge pages where the system has them, so that the chase waits for caches rather than for the tables of pages.
struct Memory {
    words: Vec<u32>,
    start: usize,
    len: usize,
}

impl Memory {
    fn new(bytes: usize) -> Memory {
        let (len, slack) = (bytes.div_ceil(4), HUGE_PAGE / 4);
        let words = vec![0u32; len.next_multiple_of(slack) + slack];
        let start = words.as_ptr().cast::<u8>().align_offset(HUGE_PAGE) / 4 % slack;
        #[cfg(target_os = "linux")]
        // SAFETY: whole huge pages within the vector; the advice changes no contents.
        unsafe {
            libc::madvise(words.as_ptr().add(start).cast_mut().cast(), (len * 4).next_multiple_of(HUGE_PAGE), libc::MADV_HUGEPAGE);
        }
        Memory { words, start, len }
    }
    fn words(&mut self) -> &mut [u32] {
        &mut self.words[self.start..self.start + self.len]
    }
}

/// A generator of evenly distributed numbers; Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014).
pub(in crate::measure) struct SplitMix(pub u64);

impl SplitMix {
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 32) as usize * n) >> 32
    }
}

/// Writes one random cycle through all stops into the first word of each.
///
/// Sattolo: An algorithm to generate a random cyclic permutation (1986).
pub(super) fn cycle(next: &mut [u32], stride: usize) {
    let stops = next.len() / stride;
    (0..stops).for_each(|i| next[i * stride] = (i * stride) as u32);
    let mut random = SplitMix(stops as u64);
    for i in (1..stops).rev() {
        next.swap(i * stride, random.below(i) * stride);
    }
}

/// Where `steps` steps along the cycle end.
#[inline(never)]
pub(super) fn chase(next: &[u32], mut at: u32, steps: usize) -> u32 {
    for _ in 0..steps {
        at = next[at as usize];
    }
    at
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// The least time of some samples.
fn least(samples: usize, mut sample: impl FnMut() -> f64) -> f64 {
    (0..samples.max(1)).map(|_| sample()).fold(f64::INFINITY, f64::min)
}

/// Seconds of a step, and the part of the last cache's references that hit.
fn latency(next: &mut [u32], samples: usize, counters: Option<&CacheCounters>) -> TensorResult<(f64, Option<f64>)> {
    cycle(next, WORDS);
    let stops = next.len() / WORDS;
    // All of it once, which fills the caches and shows that it is one cycle.
    if chase(next, 0, stops) != 0 {
        return Err(TensorError::Internal("a chase through all lines does not end where it began: nothing is reported".into()));
    }
    let steps = stops.clamp(CHASE_STEPS[0], CHASE_STEPS[1]);
    let mut at = 0;
    let each = least(samples, || seconds(|| at = chase(next, black_box(at), steps)) / steps as f64);
    let hits = counters.and_then(|c| c.hit_rate(|| at = chase(next, black_box(at), steps)));
    black_box(at);
    Ok((each, hits))
}

/// Bytes per second of sums and copies over a working set of ones.
fn bandwidths(ones: &mut [f32], samples: usize) -> TensorResult<(f64, f64)> {
    let wrong = || TensorError::Internal("a sum or copy of ones is wrong: nothing is reported".into());
    let bytes = size_of_val(ones);
    let times = (SAMPLE_BYTES / bytes).max(1);
    let moved = (times * bytes) as f64;
    let mut sum = 0.0;
    let read = moved / least(samples, || seconds(|| (0..times).for_each(|_| sum = black_box(probe::sum(black_box(ones))))));
    if sum != ones.len() as f64 {
        return Err(wrong());
    }
    let (from, to) = ones.split_at_mut(bytes / 8);
    let copy_once = |to: &mut [f32]| {
        // SAFETY: both halves are as long, and apart.
        unsafe { probe::copy(black_box(from), to.as_mut_ptr(), bytes) };
        black_box(to);
    };
    let copy = moved / least(samples, || seconds(|| (0..times).for_each(|_| copy_once(to))));
    if [to.first(), to.last()] != [Some(&1.0); 2] {
        return Err(wrong());
    }
    Ok((read, copy))
}

/// Measures the working sets that fit the time.
pub(super) fn measure(options: &HierarchyOptions) -> TensorResult<Vec<WorkingSet>> {
    let sizes = options.sizes(1024);
    let largest = sizes.last().copied().unwrap_or_default() as usize;
    let (mut cycles, mut ones) = (Memory::new(largest), Memory::new(largest));
    let counters = CacheCounters::open();
    let samples = options.samples.div_ceil(SWEEPS);
    let mut points: Vec<WorkingSet> = Vec::new();
    let ones = bytemuck::cast_slice_mut::<u32, f32>(ones.words());
    ones.fill(1.0);
    for sweep in 0..SWEEPS {
        let start = Instant::now();
        let enough = |time: Duration| start.elapsed() > time / SWEEPS as u32;
        for (n, bytes) in sizes.iter().enumerate() {
            if n > 0 && enough(options.time) || sweep > 0 && n >= points.len() {
                break;
            }
            let words = *bytes as usize / 4;
            let (latency, hits) = latency(&mut cycles.words()[..words], samples, counters.as_ref())?;
            let (read, copy) = bandwidths(&mut ones[..words], samples)?;
            match points.get_mut(n) {
                Some(p) => (p.latency, p.read, p.copy) = (p.latency.min(latency), p.read.max(read), p.copy.max(copy)),
                None => points.push(WorkingSet { bytes: *bytes, latency, read, copy, hits }),
            }
        }
    }
    Ok(points)
}
