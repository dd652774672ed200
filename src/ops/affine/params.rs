//! Scales and zero points from the ranges of groups: the same bits on every device.

use crate::backends::cpu::operand::values;
use crate::backends::cpu::share;
use crate::dtype::DType;
use crate::error::{At, TensorResult};
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::quant::{Affine, Mapping};
use crate::shader::{F32, Template, U32, grid, params};
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use std::sync::Arc;

params! {
    /// What the kernel reads at run time.
    struct AffineParamsParams {
        /// Groups.
        count: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// What a span is divided by.
        steps: f32,
        /// The least integer.
        least: f32,
        /// The largest integer.
        most: f32,
    }
}

static AFFINE_PARAMS: Template = Template::new("affine_params.wgsl", include_str!("affine_params.wgsl")).params(AffineParamsParams::FIELDS);

/// Groups that a thread of the CPU takes at a time.
const GROUPS_PER_PASS: usize = 1024;

/// Least and largest values of groups to scales, zero points and inverse scales.
#[derive(Clone, Copy, Debug)]
struct AffineParamsKernel(Affine);

impl Kernel for AffineParamsKernel {
    fn cpu(&self, task: &dyn Task) {
        let count = task.step().loads[0].shape.count();
        let [low, high, scale, inverse] = [(); 4].map(|()| values::<f32>(task, GROUPS_PER_PASS));
        let zero = values::<i32>(task, GROUPS_PER_PASS);
        let range = share(count, GROUPS_PER_PASS, task.thread(), task.threads());
        for start in range.clone().step_by(GROUPS_PER_PASS) {
            let n = GROUPS_PER_PASS.min(range.end - start);
            task.load(0, start, f32::slice_mut(&mut low[..n]));
            task.load(1, start, f32::slice_mut(&mut high[..n]));
            for i in 0..n {
                let p = self.0.params(low[i], high[i]);
                (scale[i], zero[i], inverse[i]) = (p.scale, p.zero_point, p.inverse);
            }
            task.store(0, start, f32::slice_mut(&mut scale[..n]));
            task.store(1, start, i32::slice_mut(&mut zero[..n]));
            task.store(2, start, f32::slice_mut(&mut inverse[..n]));
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        8 * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        let count = step.loads[0].shape.count();
        let workgroup = adapter.tuning.unpack.workgroup_threads.min(adapter.workgroup_threads.max(1));
        let grid = grid(count.div_ceil(workgroup as usize))?;
        let [least, most] = self.0.range().map(|v| F32::from(v as f32));
        let steps = F32::from(self.0.steps());
        let params = AffineParamsParams { count: U32::size(count)?, groups_x: grid[0].into(), steps, least, most };
        Some(Wgsl {
            source: AFFINE_PARAMS.source(&[]),
            consts: vec![("SYMMETRIC", (self.0.mapping == Mapping::Symmetric) as u32)],
            workgroup,
            grid,
            params: params.values(),
            raw: vec![],
            transposed: vec![],
        })
    }
}

struct RangeParams(Affine);

impl Op for RangeParams {
    fn name(&self) -> &'static str {
        "affine_params"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.0.bits as u64).word(self.0.mapping as u64);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let whole = |list: &[Meta]| list.iter().enumerate().map(|(n, m)| (n, Layout::contiguous(m.shape), m.shape)).collect();
        Lowered::Kernel { kernel: Arc::new(AffineParamsKernel(self.0)), loads: whole(inputs), stores: whole(outputs) }
    }
    fn grad(&self, _: &Vjp) -> Option<TensorResult<Grads>> {
        Some(Ok(vec![None, None]))
    }
}

/// Scales (f32), zero points (i32) and inverse scales (f32) of groups with these least and largest values.
///
/// # Errors
/// When `low` and `high`, which are f32 of one shape, are on different devices.
///
/// ```
/// # use tensorlogic::prelude::*;
/// use tensorlogic::ops::kernels::affine_params;
/// use tensorlogic::quant::Affine;
///
/// let (low, high) = (Tensor::new(&[-5.0], &Device::cpu())?, Tensor::new(&[250.0], &Device::cpu())?);
/// let [scale, zero_point, _] = affine_params(Affine::int8(), low, high, std::panic::Location::caller())?;
/// assert_eq!((scale.item()?, zero_point.item()?), (1.0, -123.0));
/// # Ok::<(), TensorError>(())
/// ```
pub fn affine_params(affine: Affine, low: Tensor, high: Tensor, at: At) -> TensorResult<[Tensor; 3]> {
    let shape = *low.shape();
    let metas = [DType::F32, DType::I32, DType::F32].map(|dtype| Meta { dtype, shape });
    let outs = Tensor::op(Arc::new(RangeParams(affine)), smallvec::smallvec![low, high], Default::default(), metas.as_slice().into(), at)?;
    let [scale, zero_point, inverse] = &outs[..] else { unreachable!("three results") };
    Ok([scale.clone(), zero_point.clone(), inverse.clone()])
}
