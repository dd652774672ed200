//! What a kernel is: its CPU form, its shader source, and what it may ask about the GPU.

use super::{MatrixElements, Step, Task};
use crate::dtype::DType;
use crate::tuning::SharedTuning;
use std::borrow::Cow;
use std::sync::Arc;

/// A tuned implementation of an op: a Rust function and WGSL code over the same loads and stores.
///
/// Both index an operand by its row-major position in the logical shape and never see strides or fused programs.
pub trait Kernel: Send + Sync {
    /// This thread's share of the step on the CPU. Every thread of the thread pool calls it once per run.
    fn cpu(&self, task: &dyn Task);
    /// Floating-point operations of the step, for choosing the number of threads and for `explain`.
    fn ops(&self, step: &Step) -> u64;
    /// How many bytes of load `k` the kernel reads at most, where that is less than all of it.
    fn most_read(&self, step: &Step, _k: usize) -> u64 {
        self.ops(step).saturating_mul(8)
    }
    /// Whether the CPU's form does what the GPU's does, so that the CPU may take over small work of a GPU.
    fn portable(&self) -> bool {
        true
    }
    /// The GPU kernel, or `None` if the adapter lacks a required feature.
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
    fn fuse_gemv(&self, _products: FusedGemv) -> Option<Arc<dyn Kernel>> {
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
    /// Whether the rows of right sides are those of the experts that load 2 names; what is behind it belongs to the right side before it. Such
    /// products of the same size are fused by twos, and always as `gated`.
    pub experts: bool,
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
    /// Source in Metal's shading language.
    Msl,
    /// Vulkan's binary format, as words.
    SpirV,
}

/// Source in a driver's own language.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RawSource {
    /// Metal's shading language.
    Msl(Cow<'static, str>),
    /// SPIR-V, version 1.3 or older for the drivers that there are.
    SpirV(Cow<'static, [u32]>),
}

/// A kernel's form in a driver's own language. Nothing checks or translates it.
///
/// Its bindings are the kernel's parameters as a uniform buffer (padded to whole 16 bytes), then one buffer per load, then one per store: in
/// Metal `buffer(0)`, `buffer(1)`, …, in SPIR-V the bindings of descriptor set 0.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
pub struct RawKernel {
    pub(crate) source: RawSource,
    pub(crate) entry: &'static str,
    pub(crate) workgroup: [u32; 3],
    pub(crate) grid: [u32; 3],
    pub(crate) params: Vec<KernelParam>,
    /// Whether a Metal source may meet NaN or infinity where its conditions ask for them: then it is compiled with relaxed arithmetic.
    #[cfg_attr(not(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal))), allow(dead_code))]
    pub(crate) special: bool,
}

impl RawKernel {
    /// A form with its entry point, threads of a workgroup (x, y, z), workgroups (x, y, z) and parameters.
    ///
    /// # Safety
    /// The source must be valid for its driver, declare `workgroup`, bind what the step has and touch nothing outside of it: no bounds
    /// check stands between it and the memory of the GPU.
    pub unsafe fn new(source: RawSource, entry: &'static str, workgroup: [u32; 3], grid: [u32; 3], params: Vec<KernelParam>) -> RawKernel {
        RawKernel { source, entry, workgroup, grid, params, special: true }
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

/// Properties of the GPU that kernels depend on.
#[derive(Clone, Debug, Default)]
pub struct AdapterInfo {
    /// Threads of a subgroup: 32 on NVIDIA and Apple, 8 on lavapipe; 0 if it varies or subgroup operations are missing.
    pub subgroup: u32,
    /// Whether WGSL may use f16.
    pub f16: bool,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// Threads in a workgroup at most.
    pub workgroup_threads: u32,
    /// Size of cooperative matrices (f16 inputs, f32 sums): 8, 16, or 0 if unsupported.
    pub coop: u32,
    /// Whether a cooperative matrix may be loaded through a pointer to vectors, as Vulkan allows.
    pub coop_vectors: bool,
    /// How the threads of a subgroup see what others of it left in workgroup memory.
    pub subgroup_sync: SubgroupSync,
    /// Whether memory may be declared coherent: what one workgroup writes, another reads as it is.
    pub coherent: bool,
    /// Whether four products of bytes are added up at once by one instruction; on Metal they are not.
    pub byte_dots: bool,
    /// Which elements of a matrix each lane of a subgroup holds, as a probe found it; `None` where kernels cannot name them, and on Metal, whose order is fixed.
    pub elements: Option<Arc<MatrixElements>>,
    /// Whether functions of a kernel may have a body in Metal's language beside the one in WGSL: `/* metal: NAME … */` behind it.
    pub metal_bodies: bool,
    /// Whether such bodies may use Metal 4's tensor operations.
    pub tensor_ops: bool,
    /// The language in which the driver takes kernels besides WGSL, if it takes any.
    pub raw: Option<RawLanguage>,
    /// Numbers fitted to the class of GPU.
    pub tuning: SharedTuning,
}

impl AdapterInfo {
    /// Which elements of a matrix a lane of a subgroup holds and can name (`coop_elements.wgsl`); `None` where it can name none.
    pub fn matrix_elements(&self) -> Option<Arc<MatrixElements>> {
        let metal = self.metal_bodies && self.coop == 8 && self.subgroup == 32 && self.subgroup_sync == SubgroupSync::Barrier;
        if metal { Some(Arc::new(MatrixElements::simdgroup())) } else { self.elements.clone().filter(|_| self.coop > 0) }
    }
}

/// Words of a GPU's scratch.
pub const SCRATCH_WORDS: usize = 1 << 22;

/// Words of it that are zero between dispatches.
pub const SCRATCH_COUNTERS: usize = 1 << 10;

/// A kernel's GPU form: shader source and how to launch it.
///
/// The source calls the following functions, which the generator defines. `K` is the number of a load or store; `T_K` is an alias of f32, i32
/// or u32. Indices are row-major positions in the operand's logical shape.
///
/// | function | precondition | cost |
/// |---|---|---|
/// | `load_K(i) -> T_K` | | one element |
/// | `load4_K(i) -> vec4<T_K>` | `i % 4 == 0`; `i..i+4` in one row | one access where the source allows it |
/// | `store_K(i, v)` | | one element |
/// | `store4_K(i, v)` | as `load4_K` | one access where the target and the epilogue's sources allow it |
/// | `store8_K(i, v, w)` | `i % 8 == 0`; `i..i+8` in one row | as `store4_K` |
/// | `reads4_K(i) -> Reads_K`, then `write4_K(i, v, reads)` | as `store4_K` | as `store4_K`; the epilogue's reads are issued early |
/// | `columns8_K(i) -> Columns_K`, then `write8_K(i, v, w, columns)` per row | as `store8_K`; `row_start` set | what is equal in all rows (a bias) is read once |
/// | `word(n) -> u32` | `n < params.len()`; no `struct Params` | a parameter of the kernel |
/// | `fail(code)` | | reports a bad index |
///
/// It may also use:
/// - `var<private> row_start: u32`: the start of the row of `i`, if the source declares it and sets it before each store. Values that are equal in
///   all rows are then found without a division.
/// - `scratch`: an `array<atomic<u32>>` of [`SCRATCH_WORDS`] shared by all dispatches. Its first [`SCRATCH_COUNTERS`] words are zero, and the
///   kernel must leave them zero; the rest is arbitrary. With coherent memory, `scratch4` is the same memory as a structure of
///   `counters: array<atomic<u32>, …>` and `data: array<vec4<u32>>`.
/// - `raw_K`: the buffer of a contiguous plain load, as `array<vec4<u32>>`, or `array<u32>` for block formats; `wide_K`: the same as
///   `array<vec4<u32>>`, for formats whose blocks are rows of 16 bytes.
///
/// A source reads its parameters as `p.rows` if it declares them, in order: `struct Params { rows: u32, eps: f32 }`, which the generator completes with the
/// parameters of the operands and binds as `p`. Without such a struct it reads them by number, as `word(n)`. No other variable of the module may be
/// called `p`.
#[derive(Clone, Debug)]
pub struct Wgsl {
    /// The shader source.
    pub source: Cow<'static, str>,
    /// `const` lines before the source: tile sizes and switches. They are part of the pipeline's key, so never a tensor's size.
    pub consts: Vec<(&'static str, u32)>,
    /// Threads of a workgroup; becomes `const WORKGROUP`.
    pub workgroup: u32,
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
    /// The kernel's own parameters.
    pub params: Vec<KernelParam>,
    /// Loads whose buffer the source reads directly as `raw_K`.
    pub raw: Vec<u8>,
    /// Loads that the source reads with their last two dimensions exchanged, see [`Load::transposed`](super::Load::transposed).
    pub transposed: Vec<u8>,
}

/// A parameter that a kernel reads at run time, a word of its uniform block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KernelParam {
    /// A size.
    U32(u32),
    /// A constant.
    F32(f32),
    /// The plan's parameter `n` as u32.
    ParamU32(u16),
    /// The plan's parameter `n` as the bits of an f32.
    ParamF32(u16),
}
