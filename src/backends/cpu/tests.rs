//! Plans of one step against evaluation in f64, over dtypes, layouts, odd sizes and numbers of threads.

use super::{CpuBackend, CpuBuffer};
use crate::backends::{Backend, Buffer, Bytes};
use crate::dtype::DType::{self, *};
use crate::error::TensorError;
use crate::layout::Layout;
use crate::ops::{attention::*, gather::*, matmul::fused_gemv::FusedGemvKernel, matmul::*, norm::*, reduce::*, softmax::*};
use crate::plan::*;
use crate::scalar::{Binary, Inst, Prim, Program, Unary};
use crate::shape::Shape;
use half::{bf16, f16};
use std::panic::Location;
use std::sync::{Arc, LazyLock};

mod backend;
mod maps;
mod products;
mod products_bf16;
mod rows;

/// Machines of one, two and three threads.
static BACKENDS: LazyLock<[Arc<CpuBackend>; 3]> = LazyLock::new(|| [1, 2, 3].map(CpuBackend::with_threads));

/// The nearest value of the dtype, or the value that integers wrap to.
fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        F32 => x as f32 as f64,
        F16 => f16::from_f64(x).to_f64(),
        BF16 => bf16::from_f64(x).to_f64(),
        I32 => x as i64 as i32 as f64,
        U32 => x as i64 as u32 as f64,
        I8 => x as i64 as i8 as f64,
        I16 => x as i64 as i16 as f64,
        U16 => x as i64 as u16 as f64,
        U64 => x as i128 as u64 as f64,
        U8 => x as i64 as u8 as f64,
        Bool => (x != 0.0) as u8 as f64,
        I64 => x.trunc(),
        _ => x,
    }
}

fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    let one = |&x: &f64| match dtype {
        F32 => (x as f32).to_le_bytes().to_vec(),
        F16 => f16::from_f64(x).to_le_bytes().to_vec(),
        BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
        F64 => x.to_le_bytes().to_vec(),
        I32 => (x as i32).to_le_bytes().to_vec(),
        U32 => (x as u32).to_le_bytes().to_vec(),
        I64 => (x as i64).to_le_bytes().to_vec(),
        I16 => (x as i16).to_le_bytes().to_vec(),
        U16 => (x as u16).to_le_bytes().to_vec(),
        U64 => (x as u64).to_le_bytes().to_vec(),
        I8 => vec![x as i8 as u8],
        _ => vec![x as u8],
    };
    values.iter().flat_map(one).collect()
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let one = |b: &[u8]| match dtype {
        F32 => f32::from_le_bytes(b.try_into().unwrap()) as f64,
        F16 => f16::from_le_bytes(b.try_into().unwrap()).to_f64(),
        BF16 => bf16::from_le_bytes(b.try_into().unwrap()).to_f64(),
        F64 => f64::from_le_bytes(b.try_into().unwrap()),
        I32 => i32::from_le_bytes(b.try_into().unwrap()) as f64,
        U32 => u32::from_le_bytes(b.try_into().unwrap()) as f64,
        I64 => i64::from_le_bytes(b.try_into().unwrap()) as f64,
        I16 => i16::from_le_bytes(b.try_into().unwrap()) as f64,
        U16 => u16::from_le_bytes(b.try_into().unwrap()) as f64,
        U64 => u64::from_le_bytes(b.try_into().unwrap()) as f64,
        I8 => b[0] as i8 as f64,
        _ => b[0] as f64,
    };
    bytes.chunks_exact(dtype.block_bytes()).map(one).collect()
}

/// Numbers that look random, the same every time.
struct Noise(u64);
impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }
    fn values(&mut self, n: usize, low: f64, high: f64) -> Vec<f64> {
        (0..n).map(|_| low + (high - low) * self.next()).collect()
    }
}

/// An operand: stored bytes, where the elements lie, and what they are.
#[derive(Clone)]
struct Operand {
    dtype: DType,
    bytes: Vec<u8>,
    layout: Layout,
    shape: Shape,
    values: Vec<f64>,
}

/// The layouts that views give rise to.
const LAYOUTS: [&str; 8] = ["contiguous", "transposed", "sliced", "reversed", "rows repeated", "columns repeated", "scalar", "offset"];

/// An operand of a logical shape of two or more dimensions in one of the `LAYOUTS`.
fn operand(dtype: DType, dims: &[usize], layout: &str, noise: &mut Noise, low: f64, high: f64) -> Operand {
    let shape = Shape::of(dims);
    let last = dims.len() - 1;
    let grown = |by: usize| {
        let mut d = dims.to_vec();
        d.iter_mut().for_each(|d| *d = *d * 2 + by);
        Shape::of(&d)
    };
    let mut swap: Vec<usize> = (0..dims.len()).collect();
    swap.swap(last - 1, last);
    let view = match layout {
        "transposed" => {
            let swapped: Vec<usize> = swap.iter().map(|&i| dims[i]).collect();
            Layout::contiguous(Shape::of(&swapped)).permute(&swap)
        }
        "sliced" => (0..dims.len()).fold(Layout::contiguous(grown(3)), |l, d| l.slice(d, 2, dims[d], if d == 0 { 2 } else { 1 })),
        "reversed" => (0..dims.len()).fold(Layout::contiguous(grown(1)), |l, d| l.slice(d, dims[d].saturating_sub(1), dims[d], -1)),
        "rows repeated" => Layout::contiguous(shape.with(last - 1, 1)).broadcast_to(shape),
        "columns repeated" => Layout::contiguous(shape.with(last, 1)).broadcast_to(shape),
        "scalar" => Layout::contiguous(Shape::SCALAR).broadcast_to(shape),
        "offset" => Layout { offset: 5, ..Layout::contiguous(shape) },
        _ => Layout::contiguous(shape),
    };
    let highest: usize = (0..shape.count()).map(|i| view.at(i)).max().unwrap_or(0);
    let stored: Vec<f64> = noise.values(highest + 1, low, high).into_iter().map(|x| round(dtype, x)).collect();
    let values = (0..shape.count()).map(|i| stored[view.at(i)]).collect();
    Operand { dtype, bytes: encode(dtype, &stored), layout: view.simplified(), shape, values }
}

impl Operand {
    fn source(&self, n: u16) -> Source {
        Source { buf: Buf::Input(n), dtype: self.dtype, layout: self.layout, offset: None, aligned: false }
    }
    fn load(&self, n: u16) -> Load {
        Load { shape: self.shape, program: Program::identity(self.dtype), sources: vec![self.source(n)] }
    }
}

fn target(n: u16, dtype: DType, shape: Shape) -> Source {
    Source { buf: Buf::Output(n), dtype, layout: Layout::contiguous(shape).simplified(), offset: None, aligned: true }
}

fn step(name: &'static str, work: Work, loads: Vec<Load>, stores: Vec<Store>, params: Vec<u16>) -> Step {
    Step { name, at: Location::caller(), work, loads, stores, params }
}

/// Runs one step with 1, 2 and 3 threads, checks that the bits are the same, and gives the outputs.
fn run(step: Step, inputs: &[&Operand], outputs: &[(DType, usize)], params: &[f64]) -> Vec<Vec<f64>> {
    let plan = Arc::new(Plan {
        steps: vec![step],
        inputs: inputs.iter().map(|i| Input { dtype: i.dtype, written: false }).collect(),
        outputs: outputs.iter().map(|&(dtype, n)| Output { dtype, bytes: n * dtype.block_bytes() }).collect(),
        slots: vec![],
        params: params.len(),
        memory: Default::default(),
    });
    let mut first: Option<Vec<Vec<u8>>> = None;
    for backend in BACKENDS.iter() {
        let bound: Vec<Buffer> = inputs.iter().map(|i| backend.upload(Bytes::Owned(Arc::new(i.bytes.clone()))).unwrap()).collect();
        let results: Vec<Buffer> = plan.outputs.iter().map(|o| backend.upload(Bytes::Owned(Arc::new(vec![0; o.bytes]))).unwrap()).collect();
        backend.run(&plan, &bound, &results, params).unwrap();
        let bytes: Vec<Vec<u8>> = results
            .iter()
            .zip(&plan.outputs)
            .map(|(r, o)| {
                let mut bytes = vec![0; o.bytes];
                backend.read(r, 0, &mut bytes).unwrap();
                bytes
            })
            .collect();
        match &first {
            None => first = Some(bytes),
            Some(first) => assert!(*first == bytes, "{}: other bits on {}", plan.steps[0].name, backend.name()),
        }
    }
    first.unwrap().iter().zip(outputs).map(|(b, o)| decode(o.0, b)).collect()
}

/// Compares with tolerances; NaN only with NaN, infinities only with themselves.
#[track_caller]
fn check(case: &str, got: &[f64], want: &[f64], rtol: f64, atol: f64) {
    assert_eq!(got.len(), want.len(), "{case}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= atol + rtol * w.abs();
        assert!(same, "{case}: element {i} is {g}, not {w}");
    }
}

/// Half a unit in the last place, relative.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        F16 => 4.9e-4,
        BF16 => 3.92e-3,
        F64 => 1e-15,
        _ => 6e-8,
    }
}
/// The smallest spacing.
fn tiny(dtype: DType) -> f64 {
    match dtype {
        F16 => 3e-8,
        F64 => 0.0,
        _ => 1e-40,
    }
}

/// A program of one primitive over sources.
fn program(op: Prim, args: usize, of: DType, dtype: DType) -> Program {
    let mut p = Program::default();
    let regs: Vec<u16> = (0..args).map(|n| p.push(Inst { op: Prim::Source(n as u16), args: [0; 3], dtype: of })).collect();
    let arg = |n: usize| regs.get(n).copied().unwrap_or(0);
    p.push(Inst { op, args: [arg(0), arg(1), arg(2)], dtype });
    p
}

fn map(program: Program, inputs: &[&Operand], dtype: DType, params: &[f64]) -> Vec<f64> {
    let shape = inputs[0].shape;
    let sources = inputs.iter().enumerate().map(|(n, i)| i.source(n as u16)).collect();
    let store = Store { shape, program, sources, target: target(0, dtype, shape) };
    run(step("map", Work::Map, vec![], vec![store], vec![]), inputs, &[(dtype, shape.count())], params).remove(0)
}

fn plain_store(shape: &[usize], dtype: DType) -> Store {
    let shape = Shape::of(shape);
    Store { shape, program: Program::value(dtype.compute()), sources: vec![], target: target(0, dtype, shape) }
}

/// A store that adds input `n` to the kernel's value.
fn adding_store(extra: &Operand, n: u16) -> Store {
    let mut p = Program::value(extra.dtype.compute());
    let s = p.push(Inst { op: Prim::Source(0), args: [0; 3], dtype: extra.dtype });
    p.push(Inst { op: Prim::Binary(Binary::Add), args: [0, s, 0], dtype: extra.dtype });
    Store { shape: extra.shape, program: p, sources: vec![extra.source(n)], target: target(0, extra.dtype, extra.shape) }
}

fn kernel(k: impl Kernel + 'static, inputs: &[&Operand], loads: usize, store: Store, params: &[f64]) -> Vec<f64> {
    let out = (store.target.dtype, store.shape.count());
    let loads = inputs[..loads].iter().enumerate().map(|(n, i)| i.load(n as u16)).collect();
    let indices = (0..params.len() as u16).collect();
    run(step("kernel", Work::Kernel(Arc::new(k)), loads, vec![store], indices), inputs, &[out], params).remove(0)
}
