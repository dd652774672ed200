//! The code generator: the steps of a plan become WGSL. It names no graphics interface; whoever drives a GPU compiles and runs what it writes.

#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod barriers;
mod blocks;
#[cfg(feature = "gpu")]
mod kernel_dispatch;
mod kernel_wgsl;
mod map_wgsl;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
pub(super) mod msl_kernel;
mod operand;
mod options;
mod program;
#[cfg(feature = "gpu")]
pub(super) mod spirv_elements;
mod step_shader;
mod uniforms;
mod wgsl;

#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
pub(super) use barriers::Barriers;
#[cfg(feature = "gpu")]
pub use kernel_dispatch::{KernelBinding, KernelBuffer, KernelDispatch, kernel_dispatches};
pub(super) use operand::Bound;
pub use options::DriverQuirks;
pub(super) use step_shader::StepShader;
pub(super) use uniforms::{UniformWord, param_bits};

use self::options::CodegenOptions;
use self::wgsl::step_source;
use super::threads::on_all_threads;
use crate::error::TensorResult;
use crate::plan::{AdapterInfo, Plan};

/// Steps of a plan from which on their shaders are written on several threads.
const PARALLEL_CODEGEN_MIN_STEPS: usize = 16;

/// A kernel as the driver gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shader {
    /// The op that wrote its step.
    pub name: &'static str,
    /// Its WGSL.
    pub wgsl: String,
    /// Workgroups in x, y and z.
    pub grid: [u32; 3],
    /// The parameters that it reads at run time, in order, as text to compare.
    pub params: String,
}

/// The kernels of a plan for a GPU with these answers; there need be none. Steps that have nothing to do have no shader.
///
/// # Errors
/// If a step cannot be done on such a GPU.
///
/// ```
/// use tensorlogic::backends::gpu::kernel_shaders;
/// use tensorlogic::{Device, Tensor, eval::plan_of, plan::AdapterInfo};
/// let x = Tensor::new(&[1.0, 2.0, 3.0, 4.0], &Device::cpu())?;
/// let plan = plan_of(&[&x.exp()?])?.expect("there is work to do");
/// let adapter = AdapterInfo { workgroup_threads: 256, ..AdapterInfo::default() };
/// let shaders = kernel_shaders(&plan, &adapter)?;
/// assert_eq!((shaders.len(), shaders[0].grid), (1, [1, 1, 1]));
/// assert!(shaders[0].wgsl.contains("exp("));
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn kernel_shaders(plan: &Plan, adapter: &AdapterInfo) -> TensorResult<Vec<Shader>> {
    kernel_shaders_for(plan, adapter, DriverQuirks::default())
}

/// The same for a driver with these quirks.
///
/// # Errors
/// As [`kernel_shaders`].
///
/// ```
/// use tensorlogic::backends::gpu::{DriverQuirks, kernel_shaders, kernel_shaders_for};
/// use tensorlogic::{DType, Device, Tensor, eval::plan_of, plan::AdapterInfo};
/// let x = Tensor::new(&[1.0, 2.0, 3.0, 4.0], &Device::cpu())?;
/// let plan = plan_of(&[&x.cast(DType::F16)?])?.expect("there is work to do");
/// let adapter = AdapterInfo { workgroup_threads: 256, ..AdapterInfo::default() };
/// let shaders = kernel_shaders_for(&plan, &adapter, DriverQuirks { soft_f16: true, ..DriverQuirks::default() })?;
/// // The same work, but f16 is packed by integer arithmetic.
/// assert_eq!(shaders.len(), kernel_shaders(&plan, &adapter)?.len());
/// assert_ne!(shaders[0].wgsl, kernel_shaders(&plan, &adapter)?[0].wgsl);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn kernel_shaders_for(plan: &Plan, adapter: &AdapterInfo, quirks: DriverQuirks) -> TensorResult<Vec<Shader>> {
    let adapter = AdapterInfo { raw: None, ..adapter.clone() };
    let mut out = Vec::new();
    for step in &plan.steps {
        if let Some(t) = step_source(plan, step, CodegenOptions::new(&adapter, quirks))? {
            let params = format!("{:?}", t.words);
            out.push(Shader { name: step.name, wgsl: t.source, grid: t.grid, params });
        }
    }
    Ok(out)
}

/// The shaders of the steps that have something to do, by the step's place in the plan. Kernels that would bind more than `max_bindings` buffers bind
/// each buffer once.
pub(super) fn plan_shaders(
    plan: &Plan,
    adapter: &AdapterInfo,
    quirks: DriverQuirks,
    max_bindings: usize,
) -> TensorResult<Vec<(usize, StepShader)>> {
    let options = CodegenOptions::new(adapter, quirks);
    let few = CodegenOptions { quirks: DriverQuirks { few_bindings: true, ..quirks }, ..options };
    let written = on_all_threads(&plan.steps, PARALLEL_CODEGEN_MIN_STEPS, |step| {
        let Some(shader) = step_source(plan, step, options)? else { return Ok(None) };
        match shader.views.len() > max_bindings {
            true => Ok(step_source(plan, step, few)?.or(Some(shader))),
            false => Ok(Some(shader)),
        }
    });
    let mut shaders = Vec::with_capacity(plan.steps.len());
    for (n, shader) in written.into_iter().enumerate() {
        shaders.extend(shader.transpose()?.flatten().map(|shader| (n, shader)));
    }
    Ok(shaders)
}
