//! What a backend is asked to run: steps over numbered buffers. A plan knows no op and no graph, owns no memory, and prints as text.

use crate::dtype::DType;
use crate::error::{At, TensorResult};
use crate::layout::Layout;
use crate::scalar::Program;
use crate::shape::Shape;
use crate::tuning::SharedTuning;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// A buffer as a plan names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Buf {
    /// A stored tensor bound by the caller; read, or written in place where `Plan::inputs` says so.
    Input(u16),
    /// A result that outlives the run.
    Output(u16),
    /// Scratch leased for the run; several values take turns in one slot.
    Slot(u16),
    /// No memory: element k has the value k (u32).
    Iota,
}

/// Where an operand's elements lie: buffer, element type, strides over the step's iteration shape, and a start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// The buffer.
    pub buf: Buf,
    /// The type stored there.
    pub dtype: DType,
    /// Sizes and strides in elements. `layout.offset` is the constant part of the start.
    pub layout: Layout,
    /// The run-time part of the start: a parameter's index, in elements.
    pub offset: Option<u16>,
    /// Whether constant and run-time start are each known to be a multiple of 8 elements.
    pub aligned: bool,
}

/// A value that a kernel reads: element `i` (row-major in `shape`) is `program` over element `i` of each source.
#[derive(Clone, Debug)]
pub struct Load {
    /// The logical shape that the kernel sees.
    pub shape: Shape,
    /// Fused elementwise work, often the identity.
    pub program: Program,
    /// What the program reads. Each layout has as many elements as `shape`, in the same row-major order, with the fewest dimensions that say so.
    pub sources: Vec<Source>,
}

/// A value that a kernel writes: `program` over the kernel's value and the sources, rounded to the target's dtype.
#[derive(Clone, Debug)]
pub struct Store {
    /// The logical shape that the kernel sees.
    pub shape: Shape,
    /// Fused elementwise work, often just `value`.
    pub program: Program,
    /// What the program reads besides the value, as in `Load`.
    pub sources: Vec<Source>,
    /// Where results go; its layout has as many elements as `shape`, in the same order, and may be a window of a larger buffer.
    pub target: Source,
}

impl Load {
    /// The one source, when the program only passes it on.
    pub fn plain(&self) -> Option<&Source> {
        self.program.is_identity().then(|| &self.sources[0])
    }
    /// The dtype of the values.
    pub fn dtype(&self) -> DType {
        self.program.dtype()
    }
    /// The same values with the last two dimensions exchanged; `None` where a source has no layout for that.
    pub fn transposed(&self) -> Option<Load> {
        let rank = self.shape.rank();
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank.checked_sub(2)?, rank - 1);
        let turn = |s: &Source| {
            let layout = s.layout.reshape(self.shape)?.permute(&order);
            Some(Source { layout: layout.simplified(), ..s.clone() })
        };
        let sources = self.sources.iter().map(turn).collect::<Option<Vec<_>>>()?;
        Some(Load { shape: Layout::contiguous(self.shape).permute(&order).shape, program: self.program.clone(), sources })
    }
}

impl Store {
    /// Whether the kernel's value goes to row-major memory unchanged but for rounding.
    pub fn plain(&self) -> Option<&Source> {
        (self.program.is_value() && self.target.layout.is_contiguous()).then_some(&self.target)
    }
}

/// What a step does between its loads and its stores.
#[derive(Clone)]
pub enum Work {
    /// Nothing: each store's program runs over its own sources, element by element. All stores have one shape.
    Map,
    /// A kernel.
    Kernel(Arc<dyn Kernel>),
}

/// One dispatch.
#[derive(Clone)]
pub struct Step {
    /// The op that wrote it.
    pub name: &'static str,
    /// The user's line that wrote the op.
    pub at: At,
    /// What it does.
    pub work: Work,
    /// The kernel's operands.
    pub loads: Vec<Load>,
    /// The kernel's results.
    pub stores: Vec<Store>,
    /// The kernel's run-time numbers, as indices of the plan's parameters.
    pub params: Vec<u16>,
}

/// A tuned implementation of an op: a Rust function and a WGSL text over the same loads and stores.
///
/// Both index an operand by its row-major position in the logical shape and never see strides or fused programs.
pub trait Kernel: Send + Sync {
    /// This thread's share of the step on the CPU. Every thread of the thread pool calls it once per run.
    fn cpu(&self, task: &dyn Task);
    /// Floating-point operations of the step, for sizing teams and for `explain`.
    fn ops(&self, step: &Step) -> u64;
    /// Whether the CPU's form does what the GPU's does, so that the CPU may take over small work of a GPU.
    fn portable(&self) -> bool {
        true
    }
    /// The GPU form, or `None` where the adapter lacks what it needs.
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl>;
    /// A form in the driver's own language, where the adapter takes one (`adapter.raw`). It is asked for, and then run instead of the
    /// WGSL, only where every operand is stored: row-major, from its buffer's start, with nothing fused into it, and no buffer both read
    /// and written.
    fn raw(&self, _step: &Step, _adapter: &AdapterInfo) -> Option<RawKernel> {
        None
    }
    /// The products of few rows that this kernel does in the step, where a GPU can do others with them: of load 0 and the loads behind it.
    fn gemv_products(&self, _step: &Step) -> Option<FusedGemv> {
        None
    }
    /// The kernel that does these products.
    fn fuse_gemv(&self, _joined: FusedGemv) -> Option<Arc<dyn Kernel>> {
        None
    }
    /// The normalization of load 0's rows that this kernel is.
    fn normalization(&self) -> Option<Normalization> {
        None
    }
}

/// Products of few rows that share their left side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedGemv {
    /// How many.
    pub products: usize,
    /// Whether they are two of the same size, of which the second's store reads what the first's writes.
    pub gated: bool,
    /// Whether a store's program reads the other element of each pair, so that results are written in groups of four.
    pub vec4_store: bool,
    /// What is done to the left side's rows first.
    pub norm: Option<Normalization>,
    /// How the right sides are stored.
    pub kind: DType,
}

/// A normalization of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    /// Whether rows are only divided by their root mean square, not centred.
    pub rms: bool,
    /// Added to the variance.
    pub eps: f64,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether there is a bias.
    pub bias: bool,
}

/// A language that a driver takes as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RawLanguage {
    /// Metal's shading language, as text.
    Msl,
    /// Vulkan's binary format, as words.
    SpirV,
}

/// A text in a driver's own language.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RawSource {
    /// Metal's shading language.
    Msl(Cow<'static, str>),
    /// SPIR-V, version 1.3 or older for the drivers that there are.
    SpirV(Cow<'static, [u32]>),
}

/// A kernel's form in a driver's own language. Nothing checks or translates it.
///
/// Its bindings are the kernel's words as a uniform buffer (padded to whole 16 bytes), then one buffer per load, then one per store: in
/// Metal `buffer(0)`, `buffer(1)`, …, in SPIR-V the bindings of descriptor set 0.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
pub struct RawKernel {
    pub(crate) source: RawSource,
    pub(crate) entry: &'static str,
    pub(crate) workgroup: [u32; 3],
    pub(crate) grid: [u32; 3],
    pub(crate) words: Vec<Word>,
}

impl RawKernel {
    /// A form with its entry point, threads of a workgroup (x, y, z), workgroups (x, y, z) and words.
    ///
    /// # Safety
    /// The source must be valid for its driver, declare `workgroup`, bind what the step has and touch nothing outside of it: no bounds
    /// check stands between it and the memory of the GPU.
    pub unsafe fn new(source: RawSource, entry: &'static str, workgroup: [u32; 3], grid: [u32; 3], words: Vec<Word>) -> RawKernel {
        RawKernel { source, entry, workgroup, grid, words }
    }
}

/// How the threads of a subgroup wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SubgroupSync {
    /// Only the whole workgroup can wait.
    #[default]
    None,
    /// By a barrier of their own.
    Barrier,
    /// They need not: they are one vector, whose accesses are in order.
    Lockstep,
}

/// What a kernel may ask about the GPU.
#[derive(Clone, Debug, Default)]
pub struct AdapterInfo {
    /// Threads that run in lockstep: 32 on NVIDIA and Apple, 8 on lavapipe; 0 where it varies or subgroup operations are missing.
    pub subgroup: u32,
    /// Whether WGSL may use f16.
    pub f16: bool,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// Threads in a workgroup at most.
    pub workgroup_threads: u32,
    /// Edge of cooperative matrices (f16 inputs, f32 sums): 8, 16, or 0 where there are none.
    pub coop: u32,
    /// Whether a cooperative matrix may be loaded through a pointer to vectors, as Vulkan allows.
    pub coop_vectors: bool,
    /// How the threads of a subgroup see what others of it left in workgroup memory.
    pub subgroup_sync: SubgroupSync,
    /// Whether memory may be declared coherent: what one workgroup writes, another reads as it is.
    pub coherent: bool,
    /// Whether four products of bytes are added up at once by one instruction; on Metal they are not.
    pub byte_dots: bool,
    /// The language in which the driver takes kernels besides WGSL, if it takes any.
    pub raw: Option<RawLanguage>,
    /// Numbers fitted to the class of GPU.
    pub tuning: SharedTuning,
}

/// Words of a GPU's scratch.
pub const SCRATCH_WORDS: usize = 1 << 22;
/// Words of it that are zero between dispatches.
pub const SCRATCH_COUNTERS: usize = 1 << 10;

/// A kernel's GPU form.
///
/// The text calls, and does not define: `load_K(i: u32) -> T_K` and `load4_K(i: u32) -> vec4<T_K>` for load K (`alias T_K` is f32, i32 or
/// u32; `load4` wants `i % 4 == 0` and elements `i..i+4` of one row), `store_K(i, v)`, `store4_K(i, v)` and `store8_K(i, v, w)` for store K
/// (eight want `i % 8 == 0` and `i..i+8` of one row, and are one access where the target, and what they are combined with, allow it),
/// `word(n) -> u32` for its own numbers and `fail(code: u32)` for a bad index. What stands between the lines `// default` and `// end` in a `.wgsl` file is a stand-in that
/// makes the file valid alone; the generator replaces it. Instead of `store4_K` a text may call `reads4_K(i) -> Reads_K`, early, and
/// `write4_K(i, v, reads)` when it has the value. Instead of `store8_K` it may call `columns8_K(i) -> Columns_K` for what eight columns are combined
/// with in every row, with i of any row and `row_start` of the same, and `write8_K(i, v, w, columns)` for each row.
/// A text may keep the start of the row that `i` belongs to in a `var<private> row_start: u32`, set before each such call for a store: what is the
/// same in all rows is then found without a division.
/// A text that reads `scratch` gets an `array<atomic<u32>>` of [`SCRATCH_WORDS`] that all dispatches share: its first
/// [`SCRATCH_COUNTERS`] words are zero, and the text leaves them zero; the rest is arbitrary. On an adapter with coherent memory `scratch4` is the
/// same as a structure of `counters: array<atomic<u32>, …>` and `data: array<vec4<u32>>`.
/// For a load that is plain and contiguous, `raw_K` is its buffer as `array<vec4<u32>>`, or `array<u32>` for block formats, and `wide_K` the
/// same as `array<vec4<u32>>`, for formats whose blocks are rows of 16 bytes.
#[derive(Clone, Debug)]
pub struct Wgsl {
    /// The kernel's text.
    pub source: Cow<'static, str>,
    /// `const` lines put before the text: tile sizes and switches, part of the pipeline's key, never a tensor's size.
    pub consts: Vec<(&'static str, u32)>,
    /// Threads of a workgroup; becomes `const WORKGROUP`.
    pub workgroup: u32,
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
    /// The kernel's own numbers.
    pub words: Vec<Word>,
    /// Loads whose buffer the text reads itself as `raw_K`.
    pub raw: Vec<u8>,
    /// Loads that the text reads with their last two dimensions exchanged, see [`Load::transposed`].
    pub transposed: Vec<u8>,
}

/// A number that a kernel reads at run time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Word {
    /// A size.
    U32(u32),
    /// A constant.
    F32(f32),
    /// The plan's parameter `n` as u32.
    ParamU32(u16),
    /// The plan's parameter `n` as the bits of an f32.
    ParamF32(u16),
}

/// Values in the type a program computes in.
pub enum SliceMut<'a> {
    /// f32, f16, bf16 and block formats.
    F32(&'a mut [f32]),
    /// f64.
    F64(&'a mut [f64]),
    /// i32, i8, u8.
    I32(&'a mut [i32]),
    /// u32 and bool.
    U32(&'a mut [u32]),
    /// i64.
    I64(&'a mut [i64]),
}

/// Rust types that programs compute in.
pub trait Value: Copy + Default + Send + Sync + PartialOrd + 'static {
    /// The slice as a `SliceMut`.
    fn slice_mut(v: &mut [Self]) -> SliceMut<'_>;
}
macro_rules! value {
    ($($t:ty = $v:ident),*) => { $(impl Value for $t { fn slice_mut(v: &mut [Self]) -> SliceMut<'_> { SliceMut::$v(v) } })* };
}
value!(f32 = F32, f64 = F64, i32 = I32, u32 = U32, i64 = I64);

/// Memory of a plain operand on the CPU.
#[derive(Clone, Copy)]
pub struct Raw {
    /// The first byte of the buffer.
    pub ptr: *mut u8,
    /// Bytes in the buffer.
    pub len: usize,
    /// The first element, constant and run-time part together.
    pub offset: usize,
}

/// One thread's view of a step on the CPU.
pub trait Task {
    /// The step.
    fn step(&self) -> &Step;
    /// This thread's number.
    fn thread(&self) -> usize;
    /// Threads that run this step.
    fn threads(&self) -> usize;
    /// Waits until every thread of the step is here.
    fn barrier(&self);
    /// Elements `start..start + out.len()` of load `k`. The lane must be of the load's compute type.
    fn load(&self, k: usize, start: usize, out: SliceMut<'_>);
    /// Writes elements `start..` of store `k`; the values are used as scratch.
    fn store(&self, k: usize, start: usize, values: SliceMut<'_>);
    /// Memory of load `k`'s source 0.
    fn raw_load(&self, k: usize) -> Raw;
    /// Memory of store `k`'s target.
    fn raw_store(&self, k: usize) -> Raw;
    /// The kernel's `n`-th run-time number.
    fn param(&self, n: usize) -> f64;
    /// Scratch of this thread, at least `bytes` long and 64-byte aligned; its content is arbitrary. One piece per call of the kernel.
    #[allow(clippy::mut_from_ref)] // each call gives other memory
    fn scratch(&self, bytes: usize) -> &mut [u8];
    /// Scratch shared by the threads of the step: the same `bytes` for all, 64-byte aligned.
    fn shared(&self, bytes: usize) -> *mut u8;
    /// Reports an index outside its dimension; the run goes on and its read-back gives the error.
    fn fail(&self, index: i64, size: usize);
}

/// What the caller binds as an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The stored type.
    pub dtype: DType,
    /// Whether the plan writes into it.
    pub written: bool,
}

/// What a run leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The stored type.
    pub dtype: DType,
    /// Its size in bytes.
    pub bytes: usize,
}

/// Steps in order, with the buffers they use.
pub struct Plan {
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// Stored tensors that the caller binds.
    pub inputs: Vec<Input>,
    /// Results.
    pub outputs: Vec<Output>,
    /// Bytes of each slot.
    pub slots: Vec<usize>,
    /// How many run-time parameters the caller gives.
    pub params: usize,
}

/// How much a plan has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkCost {
    /// Dispatches.
    pub steps: usize,
    /// Elements that are read, written or computed on the way, once for each scalar instruction.
    pub elements: u64,
    /// Floating-point operations of kernels.
    pub ops: u64,
    /// Whether some kernel has no CPU form.
    pub device_only: bool,
}

impl Plan {
    /// How much there is to do.
    pub fn amount(&self) -> WorkCost {
        let mut a = WorkCost { steps: self.steps.len(), ..WorkCost::default() };
        for s in &self.steps {
            let cells = |shape: &Shape, p: &Program| shape.count() as u64 * p.insts.len().max(1) as u64;
            a.elements += s.loads.iter().map(|l| cells(&l.shape, &l.program)).sum::<u64>();
            a.elements += s.stores.iter().map(|st| cells(&st.shape, &st.program)).sum::<u64>();
            if let Work::Kernel(k) = &s.work {
                a.ops = a.ops.saturating_add(k.ops(s));
                a.device_only |= !k.portable();
            }
        }
        a
    }
    /// The first step that writes to a buffer.
    pub fn writer(&self, buf: Buf) -> Option<&Step> {
        self.steps.iter().find(|s| s.stores.iter().any(|st| st.target.buf == buf))
    }
}

impl Source {
    /// Bytes that are read or written at least: each distinct element once.
    pub fn distinct_bytes(&self) -> u64 {
        let l = &self.layout;
        let count: usize = l.shape.iter().zip(l.strides()).map(|(&d, &s)| if s == 0 { d.min(1) } else { d }).product();
        if self.buf == Buf::Iota { 0 } else { (count / self.dtype.block() * self.dtype.block_bytes()) as u64 }
    }
}

impl Step {
    /// Bytes that the step has to move between memory and the processor: every operand once, results included. A table of which only a
    /// part is read counts with what the operations can use.
    pub fn bytes(&self) -> u64 {
        let mut seen: Vec<&Source> = Vec::new();
        let most = match &self.work {
            Work::Kernel(k) => k.ops(self).saturating_mul(8),
            Work::Map => u64::MAX,
        };
        let (loads, stores) = (self.loads.iter().map(|l| (&l.sources, most)), self.stores.iter().map(|s| (&s.sources, u64::MAX)));
        let mut bytes = 0;
        for (s, most) in loads.chain(stores).flat_map(|(list, most)| list.iter().map(move |s| (s, most))) {
            if !seen.contains(&s) {
                seen.push(s);
                bytes += s.distinct_bytes().min(most);
            }
        }
        bytes + self.stores.iter().map(|s| s.target.distinct_bytes()).sum::<u64>()
    }

    /// Arithmetic operations: the kernel's, and those of fused programs, once an element.
    pub fn operations(&self) -> u64 {
        let own = match &self.work {
            Work::Kernel(k) => k.ops(self),
            Work::Map => 0,
        };
        let loads = self.loads.iter().map(|l| l.shape.count() * l.program.arithmetic());
        let stores = self.stores.iter().map(|s| s.shape.count() * s.program.arithmetic());
        own + loads.chain(stores).sum::<usize>() as u64
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, s) in self.steps.iter().enumerate() {
            write!(f, "%{n} = {}", s.name)?;
            for (i, l) in s.loads.iter().enumerate() {
                write!(f, "{}{}", if i > 0 { " · " } else { " " }, ProgramOver(&l.program, &l.sources, &l.shape))?;
            }
            for st in &s.stores {
                match &s.work {
                    Work::Map => write!(f, " {}", ProgramOver(&st.program, &st.sources, &st.shape))?,
                    Work::Kernel(_) if st.program.is_value() => {}
                    Work::Kernel(_) => write!(f, " → {}", ProgramOver(&st.program, &st.sources, &st.shape))?,
                }
                write!(f, " ⇒ {} {}{}", Name(st.target.buf), st.target.dtype, st.shape)?;
            }
            writeln!(f)?;
        }
        write!(f, "{} dispatch{}", self.steps.len(), if self.steps.len() == 1 { "" } else { "es" })?;
        if !self.slots.is_empty() {
            write!(
                f,
                ", {} slot{} of {} bytes",
                self.slots.len(),
                if self.slots.len() == 1 { "" } else { "s" },
                self.slots.iter().sum::<usize>()
            )?;
        }
        writeln!(f)
    }
}

struct Name(Buf);
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Buf::Input(n) => write!(f, "in{n}"),
            Buf::Output(n) => write!(f, "out{n}"),
            Buf::Slot(n) => write!(f, "slot{n}"),
            Buf::Iota => f.write_str("iota"),
        }
    }
}

struct ProgramOver<'a>(&'a Program, &'a [Source], &'a Shape);
impl fmt::Display for ProgramOver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        for (i, s) in self.1.iter().enumerate().rev() {
            text =
                text.replace(&format!("s{i}"), &format!("{}:{}{}", Name(s.buf), s.dtype, if s.layout.is_contiguous() { "" } else { "'" }));
        }
        write!(f, "{text} {}", self.2)
    }
}

/// How finely runs are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Each run as a whole: it runs as it always does.
    Runs,
    /// Every step.
    Steps,
}

/// When a run happened and its steps with it.
#[derive(Clone)]
pub struct RunTimes {
    /// What ran.
    pub plan: Arc<Plan>,
    /// When the host began to submit it and when it was done with that.
    pub host: [std::time::Instant; 2],
    /// Start and end of the run in seconds on the machine's own clock; `None` where it has none.
    pub run: Option<[f64; 2]>,
    /// The same for each step; `None` where it was not measured or had nothing to do.
    pub steps: Vec<Option<[f64; 2]>>,
}

/// A device's memory as the engine counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes held by tensors, weights and running plans.
    pub in_use: usize,
    /// The most that `in_use` has been.
    pub peak: usize,
    /// Bytes kept in the pool for reuse.
    pub pooled: usize,
    /// Buffers asked for.
    pub requests: u64,
    /// Requests that the pool served.
    pub reused: u64,
}

/// What a device moved between the host's memory and its own, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferStats {
    /// Values brought to the device.
    pub uploads: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Writes of staging memory; many small uploads share one.
    pub staging_writes: u64,
    /// Writes straight into memory that host and device share.
    pub in_place_writes: u64,
    /// Values brought to the host.
    pub downloads: u64,
    /// Their bytes.
    pub downloaded_bytes: u64,
    /// Reads straight from memory that host and device share.
    pub in_place_reads: u64,
}

/// Kernels that a device compiled since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineStats {
    /// How many.
    pub pipelines: usize,
    /// Seconds spent on it.
    pub seconds: f64,
    /// How many of them an earlier process had compiled already.
    pub found: usize,
    /// The file that keeps them for the next process; `None` where none does.
    pub file: Option<std::path::PathBuf>,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Where work on values in host memory is faster: measured times, in seconds, of this GPU and this CPU.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct FallbackModel {
    /// A tiny computation on the GPU, from values in host memory to the result in host memory.
    pub round_trip: f64,
    /// The same without waiting for the result.
    pub submit: f64,
    /// The same on the CPU, to the result.
    pub host: f64,
    /// One element through one scalar instruction on the CPU.
    pub host_element: f64,
    /// One floating-point operation of a matrix product on the CPU.
    pub host_op: f64,
}

impl FallbackModel {
    /// The time that the CPU would take.
    pub fn host_seconds(&self, work: &WorkCost) -> f64 {
        self.host + work.elements as f64 * self.host_element + work.ops as f64 * self.host_op
    }
    /// Elements of one elementwise operation up to which the CPU has the result sooner than the way to the GPU and back takes.
    pub fn elements(&self) -> u64 {
        ((self.round_trip - self.host) / self.host_element).max(0.0) as u64
    }
}

/// Where the memory of a tensor lies, and who sees it. Metal's words; what each means depends on the API.
///
/// | | CPU | Metal | Vulkan, DX12 |
/// |---|---|---|---|
/// | `Shared` | host memory | a buffer that both sides see (`MTLStorageModeShared`): no copy for a read | host-visible memory that kernels use directly, where the adapter offers it (`MAPPABLE_PRIMARY_BUFFERS`); else `Private` |
/// | `Private` | host memory | a buffer that only the GPU sees; transfers go through staging memory | device-local memory; transfers go through staging memory |
/// | `Managed` | host memory | as on Vulkan: Metal's own managed mode exists on Intel Macs only, and wgpu does not offer it | a copy on either side: reads are served by the host's, and the device's is made when a kernel first needs it |
///
/// The default is `Shared` where the memory is unified and the CPU reads it through its caches (Apple GPUs, software drivers), else `Private`.
/// Other integrated GPUs may map device memory uncached, where reading in place can be slower than staging: ask for `Shared` there when
/// measuring says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageMode {
    /// Host and device see the same memory.
    Shared,
    /// Only the device sees it.
    Private,
    /// A copy on either side, kept equal.
    Managed,
}

/// A result whose meaning needs the device: kept here so that layers above need not know how.
pub type RunResult = TensorResult<()>;

/// Hashes what plans are found by: keys that are hashes already, and addresses.
#[derive(Clone, Copy, Default)]
pub(crate) struct IdentityHasher(u64);

impl std::hash::BuildHasher for IdentityHasher {
    type Hasher = IdentityHasher;
    fn build_hasher(&self) -> IdentityHasher {
        *self
    }
}

impl std::hash::Hasher for IdentityHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(b as u64));
    }
    fn write_u64(&mut self, x: u64) {
        // Addresses differ in their middle bits, and a table looks at the lowest and the highest.
        let wide = (self.0 ^ x) as u128 * 0x9E37_79B9_7F4A_7C15;
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }
    fn write_usize(&mut self, x: usize) {
        self.write_u64(x as u64);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
