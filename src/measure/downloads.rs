//! Downloads of many bytes from the device's own memory, and the floor that they are nearly as fast as those of one chunk.

use super::floor::Floor;
use super::limits::random;
use super::{Options, Outcome, Work, first, measure};
use crate::backends::Bytes;
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::plan::StorageMode;
use crate::tensor::Tensor;
use std::sync::Arc;

/// Elements that the values which are downloaded repeat.
const BLOCK: usize = 1 << 16;
/// Values that take turns.
const VARIANTS: u64 = 2;
/// Turns of the whole and of single chunks; the middle ratio counts.
const ROUNDS: usize = 3;

/// A download of `bytes`, a multiple of a block's; `None` where the device has no room for them in one tensor.
pub(super) fn download_work(device: &Device, bytes: usize) -> TensorResult<Option<Work<'static>>> {
    let dtype = device.default_float();
    let n = bytes / dtype.block_bytes();
    let block = BLOCK.min(n);
    let blocks = (0..VARIANTS).map(|v| random(&[block], dtype, v, device)).collect::<TensorResult<Vec<_>>>()?;
    let own = |values: &Tensor| {
        let bytes = values.to_bytes()?.repeat(n / block);
        Tensor::from_bytes_in(Bytes::Owned(Arc::new(bytes)), dtype, &[n], device, StorageMode::Private)
    };
    let x = match blocks.iter().map(own).collect::<TensorResult<Vec<_>>>() {
        Err(TensorError::OutOfMemory { .. }) => return Ok(None),
        x => x?,
    };
    let expect = blocks.iter().map(first).collect::<TensorResult<_>>()?;
    let run = Box::new(move |v: usize| {
        let bytes = x[v].to_bytes()?;
        // The last block's first element: the whole value has arrived.
        let last = Bytes::Owned(Arc::new(bytes[(n - block) * dtype.block_bytes()..].to_vec()));
        Ok(Outcome::Value(first(&Tensor::from_bytes(last, dtype, &[block], &Device::cpu())?)?))
    });
    Ok(Some(Work { variants: VARIANTS as usize, run, expect, tolerance: 1e-6 }))
}

/// The rate of a download in many chunks, as a part of the rate of the best one that is a single chunk.
pub(super) fn download(device: &Device, options: &Options, bound: Option<f64>) -> TensorResult<Floor> {
    let (chunks, wholes): (&[usize], &[usize]) =
        if options.quick { (&[256 << 10], &[2 << 20]) } else { (&[4 << 20, 8 << 20, 16 << 20], &[256 << 20, 128 << 20, 64 << 20]) };
    let options = Options { samples: options.samples.min(9), ..*options };
    let mut whole = None;
    for &bytes in wholes {
        whole = download_work(device, bytes)?.map(|work| (bytes, work));
        if whole.is_some() {
            break;
        }
    }
    let works = chunks.iter().map(|&bytes| Ok(download_work(device, bytes)?.map(|work| (bytes, work))));
    let single: Vec<_> = works.collect::<TensorResult<Vec<_>>>()?.into_iter().flatten().collect();
    let Some(whole) = whole else { return Err(TensorError::Internal("no download fits this device".into())) };
    let seconds = |work: &Work<'_>| Ok(measure(device, work, &options)?.wall.median);
    let turn = |_| -> TensorResult<[f64; 2]> {
        let mut best = 0f64;
        for (bytes, work) in &single {
            best = best.max(*bytes as f64 / seconds(work)?);
        }
        let seconds = seconds(&whole.1)?;
        Ok([seconds, whole.0 as f64 / seconds / best])
    };
    let mut turns = (0..ROUNDS).map(turn).collect::<TensorResult<Vec<_>>>()?;
    turns.sort_by(|a, b| a[1].total_cmp(&b[1]));
    let [seconds, value] = turns[ROUNDS / 2];
    let what = format!("download of {} MiB: of the rate of the best single chunk", whole.0 >> 20);
    Ok(Floor { name: "download", what, seconds, value, unit: "of a chunk", bound: bound.map(|b| (b, true)), verdict: None })
}
