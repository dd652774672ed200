//! The backend against f64 arithmetic on the host: layouts, dtypes, primitives, windows, kernels. Skipped where there is no GPU.

use super::*;
use crate::device::under_test;
use crate::layout::Layout;
use crate::plan::{Buf, Input, Kernel, KernelParam, Load, Output, Source, Step, Store, Task, Wgsl, Work};
use crate::scalar::{Binary, Inst, Prim, Program, Reg, Unary, philox};
use crate::shape::Shape;
use std::sync::{MutexGuard, OnceLock};

mod chains;
mod defragment;
mod downloads;
pub(crate) mod events;
mod primitives;

const ALL: [DType; 8] = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::I8, DType::U8, DType::Bool];

/// A backend that no other test uses meanwhile, since tests count submits and errors; `None` where there is none.
fn backend() -> Option<MutexGuard<'static, Arc<GpuBackend>>> {
    // Two, so that two tests run at a time.
    static OPEN: [OnceLock<Option<Mutex<Arc<GpuBackend>>>>; 2] = [const { OnceLock::new() }; 2];
    let of = |n: usize| OPEN[n].get_or_init(|| under_test::open(GpuBackend::open).map(Mutex::new)).as_ref();
    let free = (0..OPEN.len()).find_map(|n| of(n)?.try_lock().ok());
    free.or_else(|| of(0).map(|m| lock(m)))
}

fn encode(values: &[f64], d: DType) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&v| match d {
            DType::F32 => (v as f32).to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f64(v).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f64(v).to_le_bytes().to_vec(),
            DType::I32 => (v as i64 as i32).to_le_bytes().to_vec(),
            DType::U32 => (v as i64 as u32).to_le_bytes().to_vec(),
            DType::I8 => vec![v as i64 as i8 as u8],
            DType::U8 => vec![v as i64 as u8],
            _ => vec![(v != 0.0) as u8],
        })
        .collect()
}

fn decode(bytes: &[u8], d: DType) -> Vec<f64> {
    bytes
        .chunks_exact(d.block_bytes())
        .map(|b| match d {
            DType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64,
            DType::F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f64(),
            DType::BF16 => half::bf16::from_le_bytes([b[0], b[1]]).to_f64(),
            DType::I32 => i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64,
            DType::U32 => u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64,
            DType::I8 => b[0] as i8 as f64,
            _ => b[0] as f64,
        })
        .collect()
}

/// Values that every dtype can hold exactly, different from element to element.
fn sample(n: usize, d: DType) -> Vec<f64> {
    (0..n)
        .map(|i| {
            let v = ((i * 37 + 11) % 127) as f64;
            match d {
                DType::Bool => (v as i64 % 3 == 0) as u8 as f64,
                DType::U8 | DType::U32 => v,
                DType::I8 | DType::I32 => v - 63.0,
                _ => v / 8.0 - 7.0,
            }
        })
        .collect()
}

/// The bytes of a read, once they have arrived.
fn taken(read: PendingRead) -> Vec<u8> {
    let mut bytes = vec![0; read.len];
    (read.wait)(&mut bytes).unwrap();
    bytes
}

fn upload(m: &GpuBackend, bytes: Vec<u8>) -> Buffer {
    // On the device at once, unlike small values of tensors.
    m.upload_as(Bytes::Owned(Arc::new(bytes)), m.default_mode()).unwrap()
}

fn source(buf: Buf, dtype: DType, layout: Layout) -> Source {
    Source { buf, dtype, layout: layout.simplified(), offset: None, aligned: false }
}

fn flat(buf: Buf, dtype: DType, n: usize) -> Source {
    source(buf, dtype, Layout::contiguous(Shape::of(&[n])))
}

fn step(work: Work, loads: Vec<Load>, stores: Vec<Store>) -> Step {
    Step { name: "test", at: std::panic::Location::caller(), work, loads, stores, params: vec![] }
}

/// Runs steps over these inputs, with outputs that hold 0xAA before; gives every output's bytes.
fn run(
    m: &GpuBackend,
    steps: Vec<Step>,
    inputs: Vec<(DType, Vec<u8>)>,
    outputs: Vec<(DType, usize)>,
    slots: Vec<usize>,
    params: &[f64],
) -> TensorResult<Vec<Vec<u8>>> {
    let plan = Arc::new(Plan {
        steps,
        inputs: inputs.iter().map(|i| Input { dtype: i.0, written: false }).collect(),
        outputs: outputs.iter().map(|o| Output { dtype: o.0, bytes: o.1 }).collect(),
        slots,
        params: params.len(),
        memory: Default::default(),
    });
    let inputs: Vec<Buffer> = inputs.into_iter().map(|i| upload(m, i.1)).collect();
    let targets: Vec<Buffer> = outputs.iter().map(|o| upload(m, vec![0xAA; o.1])).collect();
    m.run(&plan, &inputs, &targets, params)?;
    outputs
        .iter()
        .zip(&targets)
        .map(|(o, t)| {
            let mut bytes = vec![0; o.1];
            m.read(t, 0, &mut bytes).map(|()| bytes)
        })
        .collect()
}

fn inst(op: Prim, args: &[Reg], dtype: DType) -> Inst {
    let mut a = [0; 3];
    a[..args.len()].copy_from_slice(args);
    Inst { op, args: a, dtype }
}

fn program(insts: &[Inst]) -> Program {
    Program { insts: insts.iter().copied().collect() }
}

fn map(shape: Shape, program: Program, sources: Vec<Source>, target: Source) -> Step {
    step(Work::Map, vec![], vec![Store { shape, program, sources, target }])
}

/// Layouts over a base buffer: name, the base's element count, the view.
fn layouts() -> Vec<(&'static str, usize, Layout)> {
    let c = |d: &[usize]| Layout::contiguous(Shape::of(d));
    vec![
        ("one", 1, c(&[1])),
        ("odd", 7, c(&[7])),
        ("even", 10, c(&[2, 5])),
        ("quads", 64, c(&[4, 16])),
        ("many", 3001, c(&[3001])),
        ("several quads a thread", (1 << 20) + 1027, c(&[(1 << 20) + 1027])),
        ("shifted", 40, c(&[40]).slice(0, 3, 29, 1)),
        ("shifted by 4", 40, c(&[40]).slice(0, 4, 32, 1)),
        ("transposed", 8 * 12, c(&[8, 12]).permute(&[1, 0])),
        ("transposed, odd", 7 * 5, c(&[7, 5]).permute(&[1, 0])),
        ("rank 4", 2 * 3 * 4 * 8, c(&[2, 3, 4, 8]).permute(&[2, 0, 1, 3])),
        ("rank 4, odd", 2 * 3 * 4 * 7, c(&[2, 3, 4, 7]).permute(&[3, 1, 0, 2])),
        ("transposed, tiled", 100 * 76, c(&[100, 76]).permute(&[1, 0])),
        ("rank 4, tiled", 3 * 5 * 40 * 36, c(&[3, 36, 5, 40]).permute(&[0, 3, 2, 1])),
        ("columns", 6 * 16, c(&[6, 16]).slice(1, 4, 8, 1)),
        ("columns, odd", 6 * 15, c(&[6, 15]).slice(1, 3, 7, 1)),
        ("every second", 50, c(&[50]).slice(0, 1, 24, 2)),
        ("backwards", 24, c(&[24]).slice(0, 23, 24, -1)),
        ("row repeated", 8, c(&[8]).broadcast_to(Shape::of(&[5, 8]))),
        ("row repeated, odd", 7, c(&[7]).broadcast_to(Shape::of(&[5, 7]))),
        ("column repeated", 5, c(&[5, 1]).broadcast_to(Shape::of(&[5, 8]))),
        ("column repeated, odd", 5, c(&[5, 1]).broadcast_to(Shape::of(&[5, 9]))),
        ("scalar", 1, c(&[1]).broadcast_to(Shape::of(&[33]))),
    ]
}

#[test]
fn copies_of_every_dtype_and_layout() {
    let Some(m) = backend() else { return };
    copies(&m);
}

fn copies(m: &GpuBackend) {
    for d in ALL {
        for (name, base, layout) in layouts() {
            let values = sample(base, d);
            let n = layout.shape.count();
            let want: Vec<f64> = (0..n).map(|i| values[layout.at(i)]).collect();
            let step = map(layout.shape, Program::identity(d), vec![source(Buf::Input(0), d, layout)], flat(Buf::Output(0), d, n));
            let got = run(m, vec![step], vec![(d, encode(&values, d))], vec![(d, n * d.block_bytes())], vec![], &[]).unwrap();
            assert_eq!(decode(&got[0], d), want, "{d} {name}");
        }
    }
}

#[test]
fn windows_leave_their_neighbours_alone() {
    let Some(m) = backend() else { return };
    let m = &**m;
    for d in ALL {
        for (name, base, layout) in layouts() {
            if layout.strides().contains(&0) {
                continue;
            }
            let n = layout.shape.count();
            let values = sample(n, d);
            let mut want = vec![0xAA; (base + 5) * d.block_bytes()];
            let b = d.block_bytes();
            for (i, bytes) in encode(&values, d).chunks(b).enumerate() {
                want[layout.at(i) * b..layout.at(i) * b + b].copy_from_slice(bytes);
            }
            let step = map(layout.shape, Program::identity(d), vec![flat(Buf::Input(0), d, n)], source(Buf::Output(0), d, layout));
            let got = run(m, vec![step], vec![(d, encode(&values, d))], vec![(d, want.len())], vec![], &[]).unwrap();
            assert_eq!(got[0], want, "{d} {name}");
        }
    }
}

#[test]
fn starts_given_at_run_time() {
    let Some(m) = backend() else { return };
    let m = &**m;
    for d in ALL {
        for (start, to, n) in [(0, 0, 5), (4, 8, 8), (3, 1, 9), (6, 4, 16)] {
            let values = sample(32, d);
            let mut s = flat(Buf::Input(0), d, n);
            s.offset = Some(0);
            let mut t = flat(Buf::Output(0), d, n);
            t.offset = Some(1);
            t.layout.offset = 2;
            let got = run(
                m,
                vec![map(Shape::of(&[n]), Program::identity(d), vec![s], t)],
                vec![(d, encode(&values, d))],
                vec![(d, 40 * d.block_bytes())],
                vec![],
                &[start as f64, to as f64],
            )
            .unwrap();
            let mut want = vec![0xAA; 40 * d.block_bytes()];
            let b = d.block_bytes();
            want[(to + 2) * b..(to + 2 + n) * b].copy_from_slice(&encode(&values[start..start + n], d));
            assert_eq!(got[0], want, "{d} from {start} to {to}");
        }
    }
}

#[test]
fn iota_and_philox() {
    let Some(m) = backend() else { return };
    let m = &**m;
    for n in [5, 64, 1003] {
        let p = program(&[
            inst(Prim::Source(0), &[], DType::U32),
            inst(Prim::Param(0), &[], DType::U32),
            inst(Prim::Lit(77f64.to_bits()), &[], DType::U32),
            inst(Prim::Philox, &[0, 1, 2], DType::U32),
        ]);
        let s = map(Shape::of(&[n]), p, vec![flat(Buf::Iota, DType::U32, n)], flat(Buf::Output(0), DType::U32, n));
        let got = run(m, vec![s], vec![], vec![(DType::U32, 4 * n)], vec![], &[4294967290.0]).unwrap();
        let want: Vec<u8> = (0..n as u32).flat_map(|k| philox(k, 4294967290, 77).to_le_bytes()).collect();
        assert_eq!(got[0], want, "{n} numbers");
    }
    // A grid of coordinates: i32 from a broadcast counter.
    let l = Layout::contiguous(Shape::of(&[6])).broadcast_to(Shape::of(&[3, 6]));
    let s = map(
        Shape::of(&[3, 6]),
        Program::identity(DType::U32),
        vec![source(Buf::Iota, DType::U32, l)],
        flat(Buf::Output(0), DType::I32, 18),
    );
    let got = run(m, vec![s], vec![], vec![(DType::I32, 72)], vec![], &[]).unwrap();
    assert_eq!(decode(&got[0], DType::I32), (0..18).map(|i| (i % 6) as f64).collect::<Vec<_>>());
}

#[test]
fn several_stores_slots_and_writing_in_place() {
    let Some(m) = backend() else { return };
    let m = &**m;
    for d in [DType::F32, DType::F16, DType::U8] {
        for n in [9, 16] {
            let two = |op| program(&[inst(Prim::Source(0), &[], d), inst(Prim::Source(1), &[], d), inst(Prim::Binary(op), &[0, 1], d)]);
            let s = |buf| flat(buf, d, n);
            let store = |op, a, b, t| Store { shape: Shape::of(&[n]), program: two(op), sources: vec![s(a), s(b)], target: s(t) };
            let (a, b) = (Buf::Input(0), Buf::Input(1));
            // slot = a + b, out1 = a · b in one dispatch; a += slot in place; out0 = a.
            let steps = vec![
                step(Work::Map, vec![], vec![store(Binary::Add, a, b, Buf::Slot(0)), store(Binary::Mul, a, b, Buf::Output(1))]),
                step(Work::Map, vec![], vec![store(Binary::Add, a, Buf::Slot(0), a)]),
                map(Shape::of(&[n]), Program::identity(d), vec![s(a)], s(Buf::Output(0))),
            ];
            let (x, y): (Vec<f64>, Vec<f64>) = ((0..n).map(|i| i as f64).collect(), (0..n).map(|i| (i % 5) as f64).collect());
            let bytes = n * d.block_bytes();
            let before = m.submits();
            let got = run(m, steps, vec![(d, encode(&x, d)), (d, encode(&y, d))], vec![(d, bytes), (d, bytes)], vec![bytes], &[]).unwrap();
            assert_eq!(m.submits() - before, 1);
            assert_eq!(decode(&got[0], d), x.iter().zip(&y).map(|(x, y)| 2.0 * x + y).collect::<Vec<_>>(), "{d}");
            assert_eq!(decode(&got[1], d), x.iter().zip(&y).map(|(x, y)| x * y).collect::<Vec<_>>(), "{d}");
        }
    }
}

/// A kernel of its own source, for tests.
struct SourceKernel {
    source: &'static str,
    params: Vec<KernelParam>,
    grid: [u32; 3],
    raw: Vec<u8>,
}
impl Kernel for SourceKernel {
    fn cpu(&self, _: &dyn Task) {}
    fn ops(&self, _: &Step) -> u64 {
        1
    }
    fn wgsl(&self, _: &Step, _: &AdapterInfo) -> Option<Wgsl> {
        Some(Wgsl {
            source: self.source.into(),
            consts: vec![],
            workgroup: 32,
            grid: self.grid,
            params: self.params.clone(),
            raw: self.raw.clone(),
            transposed: vec![],
        })
    }
}

const ROW_SUM: &str = "
var<workgroup> part: array<T_0, WORKGROUP>;
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.x + group.y * groups.x;
  let cols = word(1u);
  var sum = T_0(0);
  if row < word(0u) {
    for (var c = lane; c < cols; c += WORKGROUP) {
      sum += load_0(row * cols + c);
    }
  }
  part[lane] = sum;
  workgroupBarrier();
  for (var s = WORKGROUP / 2u; s > 0u; s = s / 2u) {
    if lane < s {
      part[lane] += part[lane + s];
    }
    workgroupBarrier();
  }
  if lane == 0u && row < word(0u) {
    store_0(row, part[0]);
  }
}
";

#[test]
fn kernels_with_fused_loads_and_stores() {
    let Some(m) = backend() else { return };
    let m = &**m;
    for d in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8] {
        for (rows, cols) in [(1, 5), (7, 33), (70000, 3)] {
            let c = d.compute();
            // Σ over columns of a transposed view of (x + x), then · 2 + bias[row].
            let l = Layout::contiguous(Shape::of(&[cols, rows])).permute(&[1, 0]);
            let load = Load {
                shape: Shape::of(&[rows, cols]),
                program: program(&[inst(Prim::Source(0), &[], d), inst(Prim::Cast, &[0], c), inst(Prim::Binary(Binary::Add), &[1, 1], c)]),
                sources: vec![source(Buf::Input(0), d, l)],
            };
            let store = Store {
                shape: Shape::of(&[rows]),
                program: program(&[
                    inst(Prim::Value, &[], c),
                    inst(Prim::Source(0), &[], c),
                    inst(Prim::Param(0), &[], c),
                    inst(Prim::Binary(Binary::Mul), &[0, 2], c),
                    inst(Prim::Binary(Binary::Add), &[3, 1], c),
                    inst(Prim::Cast, &[4], d),
                ]),
                sources: vec![flat(Buf::Input(1), c, rows)],
                target: flat(Buf::Output(0), d, rows),
            };
            let kernel = SourceKernel {
                source: ROW_SUM,
                params: vec![KernelParam::U32(rows as u32), KernelParam::U32(cols as u32)],
                grid: [rows as u32, 1, 1],
                raw: vec![],
            };
            let x: Vec<f64> = sample(rows * cols, d);
            let bias: Vec<f64> = (0..rows).map(|r| (r % 3) as f64).collect();
            let s = step(Work::Kernel(Arc::new(kernel)), vec![load], vec![store]);
            let got = run(m, vec![s], vec![(d, encode(&x, d)), (c, encode(&bias, c))], vec![(d, rows * d.block_bytes())], vec![], &[2.0])
                .unwrap();
            let want: Vec<f64> = (0..rows).map(|r| (0..cols).map(|k| 2.0 * x[k * rows + r]).sum::<f64>() * 2.0 + bias[r]).collect();
            assert_eq!(decode(&got[0], d), decode(&encode(&want, d), d), "{d} [{rows}, {cols}]");
        }
    }
}

#[test]
fn bad_indices_are_reported_with_the_line() {
    let Some(m) = backend() else { return };
    let m = &**m;
    let source = "
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
  if lane < word(0u) {
    let i = load_0(lane);
    if i < 0 || i >= 4 { fail(bitcast<u32>(i)); }
    store_0(lane, i);
  }
}
";
    for (bad, ok) in [(3, true), (-9, false), (2, true)] {
        let kernel = SourceKernel { source, params: vec![KernelParam::U32(3)], grid: [1, 1, 1], raw: vec![] };
        let load =
            Load { shape: Shape::of(&[3]), program: Program::identity(DType::I32), sources: vec![flat(Buf::Input(0), DType::I32, 3)] };
        let store = Store {
            shape: Shape::of(&[3]),
            program: Program::value(DType::I32),
            sources: vec![],
            target: flat(Buf::Output(0), DType::I32, 3),
        };
        let s = step(Work::Kernel(Arc::new(kernel)), vec![load], vec![store]);
        let line = s.at.line();
        let r = run(m, vec![s], vec![(DType::I32, encode(&[1.0, bad as f64, 2.0], DType::I32))], vec![(DType::I32, 12)], vec![], &[]);
        match r {
            Ok(_) => assert!(ok, "index {bad} was not reported"),
            Err(TensorError::Index { op, message, at }) => {
                assert!(!ok && op == "test" && at.line() == line && message.contains("-9"), "{op} {message}");
            }
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn raw_buffers() {
    let Some(m) = backend() else { return };
    let m = &**m;
    let source = "
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
  if lane < word(0u) {
    let q = bitcast<vec4<f32>>(raw_0[lane]);
    store4_0(lane * 4u, q + load4_0(lane * 4u));
  }
}
";
    for d in [DType::F32, DType::F16] {
        let kernel = SourceKernel { source, params: vec![KernelParam::U32(5)], grid: [1, 1, 1], raw: vec![0] };
        let load =
            Load { shape: Shape::of(&[20]), program: Program::identity(DType::F32), sources: vec![flat(Buf::Input(0), DType::F32, 20)] };
        let store =
            Store { shape: Shape::of(&[20]), program: Program::value(DType::F32), sources: vec![], target: flat(Buf::Output(0), d, 20) };
        let x = sample(20, DType::F32);
        let s = step(Work::Kernel(Arc::new(kernel)), vec![load], vec![store]);
        let got = run(m, vec![s], vec![(DType::F32, encode(&x, DType::F32))], vec![(d, 20 * d.block_bytes())], vec![], &[]).unwrap();
        assert_eq!(decode(&got[0], d), x.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
    }
}

#[test]
fn repeated_runs_share_pipelines_and_memory() {
    let Some(m) = backend() else { return };
    let m = &**m;
    let p = |n: usize| {
        let s = map(
            Shape::of(&[n]),
            Program::identity(DType::F32),
            vec![flat(Buf::Input(0), DType::F32, n)],
            flat(Buf::Slot(0), DType::F32, n),
        );
        let t = map(
            Shape::of(&[n]),
            Program::identity(DType::F32),
            vec![flat(Buf::Slot(0), DType::F32, n)],
            flat(Buf::Output(0), DType::F32, n),
        );
        Arc::new(Plan {
            steps: vec![s, t],
            inputs: vec![Input { dtype: DType::F32, written: false }],
            outputs: vec![Output { dtype: DType::F32, bytes: 4 * n }],
            slots: vec![4 * n],
            params: 0,
            memory: Default::default(),
        })
    };
    let (small, large) = (p(400), p(40000));
    let input = upload(m, encode(&sample(40000, DType::F32), DType::F32));
    m.run(&small, std::slice::from_ref(&input), &[m.alloc(1600).unwrap()], &[]).unwrap();
    for _ in 0..5 {
        let out = m.alloc(160000).unwrap();
        m.run(&large, std::slice::from_ref(&input), std::slice::from_ref(&out), &[]).unwrap();
        let mut got = vec![0; 160000];
        m.read(&out, 0, &mut got).unwrap();
        assert_eq!(decode(&got, DType::F32), sample(40000, DType::F32));
        // A part from the middle, at an odd byte.
        let mut part = vec![0; 10];
        m.read(&out, 1001, &mut part).unwrap();
        assert_eq!(part, got[1001..1011]);
    }
    assert!(input.is_unique() && !input.clone().is_unique());
}

#[test]
fn impossible_requests_are_errors() {
    let Some(m) = backend() else { return };
    let m = &**m;
    assert!(matches!(m.alloc(1 << 44), Err(TensorError::OutOfMemory { .. })));
    let kernel = SourceKernel { source: "fn main( {", params: vec![], grid: [1, 1, 1], raw: vec![] };
    let store =
        Store { shape: Shape::of(&[3]), program: Program::value(DType::I32), sources: vec![], target: flat(Buf::Output(0), DType::I32, 3) };
    let s = step(Work::Kernel(Arc::new(kernel)), vec![], vec![store]);
    let e = run(m, vec![s], vec![], vec![(DType::I32, 12)], vec![], &[]).unwrap_err();
    assert!(matches!(e, TensorError::Unsupported(_)), "{e}");
    for bad in ["gpu:x", "cuda", "vulkan:99"] {
        assert!(matches!(GpuBackend::open(bad), Err(TensorError::UnsupportedDevice(_))), "{bad}");
    }
    assert!(!m.supports(DType::F64) && m.supports(DType::Q4_K));
}

#[test]
fn block_formats_by_element() {
    let Some(m) = backend() else { return };
    let m = &**m;
    for d in DType::BLOCKS {
        let (rows, cols) = (5, 256);
        let bytes = crate::quant::random_blocks(d, rows * cols, 13.0, 1).unwrap();
        let mut want = vec![0.0; rows * cols];
        crate::quant::dequantize(d, &bytes, &mut want).unwrap();
        for (name, layout) in [
            ("whole", Layout::contiguous(Shape::of(&[rows * cols]))),
            ("last rows", Layout::contiguous(Shape::of(&[rows, cols])).slice(0, 2, 3, 1)),
            ("transposed", Layout::contiguous(Shape::of(&[rows, cols])).permute(&[1, 0])),
        ] {
            let n = layout.shape.count();
            let step = map(layout.shape, Program::identity(d), vec![source(Buf::Input(0), d, layout)], flat(Buf::Output(0), DType::F32, n));
            let got = run(m, vec![step], vec![(d, bytes.clone())], vec![(DType::F32, 4 * n)], vec![], &[]).unwrap();
            for (i, g) in decode(&got[0], DType::F32).iter().enumerate() {
                let w = want[layout.at(i)] as f64;
                assert!((g - w).abs() <= 3e-6 * w.abs().max(1.0), "{d} {name}: element {i} is {g}, not {w}");
            }
        }
    }
}

const QUADS_AND_REST: &str = "
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
  let n = word(0u);
  for (var i = lane * 4u; i < n; i += WORKGROUP * 4u) {
    if i + 4u <= n {
      store4_0(i, load4_0(i) + load4_1(i));
    } else {
      for (var k = i; k < n; k++) {
        store_0(k, load_0(k) + load_1(k));
      }
    }
  }
}
";

fn quads_and_rest(m: &GpuBackend) {
    for d in [DType::F32, DType::F16, DType::U8] {
        for (n, start) in [(64, 0), (203, 0), (50, 4), (50, 3)] {
            let mut target = flat(Buf::Output(0), d, n);
            target.layout.offset = start;
            let load = |k| Load { shape: Shape::of(&[n]), program: Program::identity(d), sources: vec![flat(Buf::Input(k), d, n)] };
            let store = Store { shape: Shape::of(&[n]), program: Program::value(d.compute()), sources: vec![], target };
            let kernel = SourceKernel { source: QUADS_AND_REST, params: vec![KernelParam::U32(n as u32)], grid: [1, 1, 1], raw: vec![] };
            let s = step(Work::Kernel(Arc::new(kernel)), vec![load(0), load(1)], vec![store]);
            let x = sample(n, d);
            let b = d.block_bytes();
            let inputs = vec![(d, encode(&x, d)), (d, encode(&x, d))];
            let got = run(m, vec![s], inputs, vec![(d, (n + 7) * b)], vec![], &[]).unwrap();
            let sums: Vec<f64> = x.iter().map(|x| 2.0 * x).collect();
            let mut want = vec![0xAA; (n + 7) * b];
            want[start * b..(start + n) * b].copy_from_slice(&encode(&sums, d));
            assert_eq!(got[0], want, "{d} {n} from {start}");
        }
    }
}

#[test]
fn kernels_that_store_quads_and_single_elements() {
    let Some(m) = backend() else { return };
    quads_and_rest(&m);
}

/// A backend like the tests' own, with less to offer.
fn lesser(max_bindings: usize, soft_f16: bool) -> Option<GpuBackend> {
    drop(backend()?);
    let mut core = Core::new(under_test::open(|selector| adapter::open(selector, None))?);
    let c = Arc::get_mut(&mut core).unwrap();
    c.max_bindings = max_bindings;
    c.set_quirks(DriverQuirks { soft_f16, ..Default::default() });
    Some(GpuBackend { core, runner: Default::default(), spare: Default::default(), staging: Default::default() })
}

#[test]
fn few_bindings_and_f16_by_integers() {
    let Some(m) = lesser(3, true) else { return };
    copies(&m);
    quads_and_rest(&m);
    let rounds = probes::rounds_f16(&|plan, values, quirks| m.probe(plan, values, quirks), m.core.quirks());
    assert!(rounds.unwrap(), "packing by integers does not round as IEEE says");
    let n = 8;
    let sum = program(&[
        inst(Prim::Source(0), &[], DType::F32),
        inst(Prim::Source(1), &[], DType::F32),
        inst(Prim::Binary(Binary::Add), &[0, 1], DType::F32),
    ]);
    let sources = (0..3).map(|k| flat(Buf::Input(k), DType::F32, n)).collect();
    let s = map(Shape::of(&[n]), sum, sources, flat(Buf::Output(0), DType::F32, n));
    let inputs = vec![(DType::F32, vec![0; 4 * n]); 3];
    assert!(matches!(run(&m, vec![s], inputs, vec![(DType::F32, 4 * n)], vec![], &[]), Err(TensorError::Unsupported(_))));
}

#[test]
fn a_lost_device_says_so_in_every_call() {
    let Some(m) = lesser(8, false) else { return };
    let x = upload(&m, vec![1; 64]);
    m.core.driver.device.destroy();
    for _ in 0..2 {
        let mut out = [0; 64];
        let e = m.read(&x, 0, &mut out).unwrap_err();
        assert!(matches!(e, TensorError::DeviceLost(_)), "{e}");
        assert!(matches!(m.alloc(64), Err(TensorError::DeviceLost(_))));
        assert!(matches!(m.synchronize(), Err(TensorError::DeviceLost(_))));
        let s = map(
            Shape::of(&[16]),
            Program::identity(DType::F32),
            vec![flat(Buf::Input(0), DType::F32, 16)],
            flat(Buf::Input(0), DType::F32, 16),
        );
        let plan = Arc::new(Plan {
            steps: vec![s],
            inputs: vec![Input { dtype: DType::F32, written: true }],
            outputs: vec![],
            slots: vec![],
            params: 0,
            memory: Default::default(),
        });
        assert!(matches!(m.run(&plan, std::slice::from_ref(&x), &[], &[]), Err(TensorError::DeviceLost(_))));
    }
}

#[test]
fn steps_are_timed_on_the_gpu() {
    let Some(m) = backend() else { return };
    let copy =
        |n: usize, from, to| map(Shape::of(&[n]), Program::identity(DType::F32), vec![flat(from, DType::F32, n)], flat(to, DType::F32, n));
    // Enough that a fast GPU's way to a step is short beside it.
    let n = 1 << 23;
    let steps =
        vec![copy(n, Buf::Input(0), Buf::Output(0)), copy(0, Buf::Input(0), Buf::Output(0)), copy(16, Buf::Input(0), Buf::Output(0))];
    let plan = Arc::new(Plan {
        steps,
        inputs: vec![Input { dtype: DType::F32, written: false }],
        outputs: vec![Output { dtype: DType::F32, bytes: 4 * n }],
        slots: vec![],
        params: 0,
        memory: Default::default(),
    });
    let x = upload(&m, vec![1; 4 * n]);
    let y = m.alloc(4 * n).unwrap();
    for detail in [Timing::Steps, Timing::Runs] {
        m.start_timing(detail).unwrap();
        assert!(m.start_timing(detail).is_err(), "timing began twice");
        for _ in 0..7 {
            m.run(&plan, std::slice::from_ref(&x), std::slice::from_ref(&y), &[]).unwrap();
        }
        let runs = m.finish_timing().unwrap();
        assert_eq!(runs.len(), 7);
        let mut least = [f64::INFINITY; 2];
        for r in &runs {
            let Some(whole) = r.run else {
                assert!(!m.core.driver.device.features().contains(wgpu::Features::TIMESTAMP_QUERY));
                continue;
            };
            assert!(whole[1] > whole[0] && whole[1] < 10.0, "{whole:?}");
            let seconds: Vec<Option<f64>> = r.steps.iter().map(|s| s.map(|[a, b]| b - a)).collect();
            match detail {
                Timing::Steps => {
                    assert!(seconds[1].is_none(), "a step of no elements is not run");
                    least = [least[0].min(seconds[0].unwrap()), least[1].min(seconds[2].unwrap())];
                }
                Timing::Runs => assert!(seconds.iter().all(Option::is_none)),
            }
        }
        // Eight mebi of elements take longer than sixteen, whatever else the machine does.
        assert!(detail == Timing::Runs || least[0].is_infinite() || least[0] > least[1], "{least:?}");
        assert!(runs.windows(2).all(|w| w[0].run.is_none() || w[0].run.unwrap()[0] <= w[1].run.unwrap()[0]), "runs are out of order");
    }
    assert!(m.finish_timing().unwrap().is_empty());
}

#[test]
fn compiled_kernels_are_kept_between_backends() {
    let folder = std::env::temp_dir().join(format!("tl-kept-{}", std::process::id()));
    // Runs two kernels on a backend that keeps them under `folder`; gives how many it made, how many were found, and the file.
    let once = |folder: &std::path::Path| {
        let mut m = lesser(8, false)?;
        Arc::get_mut(&mut m.core)?.kept_in = Some(folder.to_path_buf());
        let x = sample(100, DType::F32);
        let double = program(&[inst(Prim::Source(0), &[], DType::F32), inst(Prim::Binary(Binary::Add), &[0, 0], DType::F32)]);
        for (p, factor) in [(Program::identity(DType::F32), 1.0), (double, 2.0)] {
            let s = map(Shape::of(&[100]), p, vec![flat(Buf::Input(0), DType::F32, 100)], flat(Buf::Output(0), DType::F32, 100));
            let got = run(&m, vec![s], vec![(DType::F32, encode(&x, DType::F32))], vec![(DType::F32, 400)], vec![], &[]).unwrap();
            assert_eq!(decode(&got[0], DType::F32), x.iter().map(|v| v * factor).collect::<Vec<_>>());
        }
        Some(m.pipeline_stats())
    };
    let Some(first) = once(&folder) else { return };
    let check = |what: &str, found: usize| {
        let s = once(&folder).unwrap();
        assert_eq!((s.pipelines, s.found, s.file), (first.pipelines, found, first.file.clone()), "{what}");
        assert!(s.bytes > 0, "{what}: there is no file afterwards");
    };
    let Some(file) = first.file.clone() else {
        assert!(!lesser(8, false).unwrap().core.driver.device.features().contains(wgpu::Features::PIPELINE_CACHE));
        return;
    };
    assert!(first.pipelines == 2 && first.found == 0 && first.bytes > 0 && file.starts_with(&folder), "{first:?}");
    check("a second start", 2);
    let whole = std::fs::read(&file).unwrap();
    for (what, bytes) in
        [("damaged", [&whole[..50], &[0xAA; 50][..]].concat()), ("cut", whole[..whole.len() / 2].to_vec()), ("empty", vec![])]
    {
        std::fs::write(&file, bytes).unwrap();
        check(what, 0);
        check("the start after that", 2);
    }
    // No folder can be made inside of a file: as on a disk that is full or must not be written, everything runs, and nothing is kept.
    let s = once(&file).unwrap();
    assert_eq!((s.pipelines, s.found, s.bytes), (2, 0, 0));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn small_results_are_written_where_the_host_reads_them() {
    let Some(m) = lesser(8, false) else { return };
    m.set_default_mode(StorageMode::Private);
    let x = upload(&m, encode(&sample(1000, DType::F32), DType::F32));
    let copy = |n: usize| {
        let step = map(
            Shape::of(&[n]),
            Program::identity(DType::F32),
            vec![flat(Buf::Input(0), DType::F32, n)],
            flat(Buf::Output(0), DType::F32, n),
        );
        let inputs = vec![Input { dtype: DType::F32, written: false }];
        Arc::new(Plan {
            steps: vec![step],
            inputs,
            outputs: vec![Output { dtype: DType::F32, bytes: 4 * n }],
            slots: vec![],
            params: 0,
            memory: Default::default(),
        })
    };
    // Through the result's own memory, or with a copy at the end of the same commands; in either case one submit.
    for (n, in_place) in [(1, 1), (7, 1), (256, 1), (257, 0), (1000, 0)] {
        let plan = copy(n);
        let (reads, submits) = (m.transfers().in_place_reads, m.submits());
        for _ in 0..3 {
            let out = m.alloc_result(4 * n, DType::F32).unwrap();
            m.defer_submit();
            m.run(&plan, std::slice::from_ref(&x), std::slice::from_ref(&out), &[]).unwrap();
            let mut got = vec![0; 4 * n];
            m.read(&out, 0, &mut got).unwrap();
            assert_eq!(decode(&got, DType::F32), sample(1000, DType::F32)[..n], "{n} elements");
            // Read again, and used by the next run.
            let next = m.alloc(4 * n).unwrap();
            m.run(&plan, &[out], std::slice::from_ref(&next), &[]).unwrap();
            m.read(&next, 0, &mut got).unwrap();
            assert_eq!(decode(&got, DType::F32), sample(1000, DType::F32)[..n], "{n} elements, used again");
        }
        let shared = m.core.memory.can_share() as u64;
        assert_eq!((m.transfers().in_place_reads - reads, m.submits() - submits), (3 * in_place * shared, 6), "{n} elements");
    }
    let narrow = m.alloc_result(2, DType::F16).unwrap();
    assert_eq!(m.mode(&narrow), StorageMode::Private, "elements that share words");
}
