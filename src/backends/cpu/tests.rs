//! Plans of one step against evaluation in f64, over dtypes, layouts, odd sizes and numbers of threads.

use super::CpuMachine;
use crate::backends::{Buffer, Bytes, Machine};
use crate::dtype::DType::{self, *};
use crate::error::TensorError;
use crate::layout::Layout;
use crate::ops::{attention::*, gather::*, matmul::*, norm::*, reduce::*, softmax::*};
use crate::plan::*;
use crate::scalar::{Binary, Inst, Prim, Program, Unary};
use crate::shape::Shape;
use half::{bf16, f16};
use std::panic::Location;
use std::sync::{Arc, LazyLock};

/// Machines of one, two and three threads.
static MACHINES: LazyLock<[Arc<CpuMachine>; 3]> = LazyLock::new(|| [1, 2, 3].map(CpuMachine::with_threads));

/// The nearest value of the dtype, or the value that integers wrap to.
fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        F32 => x as f32 as f64,
        F16 => f16::from_f64(x).to_f64(),
        BF16 => bf16::from_f64(x).to_f64(),
        I32 => x as i64 as i32 as f64,
        U32 => x as i64 as u32 as f64,
        I8 => x as i64 as i8 as f64,
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
    });
    let mut first: Option<Vec<Vec<u8>>> = None;
    for machine in MACHINES.iter() {
        let bound: Vec<Buffer> = inputs.iter().map(|i| machine.upload(Bytes::Owned(Arc::new(i.bytes.clone()))).unwrap()).collect();
        let results: Vec<Buffer> = plan.outputs.iter().map(|o| machine.upload(Bytes::Owned(Arc::new(vec![0; o.bytes]))).unwrap()).collect();
        machine.run(&plan, &bound, &results, params).unwrap();
        let bytes: Vec<Vec<u8>> = results
            .iter()
            .zip(&plan.outputs)
            .map(|(r, o)| {
                let mut bytes = vec![0; o.bytes];
                machine.read(r, 0, &mut bytes).unwrap();
                bytes
            })
            .collect();
        match &first {
            None => first = Some(bytes),
            Some(first) => assert!(*first == bytes, "{}: other bits on {}", plan.steps[0].name, machine.name()),
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

fn unary(u: Unary, x: f64) -> f64 {
    match u {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => x.partial_cmp(&0.0).map_or(0.0, |o| o as i8 as f64),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => x.sqrt().recip(),
        Unary::Recip => x.recip(),
        Unary::Exp => x.exp(),
        Unary::Exp2 => x.exp2(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log2 => x.log2(),
        Unary::Log10 => x.log10(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Asinh => libm::asinh(x),
        Unary::Acosh => libm::acosh(x),
        Unary::Atanh => libm::atanh(x),
        Unary::Erf => libm::erf(x),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::IsNan => x.is_nan() as u8 as f64,
        Unary::IsInf => x.is_infinite() as u8 as f64,
        Unary::LogicalNot => (x == 0.0) as u8 as f64,
        Unary::BitNot => !(x as i64) as f64,
    }
}

fn binary(b: Binary, x: f64, y: f64, width: u32, signed: bool) -> f64 {
    let (i, j) = (x as i64, y as i64);
    let integer = width > 0;
    match b {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul if integer => i.wrapping_mul(j) as f64,
        Binary::Mul => x * y,
        Binary::Div if integer => i.checked_div(j).unwrap_or(0) as f64,
        Binary::Div => x / y,
        Binary::Pow if integer => (0..j.max(0)).fold(1i64, |a, _| a.wrapping_mul(i) & 0xFFFF_FFFF) as u32 as i32 as f64,
        Binary::Pow => x.powf(y),
        Binary::Fmod if integer => i.checked_rem(j).unwrap_or(0) as f64,
        Binary::Fmod => x % y,
        Binary::Remainder if integer && j == 0 => 0.0,
        Binary::Remainder => x - y * (x / y).floor(),
        Binary::Min if x.is_nan() || y.is_nan() => f64::NAN,
        Binary::Max if x.is_nan() || y.is_nan() => f64::NAN,
        Binary::Min => x.min(y),
        Binary::Max => x.max(y),
        Binary::Atan2 => x.atan2(y),
        Binary::Copysign => x.copysign(y),
        Binary::Eq => (x == y) as u8 as f64,
        Binary::Ne => (x != y) as u8 as f64,
        Binary::Lt => (x < y) as u8 as f64,
        Binary::Le => (x <= y) as u8 as f64,
        Binary::Gt => (x > y) as u8 as f64,
        Binary::Ge => (x >= y) as u8 as f64,
        Binary::And => (i & j) as f64,
        Binary::Or => (i | j) as f64,
        Binary::Xor => (i ^ j) as f64,
        Binary::Shl if (0..width as i64).contains(&j) => (i << j) as f64,
        Binary::Shl => 0.0,
        Binary::Shr if (0..width as i64).contains(&j) => (i >> j) as f64,
        Binary::Shr => (if signed && i < 0 { -1 } else { 0 }) as f64,
    }
}

const FLOATS: [DType; 4] = [F32, F16, BF16, F64];
const INTEGERS: [DType; 4] = [I32, U32, I8, U8];

#[test]
fn unary_primitives_match_f64() {
    let mut noise = Noise(1);
    for &u in Unary::ALL {
        let (low, high) = match u {
            Unary::Acosh => (1.0, 30.0),
            Unary::Asin | Unary::Acos | Unary::Atanh => (-1.0, 1.0),
            Unary::Log | Unary::Log2 | Unary::Log10 | Unary::Sqrt | Unary::Rsqrt => (1e-3, 40.0),
            Unary::Log1p => (-0.99, 5.0),
            _ => (-9.0, 9.0),
        };
        for dtype in FLOATS.into_iter().filter(|_| u.takes_float()) {
            for dims in [[1, 1], [3, 5], [33, 67], [2, 4111]] {
                let x = operand(dtype, &dims, "contiguous", &mut noise, low, high);
                let out = u.result(dtype);
                let got = map(program(Prim::Unary(u), 1, dtype, out), &[&x], out, &[]);
                let want: Vec<f64> = x.values.iter().map(|&v| round(out, unary(u, v))).collect();
                // f32 arithmetic, then half a unit of the result's dtype.
                let rtol = if dtype == F64 { 4e-15 } else { 3.5e-7 + if dtype == F32 { 0.0 } else { 2.0 * epsilon(dtype) } };
                check(&format!("{} {dtype} {dims:?}", u.name()), &got, &want, rtol, tiny(dtype) + 1e-37);
            }
        }
        for dtype in INTEGERS.into_iter().filter(|_| u.takes_int()) {
            let x = operand(dtype, &[7, 11], "contiguous", &mut noise, if matches!(dtype, U32 | U8) { 0.0 } else { -128.0 }, 127.0);
            let out = u.result(dtype);
            let got = map(program(Prim::Unary(u), 1, dtype, out), &[&x], out, &[]);
            let want: Vec<f64> = x.values.iter().map(|&v| round(out, unary(u, v))).collect();
            check(&format!("{} {dtype}", u.name()), &got, &want, 0.0, 0.0);
        }
    }
}

#[test]
fn binary_primitives_match_f64() {
    let mut noise = Noise(2);
    for &b in Binary::ALL {
        for dtype in FLOATS.into_iter().filter(|_| !b.bits()) {
            let low = if b == Binary::Pow { 0.01 } else { -4.0 };
            let x = operand(dtype, &[13, 131], "contiguous", &mut noise, low, 4.0);
            let y = operand(dtype, &[13, 131], "contiguous", &mut noise, -4.0, 4.0);
            let out = b.result(dtype);
            let got = map(program(Prim::Binary(b), 2, dtype, out), &[&x, &y], out, &[]);
            let want: Vec<f64> = x.values.iter().zip(&y.values).map(|(&x, &y)| round(out, binary(b, x, y, 0, true))).collect();
            // A remainder near a multiple may land on either side of it.
            let atol = if matches!(b, Binary::Remainder | Binary::Fmod) { 1e-6 } else { 0.0 };
            let rtol = if dtype == F64 { 2e-14 } else { 2e-7 + if dtype == F32 { 0.0 } else { 2.0 * epsilon(dtype) } };
            check(&format!("{} {dtype}", b.name()), &got, &want, rtol, tiny(dtype) + atol);
        }
        for dtype in INTEGERS.into_iter().filter(|_| !b.float_only()) {
            let (width, signed) = (dtype.block_bytes() as u32 * 8, matches!(dtype, I32 | I8));
            let low = if signed { -128.0 } else { 0.0 };
            let x = operand(dtype, &[17, 23], "contiguous", &mut noise, low, 127.0);
            // Exponents and shift counts stay where the expectation is easy to state.
            let y = match b {
                Binary::Pow => operand(dtype, &[17, 23], "contiguous", &mut noise, 0.0, 9.0),
                Binary::Shl | Binary::Shr => operand(dtype, &[17, 23], "contiguous", &mut noise, if signed { -3.0 } else { 0.0 }, 40.0),
                _ => operand(dtype, &[17, 23], "contiguous", &mut noise, low, 127.0),
            };
            let out = b.result(dtype);
            let got = map(program(Prim::Binary(b), 2, dtype, out), &[&x, &y], out, &[]);
            let want: Vec<f64> = x.values.iter().zip(&y.values).map(|(&x, &y)| round(out, binary(b, x, y, width, signed))).collect();
            check(&format!("{} {dtype}", b.name()), &got, &want, 0.0, 0.0);
        }
    }
}

#[test]
fn casts_round_and_saturate() {
    let all = [F32, F16, BF16, F64, I32, U32, I8, U8, Bool, I64];
    let mut noise = Noise(3);
    for from in all {
        let x = operand(from, &[9, 119], "contiguous", &mut noise, if matches!(from, U32 | U8 | Bool) { 0.0 } else { -300.0 }, 300.0);
        for to in all {
            let got = map(program(Prim::Cast, 1, from, to), &[&x], to, &[]);
            let cast = |v: f64| match to {
                I32 if from.is_float() => v as i32 as f64,
                U32 if from.is_float() => v as u32 as f64,
                I8 if from.is_float() => v as i8 as f64,
                U8 if from.is_float() => v as u8 as f64,
                _ => round(to, v),
            };
            let want: Vec<f64> = x.values.iter().map(|&v| cast(v)).collect();
            check(&format!("{from} to {to}"), &got, &want, 0.0, 0.0);
        }
    }
}

#[test]
fn special_values_survive() {
    let inf = f64::INFINITY;
    let bits = [0.0, -0.0, 1.0, -1.0, inf, -inf, f64::NAN, 1e-45, 3e38, 88.8, -104.5, 0.5, 65504.0, 65520.0, 1e30, -2.5, 3.0];
    let x = Operand {
        dtype: F32,
        bytes: encode(F32, &bits),
        layout: Layout::contiguous(Shape::of(&[17])),
        shape: Shape::of(&[1, 17]),
        values: decode(F32, &encode(F32, &bits)),
    };
    for &u in Unary::ALL.iter().filter(|u| u.takes_float()) {
        let out = u.result(F32);
        let got = map(program(Prim::Unary(u), 1, F32, out), &[&x], out, &[]);
        let want: Vec<f64> = x.values.iter().map(|&v| round(out, unary(u, v))).collect();
        check(u.name(), &got, &want, 3e-7, 2e-45);
        for (i, (g, w)) in got.iter().zip(&want).enumerate().filter(|(_, (_, w))| **w == 0.0 && !matches!(u, Unary::Sign | Unary::Exp)) {
            assert_eq!(g.is_sign_negative(), w.is_sign_negative(), "{}: sign of zero {i}", u.name());
        }
    }
    for dtype in [F16, BF16] {
        let got = map(Program::identity(F32), &[&x], dtype, &[]);
        let want: Vec<f64> = x.values.iter().map(|&v| round(dtype, v)).collect();
        check(dtype.name(), &got, &want, 0.0, 0.0);
    }
    // Powers at every pair of special values.
    let n = bits.len();
    let pairs = |f: &dyn Fn(usize) -> usize| {
        let v: Vec<f64> = (0..n * n).map(|i| bits[f(i)]).collect();
        Operand {
            dtype: F32,
            bytes: encode(F32, &v),
            layout: Layout::contiguous(Shape::of(&[n * n])),
            shape: Shape::of(&[n, n]),
            values: decode(F32, &encode(F32, &v)),
        }
    };
    let (a, b) = (pairs(&|i| i / n), pairs(&|i| i % n));
    let got = map(program(Prim::Binary(Binary::Pow), 2, F32, F32), &[&a, &b], F32, &[]);
    let want: Vec<f64> = a.values.iter().zip(&b.values).map(|(x, y)| round(F32, x.powf(*y))).collect();
    check("pow", &got, &want, 3e-7, 2e-45);
}

/// (x · 2 + y) clipped below by a parameter, where y > 0, else x.
fn long_program(dtype: DType) -> Program {
    let mut p = Program::default();
    let mut push = |op, args, dtype| p.push(Inst { op, args, dtype });
    let x = push(Prim::Source(0), [0; 3], dtype);
    let y = push(Prim::Source(1), [0; 3], dtype);
    let two = push(Prim::Lit(2f64.to_bits()), [0; 3], dtype);
    let low = push(Prim::Param(1), [0; 3], dtype);
    let zero = push(Prim::Lit(0), [0; 3], dtype);
    let a = push(Prim::Binary(Binary::Mul), [x, two, 0], dtype);
    let b = push(Prim::Binary(Binary::Add), [a, y, 0], dtype);
    let c = push(Prim::Binary(Binary::Max), [b, low, 0], dtype);
    let positive = push(Prim::Binary(Binary::Gt), [y, zero, 0], Bool);
    push(Prim::Where, [positive, c, x], dtype);
    p
}

#[test]
fn maps_read_and_write_any_layout() {
    let mut noise = Noise(4);
    for dtype in [F32, F16, F64, I32, U8, I64] {
        let low = if dtype == U8 { 0.0 } else { -20.0 };
        for dims in [vec![1, 1], vec![5, 3], vec![37, 29], vec![3, 2000], vec![2, 3, 7, 5]] {
            for layout in LAYOUTS {
                for other in ["contiguous", "transposed", "rows repeated"] {
                    let x = operand(dtype, &dims, layout, &mut noise, low, 20.0);
                    let y = operand(dtype, &dims, other, &mut noise, low, 20.0);
                    let want: Vec<f64> = x
                        .values
                        .iter()
                        .zip(&y.values)
                        .map(|(&x, &y)| round(dtype, if y > 0.0 { (x * 2.0 + y).max(3.0) } else { x }))
                        .collect();
                    let case = format!("{dtype} {dims:?} {layout} {other}");
                    let got = map(long_program(dtype), &[&x, &y], dtype, &[9.0, 3.0]);
                    check(&case, &got, &want, 0.0, 0.0);
                    // Into a window of a larger buffer, transposed, at an offset given at run time.
                    let n = x.shape.count();
                    let window = operand(dtype, &dims, "transposed", &mut noise, 0.0, 1.0).layout;
                    let to = Source { buf: Buf::Output(0), dtype, layout: window, offset: Some(0), aligned: false };
                    let sources = vec![x.source(0), y.source(1)];
                    let store = Store { shape: x.shape, program: long_program(dtype), sources, target: to };
                    let got = run(step("map", Work::Map, vec![], vec![store], vec![]), &[&x, &y], &[(dtype, n + 9)], &[9.0, 3.0]).remove(0);
                    let got: Vec<f64> = (0..n).map(|i| got[window.at(i) + 9]).collect();
                    check(&case, &got, &want, 0.0, 0.0);
                }
            }
        }
    }
}

#[test]
fn copies_keep_every_bit() {
    let mut noise = Noise(5);
    for dtype in [F32, F16, BF16, F64, I32, U32, I8, U8, Bool, I64] {
        for layout in LAYOUTS {
            let x = operand(dtype, &[41, 53], layout, &mut noise, 0.0, 100.0);
            check(&format!("{dtype} {layout}"), &map(Program::identity(dtype), &[&x], dtype, &[]), &x.values, 0.0, 0.0);
        }
    }
}

#[test]
fn results_larger_than_the_caches_are_written_whole() {
    // From an odd element on, so that no vector is aligned.
    let n = 6_400_003;
    let values: Vec<f64> = (0..n + 1).map(|i| (i % 8191) as f64).collect();
    let layout = Layout { offset: 1, ..Layout::contiguous(Shape::of(&[n])) };
    let x = Operand { dtype: F32, bytes: encode(F32, &values), layout, shape: Shape::of(&[n]), values: values[1..].to_vec() };
    let to = Source { buf: Buf::Output(0), dtype: F32, layout, offset: None, aligned: false };
    let store = Store { shape: x.shape, program: program(Prim::Unary(Unary::Neg), 1, F32, F32), sources: vec![x.source(0)], target: to };
    let got = run(step("map", Work::Map, vec![], vec![store], vec![]), &[&x], &[(F32, n + 1)], &[]).remove(0);
    check("negated", &got[1..], &x.values.iter().map(|v| -v).collect::<Vec<_>>(), 0.0, 0.0);
}

#[test]
fn sibling_stores_see_the_old_values() {
    // p ← p + m and m ← 2 m in place, with p's program after m's: both read what was there before.
    let machine = &MACHINES[1];
    let n = 70_001;
    let shape = Shape::of(&[n]);
    let values: Vec<f64> = (0..n).map(|i| (i % 1000) as f64).collect();
    let source = |b| Source { buf: Buf::Input(b), dtype: F32, layout: Layout::contiguous(shape), offset: None, aligned: true };
    let store = |op, sources: Vec<Source>, target| Store { shape, program: program(Prim::Binary(op), 2, F32, F32), sources, target };
    let plan = Arc::new(Plan {
        steps: vec![step(
            "map",
            Work::Map,
            vec![],
            vec![store(Binary::Add, vec![source(0), source(0)], source(0)), store(Binary::Add, vec![source(1), source(0)], source(1))],
            vec![],
        )],
        inputs: vec![Input { dtype: F32, written: true }; 2],
        outputs: vec![],
        slots: vec![],
        params: 0,
    });
    let m = machine.upload(Bytes::Owned(Arc::new(encode(F32, &values)))).unwrap();
    let p = machine.upload(Bytes::Owned(Arc::new(encode(F32, &vec![1.0; n])))).unwrap();
    machine.run(&plan, &[m.clone(), p.clone()], &[], &[]).unwrap();
    let mut bytes = vec![0; 4 * n];
    machine.read(&p, 0, &mut bytes).unwrap();
    check("p", &decode(F32, &bytes), &values.iter().map(|v| v + 1.0).collect::<Vec<_>>(), 0.0, 0.0);
    machine.read(&m, 0, &mut bytes).unwrap();
    check("m", &decode(F32, &bytes), &values.iter().map(|v| v * 2.0).collect::<Vec<_>>(), 0.0, 0.0);
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

#[test]
fn reductions_match_f64() {
    use ReduceOp::*;
    let mut noise = Noise(6);
    for op in [Sum, Mean, Max, Min, Prod, ArgMax, ArgMin, Choice] {
        for dtype in [F32, F16, F64, I32] {
            for (rows, cols) in [(1, 1), (5, 3), (130, 77), (3, 40_000), (1, 100_003), (700, 64)] {
                for layout in ["contiguous", "transposed", "reversed"] {
                    let (low, high) = if op == Prod { (1.0, 1.0 + 1.0 / cols as f64) } else { (-9.0, 9.0) };
                    let x = operand(dtype, &[rows, cols], layout, &mut noise, low, high);
                    let out = if matches!(op, ArgMax | ArgMin | Choice) { I32 } else { dtype };
                    let got = kernel(ReduceKernel { op }, &[&x], 1, plain_store(&[rows], out), &[]);
                    let pick = |row: &[f64], better: &dyn Fn(f64, f64) -> bool| {
                        (1..row.len()).fold(0, |best, i| if better(row[i], row[best]) { i } else { best })
                    };
                    let size = |row: &[f64]| row.iter().map(|x| x.abs()).sum::<f64>();
                    let want: Vec<f64> = x
                        .values
                        .chunks(cols)
                        .map(|r| match op {
                            Sum => r.iter().sum(),
                            Mean if dtype == I32 => (r.iter().sum::<f64>() / cols as f64).trunc(),
                            Mean => r.iter().sum::<f64>() / cols as f64,
                            Max => r.iter().copied().fold(f64::MIN, f64::max),
                            Min => r.iter().copied().fold(f64::MAX, f64::min),
                            Prod => r.iter().product(),
                            ArgMax | Choice => pick(r, &|a, b| a > b) as f64,
                            ArgMin => pick(r, &|a, b| a < b) as f64,
                        })
                        .collect();
                    let atol = match op {
                        Sum if dtype != I32 => x.values.chunks(cols).map(size).fold(0.0, f64::max) * 2e-7,
                        Mean if dtype != I32 => 2e-6,
                        _ => 0.0,
                    };
                    let steps = if op == Prod { cols as f64 } else { 60.0 };
                    let rtol = if dtype == I32 { 0.0 } else { 6e-8 * steps + epsilon(dtype) };
                    let want: Vec<f64> = want.into_iter().map(|w| if dtype == I32 { round(I32, w) } else { w }).collect();
                    check(&format!("{op:?} {dtype} [{rows},{cols}] {layout}"), &got, &want, rtol, atol);
                }
            }
        }
    }
    let with_nan = |mut x: Operand| {
        x.values[7] = f64::NAN;
        x.bytes = encode(F32, &x.values);
        x
    };
    let x = with_nan(operand(F32, &[1, 20_000], "contiguous", &mut noise, -1.0, 1.0));
    for (op, want) in [(Max, f64::NAN), (Min, f64::NAN), (ArgMax, 7.0), (ArgMin, 7.0), (Choice, -1.0)] {
        let out = if matches!(op, ArgMax | ArgMin | Choice) { I32 } else { F32 };
        check("nan", &kernel(ReduceKernel { op }, &[&x], 1, plain_store(&[1], out), &[]), &[want], 0.0, 0.0);
    }
    let empty = Operand { shape: Shape::of(&[2, 0]), layout: Layout::contiguous(Shape::of(&[2, 0])), values: vec![], ..x };
    for (op, want) in [(Sum, 0.0), (Mean, f64::NAN), (Prod, 1.0)] {
        check("empty", &kernel(ReduceKernel { op }, &[&empty], 1, plain_store(&[2], F32), &[]), &[want; 2], 0.0, 0.0);
    }
}

#[test]
fn softmax_and_norms_match_f64() {
    let mut noise = Noise(7);
    for dtype in [F32, BF16, F64] {
        let tolerance = epsilon(dtype) * 2.0 + if dtype == F64 { 1e-12 } else { 3e-6 };
        for (rows, cols) in [(1, 1), (3, 7), (65, 129), (2, 5000)] {
            for layout in ["contiguous", "transposed"] {
                let x = operand(dtype, &[rows, cols], layout, &mut noise, -8.0, 8.0);
                let w = operand(dtype, &[1, cols], "contiguous", &mut noise, 0.5, 2.0);
                let b = operand(dtype, &[1, cols], "contiguous", &mut noise, -1.0, 1.0);
                let case = format!("{dtype} [{rows},{cols}] {layout}");
                for log in [false, true] {
                    let got = kernel(SoftmaxKernel { log }, &[&x], 1, plain_store(&[rows, cols], dtype), &[]);
                    let want: Vec<f64> = x
                        .values
                        .chunks(cols)
                        .flat_map(|r| {
                            let max = r.iter().copied().fold(f64::MIN, f64::max);
                            let sum: f64 = r.iter().map(|x| (x - max).exp()).sum();
                            r.iter().map(move |x| if log { x - max - sum.ln() } else { (x - max).exp() / sum }).collect::<Vec<_>>()
                        })
                        .collect();
                    check(&format!("softmax {log} {case}"), &got, &want, tolerance, if log { 4e-6 } else { 1e-30 });
                }
                for (rms, weight, bias) in [(false, true, true), (true, true, false), (false, false, false), (false, false, true)] {
                    let k = NormKernel { rms, eps: 1e-5, weight, bias };
                    let mut inputs = vec![&x];
                    let mut flat = [w.clone(), b.clone()];
                    flat.iter_mut().for_each(|o| o.shape = Shape::of(&[cols]));
                    inputs.extend(weight.then_some(&flat[0]));
                    inputs.extend(bias.then_some(&flat[1]));
                    let got = kernel(k, &inputs, inputs.len(), plain_store(&[rows, cols], dtype), &[]);
                    let want: Vec<f64> = x
                        .values
                        .chunks(cols)
                        .flat_map(|r| {
                            let mean = if rms { 0.0 } else { r.iter().sum::<f64>() / cols as f64 };
                            let var = r.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / cols as f64;
                            let one = |(i, x): (usize, &f64)| {
                                (x - mean) / (var + 1e-5f32 as f64).sqrt() * if weight { w.values[i] } else { 1.0 }
                                    + if bias { b.values[i] } else { 0.0 }
                            };
                            r.iter().enumerate().map(one).collect::<Vec<_>>()
                        })
                        .collect();
                    check(&format!("norm rms {rms} {case}"), &got, &want, tolerance, if dtype == F64 { 1e-12 } else { 4e-6 });
                }
            }
        }
    }
}

#[test]
fn matmul_matches_f64() {
    let mut noise = Noise(8);
    for (da, db) in [(F32, F32), (F16, F16), (F32, BF16), (F64, F64), (I32, I32)] {
        for [batch, m, n, k] in [
            [1, 1, 1, 1],
            [1, 1, 1037, 96],
            [1, 5, 70, 33],
            [3, 1, 45, 64],
            [2, 3, 40, 50],
            [1, 70, 300, 65],
            [3, 33, 17, 40],
            [1, 600, 3, 20],
        ] {
            for (la, lb) in [
                ("contiguous", "contiguous"),
                ("contiguous", "transposed"),
                ("transposed", "contiguous"),
                ("reversed", "sliced"),
                ("rows repeated", "offset"),
            ] {
                let integer = da == I32;
                let a = operand(da, &[batch, m, k], la, &mut noise, -2.0, 2.0);
                let b = operand(db, &[batch, n, k], lb, &mut noise, -2.0, 2.0);
                let out = if integer || da == F64 { da } else { F32 };
                let bias = operand(out, &[batch, m, n], "rows repeated", &mut noise, -2.0, 2.0);
                let product = |i: usize| {
                    let (bt, row, col) = (i / (m * n), i / n % m, i % n);
                    (0..k).map(|x| a.values[(bt * m + row) * k + x] * b.values[(bt * n + col) * k + x]).sum::<f64>()
                };
                let want: Vec<f64> = (0..batch * m * n).map(product).collect();
                let case = format!("{da} {db} [{batch},{m},{n},{k}] {la} {lb}");
                let (rtol, atol) = if integer { (0.0, 0.0) } else { (1e-6, if da == F64 { 1e-12 } else { 2e-6 * k as f64 }) };
                let got = kernel(MatMulKernel, &[&a, &b], 2, plain_store(&[batch, m, n], out), &[]);
                check(&case, &got, &want, rtol, atol);
                let got = kernel(MatMulKernel, &[&a, &b, &bias], 2, adding_store(&bias, 2), &[]);
                let want: Vec<f64> = want.iter().zip(&bias.values).map(|(x, y)| x + y).collect();
                check(&format!("{case} + bias"), &got, &want, rtol, atol);
            }
        }
    }
}

/// Blocks of Q8_0 with a scale of 1: every value is a small integer.
fn q8_0(rows: usize, cols: usize, noise: &mut Noise) -> Operand {
    let values: Vec<f64> = noise.values(rows * cols, -9.0, 9.0).into_iter().map(f64::trunc).collect();
    let mut bytes = Vec::new();
    for block in values.chunks(32) {
        bytes.extend(f16::from_f32(1.0).to_le_bytes());
        bytes.extend(block.iter().map(|&x| x as i8 as u8));
    }
    let shape = Shape::of(&[1, rows, cols]);
    Operand { dtype: Q8_0, bytes, layout: Layout::contiguous(shape).simplified(), shape, values }
}

#[test]
fn block_formats_are_read_everywhere() {
    let mut noise = Noise(9);
    let w = q8_0(301, 96, &mut noise);
    for m in [1, 4, 40] {
        let a = operand(F32, &[1, m, 96], "contiguous", &mut noise, -2.0, 2.0);
        let want: Vec<f64> =
            (0..m * 301).map(|i| (0..96).map(|k| a.values[i / 301 * 96 + k] * w.values[i % 301 * 96 + k]).sum::<f64>()).collect();
        let got = kernel(MatMulKernel, &[&a, &w], 2, plain_store(&[1, m, 301], F32), &[]);
        check(&format!("q8_0 matmul of {m} rows"), &got, &want, 1e-5, 2e-4);
    }
    let flat = Operand { shape: Shape::of(&[301, 96]), ..w };
    check("q8_0 decode", &map(Program::identity(Q8_0), &[&flat], F32, &[]), &flat.values, 0.0, 0.0);
    // A window that starts and ends within blocks.
    let view = Layout::contiguous(flat.shape).slice(1, 5, 70, 1);
    let want: Vec<f64> = (0..301 * 70).map(|i| flat.values[view.at(i)]).collect();
    let part = Operand { layout: view.simplified(), shape: Shape::of(&[301, 70]), ..flat.clone() };
    check("q8_0 window", &map(Program::identity(Q8_0), &[&part], F32, &[]), &want, 0.0, 0.0);
    let idx = Operand { shape: Shape::of(&[3]), ..operand(I32, &[1, 3], "contiguous", &mut noise, 0.0, 300.0) };
    let want: Vec<f64> = idx.values.iter().flat_map(|&i| flat.values[i as usize * 96..][..96].to_vec()).collect();
    check("q8_0 gather", &kernel(GatherKernel, &[&flat, &idx], 2, plain_store(&[3, 96], F32), &[]), &want, 0.0, 0.0);
}

#[test]
fn attention_matches_f64() {
    let mut noise = Noise(10);
    for dtype in [F32, F16, F64] {
        for ([b, h, hkv, t, s, d, dv], valid) in
            [([1, 4, 2, 1, 40, 16, 16], 33), ([2, 3, 3, 7, 7, 8, 12], 7), ([1, 2, 1, 70, 600, 32, 32], 530), ([1, 1, 1, 5, 9, 4, 4], 3)]
        {
            for (causal, window, mask, layout) in [
                (false, 0, false, "contiguous"),
                (true, 0, false, "transposed"),
                (true, 20, false, "contiguous"),
                (true, 0, true, "sliced"),
                (false, 6, true, "contiguous"),
            ] {
                let q = operand(dtype, &[b, h, t, d], layout, &mut noise, -1.0, 1.0);
                let k = operand(dtype, &[b, hkv, s, d], layout, &mut noise, -1.0, 1.0);
                let v = operand(dtype, &[b, hkv, s, dv], layout, &mut noise, -1.0, 1.0);
                let m = operand(dtype, &[b, h, t, s], "rows repeated", &mut noise, -3.0, 1.0);
                let kernel_of = AttentionKernel { causal, scale: 0.7, window, mask, sums: false };
                let mut inputs = vec![&q, &k, &v];
                inputs.extend(mask.then_some(&m));
                let got = kernel(kernel_of, &inputs, inputs.len(), plain_store(&[b, h, t, dv], dtype), &[valid as f64]);
                let mut want = vec![0.0; b * h * t * dv];
                for (row, out) in want.chunks_mut(dv).enumerate() {
                    let (bt, head, at) = (row / (h * t), row / t % h, row % t);
                    let kv = bt * hkv + head / (h / hkv);
                    let position = valid as i64 - t as i64 + at as i64;
                    let sees = |j: usize| {
                        let j = j as i64;
                        (!causal || j <= position) && (window == 0 || j > position - window as i64)
                    };
                    let seen: Vec<usize> = (0..valid).filter(|&j| sees(j)).collect();
                    let score = |j: usize| {
                        let dot: f64 = (0..d).map(|x| q.values[row * d + x] * k.values[(kv * s + j) * d + x]).sum();
                        dot * 0.7 + if mask { m.values[row * s + j] } else { 0.0 }
                    };
                    let weights: Vec<f64> = seen.iter().map(|&j| score(j).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    for (x, o) in out.iter_mut().enumerate() {
                        *o = seen.iter().zip(&weights).map(|(&j, w)| w * v.values[(kv * s + j) * dv + x]).sum::<f64>()
                            / if sum > 0.0 { sum } else { 1.0 };
                    }
                }
                let tolerance = if dtype == F64 { 1e-12 } else { 3e-6 + epsilon(dtype) };
                check(
                    &format!("{dtype} {:?} {valid} causal {causal} window {window} mask {mask} {layout}", [b, h, hkv, t, s, d, dv]),
                    &got,
                    &want,
                    tolerance,
                    tolerance,
                );
            }
        }
    }
}

#[test]
fn gather_copies_rows() {
    let mut noise = Noise(11);
    for dtype in [F32, F16, I32, U8, F64] {
        for index in [I32, U32, I64] {
            for (n, inner, count) in [(1, 1, 1), (50, 7, 300), (9, 5001, 13)] {
                for layout in ["contiguous", "transposed"] {
                    let table = operand(dtype, &[n, inner], layout, &mut noise, 0.0, 200.0);
                    let idx = operand(index, &[1, count], "contiguous", &mut noise, 0.0, n as f64);
                    let idx = Operand { shape: Shape::of(&[count]), ..idx };
                    let want: Vec<f64> = idx.values.iter().flat_map(|&i| table.values[i as usize * inner..][..inner].to_vec()).collect();
                    let got = kernel(GatherKernel, &[&table, &idx], 2, plain_store(&[count, inner], dtype), &[]);
                    check(&format!("{dtype} {index} [{n},{inner}] {count} {layout}"), &got, &want, 0.0, 0.0);
                }
            }
        }
    }
}

/// A plan of one step over one input and one output of f32.
fn small_plan(step: Step, inputs: usize, bytes: usize) -> Arc<Plan> {
    Arc::new(Plan {
        steps: vec![step],
        inputs: vec![Input { dtype: F32, written: false }; inputs],
        outputs: vec![Output { dtype: F32, bytes }],
        slots: vec![],
        params: 1,
    })
}

#[test]
fn a_bad_index_is_an_error_of_the_next_read() {
    let machine = CpuMachine::with_threads(2);
    for bad in [-1.0, 4.0] {
        let upload = |d, v: &[f64]| machine.upload(Bytes::Owned(Arc::new(encode(d, v)))).unwrap();
        let (table, idx) = (upload(F32, &[1.0, 2.0, 3.0, 4.0]), upload(I32, &[1.0, bad]));
        let source = |n, dtype, dims: &[usize]| Source {
            buf: Buf::Input(n),
            dtype,
            layout: Layout::contiguous(Shape::of(dims)),
            offset: None,
            aligned: true,
        };
        let load = |n, dtype, dims: &[usize]| Load {
            shape: Shape::of(dims),
            program: Program::identity(dtype),
            sources: vec![source(n, dtype, dims)],
        };
        let loads = vec![load(0, F32, &[4, 1]), load(1, I32, &[2])];
        let plan = small_plan(step("gather", Work::Kernel(Arc::new(GatherKernel)), loads, vec![plain_store(&[2, 1], F32)], vec![]), 2, 8);
        let out = machine.alloc(8).unwrap();
        machine.run(&plan, &[table, idx], std::slice::from_ref(&out), &[0.0]).unwrap();
        let mut bytes = [0; 8];
        let error = machine.read(&out, 0, &mut bytes).unwrap_err();
        assert!(matches!(&error, TensorError::Index { op: "gather", .. }) && error.to_string().contains("of size 4"), "{error}");
        machine.read(&out, 0, &mut bytes).unwrap();
    }
}

#[test]
fn a_window_outside_its_buffer_is_refused() {
    let machine = CpuMachine::with_threads(2);
    let shape = Shape::of(&[8]);
    let source = Source { buf: Buf::Input(0), dtype: F32, layout: Layout::contiguous(shape), offset: Some(0), aligned: false };
    let store = Store { shape, program: Program::identity(F32), sources: vec![source], target: target(0, F32, shape) };
    let plan = small_plan(step("slice", Work::Map, vec![], vec![store], vec![]), 1, 32);
    let x = machine.upload(Bytes::Owned(Arc::new(vec![0; 64]))).unwrap();
    let out = machine.alloc(32).unwrap();
    for (start, fits) in [(0.0, true), (8.0, true), (9.0, false), (-1.0, false), (f64::NAN, false), (1e300, false)] {
        let result = machine.run(&plan, std::slice::from_ref(&x), std::slice::from_ref(&out), &[start]);
        assert_eq!(result.is_ok(), fits, "start {start}");
    }
}

/// A kernel that panics on one of its threads while the others wait for it.
struct Panics;
impl Kernel for Panics {
    fn cpu(&self, task: &dyn Task) {
        if task.thread() == 1 {
            std::panic::resume_unwind(Box::new("a bug"));
        }
        task.barrier();
    }
    fn ops(&self, _step: &Step) -> u64 {
        u64::MAX
    }
    fn wgsl(&self, _step: &Step, _adapter: &AdapterInfo) -> Option<Wgsl> {
        None
    }
}

#[test]
fn a_panic_in_a_kernel_is_an_error_and_the_machine_goes_on() {
    let machine = CpuMachine::with_threads(3);
    let plan = small_plan(step("bug", Work::Kernel(Arc::new(Panics)), vec![], vec![plain_store(&[1], F32)], vec![]), 0, 4);
    let out = machine.alloc(4).unwrap();
    for _ in 0..3 {
        assert!(machine.run(&plan, &[], std::slice::from_ref(&out), &[0.0]).is_err());
    }
}

#[allow(irrefutable_let_patterns)]
fn host(b: &Buffer) -> &super::CpuBuffer {
    let Buffer::Cpu(b) = b else { panic!("not host memory") };
    b
}

#[test]
fn memory_is_pooled_and_counted() {
    let machine = CpuMachine::with_threads(1);
    let a = machine.alloc(1000).unwrap();
    let b = host(&a);
    assert!(b.len() == 1000 && b.as_ptr() as usize % 64 == 0 && a.is_unique());
    let held = machine.memory().in_use;
    assert!(held >= 1000);
    let copy = a.clone();
    assert!(!a.is_unique() && a.same(&copy));
    drop((a, copy));
    let stats = machine.memory();
    assert!(stats.in_use == 0 && stats.pooled == held && stats.peak == held, "{stats:?}");
    let again = machine.alloc(990).unwrap();
    assert_eq!(machine.memory().reused, 1);
    drop(again);
    machine.pool().shrink(0);
    assert_eq!(machine.memory().pooled, 0);
    assert!(matches!(machine.alloc(usize::MAX / 4), Err(TensorError::OutOfMemory { .. })));
    // A part of something shared is read in place and never written.
    let owner: Arc<dyn std::ops::Deref<Target = [u8]> + Send + Sync> = Arc::new(vec![7u8; 64]);
    let at = owner.as_ptr();
    let shared = machine.upload(Bytes::Shared(owner, 8, 16)).unwrap();
    let s = host(&shared);
    assert!(std::ptr::eq(s.as_ptr(), at.wrapping_add(8)) && !shared.is_unique());
    let mut bytes = [0; 16];
    machine.read(&shared, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 16]);
    assert!(machine.read(&shared, 1, &mut bytes).is_err());
}

#[test]
fn many_small_and_large_steps_stay_in_order() {
    // Each step adds 1 to a slot; sizes alternate between one thread and all of them.
    let sizes = [10, 50_000, 10, 10, 90_000, 7];
    let shape = |n| Shape::of(&[n]);
    let mut p = Program::identity(F32);
    let one = p.push(Inst { op: Prim::Lit(1f64.to_bits()), args: [0; 3], dtype: F32 });
    p.push(Inst { op: Prim::Binary(Binary::Add), args: [0, one, 0], dtype: F32 });
    let at = |buf, n| Source { buf, dtype: F32, layout: Layout::contiguous(shape(n)), offset: None, aligned: true };
    let mut steps = vec![];
    for i in 0..60 {
        let n = sizes[i % 6];
        let from = if i < 2 { Buf::Input(0) } else { Buf::Slot((i % 2) as u16) };
        let store =
            Store { shape: shape(n), program: p.clone(), sources: vec![at(from, n)], target: at(Buf::Slot(((i + 1) % 2) as u16), n) };
        steps.push(step("add", Work::Map, vec![], vec![store], vec![]));
    }
    let copy =
        Store { shape: shape(7), program: Program::identity(F32), sources: vec![at(Buf::Slot(0), 7)], target: at(Buf::Output(0), 7) };
    steps.push(step("copy", Work::Map, vec![], vec![copy], vec![]));
    let plan = Arc::new(Plan {
        steps,
        inputs: vec![Input { dtype: F32, written: false }],
        outputs: vec![Output { dtype: F32, bytes: 28 }],
        slots: vec![360_000; 2],
        params: 0,
    });
    let results: Vec<Vec<f64>> = MACHINES
        .iter()
        .map(|machine| {
            let x = machine.upload(Bytes::Owned(Arc::new(encode(F32, &vec![0.0; 90_000])))).unwrap();
            let out = machine.alloc(28).unwrap();
            let mut bytes = vec![0; 28];
            for _ in 0..200 {
                machine.run(&plan, std::slice::from_ref(&x), std::slice::from_ref(&out), &[]).unwrap();
                machine.read(&out, 0, &mut bytes).unwrap();
                assert_eq!(decode(F32, &bytes), vec![59.0; 7]);
            }
            decode(F32, &bytes)
        })
        .collect();
    assert_eq!(results[0], results[2]);
}

#[test]
fn products_that_were_joined_for_a_gpu_run_here_too() {
    let (mut noise, m, k, n) = (Noise(21), 3, 40, 19);
    let x = operand(F32, &[1, m, k], "contiguous", &mut noise, -2.0, 2.0);
    let rights: Vec<Operand> = (0..2).map(|_| operand(F16, &[1, n, k], "contiguous", &mut noise, -1.0, 1.0)).collect();
    let [weight, bias] = [0, 1].map(|_| Operand { shape: Shape::of(&[k]), ..operand(F32, &[1, k], "contiguous", &mut noise, -1.0, 1.0) });
    for (rms, has_bias) in [(None, false), (Some(true), false), (Some(false), true)] {
        let norm = rms.map(|rms| Normalization { rms, eps: 1e-5, weight: true, bias: has_bias });
        let mut inputs = vec![&x, &rights[0], &rights[1]];
        inputs.extend(norm.iter().map(|_| &weight).chain(has_bias.then_some(&bias)));
        let loads = inputs.iter().enumerate().map(|(i, o)| o.load(i as u16)).collect();
        // The second product's store adds what the first has written.
        let (shape, first) = (Shape::of(&[1, m, n]), target(0, F32, Shape::of(&[1, m, n])));
        let mut sum = Program::value(F32);
        let s = sum.push(Inst { op: Prim::Source(0), args: [0; 3], dtype: F32 });
        sum.push(Inst { op: Prim::Binary(Binary::Add), args: [0, s, 0], dtype: F32 });
        let stores = vec![
            Store { shape, program: Program::value(F32), sources: vec![], target: first.clone() },
            Store { shape, program: sum, sources: vec![first], target: target(1, F32, shape) },
        ];
        let kernel = crate::ops::products::ProductsKernel(Joined { products: 2, pair: true, fours: false, norm, kind: F16 });
        let got = run(step("products", Work::Kernel(Arc::new(kernel)), loads, stores, vec![]), &inputs, &[(F32, m * n), (F32, m * n)], &[]);
        let mut left = x.values.clone();
        for row in left.chunks_exact_mut(k).filter(|_| norm.is_some()) {
            let mean = if rms == Some(true) { 0.0 } else { row.iter().sum::<f64>() / k as f64 };
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / k as f64;
            for (i, v) in row.iter_mut().enumerate() {
                *v = (*v - mean) / (variance + 1e-5).sqrt() * weight.values[i] + if has_bias { bias.values[i] } else { 0.0 };
            }
        }
        let product = |p: usize, i: usize| (0..k).map(|j| left[i / n * k + j] * rights[p].values[i % n * k + j]).sum::<f64>();
        let want = |p: usize| (0..m * n).map(|i| product(0, i) + if p == 1 { product(1, i) } else { 0.0 }).collect::<Vec<_>>();
        check(&format!("first product, {rms:?}"), &got[0], &want(0), 1e-5, 1e-4);
        check(&format!("second product, {rms:?}"), &got[1], &want(1), 1e-5, 1e-4);
    }
}
