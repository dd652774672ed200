//! Finds what a GPU can do by small kernels whose results are known, not by its name: virtual devices report less than they can, and new ones more.

use super::device::Gpu;
use super::encode::run_alone;
use super::memory::SHARED;
use super::text;
use crate::error::TensorResult;
use crate::plan::SubgroupSync;
use std::sync::Arc;

/// Threads of a subgroup, and the edge of matrices, that kernels are written for.
const SUBGROUP: usize = 32;
const EDGE: usize = 8;

/// Runs a kernel of one workgroup over these bytes; gives what it wrote, or `None` where it cannot be compiled.
fn run(gpu: &Gpu, name: &'static str, wgsl: &str, input: &[u8], count: usize) -> TensorResult<Option<Vec<f32>>> {
    let Ok(pipeline) = text::of_wgsl(gpu, wgsl, 2, name) else { return Ok(None) };
    let mut out = vec![0.0f32; count];
    let (x, y) = (gpu.upload(input, SHARED)?, gpu.upload(bytemuck::cast_slice(&out), SHARED)?);
    run_alone(gpu, &Arc::new(pipeline), &[&x, &y], name)?;
    gpu.read(&y, 0, bytemuck::cast_slice_mut(&mut out))?;
    Ok(Some(out))
}

/// Whether subgroups have 32 threads and add up.
fn has_subgroups(gpu: &Gpu) -> TensorResult<bool> {
    let x: Vec<f32> = (0..2 * SUBGROUP).map(|n| (n * n % 37) as f32).collect();
    let got = run(gpu, "probe of subgroups", include_str!("probe_subgroup.wgsl"), bytemuck::cast_slice(&x), 4 * SUBGROUP)?;
    let sums = x.chunks(SUBGROUP).flat_map(|half| [half.iter().sum::<f32>(); SUBGROUP]);
    let want: Vec<f32> = sums.chain([SUBGROUP as f32; 2 * SUBGROUP]).collect();
    Ok(got == Some(want))
}

/// Whether matrices of f16 are multiplied, with sums in f32.
fn has_matrices(gpu: &Gpu) -> TensorResult<bool> {
    let x: Vec<f32> = (0..2 * EDGE * EDGE).map(|n| ((n * 29 % 17) as f32 - 8.0) / 8.0).collect();
    let halves: Vec<half::f16> = x.iter().map(|v| half::f16::from_f32(*v)).collect();
    let got = run(gpu, "probe of matrices", include_str!("probe_matrix.wgsl"), bytemuck::cast_slice(&halves), EDGE * EDGE)?;
    // Loads and stores go down columns: in rows, the second matrix comes first.
    let (a, b) = x.split_at(EDGE * EDGE);
    let sum = |row: usize, column: usize| (0..EDGE).map(|k| b[row * EDGE + k] * a[k * EDGE + column]).sum::<f32>();
    let want: Vec<f32> = (0..EDGE * EDGE).map(|n| sum(n / EDGE, n % EDGE)).collect();
    Ok(got == Some(want))
}

/// Takes away from what kernels may use what the GPU does not do right.
///
/// # Errors
/// Those of a device that is lost or full.
pub(super) fn probe(gpu: &mut Gpu) -> TensorResult<()> {
    if !has_subgroups(gpu)? {
        (gpu.adapter.info.subgroup, gpu.adapter.info.subgroup_sync) = (0, SubgroupSync::None);
    }
    if gpu.adapter.info.subgroup == 0 || !has_matrices(gpu)? {
        gpu.adapter.info.coop = 0;
    }
    Ok(())
}
