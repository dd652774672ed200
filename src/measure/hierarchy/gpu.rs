//! Working sets in a GPU's memory: a chase by one thread, reads by all of them, a copy.

use super::HierarchyOptions;
use super::host::{chase, cycle};
use super::knees::WorkingSet;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::measure::probe::Probe;
use crate::measure::wgsl_kernel::WgslKernel;
use crate::measure::{Options, Outcome, Work, measure as measure_work};
use crate::tensor::Tensor;
use std::time::{Duration, Instant};

/// Elements of a line of 128 bytes, as many GPUs have.
const LINE_ELEMENTS: usize = 32;
/// Steps of a chase in one dispatch.
const CHASE_STEPS: usize = 1 << 14;
/// Threads of a workgroup.
const WORKGROUP: usize = 256;
/// Elements that a workgroup reads at once, four a thread: 4 KiB.
const ELEMENTS_PER_PASS: usize = 4 * WORKGROUP;
/// Passes of a workgroup over its elements.
const PASSES_PER_WORKGROUP: usize = 32;
/// Elements that a dispatch reads at least: 16 MiB.
const MIN_READ_ELEMENTS: usize = 4 << 20;

/// The end of a chase through `set` that begins at `start`.
fn chase_on(set: &Tensor, start: &Tensor) -> TensorResult<Tensor> {
    let (name, source, params) = ("chase", include_str!("chase.wgsl"), vec![set.numel(), CHASE_STEPS]);
    WgslKernel { name, source, consts: vec![], params, workgroup: 32, grid: [1, 1] }.of(&[set, start], DType::I32, &[1])
}

/// Workgroups that read a set of `n` elements.
fn readers(n: usize) -> usize {
    n.max(MIN_READ_ELEMENTS).div_ceil(ELEMENTS_PER_PASS * PASSES_PER_WORKGROUP)
}

/// Sums of what each thread read of `set`.
fn read_on(set: &Tensor) -> TensorResult<Tensor> {
    let (n, groups) = (set.numel(), readers(set.numel()));
    let (name, source, params) = ("read again", include_str!("read.wgsl"), vec![n, n / ELEMENTS_PER_PASS, PASSES_PER_WORKGROUP]);
    let kernel = WgslKernel { name, source, consts: vec![], params, workgroup: WORKGROUP as u32, grid: [groups, 1] };
    kernel.of(&[set], DType::F32, &[groups * WORKGROUP])
}

/// The best time of one evaluation.
fn best(device: &Device, work: &Work<'_>, samples: usize) -> TensorResult<f64> {
    let options = Options { samples, warm_up: Duration::ZERO, sample: Duration::from_millis(1), quick: false };
    Ok(measure_work(device, work, &options)?.best().min)
}

/// Seconds of a step of a chase. Evaluations take turns along the cycle, so that all of it is walked, as far as the samples last.
fn latency(device: &Device, n: usize, samples: usize) -> TensorResult<f64> {
    let mut next = vec![0u32; n];
    cycle(&mut next, LINE_ELEMENTS);
    let turns = (n / LINE_ELEMENTS).div_ceil(CHASE_STEPS).clamp(2, 64);
    let mut stops = vec![0u32];
    for t in 0..turns {
        stops.push(chase(&next, stops[t], CHASE_STEPS));
    }
    let place = |at: u32| i32::try_from(at).map_err(|_| TensorError::Internal("a working set of more than 8 GiB".into()));
    let set = Tensor::from_vec(next.into_iter().map(place).collect::<TensorResult<Vec<i32>>>()?, &[n], device)?;
    let starts = stops.iter().map(|at| Tensor::from_vec(vec![place(*at)?], &[1], device)).collect::<TensorResult<Vec<_>>>()?;
    let run = Box::new(|v: usize| Ok(Outcome::Tensor(chase_on(&set, &starts[v])?)));
    let expect = stops[1..].iter().map(|at| f64::from(*at)).collect();
    Ok(best(device, &Work { variants: turns, run, expect, tolerance: 0.0 }, samples)? / CHASE_STEPS as f64)
}

/// Bytes per second of reading and of copying.
fn bandwidths(device: &Device, n: usize, samples: usize) -> TensorResult<(f64, f64)> {
    let set = Tensor::full(1.0, &[n], DType::F32, device)?;
    set.eval()?;
    let each = (4 * PASSES_PER_WORKGROUP) as f64;
    let run = Box::new(|_| Ok(Outcome::Tensor(read_on(&set)?)));
    let seconds = best(device, &Work { variants: 1, run, expect: vec![each], tolerance: 0.0 }, samples)?;
    let read = (4 * readers(n) * ELEMENTS_PER_PASS * PASSES_PER_WORKGROUP) as f64 / seconds;
    // Both halves of the set are the operand and the result.
    let half = set.narrow(0, 0, n / 2)?.contiguous()?;
    half.eval()?;
    let run = Box::new(|_| Ok(Outcome::Tensor(Probe::Copy { quads: 4 }.of(&half)?)));
    let seconds = best(device, &Work { variants: 1, run, expect: vec![1.0], tolerance: 0.0 }, samples)?;
    Ok((read, (4 * n) as f64 / seconds))
}

fn working_set(device: &Device, bytes: u64, samples: usize) -> TensorResult<WorkingSet> {
    let n = bytes as usize / 4;
    let latency = latency(device, n, samples)?;
    let (read, copy) = bandwidths(device, n, samples)?;
    Ok(WorkingSet { bytes, latency, read, copy, hits: None })
}

/// Measures the working sets that fit the time and the device.
pub(super) fn measure(device: &Device, options: &HierarchyOptions) -> TensorResult<Vec<WorkingSet>> {
    let start = Instant::now();
    let mut points = Vec::new();
    for bytes in options.sizes(4096) {
        if !points.is_empty() && start.elapsed() > options.time {
            break;
        }
        match working_set(device, bytes, options.samples) {
            Ok(point) => points.push(point),
            // A device bounds the bytes of one tensor: what was measured until then is the hierarchy.
            Err(TensorError::OutOfMemory { .. }) if !points.is_empty() => break,
            Err(e) => return Err(e),
        }
    }
    Ok(points)
}
