//! The five kernels as plans: what is bound, in which groups, with which WGSL, and the same on a CPU.

use super::pipeline::MTLSize;
use crate::backends::cpu::share;
use crate::dtype::DType;
use crate::error::At;
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Buf, Input, Kernel, Load, Output, Plan, Source, Step, Store, Task, Value, Wgsl, Work};
use crate::scalar::Program;
use crate::shader::{Template, U32, params};
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
    fn template(self) -> &'static Template {
        /// `template!("add", ElementParams)`: the file of that kernel, which reads these parameters.
        macro_rules! template {
            ($name:literal, $params:ident) => {{
                const FILE: &str = concat!($name, "_kernel.wgsl");
                static TEMPLATE: Template = Template::new(FILE, include_str!(concat!($name, "_kernel.wgsl"))).params($params::FIELDS);
                &TEMPLATE
            }};
        }
        match self {
            Name::Add => template!("add", ElementParams),
            Name::Mul => template!("mul", ElementParams),
            Name::Matmul => template!("matmul", MatmulParams),
            Name::Relu => template!("relu", ElementParams),
            Name::Sigmoid => template!("sigmoid", ElementParams),
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

params! {
    /// What the elementwise kernels read at run time.
    struct ElementParams {
        /// Elements of the result.
        elements: u32,
    }
}

params! {
    /// What the matrix product reads at run time: `[M, K] · [K, N]`.
    struct MatmulParams {
        /// Rows of the result.
        m: u32,
        /// Columns of the result.
        n: u32,
        /// Columns of the left operand.
        k: u32,
        /// Tiles next to each other in a row of tiles.
        tiles_n: u32,
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
        let shape = &step.stores[0].shape;
        let (params, consts, groups) = if self.name == Name::Matmul {
            let (m, n, k, tiles_n) = (shape[0], shape[1], step.loads[0].shape[1], shape[1].div_ceil(self.group.width));
            let params = MatmulParams { m: U32::size(m)?, n: U32::size(n)?, k: U32::size(k)?, tiles_n: U32::size(tiles_n)? };
            let consts = vec![("WIDTH", self.group.width as u32), ("HEIGHT", self.group.height as u32)];
            (params.values(), consts, tiles_n * m.div_ceil(self.group.height))
        } else {
            let params = ElementParams { elements: U32::size(shape.count())? };
            (params.values(), vec![], shape.count().div_ceil(self.group.count()))
        };
        Some(Wgsl {
            source: self.name.template().source(&[]),
            consts,
            workgroup: self.group.count() as u32,
            grid: [u32::try_from(groups).ok()?, 1, 1],
            params,
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
