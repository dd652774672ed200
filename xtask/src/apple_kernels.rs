//! The sources that the Metal backend gives to Metal's compiler, for the sample plans, the engine backend's kernels and the probes.

use crate::samples::msl_kernel::{MslKernel, translate, without_bodies};
use crate::samples::{adapters, files, generated, stands_alone, with_tensor_ops};
use std::path::Path;
use tensorlogic::plan::{MatrixElements, SubgroupSync};
use tensorlogic::shader::{Template, subgroup_barrier};

/// A kernel as the Metal backend compiles it.
pub struct AppleKernel {
    /// Where it comes from: a kind of GPU and a sample, or a file.
    pub name: String,
    /// What it was translated from.
    #[allow(dead_code)] // What the tests compare with.
    pub wgsl: String,
    pub msl: MslKernel,
}

static PROBE_BODIES: Template = Template::new("probe_bodies.wgsl", include_str!("../../src/backends/probe_bodies.wgsl"));

/// The probe of parts in Metal's language, for matrices of 8 × 8.
fn probe_of_bodies() -> String {
    let mut values = MatrixElements::simdgroup().values();
    values.extend(subgroup_barrier(SubgroupSync::Barrier));
    values.push(("EDGE", 8u32.into()));
    PROBE_BODIES.source(&values).into_owned()
}

static PROBE_TENSOR: Template = Template::new("probe_tensor.wgsl", include_str!("../../src/backends/probe_tensor.wgsl"));

/// Every such source, by the tuning table for Apple's GPUs (`metal`, and `metal_wgsl` for what runs where its parts in Metal's language cannot) and by
/// another table (`apple`), and products with tensor operations (`tensor`, `tensor_wgsl`). `root` is the folder of the library.
///
/// # Errors
/// What the translator says about a source, or what kept a file from being read.
pub fn apple_kernels(root: &Path) -> Result<Vec<AppleKernel>, String> {
    let mut sources: Vec<(String, String)> =
        vec![("probes/probe_bodies".into(), probe_of_bodies()), ("probes/probe_tensor".into(), PROBE_TENSOR.source(&[]).into_owned())];
    for (name, shader) in generated(&with_tensor_ops()).map_err(|e| e.to_string())? {
        if let Some(wgsl) = without_bodies(&shader.wgsl).filter(|wgsl| wgsl.contains("mpp::tensor_ops::")) {
            sources.push((format!("tensor_wgsl/{name}"), wgsl));
            sources.push((format!("tensor/{name}"), shader.wgsl));
        }
    }
    for (kind, adapter) in adapters().into_iter().filter(|(kind, _)| ["apple", "metal"].contains(kind)) {
        for (name, shader) in generated(&adapter).map_err(|e| e.to_string())? {
            if let Some(wgsl) = without_bodies(&shader.wgsl) {
                sources.push((format!("{kind}_wgsl/{name}"), wgsl));
            }
            sources.push((format!("{kind}/{name}"), shader.wgsl));
        }
    }
    for (kind, folder) in [("engine", "src/metal"), ("probes", "src/backends")] {
        for path in files(&root.join(folder)).map_err(|e| format!("{folder}: {e}"))? {
            let wgsl = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let name = path.file_stem().unwrap_or_default().display();
            if stands_alone(&wgsl) && wgsl.contains("fn main(") {
                sources.push((format!("{kind}/{name}"), wgsl));
            }
        }
    }
    let metal = |(name, wgsl): (String, String)| {
        let msl = translate(&wgsl, wgsl.matches("@binding(").count()).map_err(|e| format!("{name}: {e}"))?;
        Ok(AppleKernel { name, wgsl, msl })
    };
    sources.into_iter().map(metal).collect()
}
