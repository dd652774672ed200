//! Finds what a GPU can do by small kernels whose results are known, not by its name: virtual devices report less than they can, and new ones more.

use super::tuned_adapter::TunedAdapter;
use crate::error::TensorResult;
use crate::plan::{MatrixElements, SubgroupSync};
use crate::shader::{Template, subgroup_barrier};

/// Threads of a subgroup, and the edge of matrices, that kernels are written for.
const SUBGROUP: usize = 32;
const EDGE: usize = 8;

/// Runs a WGSL kernel of this name, of one workgroup, over these bytes; gives what it wrote, so many numbers, or `None` where it cannot be compiled.
pub(super) type Run<'r> = &'r dyn Fn(&'static str, &str, &[u8], usize) -> TensorResult<Option<Vec<f32>>>;

/// Whether subgroups have 32 threads and add up.
///
/// # Errors
/// Those of `run`.
fn has_subgroups(run: Run<'_>) -> TensorResult<bool> {
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
fn has_matrices(run: Run<'_>) -> TensorResult<bool> {
    let x: Vec<f32> = (0..2 * EDGE * EDGE).map(|n| ((n * 29 % 17) as f32 - 8.0) / 8.0).collect();
    let halves: Vec<half::f16> = x.iter().map(|v| half::f16::from_f32(*v)).collect();
    let got = run("probe of matrices", include_str!("probe_matrix.wgsl"), bytemuck::cast_slice(&halves), EDGE * EDGE)?;
    // Loads and stores go down columns: in rows, the second matrix comes first.
    let (a, b) = x.split_at(EDGE * EDGE);
    let sum = |row: usize, column: usize| (0..EDGE).map(|k| b[row * EDGE + k] * a[k * EDGE + column]).sum::<f32>();
    let want: Vec<f32> = (0..EDGE * EDGE).map(|n| sum(n / EDGE, n % EDGE)).collect();
    Ok(got == Some(want))
}

static PROBE_BODIES: Template = Template::new("probe_bodies.wgsl", include_str!("probe_bodies.wgsl"));

/// The name of bodies in Metal's language in `TL_GPU_WITHOUT`.
pub(super) const METAL_BODIES: &str = "metal bodies";

/// Why functions with a body in Metal's language should have their WGSL, if they should.
///
/// # Errors
/// Those of `run`.
fn lacks_bodies(run: Run<'_>, matrices: bool) -> TensorResult<Option<String>> {
    if std::env::var("TL_GPU_WITHOUT").is_ok_and(|list| list.split(',').any(|name| name.trim() == METAL_BODIES)) {
        return Ok(Some("TL_GPU_WITHOUT names them".into()));
    }
    if !matrices {
        return Ok(Some("the GPU multiplies no matrices as they expect".into()));
    }
    // Whole numbers, whose products f16 holds.
    let x: Vec<f32> = (0..2 * EDGE * EDGE).map(|n| (n * 29 % 7) as f32 - 3.0).collect();
    let halves: Vec<half::f16> = x.iter().map(|v| half::f16::from_f32(*v)).collect();
    let mut values = MatrixElements::simdgroup().values();
    values.extend(subgroup_barrier(SubgroupSync::Barrier));
    values.push(("EDGE", (EDGE as u32).into()));
    let source = PROBE_BODIES.source(&values);
    let got = run("probe of bodies in Metal's language", &source, bytemuck::cast_slice(&halves), 3 * EDGE * EDGE)?;
    let (a, b) = x.split_at(EDGE * EDGE);
    let product = |a: &[f32]| -> Vec<f32> {
        let sum = |row: usize, column: usize| (0..EDGE).map(|k| a[row * EDGE + k] * b[k * EDGE + column]).sum();
        (0..EDGE * EDGE).map(|n| sum(n / EDGE, n % EDGE)).collect()
    };
    let c = product(a);
    let want = [c.clone(), c.iter().map(|v| 2.0 * v).collect(), product(&c)].concat();
    Ok(match got {
        None => Some("their probe cannot be compiled".into()),
        Some(got) => (got != want).then(|| "their probe gives other results than its WGSL".into()),
    })
}

/// What a GPU does right of what kernels may use.
pub(super) struct Features {
    subgroups: bool,
    matrices: bool,
    lacks_bodies: Option<String>,
}

impl Features {
    /// Finds them.
    ///
    /// # Errors
    /// Those of `run`.
    pub fn find(run: Run<'_>) -> TensorResult<Features> {
        let subgroups = has_subgroups(run)?;
        let matrices = subgroups && has_matrices(run)?;
        Ok(Features { subgroups, matrices, lacks_bodies: lacks_bodies(run, matrices)? })
    }

    /// Takes away from what kernels may ask of an adapter what it does not do right.
    pub fn limit(self, adapter: &mut TunedAdapter) {
        let info = &mut adapter.info;
        if !self.subgroups {
            (info.subgroup, info.subgroup_sync) = (0, SubgroupSync::None);
        }
        info.coop *= u32::from(self.matrices);
        info.metal_bodies = self.lacks_bodies.is_none();
        adapter.lacks_metal_bodies = self.lacks_bodies;
    }
}
