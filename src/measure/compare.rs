//! Two files of measurements: which operations changed, and which only seem to have.

use super::{Record, Stats, middle};

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Less time than before, beyond the noise.
    Faster,
    /// More time than before, beyond the noise.
    Slower,
    /// No difference that is more than noise.
    Same,
}

/// One operation in both files.
#[derive(Clone, Debug)]
pub struct Change {
    /// The operation and its size.
    pub name: String,
    /// The median time in the first file, in seconds.
    pub before: f64,
    /// The median time in the second.
    pub after: f64,
    /// The relative difference that noise alone makes: three median deviations of the samples, or the range of the medians of repeated
    /// runs, whichever is more, and one percent at least.
    pub noise: f64,
    /// The two-sided p-value of a Mann–Whitney U test.
    pub p: f64,
    /// Runs of the side that has fewer. Samples of one run share what differs from process to process (where memory lies, clocks, neighbours), so
    /// that a change found in single runs may be none.
    pub runs: usize,
    /// The verdict: a change if `p` is below 0.01 and the medians differ by more than the noise.
    pub verdict: Verdict,
}

impl Change {
    /// Compares the runs of one measurement before and after a change; each side has one at least.
    ///
    /// ```
    /// use tensorlogic::measure::{Change, Stats, Verdict};
    /// let stats = |ms: f64| Stats::of((0..9).map(|i| ms + 1e-3 * f64::from(i)).collect()).unwrap();
    /// assert_eq!(Change::between("decode", &[stats(10.0)], &[stats(5.0)]).verdict, Verdict::Faster);
    /// assert_eq!(Change::between("decode", &[stats(10.0)], &[stats(10.001)]).verdict, Verdict::Same);
    /// ```
    pub fn between(name: &str, before: &[Stats], after: &[Stats]) -> Change {
        change(name.into(), before, after)
    }

    /// The relative change of time: 0.1 is a tenth slower.
    pub fn relative(&self) -> f64 {
        self.after / self.before - 1.0
    }
}

/// The least change that is ever told.
const MIN_CHANGE: f64 = 0.01;
/// How sure a change must be.
const SURE: f64 = 0.01;

/// Compares records of the same operation, size and device, in the order of the first file. Several records of one operation in a file are
/// repeated runs, best taken in turn with the other file's: how far they lie apart is noise.
pub fn compare(before: &[Record], after: &[Record]) -> Vec<Change> {
    compare_by(before, after, Record::key)
}

/// The same whatever device each side was measured on: how one device compares with another.
pub fn compare_across(before: &[Record], after: &[Record]) -> Vec<Change> {
    compare_by(before, after, Record::key_without_device)
}

fn compare_by<const N: usize>(before: &[Record], after: &[Record], key_of: fn(&Record) -> [&str; N]) -> Vec<Change> {
    let mut seen: Vec<[&str; N]> = Vec::new();
    let mut out = Vec::new();
    for r in before {
        let key = key_of(r);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let of = |all: &'_ [Record]| all.iter().filter(|o| key_of(o) == key).map(|o| o.time().clone()).collect::<Vec<Stats>>();
        let (a, b) = (of(before), of(after));
        if !b.is_empty() {
            out.push(change(format!("{} {}", r.operation, r.size), &a, &b));
        }
    }
    out
}

fn change(name: String, a: &[Stats], b: &[Stats]) -> Change {
    let medians = |runs: &[Stats]| {
        let mut m: Vec<f64> = runs.iter().map(|s| s.median).collect();
        m.sort_by(f64::total_cmp);
        m
    };
    let pooled = |runs: &[Stats]| runs.iter().flat_map(|s| s.samples.iter().copied()).collect::<Vec<f64>>();
    let side = |runs: &[Stats]| {
        let m = medians(runs);
        let within = runs.iter().map(Stats::spread).fold(0.0, f64::max) * 3.0;
        let between = (m[m.len() - 1] - m[0]) / middle(&m).max(f64::MIN_POSITIVE);
        within.max(between)
    };
    let (before, after) = (middle(&medians(a)), middle(&medians(b)));
    let noise = side(a).max(side(b)).max(MIN_CHANGE);
    let p = mann_whitney(&pooled(a), &pooled(b));
    let mut c = Change { name, before, after, noise, p, runs: a.len().min(b.len()), verdict: Verdict::Same };
    if p < SURE && c.relative().abs() > noise {
        c.verdict = if after > before { Verdict::Slower } else { Verdict::Faster };
    }
    c
}

/// Whether one run's samples differ from another's by more than noise.
pub(super) fn verdict(before: &Stats, after: &Stats) -> Verdict {
    change(String::new(), std::slice::from_ref(before), std::slice::from_ref(after)).verdict
}

/// The two-sided probability of ranks at least this uneven, if both samples come from one distribution: counted out where there are few
/// samples and no ties, by the normal approximation with its correction for ties elsewhere.
///
/// Mann, Whitney: On a test of whether one of two random variables is stochastically larger than the other (1947).
pub(super) fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let (n, m) = (a.len(), b.len());
    if n == 0 || m == 0 {
        return 1.0;
    }
    let mut u = 0.0;
    for x in a {
        for y in b {
            u += if x < y {
                1.0
            } else if x == y {
                0.5
            } else {
                0.0
            };
        }
    }
    let low = f64::min(u, (n * m) as f64 - u);
    let mut all: Vec<f64> = a.iter().chain(b).copied().collect();
    all.sort_by(f64::total_cmp);
    let ties: Vec<usize> = all.chunk_by(|x, y| x == y).map(<[f64]>::len).collect();
    if n * m <= 2500 && ties.iter().all(|t| *t == 1) {
        let counts = arrangements(n, m);
        let total: f64 = counts.iter().sum();
        let tail: f64 = counts[..=low as usize].iter().sum();
        return (2.0 * tail / total).min(1.0);
    }
    let all = (n + m) as f64;
    let tied: f64 = ties.iter().map(|t| (*t as f64).powi(3) - *t as f64).sum();
    let variance = (n * m) as f64 / 12.0 * (all + 1.0 - tied / (all * (all - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = ((n * m) as f64 / 2.0 - low - 0.5).max(0.0) / variance.sqrt();
    libm::erfc(z / std::f64::consts::SQRT_2).min(1.0)
}

/// How many orders of n and m distinct values have each U from 0 to n·m.
fn arrangements(n: usize, m: usize) -> Vec<f64> {
    // Orders of i and j values end with one of the first kind, which stands above all j, or with one of the second.
    let mut rows: Vec<Vec<f64>> = vec![vec![1.0]; m + 1];
    for i in 1..=n {
        let mut next: Vec<Vec<f64>> = vec![vec![1.0]];
        for j in 1..=m {
            let mut c = vec![0.0; i * j + 1];
            for (u, v) in rows[j].iter().enumerate() {
                c[u + j] += v;
            }
            for (u, v) in next[j - 1].iter().enumerate() {
                c[u] += v;
            }
            next.push(c);
        }
        rows = next;
    }
    rows.pop().unwrap_or_default()
}
