//! The simplest kernels there are, to measure what a machine can do: copy, read, multiply and add.

use crate::backends::cpu::{probe, share};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, KernelParam, Step, Task, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Key, Lowered, Meta, Op, Tensor};
use smallvec::smallvec;
use std::panic::Location;
use std::sync::Arc;

/// What a probe does to its f32 input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Writes it elsewhere, on a GPU so many rows of four elements a thread: four move large tensors best, one starts sooner.
    Copy { quads: u32 },
    /// Adds it up: on the CPU all of it, on a GPU each thread its share.
    Read,
    /// Multiplies and adds in registers, beginning with an element.
    Fma,
    /// Multiplies and adds matrices of f16 in the registers of matrix units of this edge, by so many threads together.
    Matrix { edge: u32, lanes: u32 },
}

/// Threads of a workgroup.
const WORKGROUP: u32 = 256;
/// Turns of the loop of multiplications on a GPU, each of 8 quads.
const FMA_ITERATIONS: u32 = 256;
/// Turns of the loop of matrix products, each of [`MATRIX_SUMS`].
const MATRIX_ITERATIONS: u32 = 256;
/// Sums of products of matrices that a group of threads has.
const MATRIX_SUMS: u32 = 8;
/// Turns of it on a CPU.
const CPU_TURNS: usize = 1 << 16;

impl Probe {
    /// Threads on a GPU for `n` elements.
    pub fn threads(self, n: usize) -> usize {
        match self {
            Probe::Copy { quads } => n.div_ceil(4 * quads as usize),
            Probe::Read => (n / 64).clamp(WORKGROUP as usize, 1024 * WORKGROUP as usize),
            Probe::Fma => 1024 * WORKGROUP as usize,
            Probe::Matrix { .. } => (n / 4) * WORKGROUP as usize,
        }
    }
    /// What each thread of a matrix probe over `x` adds up.
    pub fn matrix_sum(edge: u32, x: f64) -> f64 {
        (MATRIX_SUMS * MATRIX_ITERATIONS * edge) as f64 * x * x
    }
    /// Floating-point operations.
    pub fn operations(self, n: usize, cpu: bool) -> u64 {
        match self {
            Probe::Copy { .. } => 0,
            Probe::Read => n as u64,
            Probe::Fma if cpu => (probe::width() * 2 * CPU_TURNS * crate::backends::cpu::threads()) as u64,
            Probe::Fma => self.threads(n) as u64 * FMA_ITERATIONS as u64 * 8 * 4 * 2,
            Probe::Matrix { edge, lanes } => {
                (self.threads(n) as u64 / lanes as u64) * (MATRIX_ITERATIONS * MATRIX_SUMS) as u64 * 2 * (edge as u64).pow(3)
            }
        }
    }
    /// The probe of a tensor of `f32[n]`, a power of two: on a GPU from 4096 on.
    pub fn of(self, x: &Tensor) -> TensorResult<Tensor> {
        let n = match self {
            Probe::Copy { .. } => x.numel(),
            _ => self.threads(x.numel()),
        };
        let meta = Meta { dtype: DType::F32, shape: Shape::of(&[n]) };
        Tensor::op1(self, smallvec![x.clone()], smallvec![], meta, Location::caller())
    }
}

impl Op for Probe {
    fn name(&self) -> &'static str {
        match self {
            Probe::Copy { .. } => "probe copy",
            Probe::Read => "probe read",
            Probe::Fma => "probe fma",
            Probe::Matrix { .. } => "probe matrix",
        }
    }
    fn key(&self, key: &mut Key) {
        let [kind, edge, lanes] = match *self {
            Probe::Copy { quads } => [0, quads as u64, 0],
            Probe::Read => [1, 0, 0],
            Probe::Fma => [2, 0, 0],
            Probe::Matrix { edge, lanes } => [3, edge as u64, lanes as u64],
        };
        key.word(kind).word(edge).word(lanes);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let whole = |m: &Meta| (0, Layout::contiguous(m.shape), m.shape);
        Lowered::Kernel { kernel: Arc::new(*self), loads: vec![whole(&inputs[0])], stores: vec![whole(&outputs[0])] }
    }
}

/// What stands before the main function of a matrix probe, and its body: six matrices of one number, whose eight products are added up.
fn matrix_code(edge: u32, lanes: u32) -> [String; 2] {
    let (size, subgroups) = (edge * edge, WORKGROUP / lanes);
    let (mat, sum) = (format!("coop_mat{edge}x{edge}<f16"), format!("coop_mat{edge}x{edge}<f32, C>"));
    let before = format!(
        "enable f16;
enable wgpu_cooperative_matrix;
var<workgroup> halves: array<f16, {}>;
var<workgroup> staging: array<f32, {}>;
",
        6 * size,
        subgroups * size
    );
    let mut body = format!(
        "  let x = f16(load_0(min(0u, last)));
  for (var i = lid; i < {}u; i += WORKGROUP) {{ halves[i] = x; }}
  workgroupBarrier();
",
        6 * size
    );
    for n in 0..4 {
        body += &format!("  let a{n} = coopLoadT<{mat}, A>>(&halves[{}u], {edge}u);\n", n * size);
    }
    for n in 0..2 {
        body += &format!("  let b{n} = coopLoad<{mat}, B>>(&halves[{}u], {edge}u);\n", (4 + n) * size);
    }
    let each = |f: &dyn Fn(u32) -> String| (0..MATRIX_SUMS).map(f).collect::<String>();
    body += &each(&|n| format!("  var s{n} = {sum}();\n"));
    let product = |n| format!("    s{n} = coopMultiplyAdd(a{}, b{}, s{n});\n", n / 2, n % 2);
    body += &format!(
        "  for (var i = 0u; i < p.turns; i++) {{\n{}  }}\n  let start = lid / {lanes}u * {size}u;\n  var total = 0.0;\n",
        each(&product)
    );
    let add = |n| {
        format!(
            "  coopStoreT(s{n}, &staging[start], {edge}u);\n  workgroupBarrier();\n  total += staging[start + lid % {lanes}u];\n  workgroupBarrier();\n"
        )
    };
    body += &each(&add);
    body += "  store_0(group * WORKGROUP + lid, total);";
    [before, body]
}

/// The body of a copy: all loads of a thread before its stores.
fn copy_code(quads: u32) -> String {
    let at = |n: u32| if n == 0 { "at".into() } else { format!("at + {}u * WORKGROUP", 4 * n) };
    let mut body = format!("  let at = 4u * (group * {quads}u * WORKGROUP + lid);\n");
    for n in 0..quads {
        body += &format!("  let x{n} = load4_0(min({}, last));\n", at(n));
    }
    for n in 0..quads {
        body += &format!("  if ({0} <= last) {{ store4_0({0}, x{n}); }}\n", at(n));
    }
    body
}

impl Kernel for Probe {
    fn cpu(&self, task: &dyn Task) {
        let n = task.step().loads[0].shape.count();
        let (from, to) = (task.raw_load(0), task.raw_store(0));
        let range = share(n, 4096, task.thread(), task.threads());
        // SAFETY: the harness gives whole, row-major f32 tensors, and threads take ranges apart from each other.
        let x = unsafe { std::slice::from_raw_parts(from.ptr.cast::<f32>().add(from.offset + range.start), range.len()) };
        match self {
            Probe::Copy { .. } => {
                // SAFETY: as above; the result is as large as the operand and apart from it.
                unsafe { probe::copy(x, to.ptr.cast::<f32>().add(to.offset + range.start), 8 * n) };
            }
            // A CPU is not asked for the rate of matrix units: it has none that it tells of.
            Probe::Read | Probe::Fma | Probe::Matrix { .. } => {
                let parts = task.shared(8 * task.threads()).cast::<f64>();
                let own = if *self == Probe::Read { probe::sum(x) } else { probe::chains(x.first().copied().unwrap_or(1.0), CPU_TURNS) };
                // SAFETY: a place for each thread, written by it alone and read after the barrier.
                unsafe { *parts.add(task.thread()) = own };
                task.barrier();
                if task.thread() == 0 {
                    // Chains are as long for each thread, however many of them there are at the moment.
                    let share = if *self == Probe::Read { 1.0 } else { 1.0 / task.threads() as f64 };
                    // SAFETY: as above; the result has an element.
                    unsafe {
                        *to.ptr.cast::<f32>().add(to.offset) = ((0..task.threads()).map(|t| *parts.add(t)).sum::<f64>() * share) as f32
                    };
                }
            }
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        match self {
            // As many threads as a step of this size gets: waking others takes longer than moving a few bytes.
            Probe::Copy { .. } | Probe::Read => step.loads[0].shape.count() as u64,
            // All threads.
            Probe::Fma | Probe::Matrix { .. } => self.operations(step.loads[0].shape.count(), true).max(1 << 30),
        }
    }
    fn wgsl(&self, step: &Step, _: &AdapterInfo) -> Option<Wgsl> {
        let n = step.loads[0].shape.count();
        let threads = self.threads(n);
        let matrix = if let Probe::Matrix { edge, lanes } = *self { matrix_code(edge, lanes) } else { Default::default() };
        let copy = if let Probe::Copy { quads } = *self { copy_code(quads) } else { String::new() };
        let body = match self {
            Probe::Matrix { .. } => &matrix[1],
            Probe::Copy { .. } => &copy,
            Probe::Read => {
                "  let threads = p.threads;
  let thread = group * WORKGROUP + lid;
  var a = vec4<f32>(); var b = vec4<f32>();
  var at = 4u * thread;
  for (; at + 12u * threads <= last; at += 16u * threads) {
    let x0 = load4_0(at); let x1 = load4_0(at + 4u * threads); let x2 = load4_0(at + 8u * threads); let x3 = load4_0(at + 12u * threads);
    a += x0 + x1; b += x2 + x3;
  }
  for (; at <= last; at += 4u * threads) { a += load4_0(at); }
  a += b;
  if (thread < threads) { store_0(thread, (a.x + a.y) + (a.z + a.w)); }"
            }
            Probe::Fma => {
                "  let m = vec4<f32>(load_0(0u)) * 0.99999994; let c = vec4<f32>(f32(lid) * 0.0);
  var a = m + c; var b = m + c; var d = m + c; var e = m + c; var f = m + c; var g = m + c; var h = m + c; var k = m + c;
  for (var i = 0u; i < p.turns; i++) {
    a = fma(a, m, c); b = fma(b, m, c); d = fma(d, m, c); e = fma(e, m, c);
    f = fma(f, m, c); g = fma(g, m, c); h = fma(h, m, c); k = fma(k, m, c);
  }
  let s = ((a + b) + (d + e)) + ((f + g) + (h + k));
  store_0(group * WORKGROUP + lid, (s.x + s.y) + (s.z + s.w));"
            }
        };
        let source = format!(
            "{}struct Params {{ elements: u32, threads: u32, turns: u32 }}
@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {{
  let group = wid.y * groups.x + wid.x; let last = p.elements - 4u;
{body}
}}\n",
            matrix[0]
        );
        let turns = if matches!(self, Probe::Matrix { .. }) { MATRIX_ITERATIONS } else { FMA_ITERATIONS };
        let params = [n, threads, turns as usize].map(|n| KernelParam::U32(n as u32)).to_vec();
        let grid = [threads.div_ceil(WORKGROUP as usize) as u32, 1, 1];
        Some(Wgsl { source: source.into(), consts: vec![], workgroup: WORKGROUP, grid, params, raw: vec![], transposed: vec![] })
    }
}
