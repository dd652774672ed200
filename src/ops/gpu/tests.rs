//! The kernels on the machine's GPU against f64 arithmetic: odd sizes, element types, block formats, layouts. Skipped where there is no GPU.

use super::matmul::matmul_cut;
use super::matmul_coop::CUTS;
use super::*;
use crate::backends::gpu::GpuMachine;
use crate::backends::{Bytes, Machine};
use crate::dtype::DType;
use crate::layout::Layout;
use crate::ops::reduce::ReduceOp;
use crate::plan::{AdapterInfo, Buf, Input, Kernel, Output, Plan, Step, Store, SubgroupSync, Task, Wgsl, Work};
use crate::scalar::Program;
use crate::shape::Shape;
use std::sync::{Arc, OnceLock};

mod attention;
mod few_queries;
mod rows;

/// One machine for all tests; `None` skips them, unless `TL_REQUIRE_GPU=1`.
fn machine() -> Option<&'static GpuMachine> {
    static MACHINE: OnceLock<Option<Arc<GpuMachine>>> = OnceLock::new();
    let m = MACHINE.get_or_init(|| match GpuMachine::open("gpu").or_else(|_| GpuMachine::open("vulkan")) {
        Ok(m) => Some(m),
        Err(e) if std::env::var("TL_REQUIRE_GPU").is_ok_and(|v| v == "1") => panic!("{e}"),
        Err(_) => None,
    });
    m.as_deref()
}

type Make = Box<dyn Fn(&Step, &AdapterInfo) -> Option<Wgsl> + Send + Sync>;

/// A kernel that has a GPU form only.
struct OnlyGpu(Make);
impl Kernel for OnlyGpu {
    fn cpu(&self, _: &dyn Task) {
        unreachable!("run on a GPU");
    }
    fn ops(&self, _: &Step) -> u64 {
        1
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        (self.0)(step, adapter)
    }
}

/// An operand: the view that the kernel sees, and its values in row-major order of that view.
#[derive(Clone)]
struct Operand {
    dtype: DType,
    shape: Vec<usize>,
    layout: Layout,
    bytes: Vec<u8>,
    values: Vec<f64>,
}

/// Numbers that look random and are the same every time.
fn noise(n: usize, seed: u64) -> Vec<f64> {
    let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f64 / (1u64 << 24) as f64 * 2.0 - 1.0
        })
        .collect()
}

fn pack(values: &[f64], dtype: DType) -> Vec<u8> {
    let f: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    match dtype {
        DType::F32 => f.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => f.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
        DType::BF16 => f.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::I32 => values.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect(),
        DType::U32 => values.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect(),
        d => crate::quant::quantize(d, &f).unwrap(),
    }
}

fn unpack(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let word = |b: &[u8]| <[u8; 4]>::try_from(b).unwrap();
    match dtype {
        DType::I32 => bytes.chunks_exact(4).map(|b| i32::from_le_bytes(word(b)) as f64).collect(),
        DType::U32 => bytes.chunks_exact(4).map(|b| u32::from_le_bytes(word(b)) as f64).collect(),
        d => {
            let mut out = vec![0f32; bytes.len() / d.block_bytes() * d.block()];
            crate::quant::dequantize(d, bytes, &mut out).unwrap();
            out.into_iter().map(f64::from).collect()
        }
    }
}

impl Operand {
    fn new(dtype: DType, shape: &[usize], values: Vec<f64>) -> Operand {
        Operand::view(dtype, shape, Layout::contiguous(Shape::of(shape)), values)
    }
    /// A view of a buffer that holds `base`.
    fn view(dtype: DType, shape: &[usize], layout: Layout, base: Vec<f64>) -> Operand {
        let bytes = pack(&base, dtype);
        let stored = unpack(&bytes, dtype);
        let values = (0..layout.shape.count()).map(|i| stored[layout.at(i)]).collect();
        Operand { dtype, shape: shape.to_vec(), layout, bytes, values }
    }
    /// Elements of the view that have a new value.
    fn set(&mut self, value: impl Fn(usize) -> Option<f64>) {
        let mut stored = unpack(&self.bytes, self.dtype);
        for i in 0..self.values.len() {
            if let Some(v) = value(i) {
                stored[self.layout.at(i)] = v;
            }
        }
        self.bytes = pack(&stored, self.dtype);
        let stored = unpack(&self.bytes, self.dtype);
        self.values = (0..self.values.len()).map(|i| stored[self.layout.at(i)]).collect();
    }
    fn random(dtype: DType, shape: &[usize], seed: u64) -> Operand {
        Operand::new(dtype, shape, noise(shape.iter().product(), seed))
    }
    /// The same shape with its last two dimensions exchanged in memory.
    fn turned(dtype: DType, shape: &[usize], seed: u64) -> Operand {
        let r = shape.len();
        let mut stored = shape.to_vec();
        stored.swap(r - 2, r - 1);
        let mut order: Vec<usize> = (0..r).collect();
        order.swap(r - 2, r - 1);
        Operand::view(dtype, shape, Layout::contiguous(Shape::of(&stored)).permute(&order), noise(shape.iter().product(), seed))
    }
}

/// Runs the kernel over the operands and compares with `want`, to `tolerance` of the largest value.
///
/// Once as the adapter is, and once as one without subgroups, with the least workgroup memory and threads that there are.
#[track_caller]
fn check(
    name: &str,
    make: impl Fn(&Step, &AdapterInfo) -> Option<Wgsl> + Send + Sync + Clone + 'static,
    loads: &[Operand],
    out: (DType, &[usize]),
    params: &[f64],
    want: &[f64],
    tolerance: f64,
) {
    check_on(name, make.clone(), loads, out, params, want, tolerance);
    let least = move |s: &Step, a: &AdapterInfo| {
        make(s, &AdapterInfo { subgroup: 0, workgroup_bytes: 16384, workgroup_threads: 256, coop: 0, ..a.clone() })
    };
    check_on(&format!("{name}, least"), least, loads, out, params, want, tolerance);
}

#[track_caller]
fn check_on(
    name: &str,
    make: impl Fn(&Step, &AdapterInfo) -> Option<Wgsl> + Send + Sync + 'static,
    loads: &[Operand],
    out: (DType, &[usize]),
    params: &[f64],
    want: &[f64],
    tolerance: f64,
) {
    check_all(name, make, loads, &[(out.0, out.1, want)], params, tolerance);
}

/// The same with several results, each with its type, shape and values.
#[track_caller]
fn check_all(
    name: &str,
    make: impl Fn(&Step, &AdapterInfo) -> Option<Wgsl> + Send + Sync + 'static,
    loads: &[Operand],
    outs: &[(DType, &[usize], &[f64])],
    params: &[f64],
    tolerance: f64,
) {
    let Some(m) = machine() else { return };
    let source =
        |buf, dtype, layout: Layout| Source { buf, dtype, layout: layout.simplified(), offset: None, aligned: layout.offset % 8 == 0 };
    let step = Step {
        name: "test",
        at: std::panic::Location::caller(),
        work: Work::Kernel(Arc::new(OnlyGpu(Box::new(make)))),
        loads: loads
            .iter()
            .enumerate()
            .map(|(k, o)| Load {
                shape: Shape::of(&o.shape),
                program: Program::identity(o.dtype),
                sources: vec![source(Buf::Input(k as u16), o.dtype, o.layout)],
            })
            .collect(),
        stores: outs
            .iter()
            .enumerate()
            .map(|(n, (dtype, shape, _))| Store {
                shape: Shape::of(shape),
                program: Program::value(dtype.compute()),
                sources: vec![],
                target: source(Buf::Output(n as u16), *dtype, Layout::contiguous(Shape::of(shape))),
            })
            .collect(),
        params: (0..params.len() as u16).collect(),
    };
    let bytes = |(dtype, shape, _): &(DType, &[usize], &[f64])| Shape::of(shape).count() * dtype.block_bytes();
    let plan = Arc::new(Plan {
        steps: vec![step],
        inputs: loads.iter().map(|o| Input { dtype: o.dtype, written: false }).collect(),
        outputs: outs.iter().map(|o| Output { dtype: o.0, bytes: bytes(o) }).collect(),
        slots: vec![],
        params: params.len(),
    });
    let upload = |b: Vec<u8>| m.upload_as(Bytes::Owned(Arc::new(b)), m.default_mode()).unwrap();
    let inputs: Vec<_> = loads.iter().map(|o| upload(o.bytes.clone())).collect();
    // NaN in every float: what is not written shows.
    let outputs: Vec<_> = outs.iter().map(|o| upload(vec![0xFF; bytes(o)])).collect();
    m.run(&plan, &inputs, &outputs, params).unwrap_or_else(|e| panic!("{name}: {e}"));
    for ((dtype, shape, want), output) in outs.iter().zip(&outputs) {
        let mut got = vec![0; bytes(&(*dtype, *shape, *want))];
        m.read(output, 0, &mut got).unwrap_or_else(|e| panic!("{name}: {e}"));
        let got = unpack(&got, *dtype);
        assert_eq!(got.len(), want.len(), "{name}");
        let scale = want.iter().filter(|v| v.is_finite()).fold(1e-30f64, |m, v| m.max(v.abs()));
        let mut wrong = (0..want.len()).filter(|&i| {
            if want[i].is_finite() { !((got[i] - want[i]).abs() <= tolerance * scale) } else { got[i].to_string() != want[i].to_string() }
        });
        if let Some(i) = wrong.next() {
            panic!("{name}: element {i} of {shape:?} is {}, should be {}; {} are wrong", got[i], want[i], wrong.count() + 1);
        }
    }
}

const F32: DType = DType::F32;
const F16: DType = DType::F16;

fn product(a: &Operand, b: &Operand) -> Vec<f64> {
    let [batch, m, k] = a.shape[..] else { unreachable!() };
    let n = b.shape[1];
    let mut out = Vec::with_capacity(batch * m * n);
    for z in 0..batch {
        for i in 0..m {
            for j in 0..n {
                out.push((0..k).map(|x| a.values[(z * m + i) * k + x] * b.values[(z * n + j) * k + x]).sum());
            }
        }
    }
    out
}

#[test]
fn matmul_by_cooperative_matrices() {
    let Some(m) = machine() else { return };
    if m.info().coop == 0 {
        assert!(!std::env::var("TL_REQUIRE_GPU").is_ok_and(|v| v == "1"), "{} has no cooperative matrices", m.name());
        return;
    }
    // Not another form of the product.
    let only = |s: &Step, a: &AdapterInfo| {
        let w = matmul(s, a).filter(|w| w.source.contains("coopMultiplyAdd"));
        assert!(w.is_some(), "{:?} is not multiplied by matrices", s.loads);
        w
    };
    // As Metal loads matrices: not through vectors.
    let narrow =
        move |s: &Step, a: &AdapterInfo| only(s, &AdapterInfo { coop_vectors: false, subgroup_sync: SubgroupSync::None, ..a.clone() });
    let run = |name: &str, a: Operand, b: Operand, out: DType| {
        let want = product(&a, &b);
        let shape = [a.shape[0], a.shape[1], b.shape[1]];
        let tolerance = if out == F16 { 1e-3 } else { 2e-4 };
        let operands = [a, b];
        check_on(name, only, &operands, (out, &shape), &[], &want, tolerance);
        check_on(&format!("{name}, narrow"), narrow, &operands, (out, &shape), &[], &want, tolerance);
    };
    type Make = fn(DType, &[usize], u64) -> Operand;
    let layouts: [(&str, Make); 2] = [("rows", Operand::random), ("turned", Operand::turned)];
    for (batch, m, n, k) in [(2, 72, 136, 104), (3, 33, 12, 67), (1, 700, 600, 48), (2, 40, 72, 128), (1, 3, 40, 330), (1, 8, 136, 520)] {
        for (left, make_a) in layouts {
            for (right, make_b) in layouts {
                if batch == 1 && left != right {
                    continue;
                }
                let name = format!("{left} {right} {batch}x{m}x{n}x{k}");
                let out = if batch == 2 { F16 } else { F32 };
                run(&name, make_a(F16, &[batch, m, k], 11), make_b(F16, &[batch, n, k], 12), out);
            }
        }
    }
    // Heads of sequences: two dimensions of memory make the batch.
    let heads = |rows: usize, seed| {
        let layout = Layout::contiguous(Shape::of(&[2, rows, 3, 16])).permute(&[0, 2, 1, 3]);
        Operand::view(F16, &[6, rows, 16], layout, noise(96 * rows, seed))
    };
    run("heads", heads(40, 5), heads(24, 6), F32);
    // Heads side by side again, [B, H, T, D] read as rows of H·D, and as columns.
    let joined = |turned: bool, seed| {
        let l = Layout::contiguous(Shape::of(&[2, 3, 40, 16])).permute(&[0, 2, 1, 3]);
        let (l, shape) = if turned { (l.permute(&[2, 3, 0, 1]), [1, 48, 80]) } else { (l, [1, 80, 48]) };
        Operand::view(F16, &shape, l, noise(2 * 3 * 40 * 16, seed))
    };
    run("heads side by side", joined(false, 5), Operand::random(F16, &[1, 40, 48], 6), F16);
    run("heads side by side, turned", joined(true, 5), Operand::random(F16, &[1, 40, 80], 6), F16);
    for d in [DType::Q4_0, DType::Q4_K] {
        run(d.name(), Operand::turned(F16, &[1, 70, 256], 3), Operand::random(d, &[1, 33, 256], 4), F16);
    }
    // Rows that begin anywhere: written by aligned quads, one by one at the edges.
    for n in [33, 71, 130] {
        run(&format!("{n} columns"), Operand::random(F16, &[1, 75, 64], 7), Operand::random(F16, &[1, n, 64], 8), F16);
    }
}

#[test]
fn matmul_in_every_cut() {
    if machine().is_none_or(|m| m.info().coop == 0) {
        return;
    }
    for cut in CUTS {
        // Whole tiles of columns with a ragged end of rows, and nothing whole.
        for (batch, m, n, k) in [(2, 75, 128, 384), (2, 75, 90, 584)] {
            for turned in [[false, false], [false, true], [true, true]] {
                let make = |turned, shape: &[usize], seed| {
                    if turned { Operand::turned(F16, shape, seed) } else { Operand::random(F16, shape, seed) }
                };
                let operands = [make(turned[0], &[batch, m, k], 21), make(turned[1], &[batch, n, k], 22)];
                let want = product(&operands[0], &operands[1]);
                // One that does not fit an adapter is never chosen there.
                let by = move |s: &Step, a: &AdapterInfo| matmul_cut(cut, s, a).or_else(|| matmul(s, a));
                check_on(&format!("cut {cut} {batch}x{m}x{n}x{k} {turned:?}"), by, &operands, (F16, &[batch, m, n]), &[], &want, 1e-3);
            }
        }
    }
}

#[test]
fn matmul_of_every_weight_format() {
    let run = |name: String, a: Operand, b: Operand, out: DType| {
        let want = product(&a, &b);
        let shape = [a.shape[0], a.shape[1], b.shape[1]];
        check(&name, matmul, &[a, b], (out, &shape), &[], &want, if out == F16 { 1e-3 } else { 2e-5 });
    };
    for d in DType::WEIGHTS {
        for (m, n, k) in [
            (1, 1, 1),
            (1, 37, 256),
            (1, 576, 512),
            (2, 20, 768),
            (3, 5, 72),
            (5, 36, 1280),
            (8, 8, 256),
            (9, 7, 33),
            (20, 70, 512),
            (65, 68, 256),
            (1, 12, 4864),
            (8, 6, 2560),
        ] {
            for da in if m <= 2 && k > 512 { &[F32, F16][..] } else { &[F32] } {
                if k % d.block() == 0 {
                    run(format!("{da}·{d} {m}x{n}x{k}"), Operand::random(*da, &[1, m, k], 1), Operand::random(d, &[1, n, k], 2), F32);
                }
            }
        }
    }
    // A window of rows of a larger weight.
    for d in [F32, F16, DType::Q4_0, DType::Q4_1, DType::Q6_K] {
        let layout = Layout::contiguous(Shape::of(&[40, 512])).slice(0, 7, 21, 1);
        for m in [1, 30] {
            run(
                format!("{d} window, {m} rows"),
                Operand::random(F32, &[1, m, 512], 3),
                Operand::view(d, &[1, 21, 512], layout, noise(40 * 512, 4)),
                F32,
            );
        }
    }
    for (m, n, k) in [(1, 96, 64), (3, 33, 700), (8, 7, 5), (40, 50, 60), (17, 64, 32)] {
        for (da, db) in [(F32, F32), (F16, F16), (F32, F16)] {
            run(
                format!("turned weight {da} {db} {m}x{n}x{k}"),
                Operand::random(da, &[2, m, k], 5),
                Operand::turned(db, &[2, n, k], 6),
                F32,
            );
            run(format!("turned both {da} {db} {m}x{n}x{k}"), Operand::turned(da, &[2, m, k], 5), Operand::turned(db, &[2, n, k], 6), F32);
            run(format!("batch {da} {db} {m}x{n}x{k}"), Operand::random(da, &[3, m, k], 7), Operand::random(db, &[3, n, k], 8), F32);
            run(format!("f16 result {da} {db} {m}x{n}x{k}"), Operand::random(da, &[1, m, k], 7), Operand::random(db, &[1, n, k], 8), F16);
        }
    }
    run("many rows".into(), Operand::random(F32, &[1, 1, 64], 9), Operand::random(F16, &[1, 9001, 64], 10), F32);
    run("large tiles".into(), Operand::random(F32, &[1, 1500, 40], 9), Operand::random(F16, &[1, 1400, 40], 10), F32);
    run("middle tiles".into(), Operand::random(F32, &[1, 700, 64], 9), Operand::random(DType::Q8_0, &[1, 900, 64], 10), F32);
}

#[test]
fn a_row_times_long_weights_in_blocks() {
    let walk = |s: &Step, a: &AdapterInfo| {
        let w = matmul(s, a)?;
        assert!(a.subgroup < 8 || w.source.contains("rows_sum"), "another kernel");
        Some(w)
    };
    let run = |d: DType, n: usize, k: usize, out: DType, tolerance: f64, values: &dyn Fn(&mut Vec<f64>)| {
        let (mut a, b) = (Operand::random(F16, &[1, 1, k], 1), Operand::random(d, &[1, n, k], 2));
        let mut x = a.values.clone();
        values(&mut x);
        a = Operand::new(F16, &[1, 1, k], x);
        let want = product(&a, &b);
        check(&format!("{d} {n}x{k}"), walk, &[a, b], (out, &[1, 1, n]), &[], &want, tolerance);
    };
    for d in DType::WEIGHTS.into_iter().filter(|d| d.is_block()) {
        run(d, 1030, 8192, F32, 2e-5, &|_| ());
    }
    // Rows that end a workgroup's steps early; two items a thread; two rounds of them.
    run(DType::Q4_K, 4100, 2048, F16, 1e-3, &|_| ());
    run(DType::Q4_0, 4099, 2048, F32, 2e-5, &|_| ());
    run(DType::Q6_K, 900, 10240, F32, 2e-5, &|_| ());
    run(DType::Q8_0, 500, 17408, F32, 2e-5, &|_| ());
    // A few large activations, zeros, and the smallest ones.
    run(DType::Q4_1, 1028, 8192, F32, 1e-4, &|x| x.iter_mut().step_by(1000).for_each(|v| *v *= 1000.0));
    run(DType::Q5_0, 1028, 8192, F32, 2e-5, &|x| x[64..5000].fill(0.0));
    run(DType::Q4_K, 1028, 8192, F32, 2e-5, &|x| x.iter_mut().for_each(|v| *v *= 6e-8));
    // What is not a number comes through.
    run(DType::Q4_0, 1028, 8192, F32, 2e-5, &|x| x[77] = f64::NAN);
}

#[test]
fn unpacked_weights() {
    for d in DType::WEIGHTS.into_iter().filter(|d| d.is_block()) {
        for n in [1, 37, 600] {
            let b = Operand::random(d, &[n, 256], 1);
            let want = b.values.clone();
            check(&format!("{d}, {n} rows"), super::unpack, &[b], (F16, &[n, 256]), &[], &want, 5e-4);
        }
        // Some rows of a larger weight.
        let layout = Layout::contiguous(Shape::of(&[40, 512])).slice(0, 7, 21, 1);
        let b = Operand::view(d, &[21, 512], layout, noise(40 * 512, 2));
        let want = b.values.clone();
        check(&format!("{d}, a window"), super::unpack, &[b], (F32, &[21, 512]), &[], &want, 1e-6);
    }
}

#[test]
fn reductions_of_rows() {
    use ReduceOp::{ArgMax, ArgMin, Choice, Max, Mean, Min, Prod, Sum};
    let ops = [Sum, Mean, Max, Min, Prod, ArgMax, ArgMin, Choice];
    let fold = |op: ReduceOp, row: &[f64]| {
        let best = |sign: f64| {
            let nan = row.iter().position(|v| v.is_nan());
            nan.unwrap_or_else(|| (0..row.len()).fold(0, |b, i| if row[i] * sign > row[b] * sign { i } else { b }))
        };
        match op {
            ReduceOp::Sum => row.iter().sum(),
            ReduceOp::Mean => row.iter().sum::<f64>() / row.len() as f64,
            ReduceOp::Prod => row.iter().product(),
            ReduceOp::Max => row[best(1.0)],
            ReduceOp::Min => row[best(-1.0)],
            ReduceOp::ArgMax => best(1.0) as f64,
            ReduceOp::ArgMin => best(-1.0) as f64,
            ReduceOp::Choice => {
                if row.iter().any(|v| v.is_nan()) {
                    -1.0
                } else {
                    best(1.0) as f64
                }
            }
        }
    };
    for op in ops {
        let index = matches!(op, ArgMax | ArgMin | Choice);
        let run = |name: &str, x: Operand| {
            let (rows, cols) = (x.shape[0], x.shape[1]);
            let want: Vec<f64> = (0..rows).map(|r| fold(op, &x.values[r * cols..(r + 1) * cols])).collect();
            let out = if index { DType::I32 } else { x.dtype.compute() };
            let label = format!("{op:?} {} {name} {rows}x{cols}", x.dtype);
            check(
                &label,
                move |s, a| reduce(op, s, a),
                &[x],
                (out, &[rows]),
                &[],
                &want,
                if index {
                    0.0
                } else if op == ReduceOp::Prod {
                    3e-5
                } else {
                    3e-6
                },
            );
        };
        for (rows, cols) in [
            (1, 1),
            (1, 5),
            (3, 64),
            (7, 33),
            (70, 2),
            (100, 8),
            (2000, 17),
            (1030, 64),
            (5, 1000),
            (2, 40_003),
            (1, 50_257),
            (1, 65_536),
            (5000, 100),
        ] {
            // Factors near 1 keep products in range.
            let values = |seed| {
                noise(rows * cols, seed).into_iter().map(|v| if op == ReduceOp::Prod { 1.0 + v / 64.0 } else { v }).collect::<Vec<_>>()
            };
            run("random", Operand::new(F32, &[rows, cols], values(1)));
            run("random", Operand::new(F16, &[rows, cols], values(2)));
            let turned = Layout::contiguous(Shape::of(&[cols, rows])).permute(&[1, 0]);
            run("turned", Operand::view(F32, &[rows, cols], turned, values(3)));
            if op != Prod && op != Mean && op != Choice {
                let whole: Vec<f64> = values(4).into_iter().map(|v| (v * 1000.0).round()).collect();
                run("whole", Operand::new(DType::I32, &[rows, cols], whole.clone()));
                run("whole", Operand::new(DType::U32, &[rows, cols], whole.iter().map(|v| v + 1000.0).collect()));
            }
        }
        if op != ReduceOp::Prod {
            let mut values = noise(4 * 300, 5);
            values[0] = f64::NAN;
            values[300 + 123] = f64::NAN;
            values[600 + 299] = f64::NEG_INFINITY;
            values[900..1200].fill(-2.5);
            run("special", Operand::new(F32, &[4, 300], values));
            let mut values = noise(50_257, 6);
            values[50_256] = 2.0;
            run("the last", Operand::new(F32, &[1, 50_257], values.clone()));
            values[50_256] = f64::NAN;
            run("NaN at the end", Operand::new(F32, &[1, 50_257], values));
        }
    }
}

#[test]
fn gather_of_rows() {
    for d in [F32, F16, DType::I32, DType::Q4_1, DType::Q8_0, DType::Q6_K] {
        for inner in [1, 6, 32, 256] {
            if inner % d.block() != 0 {
                continue;
            }
            let rows = 19;
            let values = noise(rows * inner, 8).into_iter().map(|v| if d == DType::I32 { (v * 1e6).round() } else { v }).collect();
            let table = Operand::new(d, &[rows, inner], values);
            let pick: Vec<f64> = (0..11).map(|i| ((i * 7 + 3) % rows) as f64).collect();
            let want: Vec<f64> = pick.iter().flat_map(|&r| table.values[r as usize * inner..(r as usize + 1) * inner].to_vec()).collect();
            for index in [DType::I32, DType::U32] {
                let loads = [table.clone(), Operand::new(index, &[11], pick.clone())];
                check(&format!("gather {d} {inner}"), gather, &loads, (d.compute(), &[11, inner]), &[], &want, 1e-7);
            }
        }
    }
}
