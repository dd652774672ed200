//! How training scales: a discrete-event model of steps over ranks, fed with measured times, and the measurement of what ranks exchange.
//!
//! A rank has a device, a link and threads, each of which does one thing at a time, in the order in which it is asked for: as in `train::buckets`, one
//! thread takes a bucket of the gradient from staging memory, one sums what arrives, one takes sums to staging memory. What the model assumes:
//! - The device computes its lanes one after the other; each takes the measured time times 1 + `jitter` × a draw from 0 to 1 (a slow step of that rank).
//! - A lane is a third forward pass and two thirds backward pass. The last lane's backward pass gives `pieces` pieces of layers of equal size, and at its end
//!   what is in front of the layers, `front` bytes. The pass takes time in proportion to bytes: first for the head, as large as the front, then for the layers.
//! - A piece leaves in buckets of 16 MiB. The device copies each to staging memory in its turn, at `device` bytes a second, and sums from there later.
//! - `copy`, `sum` and `upload` are what the threads take for the whole gradient between two ranks, as `tl train --stats` prints it ("host copy", "sum",
//!   "upload"). Queues between threads have no end.
//! - By messages an exchange begins when the last rank is there. Two ranks give each other a whole bucket, once; more exchange slices, sum them (the less the
//!   less arrives), and gather the sums: each time (N − 1)/N of the bytes, at `link` bytes a second each way, behind N − 1 times `latency`. Between ranks of
//!   one machine (`--by messages`) that takes a core; a network moves bytes by itself and carries every rank at full rate (no congestion), but `--a-machine`
//!   ranks share one link for what leaves their machine, and what stays there costs nothing.
//! - By shared memory nothing is exchanged: ranks wait for each other, and the third thread sums on the way to staging memory (`upload`); with more than two
//!   ranks each sums a slice before (`sum`), and waits again. Memory serves any number of ranks at the rate measured with two.
//! - The processor of a machine has `--cores` cores, for all ranks: threads, and a device that is the processor (`--device cpu`), take turns of 4 ms.
//!   Without it there are enough. Waiting takes no core.
//! - The step ends with an update on every device, when the last rank has all sums. A single rank exchanges nothing. Evaluation, saves and reading of text
//!   cost nothing.

use std::collections::{BinaryHeap, VecDeque};
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
    /// Of them, those of what is in front of the layers.
    front: f64,
    /// Pieces of the others.
    pieces: usize,
    /// How much longer than usual a lane takes, at most, as a share.
    jitter: f64,
    by: By,
    /// Bytes a second of a rank's link, each way.
    link: f64,
    latency: f64,
    /// Ranks that share a link.
    a_machine: usize,
    /// What the host takes for the gradient between two ranks: out of staging memory, sums, into staging memory.
    copy: f64,
    sum: f64,
    upload: f64,
    /// Bytes a second that the device copies from and to staging memory.
    device: f64,
    /// Whether the device is the host's processor.
    cpu: bool,
    cores: usize,
}

/// How gradients pass from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Network,
    /// Messages between ranks of one machine.
    Messages,
    Memory,
}

/// What does one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Unit {
    Device,
    FromStaging,
    Sums,
    ToStaging,
    Link,
}
const UNITS: usize = 5;

/// A part of a bucket's way.
#[derive(Clone, Copy)]
struct Stage {
    unit: Unit,
    /// Seconds a byte, and for each bucket.
    byte: f64,
    once: f64,
    /// Whether ranks begin together.
    together: bool,
}

/// Work of a rank's unit: a bucket's stage, or computing, which is behind all buckets.
#[derive(Clone, Copy)]
struct Job {
    rank: usize,
    bucket: usize,
    stage: usize,
    left: f64,
}

/// A job's turn ends at this time. The earliest is the greatest; of equal ones the first.
struct Event {
    at: f64,
    number: usize,
    job: Job,
}
impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Event {}
impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The part of a lane that is its backward pass.
const BACKWARD: f64 = 2.0 / 3.0;
/// Bytes of a bucket: `distributed::window::SLOT` values.
const BUCKET: f64 = ((16 << 20) - 4 * sums::BLOCK) as f64;
/// How long a thread keeps a core that others wait for.
const TURN: f64 = 4e-3;

/// One step, under way.
struct Step<'a> {
    run: &'a Run,
    stages: &'a [Stage],
    /// Bytes of each bucket.
    buckets: &'a [f64],
    now: f64,
    events: BinaryHeap<Event>,
    started: usize,
    /// What each unit of each rank has to do; the first is being done.
    units: Vec<VecDeque<Job>>,
    cores: usize,
    /// What has its unit and no core.
    ready: VecDeque<Job>,
    /// Ranks that are not there yet, for each stage of each bucket.
    missing: Vec<usize>,
}

impl Step<'_> {
    fn unit(&self, job: &Job) -> Unit {
        self.stages.get(job.stage).filter(|_| job.bucket < self.buckets.len()).map_or(Unit::Device, |stage| stage.unit)
    }

    /// Asks the job's unit for it.
    fn ask(&mut self, job: Job) {
        let at = job.rank * UNITS + self.unit(&job) as usize;
        self.units[at].push_back(job);
        if self.units[at].len() == 1 {
            self.begin(job);
        }
    }

    fn needs_core(&self, job: &Job) -> bool {
        match self.unit(job) {
            Unit::Device => self.run.cpu,
            Unit::Link => self.run.by == By::Messages,
            _ => true,
        }
    }

    fn begin(&mut self, job: Job) {
        if self.needs_core(&job) { self.ready.push_back(job) } else { self.start(job, job.left) }
    }

    fn start(&mut self, job: Job, turn: f64) {
        self.started += 1;
        self.events.push(Event { at: self.now + turn, number: self.started, job: Job { left: job.left - turn, ..job } });
    }

    /// A bucket has come to a stage on a rank.
    fn arrive(&mut self, rank: usize, bucket: usize, stage: usize, ranks: usize) {
        let Some(&Stage { byte, once, together, .. }) = self.stages.get(stage) else { return };
        let left = once + byte * self.buckets[bucket];
        if !together {
            return self.ask(Job { rank, bucket, stage, left });
        }
        let missing = &mut self.missing[bucket * self.stages.len() + stage];
        *missing -= 1;
        if *missing == 0 {
            (0..ranks).for_each(|rank| self.ask(Job { rank, bucket, stage, left }));
        }
    }

    /// Until nothing is left to do.
    fn run(&mut self, ranks: usize) {
        loop {
            while self.cores > 0 {
                let Some(job) = self.ready.pop_front() else { break };
                self.cores -= 1;
                self.start(job, if self.run.cores < usize::MAX { job.left.min(TURN) } else { job.left });
            }
            let Some(Event { at, job, .. }) = self.events.pop() else { return };
            self.now = at;
            self.cores += usize::from(self.needs_core(&job));
            if job.left > 0.0 {
                self.ready.push_back(job);
                continue;
            }
            let unit = job.rank * UNITS + self.unit(&job) as usize;
            self.units[unit].pop_front();
            if let Some(&next) = self.units[unit].front() {
                self.begin(next);
            }
            if job.bucket < self.buckets.len() {
                self.arrive(job.rank, job.bucket, job.stage + 1, ranks);
            }
        }
    }
}

impl Run {
    /// A bucket's way on each of so many ranks.
    fn stages(&self, ranks: usize) -> Vec<Stage> {
        let stage = |unit, byte| Stage { unit, byte, once: 0.0, together: false };
        let together = |s: Stage| Stage { together: true, ..s };
        let (others, two) = ((ranks - 1) as f64, ranks == 2);
        // Of a bucket: what arrives at a rank, and what crosses the link that its machine's ranks share.
        let received = if two { 1.0 } else { others / ranks as f64 };
        let shared = self.a_machine.min(ranks);
        let crossing = if self.by == By::Network { received * (ranks - shared) as f64 / others * shared as f64 } else { received };
        let round = Stage { unit: Unit::Link, byte: crossing / self.link, once: others * self.latency, together: true };
        let device = stage(Unit::Device, 1.0 / self.device);
        let mut all = vec![device, stage(Unit::FromStaging, self.copy / self.bytes)];
        match (self.by, two) {
            (By::Memory, true) => all.push(together(stage(Unit::ToStaging, self.upload / self.bytes))),
            (By::Memory, false) => {
                all.extend([
                    together(stage(Unit::ToStaging, self.sum / self.bytes)),
                    together(stage(Unit::ToStaging, self.upload / self.bytes)),
                ]);
            }
            _ => {
                all.extend([round, stage(Unit::Sums, self.sum * received / self.bytes)]);
                all.extend((!two).then_some(round));
                all.push(stage(Unit::ToStaging, self.upload / self.bytes));
            }
        }
        all.push(device);
        all
    }

    /// Seconds of a step on so many ranks, on average.
    fn step(&self, ranks: usize) -> f64 {
        let mut draws = 0x2545_F491_4F6C_DD1Du64;
        let mut draw = || {
            draws ^= draws << 13;
            draws ^= draws >> 7;
            draws ^= draws << 17;
            (draws >> 11) as f64 / (1u64 << 53) as f64
        };
        let steps = if self.jitter > 0.0 { (1024 / ranks).clamp(4, 64) } else { 1 };
        (0..steps).map(|_| self.one_step(ranks, &mut draw)).sum::<f64>() / steps as f64
    }

    fn one_step(&self, ranks: usize, draw: &mut impl FnMut() -> f64) -> f64 {
        // What the device computes before each piece, and the piece's buckets.
        let layers = self.bytes - self.front;
        let each = BACKWARD * self.lane * layers / self.bytes / self.pieces as f64;
        let before = self.lane * (self.lanes / ranks) as f64 - each * self.pieces as f64;
        let mut pieces = vec![(each, layers / self.pieces as f64); self.pieces];
        pieces[0].0 += before;
        pieces.push((0.0, self.front));
        let (mut buckets, mut ends) = (Vec::new(), Vec::new());
        for (_, bytes) in &pieces {
            if ranks > 1 {
                let whole = (bytes / BUCKET).ceil() as usize;
                buckets.extend((0..whole).map(|n| BUCKET.min(bytes - n as f64 * BUCKET)));
            }
            ends.push(buckets.len());
        }
        let stages = if ranks > 1 { self.stages(ranks) } else { Vec::new() };
        let mut step = Step {
            run: self,
            stages: &stages,
            buckets: &buckets,
            now: 0.0,
            events: BinaryHeap::new(),
            started: 0,
            units: vec![VecDeque::new(); ranks * UNITS],
            cores: self.cores,
            ready: VecDeque::new(),
            missing: vec![ranks; buckets.len() * stages.len()],
        };
        let compute = |rank, left| Job { rank, bucket: usize::MAX, stage: 0, left };
        for rank in 0..ranks {
            let slower = 1.0 + self.jitter * draw();
            let mut first = 0;
            for ((seconds, _), end) in pieces.iter().zip(&ends) {
                step.ask(compute(rank, seconds * slower));
                (first..*end).for_each(|bucket| step.arrive(rank, bucket, 0, ranks));
                first = *end;
            }
        }
        step.run(ranks);
        (0..ranks).for_each(|rank| step.ask(compute(rank, self.update)));
        step.run(ranks);
        step.now
    }

    /// How much of the work of `ranks` ranks is not lost.
    fn efficiency(&self, ranks: usize) -> f64 {
        self.step(1) / (self.step(ranks) * ranks as f64)
    }
}
/// Networks of the predictions: bits a second, and the latency that is assumed.
const NETWORKS: [(&str, f64, f64); 6] = [
    ("1 GbE, TCP", 1e9, 50e-6),
    ("10 GbE, TCP", 10e9, 25e-6),
    ("25 GbE, TCP", 25e9, 20e-6),
    ("100 GbE, TCP", 100e9, 15e-6),
    ("200 Gb/s, RDMA", 200e9, 3e-6),
    ("400 Gb/s, RDMA", 400e9, 3e-6),
];
/// Share of a network's bits that are data.
const PAYLOAD: f64 = 0.94;

/// GPT-2 124M in f16 on H200s, 16 × 1,024 tokens a lane (docs/distributed.md): lane and update are from steps of 8 and 32 lanes on one of them, and what
/// threads take by messages from two H100 (`--stats`). The draws of slow steps and the device's copies (PCIe 5.0 × 16) are assumed.
const GPT2: Run = Run {
    lanes: 0,
    lane: 77.6e-3,
    update: 6.5e-3,
    bytes: 497.8e6,
    front: 157.5e6,
    pieces: 6,
    jitter: 0.05,
    by: By::Network,
    link: 497.8e6 / 178e-3,
    latency: 0.0,
    a_machine: 1,
    copy: 195e-3,
    sum: 71e-3,
    upload: 106e-3,
    device: 50e9,
    cpu: false,
    cores: usize::MAX,
};
/// The same for two H200 that share memory.
const GPT2_MEMORY: Run = Run { by: By::Memory, copy: 51.5e-3, upload: 91.5e-3, ..GPT2 };

/// `cargo xtask scale …`.
pub fn run(args: &[String], usage: &str) -> Result<bool, String> {
    let mut run = GPT2;
    let (mut given, mut measured, mut lanes_a_rank, mut all_ranks) = (false, Vec::new(), 2, vec![8, 16, 64, 256, 1024]);
    for pair in args.chunks(2) {
        let [name, value] = pair else { return Err(usage.into()) };
        let missing = || format!("{name} {value}: expected a positive number");
        let positive = |t: &str| t.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0).ok_or_else(missing);
        let number = || value.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0).ok_or(format!("{name} {value}: not a number"));
        let count = |t: &str| t.parse::<usize>().ok().filter(|n| *n > 0).ok_or_else(missing);
        match name.as_str() {
            "--link" => return link(number()? as usize),
            "--lanes" => (run.lanes, given) = (count(value)?, true),
            "--lanes-a-rank" => lanes_a_rank = count(value)?,
            "--ranks" => all_ranks = value.split(',').map(count).collect::<Result<_, _>>()?,
            "--lane-ms" => run.lane = number()? / 1e3,
            "--update-ms" => run.update = number()? / 1e3,
            "--bytes" => run.bytes = positive(value)?,
            "--front" => run.front = number()?,
            "--pieces" => run.pieces = count(value)?,
            "--jitter" => run.jitter = number()?,
            "--by" => {
                run = match value.as_str() {
                    "network" => Run { by: By::Network, ..run },
                    "messages" => Run { by: By::Messages, ..run },
                    "memory" => Run { by: By::Memory, copy: GPT2_MEMORY.copy, upload: GPT2_MEMORY.upload, ..run },
                    _ => return Err(format!("--by {value}: expected network, messages or memory")),
                }
            }
            "--gb-per-s" => run.link = positive(value)? * 1e9,
            "--latency-us" => run.latency = number()? / 1e6,
            "--a-machine" => run.a_machine = count(value)?,
            "--copy-ms" => run.copy = number()? / 1e3,
            "--sum-ms" => run.sum = number()? / 1e3,
            "--upload-ms" => run.upload = number()? / 1e3,
            "--device" if value == "cpu" => run.cpu = true,
            "--device-gb-per-s" => run.device = positive(value)? * 1e9,
            "--cores" => run.cores = count(value)?,
            "--measured" => {
                for pair in value.split(',') {
                    let (ranks, ms) = pair.split_once(':').ok_or(format!("--measured {value}: expected RANKS:MS,…"))?;
                    measured.push((count(ranks)?, positive(ms)? / 1e3));
                }
            }
            _ => return Err(format!("{name} {value} is unknown\n{usage}")),
        }
    }
    if run.front > run.bytes {
        return Err("--front: more than --bytes".into());
    }
    if !given {
        return if measured.is_empty() {
            predict(&run, lanes_a_rank, &all_ranks);
            Ok(true)
        } else {
            Err("--measured: which --lanes?".into())
        };
    }
    if measured.is_empty() {
        return Err("--lanes: with what is the model compared? --measured RANKS:MS,…".into());
    }
    match measured.iter().find(|(ranks, _)| !run.lanes.is_multiple_of(*ranks)) {
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

fn predict(run: &Run, lanes_a_rank: usize, all: &[usize]) {
    println!("predicted, not measured: {lanes_a_rank} lanes a rank; the share of N ranks' work that is not lost, and a step");
    print!("{:<16}", "ranks");
    all.iter().for_each(|ranks| print!("{ranks:>18}"));
    println!();
    for (name, bits, latency) in NETWORKS {
        print!("{name:<16}");
        for ranks in all {
            let run = Run { lanes: lanes_a_rank * ranks, by: By::Network, link: bits / 8.0 * PAYLOAD, latency, ..*run };
            print!("{:>6.1} %{:>7.0} ms", run.efficiency(*ranks) * 100.0, run.step(*ranks) * 1e3);
        }
        println!();
    }
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
        front: 8e6,
        pieces: 1,
        jitter: 0.0,
        by: By::Network,
        link: 1e9,
        latency: 0.0,
        a_machine: 1,
        copy: 0.0,
        sum: 0.0,
        upload: 0.0,
        device: f64::INFINITY,
        cpu: false,
        cores: usize::MAX,
    };

    #[test]
    fn steps_are_what_their_parts_add_up_to() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        close(PLAIN.step(1), 0.82);
        // Four lanes; 8 MB each way at once at 1 GB/s.
        close(PLAIN.step(2), 0.4 + 0.008 + 0.02);
        // Seven eighths of them in two rounds, of seven messages each.
        close(Run { latency: 1e-3, ..PLAIN }.step(8), 0.1 + 2.0 * (7e-3 + 7e-3) + 0.02);
        // Two machines of four: half of the bytes leave a machine, those of four ranks by one link.
        close(Run { a_machine: 4, ..PLAIN }.step(8), 0.1 + 2.0 * 4.0 * 4e-3 + 0.02);
        // To the host and back, where there is somebody to exchange them with.
        let copied = Run { copy: 3e-3, sum: 5e-3, upload: 7e-3, device: 8e9, ..PLAIN };
        close(copied.step(1), 0.82);
        close(copied.step(2), 0.4 + 0.001 + 0.003 + 0.008 + 0.005 + 0.007 + 0.001 + 0.02);
        // Of four ranks each sums three parts of a quarter; in shared memory nothing is exchanged.
        close(copied.step(4), 0.2 + 0.001 + 0.003 + 2.0 * 0.006 + 0.75 * 0.005 + 0.007 + 0.001 + 0.02);
        close(Run { by: By::Memory, ..copied }.step(4), 0.2 + 0.001 + 0.003 + 0.005 + 0.007 + 0.001 + 0.02);
        close(Run { by: By::Memory, ..copied }.step(2), 0.4 + 0.001 + 0.003 + 0.007 + 0.001 + 0.02);
        // Two cores for the processors of four ranks.
        close(Run { cores: 2, cpu: true, ..PLAIN }.step(4), 0.4 + 0.012 + 0.04);
        close(Run { cores: 2, ..PLAIN }.step(4), 0.2 + 0.012 + 0.02);
    }

    #[test]
    fn pieces_go_while_others_are_computed() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        // Of eight pieces without a front only the last one's exchange is not hidden.
        let pieces = Run { front: 0.0, pieces: 8, ..PLAIN };
        close(pieces.step(8), 0.1 + 2.0 * 7e-3 / 8.0 + 0.02);
        // Behind a slow link they wait for each other: the first is there when seven eighths of the backward pass are left.
        close(Run { link: 1e7, ..pieces }.step(8), 0.1 * (1.0 - BACKWARD * 7.0 / 8.0) + 2.0 * 0.7 + 0.02);
        // A quarter in front takes as much of the pass for the head, and is the last.
        let front = Run { front: 2e6, pieces: 1, link: 1e6, ..PLAIN };
        close(front.step(2), 0.4 + 8.0 + 0.02);
        let two = Run { front: 2e6, pieces: 2, link: 1e6, ..PLAIN };
        close(two.step(2), 0.4 - BACKWARD * 0.1 * 0.75 / 2.0 + 8.0 + 0.02);
        // Threads work beside each other, and all on one core after each other; buckets of 16 MiB do as pieces.
        let threads = Run { bytes: 4.0 * BUCKET, front: 4.0 * BUCKET, by: By::Memory, copy: 0.04, upload: 0.04, ..PLAIN };
        close(threads.step(2), 0.4 + 0.05 + 0.02);
        close(Run { cores: 1, ..threads }.step(2), 0.4 + 0.16 + 0.02);
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
            ("--lanes 4 --measured 0:5", "expected a positive number"),
            ("--lanes 4 --measured 8:5", "shared evenly by 8 ranks"),
            ("--lanes 4 --measured 3:5", "shared evenly by 3 ranks"),
            ("--lanes 4 --measured 2:0", "expected a positive number"),
            ("--lanes 4 --measured 2", "expected RANKS:MS"),
            ("--lane-ms -1", "not a number"),
            ("--by air", "expected network, messages or memory"),
            ("--bytes 1 --front 2", "more than --bytes"),
            ("--link 1000", "start at least two by mpirun"),
            ("--lanes", "usage"),
            ("--nothing 1", "--nothing 1 is unknown"),
        ] {
            let e = run(line).unwrap_err();
            assert!(e.contains(text), "{line}: {e}");
        }
    }

    /// Steps that were measured, in ms, and what the program printed there (docs/distributed.md).
    #[test]
    fn measured_steps_are_within_a_tenth() {
        let steady = |run: Run, lanes| Run { jitter: 0.0, lanes, ..run };
        let h100 = Run { lane: 80.0e-3, update: 7.6e-3, by: By::Messages, ..GPT2 };
        let h200 = Run { by: By::Messages, ..GPT2 };
        // Two cores for all ranks, and for the model.
        let processor = Run {
            lane: 69e-3,
            update: 40e-3,
            bytes: 50.7e6,
            front: 264e3,
            pieces: 4,
            device: 3.55e9,
            cpu: true,
            cores: 2,
            sum: 5.5e-3,
            ..GPT2
        };
        let cpu_memory = Run { by: By::Memory, copy: 9.3e-3, upload: 26.1e-3, ..processor };
        let cpu_messages = Run { by: By::Messages, link: 1.82e9, copy: 22.1e-3, upload: 0.3e-3, ..processor };
        for (name, run, lanes, measured) in [
            ("two H200, shared memory", GPT2_MEMORY, 32, &[(1, 2490.5), (2, 1292.5)][..]),
            ("two H200, shared memory", GPT2_MEMORY, 8, &[(1, 627.5), (2, 390.0)]),
            ("two H200, messages", h200, 32, &[(2, 1380.0)]),
            ("two H100, messages", h100, 32, &[(1, 2567.5), (2, 1511.8)]),
            ("two H100, messages", h100, 8, &[(1, 647.6), (2, 535.9)]),
            ("two cores, shared memory", cpu_memory, 4, &[(1, 307.0), (2, 264.0), (4, 374.0)]),
            ("two cores, messages", cpu_messages, 4, &[(2, 257.5), (4, 389.0)]),
        ] {
            for &(ranks, ms) in measured {
                let step = steady(run, lanes).step(ranks) * 1e3;
                assert!((step / ms - 1.0).abs() <= 0.1, "{name}, {lanes} lanes on {ranks} ranks: {step:.1} ms, measured {ms}");
            }
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
