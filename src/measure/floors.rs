//! The numbers that must not be missed, with what they were measured at: `--suite floors`.

use super::downloads::download;
use super::floor::Floor;
use super::fused_floors::fused_floors;
use super::gains::gains;
use super::limits::{Limits, chain_of_dispatches, dependent, random, start};
use super::memory_floors::memory_floors;
use super::runner::{Case, Runner, Traffic, chain_of_eight, chain_of_eight_of, count, firsts};
use super::suites::total;
use super::{Environment, Options, Outcome, Record, Work, measure};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::eval::{eval_stats, without_fusion};
use crate::tensor::Tensor;

/// Measures an operation and the bandwidth that limits it three times in turn: the record of the middle ratio, and that ratio.
fn in_turn(
    r: &mut Runner<'_>,
    case: impl Fn(&mut Runner<'_>) -> TensorResult<Record>,
    limit: fn(&mut Limits) -> TensorResult<f64>,
) -> TensorResult<(Record, f64)> {
    let mut rounds = Vec::new();
    for _ in 0..3 {
        let before = limit(&mut Limits::new(&r.device, r.options))?;
        let record = case(r)?;
        let after = limit(&mut Limits::new(&r.device, r.options))?;
        let ratio = record.gigabytes().unwrap_or(0.0) * 1e9 / (0.5 * (before + after));
        rounds.push((record, ratio));
    }
    rounds.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok(rounds.swap_remove(1))
}

/// Measures the floors of a GPU (f16) or of the CPU (f32).
///
/// # Errors
/// Those of the device, and when a measured result is wrong.
///
/// ```standalone_crate
/// use tensorlogic::Device;
/// use tensorlogic::measure::{Options, floors};
/// let (all, records) = floors(&Device::cpu(), &Options::quick(), &mut |floor| println!("{floor}"))?;
/// let fused = all.iter().find(|floor| floor.name == "dispatch_fused").expect("it is measured on every device");
/// assert_eq!((fused.value, fused.unit), (1.0, "dispatches")); // fusion makes one of twenty additions
/// assert_eq!(records.len(), 3);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn floors(device: &Device, options: &Options, done: &mut dyn FnMut(&Floor)) -> TensorResult<(Vec<Floor>, Vec<Record>)> {
    let (cpu, quick) = (device.capabilities().host_memory, options.quick);
    let dtype = device.default_float();
    let limits = Limits::new(device, *options);
    let mut ignore = |_: &Record| {};
    let mut r = Runner { device: device.clone(), options: *options, limits, environment: Environment::of(device), done: &mut ignore };
    let (mut out, mut records): (Vec<Floor>, Vec<Record>) = (Vec::new(), Vec::new());
    let mut add = |f: Floor| {
        done(&f);
        out.push(f);
    };
    let on_gpu = |b: f64, reach: bool| (!cpu).then_some((b, reach));
    let large = if quick { 1 << 12 } else { 64 << 20 };
    let n = if cpu && !quick { 10_000_000 } else { large };
    let x = (0..2).map(|v| random(&[n], dtype, v, device)).collect::<TensorResult<Vec<_>>>()?;
    let bytes = (2 * n * dtype.block_bytes()) as u64;
    let case = |fused: bool, r: &mut Runner<'_>| -> TensorResult<Record> {
        let run = Box::new(|v: usize| {
            let y = chain_of_eight(&x[v])?;
            if !fused {
                without_fusion(|| y.eval().map(drop))?;
            }
            Ok(y.into())
        });
        let work = Work { variants: 2, run, expect: firsts(&x, chain_of_eight_of)?, tolerance: 8e-3 };
        let operation = if fused { "Chain of 8, fused" } else { "Chain of 8, TL_NO_FUSION" }.to_string();
        let (size, operations) = (count(n), 9 * n as u64);
        r.record(Case { suite: "floors", category: "Floors", operation, size, bytes, operations, traffic: Traffic::Copy, work })
    };
    // Clocks change within seconds: operation and limit are measured in turn.
    let (fused, fraction) = in_turn(&mut r, |r| case(true, r), Limits::copy_bandwidth)?;
    let seconds = fused.time().median;
    add(Floor {
        name: "chain8",
        what: format!("fused chain of 8, {dtype}[{}]: of the copy bandwidth", count(n)),
        seconds,
        value: fraction,
        unit: "of copy",
        bound: on_gpu(0.95, true),
        verdict: None,
    });
    let unfused = case(false, &mut r)?;
    let (slow, gain) = (unfused.time().median, unfused.time().median / seconds);
    let what = format!("the same unfused, {} dispatches: gain of fusion", unfused.dispatches);
    add(Floor { name: "chain8_unfused", what, seconds: slow, value: gain, unit: "times", bound: None, verdict: None });
    records.extend([fused, unfused]);
    drop(x);

    let x = (0..2).map(|v| random(&[large], dtype, 7 + v, device)).collect::<TensorResult<Vec<_>>>()?;
    let bytes = (large * dtype.block_bytes()) as u64;
    let expect = x.iter().map(total).collect::<TensorResult<Vec<f64>>>()?;
    let case = |r: &mut Runner<'_>| {
        let run = Box::new(|v: usize| Ok(x[v].sum_all()?.into()));
        let work = Work { variants: 2, run, expect: expect.clone(), tolerance: 5e-3 };
        let (operation, size, operations) = ("Sum".to_string(), count(large), large as u64);
        r.record(Case { suite: "floors", category: "Floors", operation, size, bytes, operations, traffic: Traffic::Read, work })
    };
    let (sum, fraction) = in_turn(&mut r, case, if cpu { Limits::read_bandwidth } else { Limits::copy_bandwidth })?;
    let (unit, bound) = if cpu { ("of read", 0.9) } else { ("of copy", 0.88) };
    let what = format!("sum of {dtype}[{}]: of the {} bandwidth", count(large), if cpu { "read" } else { "copy" });
    add(Floor { name: "sum", what, seconds: sum.time().median, value: fraction, unit, bound: Some((bound, true)), verdict: None });
    records.push(sum);
    drop(x);

    let dispatches = if quick { 20 } else { 1000 };
    let t = chain_of_dispatches(device, dispatches, options)?;
    let each = |s: f64| s / dispatches as f64;
    if let Some(g) = &t.gpu {
        let (seconds, what) = (each(g.median), format!("{dispatches} dependent dispatches, unfused: each, GPU clock"));
        add(Floor { name: "dispatch_gpu", what, seconds, value: seconds * 1e6, unit: "µs", bound: on_gpu(2.6, false), verdict: None });
    }
    let (seconds, what) = (each(t.wall.median), format!("{dispatches} dependent dispatches, unfused: each, wall"));
    add(Floor { name: "dispatch_wall", what, seconds, value: seconds * 1e6, unit: "µs", bound: on_gpu(4.0, false), verdict: None });
    let x = (0..2).map(|v| start(device, v)).collect::<TensorResult<Vec<_>>>()?;
    let run = Box::new(|v: usize| Ok(dependent(&x[v], dispatches)?.into()));
    let expect = (0..2).map(|v| (v + dispatches) as f64).collect();
    let t = measure(device, &Work { variants: 2, run, expect, tolerance: 1e-6 }, options)?;
    let (seconds, value) = (t.best().median, eval_stats(device).dispatches as f64);
    let what = format!("the same {dispatches}, fused");
    add(Floor { name: "dispatch_fused", what, seconds, value, unit: "dispatches", bound: None, verdict: None });

    let x = (0..2).map(|v| random(&[1000], dtype, 20 + v, device)).collect::<TensorResult<Vec<_>>>()?;
    let expect = x.iter().map(total).collect::<TensorResult<_>>()?;
    let item = |x: &Tensor| -> TensorResult<Outcome> { Ok(Outcome::Value(x.sum_all()?.item()?)) };
    let t = measure(device, &Work { variants: 2, run: Box::new(|v| item(&x[v])), expect, tolerance: 5e-3 }, options)?;
    let seconds = t.wall.median;
    let what = format!("x.sum_all()?.item()? of {dtype}[1000], wall");
    add(Floor { name: "sum_item", what, seconds, value: seconds * 1e6, unit: "µs", bound: on_gpu(70.0, false), verdict: None });
    add(reuse_of_batches(device, options)?);
    add(reuse_of_one_off_work(device, options)?);
    gains(device, options)?.into_iter().for_each(&mut add);
    fused_floors(device, options)?.into_iter().for_each(&mut add);
    add(download(device, options, (!cpu).then_some(0.9))?);
    memory_floors(device, options)?.into_iter().for_each(add);
    Ok((out, records))
}

/// Measures `work`, and the percentage of its requests for memory that the pool served.
fn reuse(device: &Device, work: &Work<'_>, options: &Options) -> TensorResult<(f64, f64)> {
    let before = device.buffer_pool_stats();
    let seconds = measure(device, work, options)?.wall.median;
    let after = device.buffer_pool_stats();
    let requests = after.allocation_count - before.allocation_count;
    Ok((seconds, 100.0 * (after.reuse_count - before.reuse_count) as f64 / requests.max(1) as f64))
}

/// What the pool serves in batch inference: a small model over batches of three sizes in turn, from an empty pool.
fn reuse_of_batches(device: &Device, options: &Options) -> TensorResult<Floor> {
    const WIDTHS: [usize; 3] = [64, 256, 10];
    let dtype = device.default_float();
    let (w1, w2) = (random(&[WIDTHS[0], WIDTHS[1]], dtype, 1, device)?, random(&[WIDTHS[1], WIDTHS[2]], dtype, 2, device)?);
    let [m1, m2] = [w1.to_vec()?, w2.to_vec()?];
    let x = [16, 4, 64].map(|n| random(&[n, WIDTHS[0]], dtype, n as u64, device));
    let x = x.into_iter().collect::<TensorResult<Vec<_>>>()?;
    let element = |x: &Tensor| -> TensorResult<f64> {
        let row = x.narrow(0, 0, 1)?.to_vec()?;
        let hidden = |h: usize| row.iter().enumerate().map(|(k, v)| f64::from(*v) * f64::from(m1[k * WIDTHS[1] + h])).sum::<f64>();
        Ok((0..WIDTHS[1]).map(|h| hidden(h).max(0.0) * f64::from(m2[h * WIDTHS[2]])).sum())
    };
    let expect = x.iter().map(element).collect::<TensorResult<_>>()?;
    let run = Box::new(|v: usize| Ok(x[v].matmul(&w1)?.relu()?.matmul(&w2)?.into()));
    device.empty_cache();
    let (seconds, value) = reuse(device, &Work { variants: x.len(), run, expect, tolerance: 2e-2 }, options)?;
    let what = "batches of 16, 4 and 64 through an MLP: memory reused".to_string();
    Ok(Floor { name: "reuse_batches", what, seconds, value, unit: "% of requests", bound: Some((60.0, true)), verdict: None })
}

/// What the pool serves where every operation has another size and an empty pool before it all.
fn reuse_of_one_off_work(device: &Device, options: &Options) -> TensorResult<Floor> {
    const SIZES: [usize; 8] = [1 << 10, 1 << 15, 1 << 12, 1 << 18, 1 << 14, 1 << 20, 1 << 16, 1 << 11];
    let x = SIZES.iter().map(|n| random(&[*n], device.default_float(), *n as u64, device)).collect::<TensorResult<Vec<_>>>()?;
    let expect = firsts(&x[SIZES.len() - 1..], |v| v + 1.0)?;
    let run = Box::new(|_: usize| {
        device.empty_cache();
        let mut last = None;
        for x in &x {
            let y = x.add(1.0)?;
            y.eval()?;
            last = Some(y);
        }
        last.map(Outcome::Tensor).ok_or_else(|| TensorError::Internal("no size".into()))
    });
    let (seconds, value) = reuse(device, &Work { variants: 1, run, expect, tolerance: 2e-3 }, options)?;
    let what = format!("{} operations of different sizes, once each: memory reused", SIZES.len());
    Ok(Floor { name: "reuse_one_off", what, seconds, value, unit: "% of requests", bound: None, verdict: None })
}
