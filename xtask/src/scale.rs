//! How training scales: a discrete-event model of steps over ranks, fed with measured times, and the measurement of what ranks exchange.
//!
//! What the model assumes:
//! - A rank computes its lanes one after the other; each takes the measured time times 1 + `jitter` × a draw from 0 to 1 (a slow step of that rank).
//! - Gradients leave in buckets, the last lane's alone, once a bucket's share of the backward pass (two thirds of a lane) is done; one bucket is exchanged at a time.
//! - An exchange begins when the last rank is there. Each rank sends (N − 1)/N of the bytes and receives as many, by a link that carries both at once, and pays
//!   `latency` for each of the N − 1 messages; the sum then takes `sum` seconds a byte on the host. Twice the bytes move: sums to their owners, and back.
//! - No congestion: a switch carries all links at full rate, and each rank has a link of its own.
//! - Ranks on one machine with fewer cores than ranks take turns (`--cores`): compute and sums are slower by that factor.
//! - The gradient's way between GPU and host takes `copy` seconds a byte, each way, and is not hidden. A single rank's gradient stays on its GPU.
//! - Each rank updates everything; evaluation, saves and reading of text cost nothing.

use std::collections::BinaryHeap;
use std::time::{Duration, Instant};
use tensorlogic::distributed::{RANK_TIMEOUT, join, sums};

/// A run, and the machines that compute it. Times in seconds, sizes in bytes.
#[derive(Clone, Copy, Debug)]
struct Run {
    lanes: usize,
    /// One lane's forward and backward pass.
    lane: f64,
    /// The update and all else that a step costs once.
    update: f64,
    /// The gradients.
    bytes: f64,
    /// How much longer than usual a lane takes, at most, as a share.
    jitter: f64,
    buckets: usize,
    /// Bytes a second of a rank's link, each way.
    link: f64,
    latency: f64,
    /// Seconds a byte that the host takes to sum what arrived.
    sum: f64,
    /// Seconds a byte between GPU and host.
    copy: f64,
    cores: usize,
}

/// Steps of a simulation.
const SIMULATED_STEPS: usize = 64;
/// The part of a lane that is its backward pass.
const BACKWARD: f64 = 2.0 / 3.0;

/// Something that happens at a time: a rank has a bucket of its gradient. The earliest is the greatest.
#[derive(PartialEq)]
struct Event {
    at: f64,
    bucket: usize,
}
impl Eq for Event {}
impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        other.at.total_cmp(&self.at).then(other.bucket.cmp(&self.bucket))
    }
}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Run {
    /// Seconds of a step on so many ranks, on average.
    fn step(&self, ranks: usize) -> f64 {
        let mut draws = 0x2545_F491_4F6C_DD1Du64;
        let mut draw = || {
            draws ^= draws << 13;
            draws ^= draws >> 7;
            draws ^= draws << 17;
            (draws >> 11) as f64 / (1u64 << 53) as f64
        };
        let copy = if ranks > 1 { self.copy } else { 0.0 };
        let turns = (ranks as f64 / self.cores as f64).max(1.0);
        let lanes = self.lanes / ranks;
        let own = self.lane * turns * lanes as f64;
        let mut total = 0.0;
        for _ in 0..SIMULATED_STEPS {
            // When each rank has each bucket of its sum, in the order of time.
            let mut events = BinaryHeap::with_capacity(ranks * self.buckets);
            for _ in 0..ranks {
                let done = own * (1.0 + self.jitter * draw());
                let backward = BACKWARD * done / lanes as f64;
                for bucket in 0..self.buckets {
                    let left = (self.buckets - 1 - bucket) as f64 / self.buckets as f64;
                    let copied = copy * self.bytes * (bucket + 1) as f64 / self.buckets as f64;
                    events.push(Event { at: done - backward * left + copied, bucket });
                }
            }
            let (mut missing, mut free, mut next) = (vec![ranks; self.buckets], 0f64, 0);
            while let Some(Event { at, bucket }) = events.pop() {
                missing[bucket] -= 1;
                // Buckets go in their order.
                while next < self.buckets && missing[next] == 0 {
                    free = free.max(at) + self.exchange(ranks, turns);
                    next += 1;
                }
            }
            total += free + copy * self.bytes + self.update * turns;
        }
        total / SIMULATED_STEPS as f64
    }

    /// Seconds that a bucket takes from all ranks to all.
    fn exchange(&self, ranks: usize, turns: f64) -> f64 {
        if ranks == 1 {
            return 0.0;
        }
        let (others, bytes) = ((ranks - 1) as f64, self.bytes / self.buckets as f64);
        let once = others * self.latency + bytes * others / ranks as f64 / self.link;
        2.0 * once + self.sum * turns * bytes * others / ranks as f64
    }

    /// How much of the work of `ranks` ranks is not lost.
    fn efficiency(&self, ranks: usize) -> f64 {
        self.step(1) / (self.step(ranks) * ranks as f64)
    }
}

/// Networks of the predictions: bits a second, and the latency that is assumed.
const NETWORKS: [(&str, f64, f64); 5] = [
    ("10 GbE, TCP", 10e9, 25e-6),
    ("25 GbE, TCP", 25e9, 20e-6),
    ("100 GbE, TCP", 100e9, 15e-6),
    ("200 Gb/s, RDMA", 200e9, 3e-6),
    ("400 Gb/s, RDMA", 400e9, 3e-6),
];
/// Share of a network's bits that are data.
const PAYLOAD: f64 = 0.94;

/// GPT-2 124M in f16 on H100s: 16 × 1024 tokens in 74 ms (docs/performance.md), 498 MB of gradients, two lanes a rank; the rest is assumed.
const GPT2: Run = Run {
    lanes: 0,
    lane: 74e-3,
    update: 4e-3,
    bytes: 498e6,
    jitter: 0.05,
    buckets: 1,
    link: 0.0,
    latency: 0.0,
    sum: 0.1e-9,
    copy: 0.2e-9,
    cores: usize::MAX,
};

/// `cargo xtask scale …`.
pub fn run(args: &[String], usage: &str) -> Result<bool, String> {
    let mut run = GPT2;
    let (mut given, mut measured, mut lanes_a_rank) = (false, Vec::new(), 2);
    for pair in args.chunks(2) {
        let [name, value] = pair else { return Err(usage.into()) };
        let missing = || format!("{name} {value}: expected a positive number");
        let number = || value.parse::<f64>().map_err(|_| format!("{name} {value}: not a number"));
        match name.as_str() {
            "--link" => return link(number()? as usize),
            "--lanes" => (run.lanes, given) = (number()? as usize, true),
            "--lanes-a-rank" => lanes_a_rank = number()? as usize,
            "--lane-ms" => run.lane = number()? / 1e3,
            "--update-ms" => run.update = number()? / 1e3,
            "--bytes" => run.bytes = number()?,
            "--jitter" => run.jitter = number()?,
            "--buckets" => run.buckets = (number()? as usize).max(1),
            "--gb-per-s" => run.link = number()? * 1e9,
            "--latency-us" => run.latency = number()? / 1e6,
            "--sum-ns" => run.sum = number()? / 1e9,
            "--copy-ns" => run.copy = number()? / 1e9,
            "--cores" => run.cores = (number()? as usize).max(1),
            "--measured" => {
                for pair in value.split(',') {
                    let (ranks, ms) = pair.split_once(':').ok_or(format!("--measured {value}: expected RANKS:MS,…"))?;
                    let positive = |t: &str| t.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0).ok_or_else(missing);
                    measured.push((ranks.parse::<usize>().map_err(|_| missing())?, positive(ms)? / 1e3));
                }
            }
            _ => return Err(format!("{name} is unknown\n{usage}")),
        }
    }
    if !given {
        return if measured.is_empty() { Ok(predict(&run, lanes_a_rank.max(1))) } else { Err("--measured: which --lanes?".into()) };
    }
    if measured.is_empty() {
        return Err("--lanes: with what is the model compared? --measured RANKS:MS,…".into());
    }
    match measured.iter().find(|(ranks, _)| run.lanes == 0 || !run.lanes.is_multiple_of(*ranks)) {
        Some((ranks, _)) => Err(format!("--measured {ranks}:…: {} lanes cannot be shared evenly by {ranks} ranks", run.lanes)),
        None => Ok(compare(&run, &measured)),
    }
}

/// The model beside what was measured; whether all is within a tenth.
fn compare(run: &Run, measured: &[(usize, f64)]) -> bool {
    println!("ranks  step, model  step, measured  difference");
    measured.iter().fold(true, |all, &(ranks, seconds)| {
        let step = run.step(ranks);
        let away = step / seconds - 1.0;
        println!("{ranks:>5}  {:>8.1} ms  {:>11.1} ms  {:>+8.1} %", step * 1e3, seconds * 1e3, away * 100.0);
        all && away.abs() <= 0.1
    })
}

fn predict(run: &Run, lanes_a_rank: usize) -> bool {
    println!(
        "predicted, not measured: GPT-2 124M, {lanes_a_rank} lanes of 16 × 1024 tokens a rank, {} bucket(s); share of N ranks' work that is not lost",
        run.buckets
    );
    print!("{:<16}", "ranks");
    let all: Vec<usize> = (3..=10).map(|n| 1 << n).collect();
    all.iter().for_each(|ranks| print!("{ranks:>7}"));
    println!();
    for (name, bits, latency) in NETWORKS {
        print!("{name:<16}");
        for ranks in &all {
            let run = Run { lanes: lanes_a_rank * ranks, link: bits / 8.0 * PAYLOAD, latency, ..*run };
            print!("{:>5.0} %", run.efficiency(*ranks) * 100.0);
        }
        println!();
    }
    true
}

/// Under a launcher: what ranks exchange in a second, the latency of a message, and the time of the sums.
fn link(bytes: usize) -> Result<bool, String> {
    let ranks = join(RANK_TIMEOUT, |words| eprintln!("{words}")).map_err(|e| e.to_string())?;
    let (size, transport) = (ranks.size(), ranks.transport());
    if size < 2 || bytes < 4 {
        return Err("--link BYTES: measures what ranks exchange; start at least two by mpirun, with at least 4 bytes".into());
    }
    let best = |mut work: Box<dyn FnMut() -> Result<(), String> + '_>| -> Result<f64, String> {
        let mut best = Duration::MAX;
        for _ in 0..12 {
            transport.max_words(&mut [0]).map_err(|e| e.to_string())?;
            let start = Instant::now();
            work()?;
            best = best.min(start.elapsed());
        }
        Ok(best.as_secs_f64())
    };
    let (mut data, mut received) = (vec![1f32; bytes / 4], Vec::new());
    let bounds = sums::slices(data.len(), size);
    let own = bounds[ranks.rank() + 1] - bounds[ranks.rank()];
    let mut to = vec![0f32; own * size];
    let words = best(Box::new(|| transport.max_words(&mut [0]).map_err(|e| e.to_string())))?;
    let exchange = best(Box::new(|| transport.exchange(&data, &bounds, &mut to).map_err(|e| e.to_string())))?;
    let reduce = best(Box::new(|| sums::reduce(transport, &mut data, &bounds, &mut received).map_err(|e| e.to_string())))?;
    let gather = best(Box::new(|| transport.gather(&mut data, &bounds).map_err(|e| e.to_string())))?;
    // The library's own sum of the same bytes, in turn with ours: each round both, the best of each.
    // And ours in two rounds, by slices, which is what more than two ranks do with many values; and through shared memory, where there is some.
    let window = ranks.window().map_err(|e| e.to_string())?;
    let mut all = [const { Vec::new() }; 4];
    for _ in 0..if bytes < 1 << 20 { 400 } else { 12 } {
        for (n, times) in all.iter_mut().enumerate() {
            transport.max_words(&mut [0]).map_err(|e| e.to_string())?;
            let start = Instant::now();
            let done = match n {
                0 => sums::reduce_all(transport, &mut data, &mut received).map(|()| true),
                1 => sums::reduce(transport, &mut data, &bounds, &mut received)
                    .and_then(|()| transport.gather(&mut data, &bounds))
                    .map(|()| true),
                2 => transport.library_sum(&mut data),
                _ => Ok(window.as_ref().map(|window| window.reduce_all(&mut data)).is_some()),
            };
            if done.map_err(|e| e.to_string())? {
                times.push(start.elapsed().as_secs_f64());
            }
            data.fill(1.0);
        }
    }
    all.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let [ours, slices, library, shared] = all.each_ref().map(|times| times.first().copied().unwrap_or(f64::NAN));
    let medians = all.each_ref().map(|times| times.get(times.len() / 2).copied().unwrap_or(f64::NAN));
    if ranks.is_first() {
        let moved = bytes as f64 * (size - 1) as f64 / size as f64;
        println!("{size} ranks by {}, {bytes} bytes, best of 12", transport.name());
        println!(
            "a word to all {:.1} µs, exchange {:.2} GB/s, gather {:.2} GB/s",
            words * 1e6,
            moved / exchange / 1e9,
            moved / gather / 1e9
        );
        println!("sums {:.3} ns a byte, exchange and gather {:.2} ms", (reduce - exchange).max(0.0) / moved * 1e9, (reduce + gather) * 1e3);
        println!(
            "in turn: ours {:.4} ms, by slices {:.4} ms, MPI_Allreduce {:.4} ms; ratios {:.2} and {:.2}",
            ours * 1e3,
            slices * 1e3,
            library * 1e3,
            ours / library,
            slices / library
        );
        if shared.is_nan() {
            println!("no shared memory between these ranks");
        } else {
            println!(
                "shared memory {:.4} ms, ratios {:.2} to ours, {:.2} to MPI_Allreduce; medians {:.4}, {:.4} and {:.4} ms",
                shared * 1e3,
                shared / ours,
                shared / library,
                medians[3] * 1e3,
                medians[0] * 1e3,
                medians[2] * 1e3
            );
        }
    }
    ranks.leave();
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Run = Run {
        lanes: 8,
        lane: 0.1,
        update: 0.02,
        bytes: 8e6,
        jitter: 0.0,
        buckets: 1,
        link: 1e9,
        latency: 0.0,
        sum: 0.0,
        copy: 0.0,
        cores: usize::MAX,
    };

    #[test]
    fn steps_are_what_their_parts_add_up_to() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        close(PLAIN.step(1), 0.82);
        // Four lanes, half of 8 MB twice at 1 GB/s.
        close(PLAIN.step(2), 0.4 + 0.008 + 0.02);
        close(Run { latency: 1e-3, ..PLAIN }.step(8), 0.1 + 2.0 * (7e-3 + 7e-3) + 0.02);
        // 8 MB to the host and back, where there is somebody to exchange them with.
        let copied = Run { copy: 1e-9, ..PLAIN };
        close(copied.step(1), 0.82);
        close(copied.step(2), 0.4 + 0.008 + 0.016 + 0.02);
        // Two cores for four ranks.
        close(Run { cores: 2, ..PLAIN }.step(4), 0.4 + 0.012 + 0.04);
        // In eight buckets only the last one's exchange is not hidden.
        let hidden = Run { buckets: 8, ..PLAIN };
        close(hidden.step(8), 0.1 + 2.0 * 7e-3 / 8.0 + 0.02);
        // Behind a slow link they wait for each other: the first is there when seven eighths of the backward pass are left.
        let slow = Run { buckets: 8, link: 1e7, ..PLAIN };
        close(slow.step(8), 0.1 * (1.0 - BACKWARD * 7.0 / 8.0) + 2.0 * 0.7 + 0.02);
    }

    #[test]
    fn the_slowest_rank_decides() {
        let uneven = Run { jitter: 0.5, lanes: 64, ..PLAIN };
        let (one, many) = (uneven.step(1) - 0.02, Run { link: 1e15, ..uneven }.step(64) - 0.02);
        // The largest of 64 draws from 0 to 1 is 64/65 on average, a single one 1/2.
        assert!((one / 6.4 - 1.25).abs() < 0.05 && (many / 0.1 - 1.492).abs() < 0.01, "{one} {many}");
    }

    #[test]
    fn arguments_that_mean_nothing_are_errors() {
        let run = |line: &str| run(&line.split_whitespace().map(String::from).collect::<Vec<_>>(), "usage");
        for (line, text) in [
            ("--lanes 4", "with what is the model compared"),
            ("--measured 1:5", "which --lanes"),
            ("--lanes 4 --measured 0:5", "shared evenly by 0 ranks"),
            ("--lanes 4 --measured 8:5", "shared evenly by 8 ranks"),
            ("--lanes 4 --measured 3:5", "shared evenly by 3 ranks"),
            ("--lanes 4 --measured 2:0", "expected a positive number"),
            ("--lanes 4 --measured 2", "expected RANKS:MS"),
            ("--link 1000", "start at least two by mpirun"),
            ("--lanes", "usage"),
            ("--nothing 1", "--nothing is unknown"),
        ] {
            let e = run(line).unwrap_err();
            assert!(e.contains(text), "{line}: {e}");
        }
    }

    #[test]
    fn a_model_that_is_away_by_more_than_a_tenth_fails() {
        let [one, two] = [1, 2].map(|ranks| PLAIN.step(ranks));
        assert!(compare(&PLAIN, &[(1, one), (2, two / 1.09)]));
        assert!(!compare(&PLAIN, &[(1, one), (2, two / 1.11)]));
        assert!(!compare(&PLAIN, &[(1, one * 1.2), (2, two)]));
    }
}
