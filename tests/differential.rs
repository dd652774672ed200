//! Random graphs over every operation that gives a tensor, forward and backward: the CPU against plain loops in f64, and the GPU against the same.
//!
//! `TL_DIFFERENTIAL_CASES` says how many graphs (20,000), `TL_DIFFERENTIAL_SEED` where they begin (1), `TL_TEST_DEVICE` which GPU, and
//! `TL_DIFFERENTIAL_GPU_SHARE=n` that one graph of n runs there. A graph that fails is made smaller and printed as a program; its seed with
//! `TL_DIFFERENTIAL_CASES=1` runs it alone. `TL_DIFFERENTIAL_KEEP_GOING=1` finds all that fail and shrinks the first `TL_DIFFERENTIAL_SHRINK`.
//! `TL_DIFFERENTIAL_SECONDS` ends a long run after so many seconds, with its count. Four tests share the graphs, to each of which these settings apply.

mod common;
mod conformance_support;
mod differential_support;

use differential_support::check::check;
use differential_support::graph::Graph;
use differential_support::ops::OPERATIONS;
use differential_support::shrink::shrink;
use differential_support::{gpu, methods, setting};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tensorlogic::Device;

/// Functions that give tensors and that no graph contains, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("from_bytes", "makes every leaf"),
    ("from_bytes_in", "makes leaves in a kind of memory: tests/transfers.rs"),
    ("from_vec", "makes leaves; indices in these graphs"),
    ("from_vec_gpu", "makes leaves on a GPU: tests/it/engine/metal.rs"),
    ("from_vec_in", "makes leaves in a kind of memory: tests/transfers.rs"),
    ("new", "makes leaves: tests/it/ops/api.rs"),
    ("rand", "makes random leaves: tests/it/ops/api.rs"),
    ("randn", "makes random leaves: tests/it/ops/api.rs"),
    ("eval", "ends every graph, by `eval_all`"),
    ("grad", "reads every gradient"),
    ("op", "adds operations of other crates: tests/it/ops/custom.rs"),
    ("op1", "adds operations of other crates: tests/it/ops/custom.rs"),
    ("requires_grad", "begins every gradient"),
    ("autograd::grad", "reads gradients: tests/it/autograd/gradients.rs"),
    ("autograd::checkpoint", "runs a part of a graph again: tests/it/autograd/gradients.rs"),
    ("CustomOp::apply", "adds operations of other crates: tests/it/ops/custom.rs"),
    ("Rng::bits", "random: tests/it/ops/random_graphs.rs"),
    ("Rng::integers", "random: tests/it/ops/random_graphs.rs"),
    ("Rng::normal", "random: tests/it/ops/random_graphs.rs"),
    ("Rng::uniform", "random: tests/it/ops/random_graphs.rs"),
    ("DynamicQuantizer::dequantize_weights", "`Quantized::dequantize`"),
    ("DynamicQuantizer::quantize_weights", "`quantize` by least and largest values: tests/it/quant/affine.rs"),
    ("Quantized::values", "read by `quantize` in graphs"),
    ("Quantized::scale", "read by `Quantized::dequantize`: tests/it/quant/affine.rs"),
    ("Quantized::zero_point", "read by `Quantized::dequantize`: tests/it/quant/affine.rs"),
    ("Quantized::q", "packed as `Quantized::values` reads it: tests/it/quant/affine.rs"),
    ("affine::block_wise_quantize", "`quantize` of all elements in one row: tests/it/quant/affine.rs"),
    ("params::affine_params", "a part of `quantize`: tests/it/quant/affine.rs"),
];

/// How many seconds of a processor a case may take with a GPU in software, its kernels' compilation included.
const TIME: f64 = 5.0;

/// Graphs that are tried unless the environment says how many: on the CPU a thousand take a second.
const CASES: u64 = 20_000;

/// On a GPU in software, which compiles kernels on a processor, one graph of so many runs there too.
const SHARE_IN_SOFTWARE: u64 = 10;

/// Tests that share the graphs: such a GPU compiles one kernel at a time within a process, and scripts/test.sh runs tests in several processes.
const PARTS: u64 = 4;
/// Neighbouring seeds of a part, so that each part has as many graphs on such a GPU.
const BLOCK: u64 = 2 * SHARE_IN_SOFTWARE;

#[test]
fn every_function_is_in_graphs_or_left_out_for_a_reason() {
    let (methods, made): (BTreeSet<String>, BTreeSet<&str>) = (methods(), OPERATIONS.iter().map(|o| o.name).collect());
    assert!(
        ["sqrt", "add", "sum_all", "matmul", "sort", "split", "detach", "loss::mse_loss", "Quantized::dequantize"]
            .iter()
            .all(|n| methods.contains(*n)),
        "{methods:?}"
    );
    let out: BTreeSet<&str> = LEFT_OUT.iter().map(|(n, _)| *n).collect();
    let missing: Vec<&String> = methods.iter().filter(|m| !made.contains(m.as_str()) && !out.contains(m.as_str())).collect();
    assert!(missing.is_empty(), "add these to tests/differential_support, or to LEFT_OUT with a reason: {missing:?}");
    let gone: Vec<&&str> = made.union(&out).filter(|n| !methods.contains(**n)).collect();
    assert!(gone.is_empty(), "no function of such a name gives a tensor: {gone:?}");
    assert!(made.is_disjoint(&out), "{:?}", made.intersection(&out));
}

/// Where a graph runs besides the CPU.
fn gpu_for(seed: u64) -> Option<&'static Device> {
    let gpu = gpu()?;
    let software = gpu.name().contains("llvmpipe");
    let share = setting("TL_DIFFERENTIAL_GPU_SHARE", if software { SHARE_IN_SOFTWARE } else { 1 });
    // Both those with gradients and those without.
    (seed / 2 % share.max(1) == 0).then_some(gpu)
}

/// Why a graph fails, if it does, else how long the GPU took; also where it panics.
fn outcome(graph: &Graph, seed: u64) -> Result<Duration, String> {
    catch_unwind(AssertUnwindSafe(|| check(graph, seed % 2 == 0, gpu_for(seed)))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("without words")))
    })
}

/// What running the graphs of some seeds gave.
#[derive(Default)]
struct Results {
    times: Vec<(Duration, u64)>,
    failed: BTreeMap<u64, (Graph, String)>,
}

/// Runs the graphs of a part of these seeds on all threads, until one fails or, if it is to `keep_going`, to the end.
fn run_all(first: u64, cases: u64, part: u64, keep_going: bool) -> Results {
    let (next, stop, results) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Results::default()));
    let (start, limit) = (Instant::now(), Duration::from_secs(setting("TL_DIFFERENTIAL_SECONDS", u64::from(u32::MAX))));
    let work = || {
        while !stop.load(Ordering::Relaxed) && start.elapsed() < limit {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= cases {
                break;
            }
            let seed = first + n;
            if seed / BLOCK % PARTS != part {
                continue;
            }
            let graph = Graph::random(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let outcome = outcome(&graph, seed);
            let mut results = results.lock().expect("no thread panicked");
            match outcome {
                Ok(took) => results.times.push((took, seed)),
                Err(why) => {
                    println!("seed {seed}: {why}");
                    results.failed.insert(seed, (graph, why));
                    stop.store(!keep_going, Ordering::Relaxed);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    std::thread::scope(|s| (0..threads).for_each(|_| drop(s.spawn(work))));
    results.into_inner().expect("no thread panicked")
}

/// The processor's seconds that one case takes in a process of its own, where it waits for no other and Mesa's driver
/// compiles each kernel anew.
#[cfg(unix)]
fn alone(seed: u64) -> f64 {
    // The children of other threads are counted too.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let spent = || {
        // SAFETY: a structure of numbers, which the call fills.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
        seconds(usage.ru_utime) + seconds(usage.ru_stime)
    };
    let before = spent();
    let mut command = common::command(&std::env::args().next().expect("a program's name"));
    command.arg("random_graphs_agree_with_f64").env("TL_DIFFERENTIAL_SEED", seed.to_string());
    command.env("TL_DIFFERENTIAL_CASES", "1").env("TL_DIFFERENTIAL_ALONE", "1");
    command.env("MESA_SHADER_CACHE_DISABLE", "true").stdout(std::process::Stdio::null());
    let status = command.status().expect("the same program again");
    assert!(status.success(), "seed {seed} alone: {status}");
    spent() - before
}

#[test]
fn every_operation_is_in_a_graph() {
    let of = |seed| Graph::random(seed).expect("a graph").steps.iter().flatten().map(|s| OPERATIONS[s.op].name).collect::<Vec<_>>();
    let used: BTreeSet<&str> = (1..=CASES).flat_map(of).collect();
    let idle: Vec<&str> = OPERATIONS.iter().map(|o| o.name).filter(|n| !used.contains(n)).collect();
    assert!(idle.is_empty(), "no graph contains {idle:?}");
}

#[test]
fn random_graphs_agree_with_f64_1() {
    random_graphs(0);
}

#[test]
fn random_graphs_agree_with_f64_2() {
    random_graphs(1);
}

#[test]
fn random_graphs_agree_with_f64_3() {
    random_graphs(2);
}

#[test]
fn random_graphs_agree_with_f64_4() {
    random_graphs(3);
}

/// The graphs of part `part` of [`PARTS`].
fn random_graphs(part: u64) {
    let (cases, first) = (setting("TL_DIFFERENTIAL_CASES", CASES), setting("TL_DIFFERENTIAL_SEED", 1));
    println!("a part of seeds {first} to {}, on {}", first + cases - 1, gpu().map_or("the CPU alone".into(), |d| d.name()));
    let start = Instant::now();
    let Results { mut times, failed } = run_all(first, cases, part, setting("TL_DIFFERENTIAL_KEEP_GOING", 0) == 1);
    times.sort_unstable();
    let on_gpu = times.iter().filter(|t| !t.0.is_zero()).count();
    println!("{} graphs, {on_gpu} of them on a GPU too, in {:.1?}", times.len(), start.elapsed());
    let count = failed.len();
    let mut report = String::new();
    for (seed, (graph, why)) in failed.into_iter().take(setting("TL_DIFFERENTIAL_SHRINK", 1) as usize) {
        let (small, why) = shrink(graph, why, |g| outcome(g, seed).err());
        let text = small.program().map_or_else(|e| e.to_string(), |p| p.text());
        let gradients = if seed % 2 == 0 { ", gradients included" } else { "" };
        report += &format!("TL_DIFFERENTIAL_SEED={seed} TL_DIFFERENTIAL_CASES=1 fails{gradients}:\n{text}{why}\n\n");
    }
    assert!(count == 0, "{count} of {} graphs fail\n{report}", times.len() + count);
    #[cfg(unix)]
    if setting("TL_DIFFERENTIAL_ALONE", 0) == 0 {
        for &(took, seed) in times.iter().rev().take(setting("TL_DIFFERENTIAL_SLOWEST", 3) as usize) {
            if took.as_secs_f64() > TIME {
                let seconds = alone(seed);
                println!("seed {seed}: {took:.1?} among others, {seconds:.1} s of a processor alone");
                assert!(seconds <= TIME, "seed {seed} takes {seconds:.1} s of a processor");
            }
        }
    }
}

#[test]
#[ignore = "prints graphs as programs"]
fn programs() {
    let (cases, first) = (setting("TL_DIFFERENTIAL_CASES", 20), setting("TL_DIFFERENTIAL_SEED", 1));
    for seed in first..first + cases {
        println!("// {seed}\n{}", Graph::random(seed).and_then(|g| g.program()).expect("a graph").text());
    }
}
