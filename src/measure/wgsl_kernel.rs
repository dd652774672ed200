//! A kernel for GPUs that is one WGSL source, as an operation: what the measurements of caches are made of.

use crate::dtype::DType;
use crate::error::TensorResult;
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, KernelParam, Step, Task, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Key, Lowered, Meta, Op, Tensor};
use std::panic::Location;
use std::sync::Arc;

/// The source with how it is dispatched. Its operands are stored row by row.
#[derive(Clone)]
pub(super) struct WgslKernel {
    pub name: &'static str,
    pub source: &'static str,
    /// Switches, put before the source.
    pub consts: Vec<(&'static str, u32)>,
    /// The members of its `struct Params`, all u32.
    pub params: Vec<usize>,
    /// Threads of a workgroup.
    pub workgroup: u32,
    /// Workgroups in x and y.
    pub grid: [usize; 2],
}

impl WgslKernel {
    /// The operation on these inputs.
    #[track_caller]
    pub fn of(self, inputs: &[&Tensor], dtype: DType, shape: &[usize]) -> TensorResult<Tensor> {
        let inputs = inputs.iter().map(|t| (*t).clone()).collect();
        Tensor::op1(self, inputs, Default::default(), Meta { dtype, shape: Shape::of(shape) }, Location::caller())
    }
}

impl Op for WgslKernel {
    fn name(&self) -> &'static str {
        self.name
    }
    fn key(&self, key: &mut Key) {
        key.text(self.source);
        for value in self.consts.iter().map(|c| c.1 as usize).chain(self.params.iter().copied()) {
            key.word(value as u64);
        }
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let whole = |list: &[Meta]| list.iter().enumerate().map(|(n, m)| (n, Layout::contiguous(m.shape), m.shape)).collect();
        Lowered::Kernel { kernel: Arc::new(self.clone()), loads: whole(inputs), stores: whole(outputs) }
    }
}

impl Kernel for WgslKernel {
    // It is made for GPUs only, and `portable` keeps a CPU from taking over.
    fn cpu(&self, _: &dyn Task) {}
    fn portable(&self) -> bool {
        false
    }
    fn ops(&self, step: &Step) -> u64 {
        step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, _: &Step, _: &AdapterInfo) -> Option<Wgsl> {
        let small = |n: usize| u32::try_from(n).ok();
        let params = self.params.iter().map(|n| small(*n).map(KernelParam::U32)).collect::<Option<_>>()?;
        let grid = [small(self.grid[0])?, small(self.grid[1])?, 1];
        let (source, consts, workgroup) = (self.source.into(), self.consts.clone(), self.workgroup);
        Some(Wgsl { source, consts, workgroup, grid, params, raw: vec![], transposed: vec![] })
    }
}
