//! The dispatches of a plan with their bindings and uniforms, for drivers outside of this library, such as those of tests.

use super::operand::Bound;
use super::options::{CodegenOptions, DriverQuirks};
use super::uniforms::{UniformWord, param_bits};
use super::wgsl;
use crate::error::{TensorError, TensorResult};
use crate::plan::{AdapterInfo, Buf, Plan};

/// The memory behind a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelBuffer {
    /// A buffer that the plan names.
    Plan(Buf),
    /// Four words in which a kernel reports a bad index: a flag, the tag of its step, the index, and nothing.
    Errors,
    /// [`SCRATCH_WORDS`](crate::plan::SCRATCH_WORDS) words that all dispatches share; the first
    /// [`SCRATCH_COUNTERS`](crate::plan::SCRATCH_COUNTERS) are zero between them.
    Scratch,
    /// The words of [`quant::codebooks`](crate::quant::codebooks).
    Codebooks,
}

/// A binding of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelBinding {
    /// Its memory.
    pub buffer: KernelBuffer,
    /// Whether the kernel may write there.
    pub written: bool,
}

/// A step of a plan as a driver gets it.
#[derive(Clone, Debug)]
pub struct KernelDispatch {
    /// The step's place in the plan.
    pub step: usize,
    /// The kernel's WGSL; its entry point is `main`, its bindings are in group 0.
    pub wgsl: String,
    /// Workgroups in x, y and z.
    pub grid: [u32; 3],
    /// Bindings 1, 2, …; binding 0 is the block of uniforms.
    pub bindings: Vec<KernelBinding>,
    words: Vec<UniformWord>,
}

impl KernelDispatch {
    /// The words of binding 0, whole rows of four, for these plan parameters; `tag` is what the kernel reports with a bad index.
    ///
    /// # Errors
    /// [`TensorError::Internal`] if there are fewer parameters than the step names.
    ///
    /// ```
    /// use tensorlogic::backends::gpu::{DriverQuirks, kernel_dispatches};
    /// use tensorlogic::{Device, Tensor, eval::plan_of, plan::AdapterInfo};
    /// let x = Tensor::new(&[1.0, 2.0, 3.0, 4.0], &Device::cpu())?;
    /// let plan = plan_of(&[&x.mul(3.0)?])?.expect("there is work to do");
    /// let adapter = AdapterInfo { workgroup_threads: 256, ..AdapterInfo::default() };
    /// let dispatches = kernel_dispatches(&plan, &adapter, DriverQuirks::default())?;
    /// assert!(dispatches[0].uniforms(&[3.0], 0)?.contains(&3f32.to_bits()));
    /// assert!(dispatches[0].uniforms(&[], 0).is_err()); // the factor is missing
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn uniforms(&self, params: &[f64], tag: u32) -> TensorResult<Vec<u32>> {
        let param = |n: u16| {
            let missing = || TensorError::Internal(format!("a plan needs parameter {n} of {}", params.len()));
            params.get(n as usize).copied().ok_or_else(missing)
        };
        let mut words = Vec::with_capacity(self.words.len().next_multiple_of(4).max(4));
        for word in &self.words {
            words.push(match *word {
                UniformWord::Const(v) => v,
                UniformWord::Offset(base, n) => base.wrapping_add(param(n)? as i64 as u32),
                UniformWord::Param(n, dtype) => param_bits(param(n)?, dtype),
                UniformWord::Tag => tag,
            });
        }
        words.resize(words.len().next_multiple_of(4).max(4), 0);
        Ok(words)
    }
}

/// The dispatches of a plan for a GPU with these answers and a driver with these quirks; there need be none. Steps that have nothing to do
/// have no dispatch.
///
/// # Errors
/// If a step cannot be done on such a GPU.
///
/// ```
/// use tensorlogic::backends::gpu::{DriverQuirks, KernelBuffer, kernel_dispatches};
/// use tensorlogic::{Device, Tensor, eval::plan_of, plan::AdapterInfo, plan::Buf};
/// let x = Tensor::new(&[1.0, 2.0, 3.0, 4.0], &Device::cpu())?;
/// let plan = plan_of(&[&x.exp()?])?.expect("there is work to do");
/// let adapter = AdapterInfo { workgroup_threads: 256, ..AdapterInfo::default() };
/// let dispatches = kernel_dispatches(&plan, &adapter, DriverQuirks::default())?;
/// let bindings = dispatches[0].bindings.iter().map(|b| (b.buffer, b.written)).collect::<Vec<_>>();
/// assert_eq!(bindings, [(KernelBuffer::Plan(Buf::Input(0)), false), (KernelBuffer::Plan(Buf::Output(0)), true)]);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn kernel_dispatches(plan: &Plan, adapter: &AdapterInfo, quirks: DriverQuirks) -> TensorResult<Vec<KernelDispatch>> {
    let adapter = AdapterInfo { raw: None, ..adapter.clone() };
    let mut out = Vec::with_capacity(plan.steps.len());
    for (step, s) in plan.steps.iter().enumerate() {
        let Some(shader) = wgsl::step_source(plan, s, CodegenOptions::new(&adapter, quirks))? else { continue };
        let binding = |bound: &Bound| match *bound {
            Bound::Plan(buf) => KernelBuffer::Plan(buf),
            Bound::Errors(_) => KernelBuffer::Errors,
            Bound::Scratch => KernelBuffer::Scratch,
            Bound::Codebooks => KernelBuffer::Codebooks,
        };
        let bindings = shader.views.iter().map(|v| KernelBinding { buffer: binding(&v.buf), written: v.written }).collect();
        out.push(KernelDispatch { step, wgsl: shader.source, grid: shader.grid, bindings, words: shader.words });
    }
    Ok(out)
}
