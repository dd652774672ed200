//! Finds which elements of a cooperative matrix a lane holds, by a kernel that names them in SPIR-V: drivers do not say.

use crate::backends::codegen::DriverQuirks;
use crate::backends::probes::{RunPlan, kernel_to_f16};
use crate::error::TensorResult;
use crate::plan::{AdapterInfo, Kernel, MatrixElements, Step, SubgroupSync, Task, Wgsl};
use crate::shader::{Template, subgroup_barrier};
use std::sync::Arc;

static PROBE: Template = Template::new("probe_elements.wgsl", include_str!("probe_elements.wgsl"));

/// The name of this in `TL_GPU_WITHOUT`.
pub(super) const MATRIX_ELEMENTS: &str = "matrix elements";

/// The kernel of the probe, one subgroup: what the lanes hold of a matrix of places, of a product, and of matrices that are made of its elements.
struct ProbeKernel;

impl Kernel for ProbeKernel {
    /// It runs on GPUs only.
    fn cpu(&self, _: &dyn Task) {}
    fn portable(&self) -> bool {
        false
    }
    fn ops(&self, step: &Step) -> u64 {
        step.stores[0].shape.count() as u64
    }
    fn wgsl(&self, _: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        let (edge, subgroup) = (adapter.coop, adapter.subgroup);
        let mut values = subgroup_barrier(SubgroupSync::None).to_vec();
        values.push(("EDGE", edge.into()));
        // In WGSL it gives places that no lane can hold.
        let nowhere = ["ELEMENT_ROW", "ELEMENT_COLUMN", "ELEMENT_OF"].map(|name| (name, "0u".into()));
        values.extend(nowhere);
        values.push(("QUAD_PARTNER", 0u32.into()));
        let consts = vec![("EDGE", edge), ("SUBGROUP", subgroup), ("ELEMENTS", edge * edge / subgroup)];
        Some(Wgsl {
            source: PROBE.source(&values),
            consts,
            workgroup: subgroup,
            grid: [1, 1, 1],
            params: vec![],
            raw: vec![],
            transposed: vec![],
        })
    }
}

/// How lanes hold the elements of a matrix, where kernels can name them there: what they hold is where this says, and matrices that are made of
/// elements are multiplied as they should. A driver that refuses the kernel has none.
pub(super) fn find(info: &AdapterInfo, run: RunPlan<'_>) -> TensorResult<Option<MatrixElements>> {
    let (edge, subgroup) = (info.coop as usize, info.subgroup as usize);
    let size = edge * edge;
    if size == 0 || subgroup == 0 || !size.is_multiple_of(subgroup) {
        return Ok(None);
    }
    // Small whole numbers, whose products f16 holds.
    let x: Vec<f32> = (0..2 * size).map(|n| (n * 29 % 7 % 3) as f32 - 1.0).collect();
    let (a, b) = x.split_at(size);
    // As many values as there are results.
    let values: Vec<f32> = [&x[..], &(0..2 * size).map(|n| (n % size) as f32).collect::<Vec<f32>>()[..]].concat();
    let Ok(got) = run(&kernel_to_f16(values.len(), Arc::new(ProbeKernel)), &values, DriverQuirks::default()) else { return Ok(None) };
    let places: Vec<u32> = got[..size].iter().map(|p| p.to_f32() as u32).collect();
    let count = size / subgroup;
    let Some(found) = MatrixElements::find(info.coop, &places, count) else { return Ok(None) };
    let product = |a: &[f32]| -> Vec<f32> {
        let sum = |row: usize, column: usize| (0..edge).map(|k| a[row * edge + k] * b[k * edge + column]).sum();
        (0..size).map(|n| sum(n / edge, n % edge)).collect()
    };
    let c = product(a);
    let want = [c.clone(), c.iter().map(|v| 2.0 * v).collect(), product(&c)].concat();
    let right = got[size..].iter().enumerate().all(|(n, v)| v.to_f32() == want[n / size * size + places[n % size] as usize]);
    Ok(right.then_some(found))
}
