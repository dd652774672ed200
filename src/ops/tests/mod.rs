//! The kernels on this machine's GPU against f64 arithmetic: odd sizes, element types, block formats, layouts. Skipped where there is no GPU.

pub(crate) use crate::backends::gpu::GpuBackend;
pub(crate) use crate::backends::{Backend, Bytes};
pub(crate) use crate::dtype::DType;
pub(crate) use crate::layout::Layout;
pub(crate) use crate::ops::reduce::ReduceOp;
pub(crate) use crate::plan::{AdapterInfo, Buf, Input, Kernel, Load, Output, Plan, Source, Step, Store, SubgroupSync, Task, Wgsl, Work};
pub(crate) use crate::scalar::Program;
pub(crate) use crate::shape::Shape;
pub(crate) use std::sync::{Arc, OnceLock};

use crate::device::under_test;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

mod tensors;

pub(crate) use tensors::{LIES, Lies, assert_near, assert_refused, lies_of, read, tensor, tolerance};

/// As many backends as there are tests at a time on two cores: one backend compiles one kernel at a time.
const BACKENDS: usize = 2;

/// A backend of this thread's for as long as the thread lives: the one that fewest others have.
struct Lease(usize);
static LEASES: [AtomicUsize; BACKENDS] = [const { AtomicUsize::new(0) }; BACKENDS];
thread_local! {
    static LEASE: Lease = {
        let fewest = (0..BACKENDS).min_by_key(|&n| LEASES[n].load(Relaxed)).unwrap_or(0);
        LEASES[fewest].fetch_add(1, Relaxed);
        Lease(fewest)
    };
}
impl Drop for Lease {
    fn drop(&mut self) {
        LEASES[self.0].fetch_sub(1, Relaxed);
    }
}

/// The backend under test; `None` where there is none.
pub(crate) fn backend() -> Option<&'static GpuBackend> {
    static OPEN: [OnceLock<Option<Arc<GpuBackend>>>; BACKENDS] = [const { OnceLock::new() }; BACKENDS];
    OPEN[LEASE.with(|l| l.0)].get_or_init(|| under_test::open(GpuBackend::open)).as_deref()
}

pub(crate) type Make = Box<dyn Fn(&Step, &AdapterInfo) -> Option<Wgsl> + Send + Sync>;

/// Rows and columns: a thread, a subgroup or a workgroup a row, several rows at once, rows that are held and those that are not.
pub(crate) const ROW_SHAPES: [(usize, usize); 20] = [
    (1, 1),
    (3, 7),
    (70, 6),
    (65, 32),
    (130, 8),
    (2, 64),
    (9, 100),
    (5, 768),
    (1, 576),
    (5, 1000),
    (3, 1024),
    (2, 9000),
    (2, 9001),
    (1, 12_288),
    (1, 40_000),
    (2, 50_304),
    (1, 70_000),
    (1100, 96),
    (4101, 72),
    (4097, 75),
];

/// A kernel that has a GPU form only.
pub(crate) struct OnlyGpu(pub(crate) Make);
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

/// Formats of weights that kernels are tested with in every shape: plain ones, and blocks with one scale and with scales and least values of their
/// own for parts. Kernels differ only in their reader for the others, which a few shapes show.
pub(crate) const WHOLE_FORMATS: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::Q4_0, DType::Q4_K, DType::Q6_K];

/// [`check`] for a weight in one of [`WHOLE_FORMATS`]; for the others only on the adapter as it is.
#[track_caller]
pub(crate) fn check_weights(
    name: &str,
    make: fn(&Step, &AdapterInfo) -> Option<Wgsl>,
    loads: &[Operand],
    out: (DType, &[usize]),
    want: &[f64],
    tolerance: f64,
) {
    if WHOLE_FORMATS.contains(&loads[1].dtype) {
        check(name, make, loads, out, &[], want, tolerance);
    } else {
        check_on(name, make, loads, out, &[], want, tolerance);
    }
}

/// An operand: the view that the kernel sees, and its values in row-major order of that view.
#[derive(Clone)]
pub(crate) struct Operand {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) layout: Layout,
    pub(crate) bytes: Vec<u8>,
    pub(crate) values: Vec<f64>,
}

/// Numbers that look random and are the same every time.
pub(crate) fn noise(n: usize, seed: u64) -> Vec<f64> {
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

pub(crate) fn pack(values: &[f64], dtype: DType) -> Vec<u8> {
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

pub(crate) fn unpack(bytes: &[u8], dtype: DType) -> Vec<f64> {
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
    pub(crate) fn new(dtype: DType, shape: &[usize], values: Vec<f64>) -> Operand {
        Operand::view(dtype, shape, Layout::contiguous(Shape::of(shape)), values)
    }
    /// A view of a buffer that holds `base`.
    pub(crate) fn view(dtype: DType, shape: &[usize], layout: Layout, base: Vec<f64>) -> Operand {
        let bytes = match dtype.format() {
            Some(format) if !format.is_encoded() => crate::quant::random_blocks(dtype, base.len(), 1.0, base.len() as u64).unwrap(),
            _ => pack(&base, dtype),
        };
        let stored = unpack(&bytes, dtype);
        let values = (0..layout.shape.count()).map(|i| stored[layout.at(i)]).collect();
        Operand { dtype, shape: shape.to_vec(), layout, bytes, values }
    }
    /// Elements of the view that have a new value.
    pub(crate) fn set(&mut self, value: impl Fn(usize) -> Option<f64>) {
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
    pub(crate) fn random(dtype: DType, shape: &[usize], seed: u64) -> Operand {
        Operand::new(dtype, shape, noise(shape.iter().product(), seed))
    }
    /// The same shape with its last two dimensions exchanged in memory.
    pub(crate) fn transposed(dtype: DType, shape: &[usize], seed: u64) -> Operand {
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
pub(crate) fn check(
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
pub(crate) fn check_on(
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
pub(crate) fn check_all(
    name: &str,
    make: impl Fn(&Step, &AdapterInfo) -> Option<Wgsl> + Send + Sync + 'static,
    loads: &[Operand],
    outs: &[(DType, &[usize], &[f64])],
    params: &[f64],
    tolerance: f64,
) {
    let Some(m) = backend() else { return };
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
        memory: Default::default(),
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

pub(crate) const F32: DType = DType::F32;
pub(crate) const F16: DType = DType::F16;

pub(crate) fn product(a: &Operand, b: &Operand) -> Vec<f64> {
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
