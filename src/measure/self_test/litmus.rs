//! Work whose results show a barrier that is missing: whole numbers in floats, so that every order of sums gives the same, computed many times over.

use super::cases::integers;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::tensor::Tensor;

/// A kind of barrier, and what relies on it: the values of round `n` on a device.
pub(super) struct Litmus {
    pub name: &'static str,
    pub run: fn(&Device, u64) -> TensorResult<Vec<f32>>,
}

/// Rounds of each.
pub(super) const ROUNDS: u64 = 12;

fn whole(shape: &[usize], size: i32, seed: u64, device: &Device) -> TensorResult<Tensor> {
    Tensor::from_vec(integers(shape, size, seed), shape, device)
}

/// Steps of one submit, each of which reads what the last one wrote.
fn between_dispatches(device: &Device, n: u64) -> TensorResult<Vec<f32>> {
    let mut x = whole(&[48, 48], 3, n, device)?;
    for _ in 0..12 {
        // A reduction is a dispatch of its own; the remainder keeps the numbers small.
        let sums = x.sum(&[1], true)?;
        x = x.transpose(0, 1)?.add(&sums)?.fmod(7.0)?;
    }
    x.to_vec()
}

/// Rows that a whole workgroup adds up through its shared memory.
fn within_a_workgroup(device: &Device, n: u64) -> TensorResult<Vec<f32>> {
    let x = whole(&[6, 9000], 5, n, device)?;
    Tensor::cat(&[x.sum(&[1], true)?, x.max(&[1], true)?, x.cumsum(1)?.narrow(1, 8999, 1)?], 1)?.to_vec()
}

/// Products by tiles in shared memory, which every workgroup fills again and again.
fn of_tiles(device: &Device, n: u64) -> TensorResult<Vec<f32>> {
    let (a, b) = (whole(&[65, 200], 3, n, device)?, whole(&[200, 70], 3, n + 99, device)?);
    let single = a.matmul(&b)?;
    let half = a.cast(DType::F16)?.matmul(&b.cast(DType::F16)?)?.cast(DType::F32)?;
    Tensor::cat(&[single, half], 0)?.to_vec()
}

/// Groups of few threads, some of which have nothing to do and leave early.
fn of_few_threads(device: &Device, n: u64) -> TensorResult<Vec<f32>> {
    let mut out = vec![];
    for size in [1, 2, 7, 31, 32, 33, 63, 65] {
        let x = whole(&[3, size], 9, n, device)?;
        out.extend(x.sum(&[1], false)?.to_vec()?);
        out.extend(x.add(1.0)?.to_vec()?);
    }
    Ok(out)
}

/// Memory that the host writes again while the device may still read it.
fn between_host_and_device(device: &Device, n: u64) -> TensorResult<Vec<f32>> {
    let sums: Vec<Tensor> = (0..8)
        .map(|k| {
            let sum = whole(&[32, 1024], 5, 8 * n + k, device)?.sum(&[1], false)?;
            sum.eval()?;
            Ok(sum)
        })
        .collect::<TensorResult<_>>()?;
    Tensor::cat(&sums, 0)?.to_vec()
}

/// Sums that many threads add to by atomics.
fn of_atomics(device: &Device, n: u64) -> TensorResult<Vec<f32>> {
    let index = Tensor::from_vec((0..600i32).map(|k| k * k % 11).collect::<Vec<_>>(), &[600], device)?;
    whole(&[11, 24], 3, n, device)?.index_add(0, &index, &whole(&[600, 24], 3, n + 7, device)?)?.to_vec()
}

pub(super) const LITMUS: [Litmus; 6] = [
    Litmus { name: "barriers between dispatches", run: between_dispatches },
    Litmus { name: "barriers of a workgroup", run: within_a_workgroup },
    Litmus { name: "barriers of tiles", run: of_tiles },
    Litmus { name: "workgroups of few threads", run: of_few_threads },
    Litmus { name: "writes while the device works", run: between_host_and_device },
    Litmus { name: "atomics", run: of_atomics },
];
