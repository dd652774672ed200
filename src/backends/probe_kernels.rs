//! Finds what a GPU can do by small kernels whose results are known, not by its name: virtual devices report less than they can, and new ones more.

use crate::error::TensorResult;

/// Threads of a subgroup, and the edge of matrices, that kernels are written for.
const SUBGROUP: usize = 32;
const EDGE: usize = 8;

/// Runs a WGSL kernel of this name, of one workgroup, over these bytes; gives what it wrote, so many numbers, or `None` where it cannot be compiled.
pub(super) type Run<'r> = &'r dyn Fn(&'static str, &str, &[u8], usize) -> TensorResult<Option<Vec<f32>>>;

/// Whether subgroups have 32 threads and add up.
///
/// # Errors
/// Those of `run`.
pub(super) fn has_subgroups(run: Run<'_>) -> TensorResult<bool> {
    let x: Vec<f32> = (0..2 * SUBGROUP).map(|n| (n * n % 37) as f32).collect();
    let got = run("probe of subgroups", include_str!("probe_subgroup.wgsl"), bytemuck::cast_slice(&x), 4 * SUBGROUP)?;
    let sums = x.chunks(SUBGROUP).flat_map(|half| [half.iter().sum::<f32>(); SUBGROUP]);
    let want: Vec<f32> = sums.chain([SUBGROUP as f32; 2 * SUBGROUP]).collect();
    Ok(got == Some(want))
}

/// Whether matrices of f16 are multiplied, with sums in f32.
///
/// # Errors
/// Those of `run`.
pub(super) fn has_matrices(run: Run<'_>) -> TensorResult<bool> {
    let x: Vec<f32> = (0..2 * EDGE * EDGE).map(|n| ((n * 29 % 17) as f32 - 8.0) / 8.0).collect();
    let halves: Vec<half::f16> = x.iter().map(|v| half::f16::from_f32(*v)).collect();
    let got = run("probe of matrices", include_str!("probe_matrix.wgsl"), bytemuck::cast_slice(&halves), EDGE * EDGE)?;
    // Loads and stores go down columns: in rows, the second matrix comes first.
    let (a, b) = x.split_at(EDGE * EDGE);
    let sum = |row: usize, column: usize| (0..EDGE).map(|k| b[row * EDGE + k] * a[k * EDGE + column]).sum::<f32>();
    let want: Vec<f32> = (0..EDGE * EDGE).map(|n| sum(n / EDGE, n % EDGE)).collect();
    Ok(got == Some(want))
}
