//! Finds what a GPU can do, and whether it computes right at all, by small kernels whose results are known, not by its name: virtual devices report
//! less than they can, and new ones more.

use super::tuned_adapter::TunedAdapter;
use crate::error::{TensorError, TensorResult};
use crate::plan::{MatrixElements, SubgroupSync};
use crate::shader::{Template, subgroup_barrier};

/// Threads of a subgroup, and the edge of matrices, that kernels are written for.
const SUBGROUP: usize = 32;
const MATRIX_EDGE: usize = 8;

/// Runs a WGSL kernel of this name, of one workgroup, over these bytes; gives what it wrote, so many numbers, or the compiler's message where it refuses
/// the kernel.
pub(super) type RunKernel<'r> = &'r dyn Fn(&'static str, &str, &[u8], usize) -> TensorResult<Result<Vec<f32>, String>>;

/// What kept a probe's values from being those that are right.
fn wrong(got: Result<Vec<f32>, String>, want: &[f32]) -> Option<String> {
    match got {
        Err(why) => Some(format!("it cannot be compiled: {why}")),
        Ok(got) => (got != want).then(|| "it gives other results".into()),
    }
}

/// What every kernel relies on, with the part of the probe's results that shows it.
const SOUND: [&str; 3] = ["values one by one", "sums through threadgroup memory", "products of tiles in threadgroup memory"];
/// Values of each part.
const VALUES: usize = 64;

/// Whether elements, sums and small products are right.
///
/// # Errors
/// [`TensorError::UnsupportedDevice`] where they are not, or the compiler refuses the probe; those of `run`.
pub(super) fn sound(run: RunKernel<'_>) -> TensorResult<()> {
    // Whole numbers: every order of sums gives the same.
    let x: Vec<f32> = (0..2 * VALUES).map(|n| (n * 29 % 23) as f32 - 11.0).collect();
    let (a, b) = x.split_at(VALUES);
    let product =
        |n: usize| (0..MATRIX_EDGE).map(|k| a[n / MATRIX_EDGE * MATRIX_EDGE + k] * b[k * MATRIX_EDGE + n % MATRIX_EDGE]).sum::<f32>();
    let want = [a.iter().map(|v| 2.0 * v + 1.0).collect(), vec![a.iter().sum(); VALUES], (0..VALUES).map(product).collect::<Vec<f32>>()];
    let got = run("probe of sums and products", include_str!("probe_sound.wgsl"), bytemuck::cast_slice(&x), SOUND.len() * VALUES)?;
    let got = got.map_err(|why| TensorError::UnsupportedDevice(format!("Metal's compiler refuses a plain kernel: {why}")))?;
    let found = SOUND.iter().zip(got.chunks(VALUES)).zip(&want).find(|((_, got), want)| got != want);
    found.map_or(Ok(()), |((what, _), _)| Err(TensorError::UnsupportedDevice(format!("Metal computes {what} wrong"))))
}

/// Why kernels may not count on subgroups of 32 threads that add up, if they may not.
///
/// # Errors
/// Those of `run`.
fn lacks_subgroups(run: RunKernel<'_>) -> TensorResult<Option<String>> {
    let x: Vec<f32> = (0..2 * SUBGROUP).map(|n| (n * n % 37) as f32).collect();
    let got = run("probe of subgroups", include_str!("probe_subgroup.wgsl"), bytemuck::cast_slice(&x), 4 * SUBGROUP)?;
    let sums = x.chunks(SUBGROUP).flat_map(|half| [half.iter().sum::<f32>(); SUBGROUP]);
    let want: Vec<f32> = sums.chain([SUBGROUP as f32; 2 * SUBGROUP]).collect();
    Ok(wrong(got, &want))
}

/// Why kernels may not multiply matrices of f16, with sums in f32, if they may not.
///
/// # Errors
/// Those of `run`.
fn lacks_matrices(run: RunKernel<'_>) -> TensorResult<Option<String>> {
    let x: Vec<f32> = (0..2 * MATRIX_EDGE * MATRIX_EDGE).map(|n| ((n * 29 % 17) as f32 - 8.0) / 8.0).collect();
    let halves: Vec<half::f16> = x.iter().map(|v| half::f16::from_f32(*v)).collect();
    let got = run("probe of matrices", include_str!("probe_matrix.wgsl"), bytemuck::cast_slice(&halves), MATRIX_EDGE * MATRIX_EDGE)?;
    // Loads and stores go down columns: in rows, the second matrix comes first.
    let (a, b) = x.split_at(MATRIX_EDGE * MATRIX_EDGE);
    let sum = |row: usize, column: usize| (0..MATRIX_EDGE).map(|k| b[row * MATRIX_EDGE + k] * a[k * MATRIX_EDGE + column]).sum::<f32>();
    let want: Vec<f32> = (0..MATRIX_EDGE * MATRIX_EDGE).map(|n| sum(n / MATRIX_EDGE, n % MATRIX_EDGE)).collect();
    Ok(wrong(got, &want))
}

static PROBE_BODIES: Template = Template::new("probe_bodies.wgsl", include_str!("probe_bodies.wgsl"));

/// The names in `TL_GPU_WITHOUT` of bodies in Metal's language, and of those with tensor operations.
const METAL_BODIES: &str = "metal bodies";
const TENSOR_OPS: &str = "tensor operations";

/// Whether `TL_GPU_WITHOUT` names this.
fn left_out(name: &str) -> bool {
    std::env::var("TL_GPU_WITHOUT").is_ok_and(|list| list.split(',').any(|n| n.trim() == name))
}

/// Why functions with a body in Metal's language should have their WGSL, if they should.
///
/// # Errors
/// Those of `run`.
fn lacks_bodies(run: RunKernel<'_>, matrices: bool) -> TensorResult<Option<String>> {
    if left_out(METAL_BODIES) {
        return Ok(Some("TL_GPU_WITHOUT names them".into()));
    }
    if !matrices {
        return Ok(Some("the GPU multiplies no matrices as they expect".into()));
    }
    // Whole numbers, whose products f16 holds.
    let x: Vec<f32> = (0..2 * MATRIX_EDGE * MATRIX_EDGE).map(|n| (n * 29 % 7) as f32 - 3.0).collect();
    let halves: Vec<half::f16> = x.iter().map(|v| half::f16::from_f32(*v)).collect();
    let mut values = MatrixElements::simdgroup().values();
    values.extend(subgroup_barrier(SubgroupSync::Barrier));
    values.push(("EDGE", (MATRIX_EDGE as u32).into()));
    let source = PROBE_BODIES.source(&values);
    let got = run("probe of bodies in Metal's language", &source, bytemuck::cast_slice(&halves), 3 * MATRIX_EDGE * MATRIX_EDGE)?;
    let (a, b) = x.split_at(MATRIX_EDGE * MATRIX_EDGE);
    let product = |a: &[f32]| -> Vec<f32> {
        let sum = |row: usize, column: usize| (0..MATRIX_EDGE).map(|k| a[row * MATRIX_EDGE + k] * b[k * MATRIX_EDGE + column]).sum();
        (0..MATRIX_EDGE * MATRIX_EDGE).map(|n| sum(n / MATRIX_EDGE, n % MATRIX_EDGE)).collect()
    };
    let c = product(a);
    let want = [c.clone(), c.iter().map(|v| 2.0 * v).collect(), product(&c)].concat();
    Ok(match got {
        Err(why) => Some(format!("their probe cannot be compiled: {why}")),
        Ok(got) => (got != want).then(|| "their probe gives other results than its WGSL".into()),
    })
}

static PROBE_TENSOR: Template = Template::new("probe_tensor.wgsl", include_str!("probe_tensor.wgsl"));

/// A product of the probe of tensor operations: rows of a and of b, columns of both, whether operands are stored transposed, and the sides of what is
/// looked at.
struct TensorProduct {
    rows: [usize; 2],
    k: usize,
    transposed: bool,
    sides: [usize; 2],
}

/// Those of `probe_tensor.wgsl`.
const TENSOR_PRODUCTS: [TensorProduct; 2] = [
    TensorProduct { rows: [37, 43], k: 40, transposed: false, sides: [37, 43] },
    TensorProduct { rows: [72, 72], k: 37, transposed: true, sides: [64, 64] },
];

impl TensorProduct {
    /// Its operands, taken from what is left of `x`.
    fn operands<'x>(&self, x: &mut &'x [half::f16]) -> [&'x [half::f16]; 2] {
        self.rows.map(|rows| {
            let (own, rest) = x.split_at(rows * self.k);
            *x = rest;
            own
        })
    }

    /// Each result with how far it may be off: the sum of f16 products, which f32 holds, is rounded, or cut, once for each.
    fn results(&self, [a, b]: [&[half::f16]; 2]) -> Vec<[f64; 2]> {
        let at = |x: &[half::f16], rows: usize, row: usize, k: usize| {
            x[if self.transposed { k * rows + row } else { row * self.k + k }].to_f64()
        };
        let result = |i: usize| {
            let terms = (0..self.k).map(|k| at(a, self.rows[0], i / self.sides[1], k) * at(b, self.rows[1], i % self.sides[1], k));
            let [sum, size] = terms.fold([0.0; 2], |[sum, size], t| [sum + t, size + t.abs()]);
            [sum, size * self.k as f64 * f64::from(f32::EPSILON)]
        };
        (0..self.sides.iter().product()).map(result).collect()
    }
}

/// Why products may not use Metal 4's tensor operations, if they may not.
///
/// # Errors
/// Those of `run`.
fn lacks_tensor_ops(run: RunKernel<'_>, bodies: bool) -> TensorResult<Option<String>> {
    if left_out(TENSOR_OPS) {
        return Ok(Some("TL_GPU_WITHOUT names them".into()));
    }
    if !bodies {
        return Ok(Some("kernels have no parts in Metal's language".into()));
    }
    let count: usize = TENSOR_PRODUCTS.iter().map(|p| p.rows.iter().sum::<usize>() * p.k).sum();
    // Whole numbers, whose sums are exact; then what needs all bits of a half, over a range of 256.
    let whole = (0..count).map(|n| half::f16::from_f32((n * 29 % 7) as f32 - 3.0));
    let rough = (0..count as u32).map(|n| {
        let bits = n.wrapping_mul(0x9E37_79B9).rotate_left(13).wrapping_mul(0x85EB_CA6B);
        half::f16::from_f32(((bits >> 8) as f32 / (1 << 23) as f32 - 1.0) * (1 << (bits & 7)) as f32)
    });
    let x: Vec<half::f16> = whole.chain(rough).collect();
    let mut left = &x[..];
    let mut want = vec![];
    for (exact, product) in [true, false].into_iter().flat_map(|exact| TENSOR_PRODUCTS.iter().map(move |p| (exact, p))) {
        let operands = product.operands(&mut left);
        want.extend(product.results(operands).into_iter().map(|[value, off]| (exact, value, if exact { 0.0 } else { off })));
    }
    let got = run("probe of tensor operations", &PROBE_TENSOR.source(&[]), bytemuck::cast_slice(&x), want.len())?;
    let got = match got {
        Err(why) => return Ok(Some(format!("their probe cannot be compiled: {why}"))),
        Ok(got) => got,
    };
    let wrong = got.iter().zip(&want).find(|(got, (_, value, off))| !((f64::from(**got) - value).abs() <= *off));
    Ok(wrong.map(|(got, (exact, value, _))| {
        let of = if *exact { "whole numbers" } else { "halves, beyond what sums in f32 round," };
        format!("their probe multiplies {of} wrong: {got}, not {value}")
    }))
}

/// What a GPU does right of what kernels may use; `None` where it does.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Features {
    lacks_subgroups: Option<String>,
    lacks_matrices: Option<String>,
    lacks_bodies: Option<String>,
    lacks_tensor_ops: Option<String>,
}

/// The kernels of the probes: what an earlier process found out by others says nothing.
const PROBES: [&str; 5] = [
    include_str!("probe_sound.wgsl"),
    include_str!("probe_subgroup.wgsl"),
    include_str!("probe_matrix.wgsl"),
    include_str!("probe_bodies.wgsl"),
    include_str!("probe_tensor.wgsl"),
];

impl Features {
    /// Those that an earlier process found for the adapter of this key on this system, else as [`Features::find`], also where `TL_GPU_WITHOUT` leaves
    /// something out.
    ///
    /// # Errors
    /// Those of [`Features::find`].
    pub fn of(adapter: &str, run: RunKernel<'_>) -> TensorResult<Features> {
        match std::env::var_os("TL_GPU_WITHOUT") {
            None => super::kept::remembered(&format!("{adapter} | {:016x}", super::kept::hash(PROBES)), "probes", || Features::find(run)),
            Some(_) => Features::find(run),
        }
    }

    /// Finds them, where the GPU computes right at all.
    ///
    /// # Errors
    /// Those of [`sound`], and of `run`.
    pub fn find(run: RunKernel<'_>) -> TensorResult<Features> {
        sound(run)?;
        let lacks_subgroups = lacks_subgroups(run)?;
        let lacks_matrices = match lacks_subgroups {
            Some(_) => Some("there are no subgroups".into()),
            None => lacks_matrices(run)?,
        };
        let lacks_bodies = lacks_bodies(run, lacks_matrices.is_none())?;
        let lacks_tensor_ops = lacks_tensor_ops(run, lacks_bodies.is_none())?;
        Ok(Features { lacks_subgroups, lacks_matrices, lacks_bodies, lacks_tensor_ops })
    }

    /// Takes away from what kernels may ask of an adapter what it does not do right.
    pub fn limit(self, adapter: &mut TunedAdapter) {
        let info = &mut adapter.info;
        if self.lacks_subgroups.is_some() {
            (info.subgroup, info.subgroup_sync) = (0, SubgroupSync::None);
        }
        info.coop *= u32::from(self.lacks_matrices.is_none());
        info.metal_bodies = self.lacks_bodies.is_none();
        info.tensor_ops = self.lacks_tensor_ops.is_none();
        let probes = [("subgroups of 32 threads", self.lacks_subgroups), ("matrices of f16", self.lacks_matrices)];
        adapter.failed_probes = probes.into_iter().filter_map(|(what, why)| Some(format!("{what}: {}", why?))).collect();
        adapter.lacks_metal_bodies = self.lacks_bodies;
        adapter.lacks_tensor_ops = self.lacks_tensor_ops;
    }
}
