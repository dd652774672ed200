//! The five kernels as plans: what is bound, in which groups, with which WGSL, and the same on a CPU.

use super::pipeline::MTLSize;
use crate::backends::cpu::share;
use crate::dtype::DType;
use crate::error::At;
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Buf, Input, Kernel, Load, Output, Plan, Source, Step, Store, Task, Value, Wgsl, Word, Work};
use crate::scalar::Program;
use crate::shape::Shape;
use std::sync::Arc;

/// Which kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Name {
    Add,
    Mul,
    Matmul,
    Relu,
    Sigmoid,
}

impl Name {
    pub const ALL: [Name; 5] = [Name::Add, Name::Mul, Name::Matmul, Name::Relu, Name::Sigmoid];

    pub fn text(self) -> &'static str {
        match self {
            Name::Add => "add_kernel",
            Name::Mul => "mul_kernel",
            Name::Matmul => "matmul_kernel",
            Name::Relu => "relu_kernel",
            Name::Sigmoid => "sigmoid_kernel",
        }
    }
    fn source(self) -> &'static str {
        match self {
            Name::Add => include_str!("add_kernel.wgsl"),
            Name::Mul => include_str!("mul_kernel.wgsl"),
            Name::Matmul => include_str!("matmul_kernel.wgsl"),
            Name::Relu => include_str!("relu_kernel.wgsl"),
            Name::Sigmoid => include_str!("sigmoid_kernel.wgsl"),
        }
    }
    /// How many operands it reads.
    pub fn operands(self) -> usize {
        match self {
            Name::Add | Name::Mul | Name::Matmul => 2,
            Name::Relu | Name::Sigmoid => 1,
        }
    }
}

/// A kernel in thread groups of a size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct OpsKernel {
    pub name: Name,
    pub group: MTLSize,
}

/// Elements that the CPU form takes at a time.
const ELEMENTS_PER_PASS: usize = 4096;

impl Kernel for OpsKernel {
    fn cpu(&self, task: &dyn Task) {
        let step = task.step();
        if self.name == Name::Matmul {
            let [m, k, n] = [step.loads[0].shape[0], step.loads[0].shape[1], step.loads[1].shape[1]];
            let (mut a, mut b, mut c) = (vec![0f32; k], vec![0f32; n], vec![0f32; n]);
            for row in share(m, 1, task.thread(), task.threads()) {
                task.load(0, row * k, f32::slice_mut(&mut a));
                c.fill(0.0);
                for (i, &x) in a.iter().enumerate() {
                    task.load(1, i * n, f32::slice_mut(&mut b));
                    c.iter_mut().zip(&b).for_each(|(c, b)| *c += x * b);
                }
                task.store(0, row * n, f32::slice_mut(&mut c));
            }
            return;
        }
        let mut operands = [vec![0f32; ELEMENTS_PER_PASS], vec![0f32; ELEMENTS_PER_PASS]];
        let range = share(step.stores[0].shape.count(), ELEMENTS_PER_PASS, task.thread(), task.threads());
        for start in range.clone().step_by(ELEMENTS_PER_PASS) {
            let len = ELEMENTS_PER_PASS.min(range.end - start);
            for k in 0..self.name.operands() {
                task.load(k, start, f32::slice_mut(&mut operands[k][..len]));
            }
            let [a, b] = &mut operands;
            for (x, y) in a[..len].iter_mut().zip(&b[..len]) {
                *x = match self.name {
                    Name::Add => *x + y,
                    Name::Mul => *x * y,
                    Name::Sigmoid => 1.0 / (1.0 + (-*x).exp()),
                    _ if x.is_nan() => *x,
                    _ => x.max(0.0),
                };
            }
            task.store(0, start, f32::slice_mut(&mut a[..len]));
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        let count = step.stores[0].shape.count() as u64;
        match self.name {
            Name::Matmul => 2 * count * step.loads[0].shape[1] as u64,
            Name::Sigmoid => 16 * count,
            _ => count,
        }
    }
    fn wgsl(&self, step: &Step, _: &AdapterInfo) -> Option<Wgsl> {
        let word = |n: usize| u32::try_from(n).ok();
        let shape = &step.stores[0].shape;
        let (mut words, mut consts) = (Vec::new(), Vec::new());
        let groups = if self.name == Name::Matmul {
            let across = shape[1].div_ceil(self.group.width);
            for n in [shape[0], shape[1], step.loads[0].shape[1], across] {
                words.push(Word::U32(word(n)?));
            }
            consts = vec![("WIDTH", self.group.width as u32), ("HEIGHT", self.group.height as u32)];
            across * shape[0].div_ceil(self.group.height)
        } else {
            words.push(Word::U32(word(shape.count())?));
            shape.count().div_ceil(self.group.count())
        };
        let source = self.name.source().into();
        Some(Wgsl {
            source,
            consts,
            workgroup: self.group.count() as u32,
            grid: [word(groups)?, 1, 1],
            words,
            raw: vec![],
            transposed: vec![],
        })
    }
}

/// A dispatch over buffers `0..`: operands of these shapes, then the result. `places` says which buffer each operand and the result is.
pub(super) fn plan(kernel: OpsKernel, operands: &[Shape], result: Shape, places: &[usize], at: At) -> Arc<Plan> {
    let source = |place: usize, shape: Shape| Source {
        buf: Buf::Input(place as u16),
        dtype: DType::F32,
        layout: Layout::contiguous(shape).simplified(),
        offset: None,
        aligned: true,
    };
    let loads = operands.iter().zip(places).map(|(&shape, &place)| Load {
        shape,
        program: Program::identity(DType::F32),
        sources: vec![source(place, shape)],
    });
    let target = places[operands.len()];
    let store = Store { shape: result, program: Program::value(DType::F32), sources: vec![], target: source(target, result) };
    let buffers = places.iter().max().map_or(0, |p| p + 1);
    Arc::new(Plan {
        steps: vec![Step {
            name: kernel.name.text(),
            at,
            work: Work::Kernel(Arc::new(kernel)),
            loads: loads.collect(),
            stores: vec![store],
            params: vec![],
        }],
        inputs: (0..buffers).map(|n| Input { dtype: DType::F32, written: n == target }).collect(),
        outputs: Vec::<Output>::new(),
        slots: vec![],
        params: 0,
        memory: Default::default(),
    })
}
