//! The levels of a hierarchy, read from the latencies of growing working sets: plateaus, and the knees between them.

/// What was measured with one working set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkingSet {
    /// Bytes that are touched.
    pub bytes: u64,
    /// Seconds of a read whose address is the result of the read before.
    pub latency: f64,
    /// Bytes per second of reading.
    pub read: f64,
    /// Bytes per second of copying one half to the other, read and written bytes together.
    pub copy: f64,
    /// The part of the last cache's references that it served, by the processor's counters; `None` where the system has none or keeps them.
    pub hits: Option<f64>,
}

/// A level of the hierarchy, as it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheLevel {
    /// Bytes from which on the next level is met; `None` for the last one, which may be memory or the largest working set's.
    pub size: Option<u64>,
    /// Seconds of a dependent read.
    pub latency: f64,
    /// Bytes per second of reading.
    pub read: f64,
    /// Bytes per second of copying, read and written bytes together.
    pub copy: f64,
}

/// What a further segment of the curve must save, in squared differences of logarithms.
const MIN_GAIN_PER_SEGMENT: f64 = 0.03;
/// Octaves of working sets that a plateau covers at least.
const OCTAVES: f64 = 0.9;
/// How much the logarithm of the latency may rise along a plateau: beyond this it is the slope between two.
const RISE: f64 = 0.25;
/// How many times slower the next level is at least.
const SLOWER: f64 = 1.35;
/// How far from one plateau to the next, in logarithms, the knee lies: a cache that replaces at random begins to miss gradually.
const KNEE: f64 = 0.2;

/// Cuts a curve into pieces of one height each, as few as it takes: their ends, exclusive.
fn pieces(y: &[f64]) -> Vec<usize> {
    let n = y.len();
    let mut sums = vec![(0.0, 0.0)];
    for v in y {
        let (s, q) = sums[sums.len() - 1];
        sums.push((s + v, q + v * v));
    }
    let error = |a: usize, b: usize| {
        let (s, q) = (sums[b].0 - sums[a].0, sums[b].1 - sums[a].1);
        (q - s * s / (b - a) as f64).max(0.0)
    };
    // The least cost of the first `b` points, and where their last piece begins.
    let mut best = vec![(0.0, 0)];
    for b in 1..=n {
        let candidates = (0..b).map(|a| (best[a].0 + error(a, b) + MIN_GAIN_PER_SEGMENT, a));
        best.push(candidates.min_by(|x: &(f64, usize), y| x.0.total_cmp(&y.0)).unwrap_or((0.0, 0)));
    }
    let mut ends = Vec::new();
    let mut end = n;
    while end > 0 {
        ends.push(end);
        end = best[end].1;
    }
    ends.reverse();
    ends
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut v: Vec<f64> = values.collect();
    v.sort_by(f64::total_cmp);
    crate::measure::middle(&v)
}

/// The rise of a straight line through a plateau's points, from its first to its last.
fn rise(x: &[f64], y: &[f64]) -> f64 {
    let n = x.len() as f64;
    let (mx, my) = (x.iter().sum::<f64>() / n, y.iter().sum::<f64>() / n);
    let spread: f64 = x.iter().map(|x| (x - mx).powi(2)).sum();
    let together: f64 = x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum();
    if spread > 0.0 { together / spread * (x[x.len() - 1] - x[0]) } else { 0.0 }
}

/// The levels of working sets that grow: sizes ascend, and each level is slower than the one before.
///
/// The logarithm of the latency is cut into pieces of one height each. A piece is a level where it covers about an octave and is flat;
/// what is short or steep is the way from one level to the next. The knee is where the curve leaves a level for the next one.
pub(super) fn levels(points: &[WorkingSet]) -> Vec<CacheLevel> {
    if points.is_empty() {
        return Vec::new();
    }
    let x: Vec<f64> = points.iter().map(|p| (p.bytes as f64).log2()).collect();
    let y: Vec<f64> = points.iter().map(|p| p.latency.ln()).collect();
    let mut plateaus: Vec<(usize, usize)> = Vec::new();
    let mut start = 0;
    let height = |(a, b): (usize, usize)| median(y[a..b].iter().copied());
    for end in pieces(&y) {
        let piece = (start, end);
        let flat = x[end - 1] - x[start] >= OCTAVES && rise(&x[start..end], &y[start..end]) < RISE;
        // The way to a level that begins beyond the largest working set stands for it.
        let last = end == points.len() && end - start > 1;
        start = end;
        let before = plateaus.last_mut();
        match before {
            Some(p) if height(piece) < height(*p) + SLOWER.ln() => {
                // As fast as the one before: the same level.
                if flat {
                    p.1 = end;
                }
            }
            Some(_) if !flat && !last => {}
            _ => plateaus.push(piece),
        }
    }
    let knee = |p: &(usize, usize), next: &(usize, usize)| {
        let (low, high) = (height(*p), height(*next));
        let edge = low + KNEE * (high - low);
        // From the next plateau back: a single slow point within a plateau is noise.
        let at = (p.0 + 1..=next.0).rev().find(|i| y[i - 1] <= edge).unwrap_or(p.1);
        let (y0, y1) = (y[at - 1], y[at]);
        let part = if y1 > y0 { ((edge - y0) / (y1 - y0)).clamp(0.0, 1.0) } else { 0.0 };
        2f64.powf(x[at - 1] + part * (x[at] - x[at - 1])).round() as u64
    };
    let level = |n: usize| {
        let own = &points[plateaus[n].0..plateaus[n].1];
        CacheLevel {
            size: plateaus.get(n + 1).map(|next| knee(&plateaus[n], next)),
            latency: median(own.iter().map(|p| p.latency)),
            read: median(own.iter().map(|p| p.read)),
            copy: median(own.iter().map(|p| p.copy)),
        }
    };
    (0..plateaus.len()).map(level).collect()
}
