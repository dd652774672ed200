//! Floors that are counts of memory: what the planner and a defragmentation save.

use super::floor::Floor;
use super::limits::random;
use super::memory::random_graph;
use super::{Options, Stats};
use crate::device::{Device, Fragmentation};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::{eval_all, plan_of, with_order};
use crate::plan::BufferOrder;
use std::time::Instant;

/// Measures them on this device.
pub(super) fn memory_floors(device: &Device, options: &Options) -> TensorResult<[Floor; 2]> {
    Ok([planned(device, options)?, defragmented(device, options)?])
}

/// The bytes that order `auto` plans for random graphs, as a part of the program's.
fn planned(device: &Device, options: &Options) -> TensorResult<Floor> {
    let graphs = if options.quick { 10 } else { 200 };
    let (mut bytes, mut times) = ([0; 2], Vec::new());
    for seed in 0..graphs {
        for (order, bytes) in [BufferOrder::Program, BufferOrder::Auto].into_iter().zip(&mut bytes) {
            let roots = random_graph(seed, device)?;
            let start = Instant::now();
            let plan = with_order(order, || plan_of(&roots.iter().collect::<Vec<_>>()))?;
            times.push(start.elapsed().as_secs_f64());
            *bytes += plan.map_or(0, |p| p.planned_bytes());
        }
    }
    let [program, auto] = bytes.map(|b| b as f64);
    let what = format!("{graphs} random graphs: bytes that order auto plans, of the program's");
    let seconds = Stats::of(times).map_or(0.0, |s| s.median);
    Ok(Floor { name: "planned", what, seconds, value: auto / program, unit: "of program", bound: Some((1.0, false)), verdict: None })
}

/// What the device holds: the driver's blocks, or the pool's buffers where the driver does not tell.
fn reserved(f: &Fragmentation) -> f64 {
    f.driver.map_or((f.given + f.waiting) as f64, |d| d.reserved as f64)
}

/// Results of many sizes, of which every third is kept: what the device still holds after a defragmentation, as a part of what it held before.
fn defragmented(device: &Device, options: &Options) -> TensorResult<Floor> {
    // A driver's block may have 256 MiB: fewer buffers would be in one.
    let count = if options.quick && device.capabilities().host_memory { 100 } else { 1000 };
    let x = random(&[150 << 10], DType::F32, 3, device)?;
    let size = |n: usize| (16 << 10) + (n * 7919 + 13) % (134 << 10);
    let all = (0..count).map(|n| x.narrow(0, 0, size(n))?.add(1.0)).collect::<TensorResult<Vec<_>>>()?;
    eval_all(&all.iter().collect::<Vec<_>>())?;
    device.synchronize()?;
    let kept: Vec<_> = all.into_iter().step_by(3).collect();
    let want = kept[1].to_bytes()?;
    let done = device.defragment(3)?;
    if kept[1].to_bytes()? != want {
        return Err(TensorError::Internal("a defragmentation changed a value".into()));
    }
    let what = format!("{count} buffers, a third kept: bytes held after a defragmentation");
    let value = reserved(&done.after) / reserved(&done.before);
    Ok(Floor { name: "defragmented", what, seconds: done.seconds, value, unit: "of before", bound: Some((0.8, false)), verdict: None })
}
